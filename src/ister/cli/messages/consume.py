"""`ister consume`: messages of a topic as lines on stdout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

import typer

from ister.base import is_wildcard
from ister.base.errors import BadRequestError, BusyError, TopicNotFoundError
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.rows import VerboseOption, message_row, verbose_line
from ister.cli.console.terminal import (
    EXIT_INTERRUPTED,
    JsonOption,
    flush,
    json_line,
    parse_pairs,
    run,
    say,
    write,
)
from ister.cli.console.values import PLACE_HELP, parse_place, parse_span_option
from ister.client import (
    Client,
    Event,
    Message,
    PolicyName,
    Promoted,
    SlowConsumer,
    Subscription,
    SubscriptionTypeName,
)

# Messages taken at once: few enough that `--count` and Ctrl-C act soon, and lines appear soon.
FETCH_COUNT = 4_096


SubscriptionOption = Annotated[
    str | None,
    typer.Option(
        "--subscription", "-s", help="Its name; one that ends with this command unless given."
    ),
]
StartOption = Annotated[
    str, typer.Option(metavar="PLACE", help=f"Of a new one on a stream: {PLACE_HELP}")
]
NoAckOption = Annotated[
    bool, typer.Option("--no-ack", help="Acknowledge nothing: others get it all again.")
]
TypeOption = Annotated[
    str | None,
    typer.Option(help="exclusive (a new one unless given), shared, failover or key_shared."),
]
PolicyOption = Annotated[
    str | None, typer.Option(help="Of shared: least_loaded, round_robin or random.")
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=GLOB", help="Only messages with such an attribute. Repeatable."),
]
KeyFilterOption = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only messages with such a key. Repeatable."),
]
ExpireAfterOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="It ends after so long without consumers, as 7d; 0: never."),
]
WorkQueuesOption = Annotated[
    bool,
    typer.Option("--work-queues", help="Have a pattern cover work queues, which it passes by."),
]
CountOption = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="End after this many messages.")
]
IdleOption = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="SECONDS", help="End when no message came for this long."),
]


def consume(
    topic: Annotated[str, topic_argument("As /default/orders, or a pattern: /default/a.>")],
    url: UrlOption = URL,
    subscription: SubscriptionOption = None,
    start: StartOption = "latest",
    no_ack: NoAckOption = False,
    type: TypeOption = None,
    policy: PolicyOption = None,
    filter: FilterOption = None,
    key_filter: KeyFilterOption = None,
    work_queues: WorkQueuesOption = False,
    expire_after: ExpireAfterOption = None,
    count: CountOption = None,
    timeout: IdleOption = None,
    consumer: Annotated[str | None, typer.Option(help="Name of this consumer.")] = None,
    verbose: VerboseOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No words on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a topic, which must exist, one per line, from now on.

    On a stream, each message is acknowledged once it is printed. A subscription with a name
    stays and goes on where it was the next time; to only look at what a stream has, `ister read`.

    With --verbose each line is topic, offset, key and payload, with tabs between; the key is - for
    a message without one. With --json each line is an object: topic, partition, offset, key,
    attributes, id, publish_time, producer, attempt, and payload (text) or payload_base64 (when it
    is no UTF-8).

    \b
    Examples:
      ister consume /default/hello
      ister consume /default/orders --subscription billing --start earliest
      ister consume '/default/orders.>' --json | jq .payload
      ister consume /default/jobs --subscription workers --type shared
      ister consume /default/orders --filter 'region=eu-*' --count 10 --timeout 5
    """
    filters = parse_pairs(filter or (), "--filter")
    place = parse_place(start, "--start")
    asked_type, asked_policy = parse_type(type), parse_policy(policy)
    expire_s = parse_span_option(expire_after, "--expire-after")
    output = _Output(
        as_json=as_json,
        verbose=verbose,
        quiet=quiet,
        acks=not no_ack,
        count=count,
        timeout_s=timeout,
    )

    def subscribe(client: Client) -> Subscription:
        return client.subscribe(
            topic,
            subscription,
            type=asked_type,
            start=place,
            policy=asked_policy,
            consumer=consumer,
            filters=filters or None,
            key_filters=key_filter,
            work_queues=work_queues,
            expire_after=expire_s,
            on_event=None if quiet else _tell,
        )

    # Without an end of its own, Ctrl-C is how this command ends well.
    endless = count is None and timeout is None
    main = _receive_all(url, topic, subscribe, output)
    run(main, interrupt_code=0 if endless else EXIT_INTERRUPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """How messages are shown, whether that acknowledges them, and when it ends."""

    as_json: bool
    verbose: bool
    quiet: bool
    acks: bool
    count: int | None
    timeout_s: float | None


async def _receive_all(
    url: str, topic: str, subscribe: Callable[[Client], Subscription], output: _Output
) -> None:
    async with connect(url) as client:
        sub = subscribe(client)
        await _check_exists(client, topic)
        try:
            await sub.open()
            if not output.quiet:
                say(f"listening on {topic} as {sub.name}; Ctrl-C ends")
            await _print_all(sub, output)
        finally:
            # A closed pipe or `--no-ack` says nothing against a message: no attempt counts.
            await sub.close(release=True)


async def _check_exists(client: Client, topic: str) -> None:
    # Subscribing would create it, as a live topic: a misspelt name would wait for ever.
    if not is_wildcard(topic) and not await client.topics(topic):
        raise TopicNotFoundError(topic)


async def _print_all(sub: Subscription, output: _Output) -> None:
    count = left = output.count
    while left is None or left > 0:
        messages = await sub.fetch(min(FETCH_COUNT, left or FETCH_COUNT), timeout=output.timeout_s)
        if not messages:
            break
        write(b"".join(_lines(messages, output)))
        flush()
        if output.acks:
            # After the flush: whoever reads our stdout has them, or they come again.
            for message in messages:
                await message.ack()
        if left is not None:
            left -= len(messages)
    if left and count is not None:
        came = f"{count - left:,} of {count:,} messages came"
        say(f"ister: {came}, then none for {output.timeout_s:g} s")
        raise typer.Exit(BusyError.exit_code)


def _lines(messages: Sequence[Message], output: _Output) -> list[bytes]:
    if output.as_json:
        return [json_line(message_row(one)) for one in messages]
    if output.verbose:
        return [verbose_line(one.topic, one.offset, one.key, one.payload) for one in messages]
    return [message.payload + b"\n" for message in messages]


def _tell(event: Event) -> None:
    if isinstance(event, SlowConsumer):
        say(f"too slow: {event.dropped:,} messages were dropped so far")
    elif isinstance(event, Promoted):
        say("promoted: this consumer is the active one now")
    else:
        say("reconnected: what live topics were sent in between is lost")


def parse_type(word: str | None) -> SubscriptionTypeName | None:
    """Return `--type`, if it is there."""
    if word is not None and word not in get_args(SubscriptionTypeName):
        words = ", ".join(get_args(SubscriptionTypeName))
        raise BadRequestError(f"--type {word!r} is not one of {words}")
    return word  # type: ignore[return-value]  # checked the line above


def parse_policy(word: str | None) -> PolicyName | None:
    """Return `--policy`, if it is there."""
    if word is not None and word not in get_args(PolicyName):
        raise BadRequestError(f"--policy {word!r} is not one of {', '.join(get_args(PolicyName))}")
    return word  # type: ignore[return-value]  # checked the line above
