"""`ister consume`: messages of a topic as lines on stdout."""

import base64
import secrets
from typing import Annotated, get_args

import typer

from ister.base.errors import BadRequestError, BusyError
from ister.cli.terminal import (
    EXIT_INTERRUPTED,
    URL,
    JsonOption,
    UrlOption,
    flush,
    json_line,
    parse_pairs,
    run,
    say,
    write,
)
from ister.client import (
    Event,
    Message,
    PolicyName,
    Promoted,
    SlowConsumer,
    Subscription,
    SubscriptionTypeName,
    connect,
)

# Messages taken at once: few enough that `--count` and Ctrl-C act soon, and lines appear soon.
FETCH_COUNT = 4_096


def consume(
    topic: Annotated[str, typer.Argument(help="As /default/orders, or a pattern: /default/a.>")],
    url: UrlOption = URL,
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", "-s", help="Its name; one of your own unless given."),
    ] = None,
    type: Annotated[
        str, typer.Option(help="exclusive, shared, failover or key_shared.")
    ] = "exclusive",
    policy: Annotated[
        str, typer.Option(help="Of shared: least_loaded, round_robin or random.")
    ] = "least_loaded",
    filter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=GLOB", help="Only messages with such an attribute. Repeatable."),
    ] = None,
    key_filter: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only messages with such a key. Repeatable."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="SECONDS", help="End when no message came for this long."),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="Name of this consumer.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No words on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a topic, one per line, from now on.

    With --json each line is an object: topic, partition, offset, key, attributes, id,
    publish_time, producer, and payload (text) or payload_base64 (when it is no UTF-8).

    \b
    Examples:
      ister consume /default/hello
      ister consume '/default/orders.>' --json | jq .payload
      ister consume /default/jobs --subscription workers --type shared
      ister consume /default/orders --filter 'region=eu-*' --count 10 --timeout 5
    """
    filters = parse_pairs(filter or (), "--filter")

    async def receive_all() -> None:
        async with connect(url) as client:
            sub = client.subscribe(
                topic,
                subscription or f"cli-{secrets.token_hex(4)}",
                type=_type(type),
                policy=_policy(policy),
                consumer=consumer,
                filters=filters,
                key_filters=key_filter or (),
                on_event=None if quiet else _tell,
            )
            async with sub:
                if not quiet:
                    say(f"listening on {topic} as {sub.name}; Ctrl-C ends")
                await _print_all(sub, count=count, timeout_s=timeout, as_json=as_json)

    # Without an end of its own, Ctrl-C is how this command ends well.
    endless = count is None and timeout is None
    run(receive_all(), interrupt_code=0 if endless else EXIT_INTERRUPTED)


async def _print_all(
    sub: Subscription, *, count: int | None, timeout_s: float | None, as_json: bool
) -> None:
    left = count
    while left is None or left > 0:
        messages = await sub.fetch(min(FETCH_COUNT, left or FETCH_COUNT), timeout=timeout_s)
        if not messages:
            break
        if as_json:
            write(b"".join([json_line(_as_row(message)) for message in messages]))
        else:
            write(b"".join([message.payload + b"\n" for message in messages]))
        flush()
        if left is not None:
            left -= len(messages)
    if left and count is not None:
        say(f"ister: {count - left:,} of {count:,} messages came, then none for {timeout_s:g} s")
        raise typer.Exit(BusyError.exit_code)


def _as_row(message: Message) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "attributes": message.attributes,
        "id": message.id,
        "publish_time": message.publish_time.isoformat(timespec="milliseconds"),
        "producer": message.producer,
    }
    try:
        row["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        row["payload_base64"] = base64.b64encode(message.payload).decode()
    return row


def _tell(event: Event) -> None:
    if isinstance(event, SlowConsumer):
        say(f"too slow: {event.dropped:,} messages were dropped so far")
    elif isinstance(event, Promoted):
        say("promoted: this consumer is the active one now")
    else:
        say("reconnected: messages sent in between are lost")


def _type(word: str) -> SubscriptionTypeName:
    if word not in get_args(SubscriptionTypeName):
        words = ", ".join(get_args(SubscriptionTypeName))
        raise BadRequestError(f"--type {word!r} is not one of {words}")
    return word  # type: ignore[return-value]  # checked the line above


def _policy(word: str) -> PolicyName:
    if word not in get_args(PolicyName):
        raise BadRequestError(f"--policy {word!r} is not one of {', '.join(get_args(PolicyName))}")
    return word  # type: ignore[return-value]  # checked the line above
