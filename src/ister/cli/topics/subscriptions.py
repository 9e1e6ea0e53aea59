"""`ister subs`: see subscriptions; move, pause and delete durable ones; bring back dead letters."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, TypeVar

import typer

from ister.base import CursorReport, SubscriptionReport, is_wildcard, rounded_size, rounded_span
from ister.base.errors import BadRequestError, SubscriptionNotFoundError
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import (
    JsonOption,
    YesOption,
    confirm,
    counted,
    parse_pairs,
    run,
    say,
    write_fields,
    write_json,
    write_table,
)
from ister.cli.console.values import PLACE_HELP, parse_place, parse_size_option, parse_span_option
from ister.cli.messages.consume import (
    ExpireAfterOption,
    FilterOption,
    KeyFilterOption,
    PolicyOption,
    parse_policy,
    parse_type,
)
from ister.client import Client

subs = typer.Typer(no_args_is_help=True, help="See and change subscriptions.")

TopicArgument = Annotated[str, topic_argument("Topic or pattern of the subscription.")]
NameArgument = Annotated[str, typer.Argument(help="Its name.")]
CursorArgument = Annotated[str, typer.Argument(help="Name of the saved cursor.")]

_LIST_COLUMNS = (
    "TOPIC", "SUBSCRIPTION", "TYPE", "TOPICS", "CONSUMERS", "OUT", "DROPPED",
    "LAG", "IN FLIGHT", "OLDEST", "STATE",
)  # fmt: skip
# The subscription of a topic of dead letters by which a redrive takes them.
REDRIVE = "redrive"

_T = TypeVar("_T")


@subs.command("list")
def list_subscriptions(
    topic: Annotated[str, topic_argument("Only those of this topic.")] = "",
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """List subscriptions; of durable ones, how far behind they are.

    LAG is what is not acknowledged, IN FLIGHT what of it is delivered, OLDEST the age of the
    oldest of it.

    \b
    Examples:
      ister subs list
      ister subs list /default/orders --json
    """
    rows = _with_client(url, lambda client: client.subscriptions(topic))
    if as_json:
        write_json(rows)
        return
    write_table(
        _LIST_COLUMNS,
        [
            (
                row.topic,
                row.subscription,
                row.type,
                row.topics,
                len(row.consumers),
                row.messages_out,
                row.messages_dropped,
                *_progress(row.cursor),
            )
            for row in rows
        ],
    )


@subs.command("describe")
def describe_subscription(
    topic: TopicArgument,
    subscription: NameArgument,
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Show one subscription with its consumers; of a durable one also how far it is.

    \b
    Example:
      ister subs describe /default/orders billing
    """
    found = _with_client(url, lambda client: _find(client, topic, subscription))
    if as_json:
        write_json(found)
        return
    letters = _dead_letters_of(found)
    waiting = _with_client(url, lambda client: _count_letters(client, letters)) if letters else None
    write_fields(_fields(found, letters, waiting))
    if found.cursor is not None:
        write_table(("TOPIC", "ACKNOWLEDGED BELOW"), sorted(found.cursor.floors.items()))
    if not found.consumers:
        return
    write_table(
        ("CONSUMER", "ADDRESS", "ACTIVE", "CREDIT", "QUEUED", "QUEUED BYTES", "OUT", "DROPPED"),
        [
            (
                one.name,
                one.address,
                one.active,
                one.credit,
                one.queued,
                one.queued_bytes,
                one.delivered,
                one.dropped,
            )
            for one in found.consumers
        ],
    )


@subs.command("seek")
def seek(
    topic: TopicArgument,
    subscription: NameArgument,
    to: Annotated[str | None, typer.Argument(metavar="[PLACE]", help=PLACE_HELP)] = None,
    url: UrlOption = URL,
    saved: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go to a saved cursor instead.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Move a durable subscription: on from a place, what was acknowledged before or not.

    What is in flight is void: consumers go on with what lies at the new place. A cursor that was
    saved first (`ister subs save-cursor`) is the way back.

    \b
    Examples:
      ister subs seek /default/orders billing earliest
      ister subs seek /default/orders billing 1000 --yes
      ister subs seek /default/orders billing 2h
      ister subs seek /default/orders billing --saved before-deploy
    """
    if (to is None) == (saved is None):
        raise typer.BadParameter("give a place or --saved, one of them")
    place = parse_place(to, "the place") if to is not None else None

    async def move(client: Client) -> None:
        await client.seek(topic, subscription, place, snapshot=saved)

    found = _with_client(url, lambda client: _find_durable(client, topic, subscription))
    where = f"saved cursor {saved}" if saved is not None else str(place)
    confirm(f"moves subscription {subscription} on {topic} to {where}: {_figures(found)}", yes=yes)
    _with_client(url, move)
    say(f"subscription {subscription} on {topic} goes on at {where}")


@subs.command("update")
def update(
    topic: TopicArgument,
    subscription: NameArgument,
    url: UrlOption = URL,
    type: Annotated[
        str | None, typer.Option(help="Another type; only while it has no consumers.")
    ] = None,
    policy: PolicyOption = None,
    filter: FilterOption = None,
    key_filter: KeyFilterOption = None,
    no_filters: Annotated[
        bool, typer.Option("--no-filters", help="Take every message from now on.")
    ] = False,
    ack_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="For how long a message is leased, as 30s.")
    ] = None,
    max_deliveries: Annotated[
        int | None, typer.Option(min=0, help="Deliveries before the dead letters; 0: no end.")
    ] = None,
    backoff: Annotated[
        list[str] | None,
        typer.Option(metavar="TIME", help="Delay of delivery 2, 3, …, as 10s. Repeatable."),
    ] = None,
    dead_letter_topic: Annotated[str | None, typer.Option(help="For its dead letters.")] = None,
    poison: Annotated[
        str | None, typer.Option(help="After the last delivery: dead_letter, block or drop.")
    ] = None,
    ordered: Annotated[
        bool | None, typer.Option(help="At most one message of a key in flight.")
    ] = None,
    expire_after: ExpireAfterOption = None,
    in_flight_max: Annotated[int | None, typer.Option(min=1, help="Messages in flight.")] = None,
    in_flight_bytes_max: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes in flight, as 64MiB.")
    ] = None,
) -> None:
    """Change settings of a durable subscription, consumers or not; the others stay as they are.

    \b
    Examples:
      ister subs update /default/orders billing --ack-timeout 5m
      ister subs update /default/orders billing --filter 'region=eu-*'
    """
    filters = parse_pairs(filter, "--filter") if filter else {} if no_filters else None
    options = {
        "type": parse_type(type),
        "policy": parse_policy(policy),
        "filters": filters,
        "key_filters": key_filter or ([] if no_filters else None),
        "ack_timeout": parse_span_option(ack_timeout, "--ack-timeout"),
        "max_deliveries": max_deliveries,
        "backoff": [parse_span_option(step, "--backoff") for step in backoff] if backoff else None,
        "dead_letter_topic": dead_letter_topic,
        "poison": poison,
        "ordered": ordered,
        "expire_after": parse_span_option(expire_after, "--expire-after"),
        "in_flight_max": in_flight_max,
        "in_flight_bytes_max": parse_size_option(in_flight_bytes_max, "--in-flight-bytes-max"),
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not given:
        raise typer.BadParameter("give a setting to change: see `ister subs update --help`")
    _with_client(url, lambda client: client.update_subscription(topic, subscription, **given))
    say(f"subscription {subscription} on {topic} is updated")


@subs.command("pause")
def pause(topic: TopicArgument, subscription: NameArgument, url: UrlOption = URL) -> None:
    """Let the deliveries of a durable subscription rest; nothing of it is lost.

    \b
    Example:
      ister subs pause /default/orders billing
    """
    _with_client(url, lambda client: client.pause_subscription(topic, subscription))
    say(f"subscription {subscription} on {topic} rests; `ister subs resume` lets it go on")


@subs.command("resume")
def resume(topic: TopicArgument, subscription: NameArgument, url: UrlOption = URL) -> None:
    """Let the deliveries of a durable subscription go on.

    \b
    Example:
      ister subs resume /default/orders billing
    """
    _with_client(url, lambda client: client.resume_subscription(topic, subscription))
    say(f"subscription {subscription} on {topic} goes on")


@subs.command("delete")
def delete(
    topic: TopicArgument,
    subscription: NameArgument,
    url: UrlOption = URL,
    yes: YesOption = False,
) -> None:
    """Delete a durable subscription with its place and saved cursors; consumers are closed.

    \b
    Example:
      ister subs delete /default/orders billing --yes
    """
    found = _with_client(url, lambda client: _find_durable(client, topic, subscription))
    confirm(f"deletes subscription {subscription} on {topic}: {_figures(found)}", yes=yes)
    _with_client(url, lambda client: client.delete_subscription(topic, subscription))
    say(f"subscription {subscription} on {topic} is deleted")


@subs.command("save-cursor")
def save_cursor(
    topic: TopicArgument, subscription: NameArgument, name: CursorArgument, url: UrlOption = URL
) -> None:
    """Keep where a durable subscription is under a name, to seek to it later.

    \b
    Examples:
      ister subs save-cursor /default/orders billing before-deploy
      ister subs seek /default/orders billing --saved before-deploy
    """
    _with_client(url, lambda client: client.save_cursor(topic, subscription, name))
    say(f"cursor {name} of subscription {subscription} on {topic} is saved")


@subs.command("drop-cursor")
def drop_cursor(
    topic: TopicArgument,
    subscription: NameArgument,
    name: CursorArgument,
    url: UrlOption = URL,
    yes: YesOption = False,
) -> None:
    """Forget a saved cursor.

    \b
    Example:
      ister subs drop-cursor /default/orders billing before-deploy --yes
    """
    confirm(f"forgets cursor {name} of subscription {subscription} on {topic}", yes=yes)
    _with_client(url, lambda client: client.drop_cursor(topic, subscription, name))
    say(f"cursor {name} of subscription {subscription} on {topic} is forgotten")


@subs.command("redrive")
def redrive(
    topic: TopicArgument,
    subscription: NameArgument,
    url: UrlOption = URL,
    count: Annotated[
        int | None, typer.Option(min=1, help="At most this many; all there are unless given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send the dead letters of a subscription back to where they came from.

    Each is sent and taken from the dead letters in one step, so none is lost or doubled. It comes
    at the end of its topic, as a new message.

    \b
    Examples:
      ister subs redrive /default/orders billing
      ister subs redrive /default/orders billing --count 100
    """

    async def work(client: Client) -> int:
        moved = await client.redrive(topic, subscription, count=count)
        rows = [] if moved else await client.subscriptions(topic)
        if not moved and all(row.subscription != subscription for row in rows):
            # A name that is spelt wrong has no dead letters either.
            raise SubscriptionNotFoundError(topic, subscription)
        return moved

    with _busy(f"moving dead letters of {subscription} back"):
        moved = _with_client(url, work)
    if as_json:
        write_json({"topic": topic, "subscription": subscription, "moved": moved})
    else:
        say(f"{counted(moved, 'dead letter')} of subscription {subscription} moved back to {topic}")


def _with_client(url: str, work: Callable[[Client], Awaitable[_T]]) -> _T:
    async def call() -> _T:
        async with connect(url) as client:
            return await work(client)

    return run(call())


async def _find(client: Client, topic: str, subscription: str) -> SubscriptionReport:
    for row in await client.subscriptions():
        if (row.topic, row.subscription) == (topic, subscription):
            return row
    raise SubscriptionNotFoundError(topic, subscription)


async def _find_durable(client: Client, topic: str, subscription: str) -> SubscriptionReport:
    found = await _find(client, topic, subscription)
    if found.cursor is None:
        raise BadRequestError(
            f"subscription {subscription!r} on {topic!r} covers live topics: it has no place of "
            "its own, and ends with its last consumer"
        )
    return found


def _progress(cursor: CursorReport | None) -> tuple[object, ...]:
    if cursor is None:
        return ("-", "-", "-", "live")
    oldest = rounded_span(cursor.oldest_unacked_ms) if cursor.lag else "-"
    state = "ephemeral" if cursor.durable is False else "durable"
    return (cursor.lag, cursor.in_flight, oldest, "paused" if cursor.paused else state)


def _figures(row: SubscriptionReport) -> str:
    """Return what whoever moves or deletes a subscription should know."""
    assert row.cursor is not None
    return (
        f"{counted(len(row.consumers), 'consumer')}, "
        f"{counted(row.cursor.lag, 'message')} not acknowledged, "
        f"{row.cursor.in_flight:,} of them in flight"
    )


def _fields(row: SubscriptionReport, letters: str, waiting: int | None) -> list[tuple[str, object]]:
    """Return a subscription as names and values; of a durable one how far it is, and how it is set.

    `waiting` is how many of its dead letters were not moved back.
    """
    policy = f" ({row.policy})" if row.type == "shared" else ""
    fields: list[tuple[str, object]] = [
        ("subscription", row.subscription),
        ("topic", row.topic),
        ("type", row.type + policy),
        ("filters", _filters(row)),
        ("consumers", len(row.consumers)),
        ("delivered", f"{row.messages_out:,} since the broker started"),
        ("dropped", f"{row.messages_dropped:,} since the broker started"),
    ]
    cursor = row.cursor
    if cursor is None:
        return [*fields, ("durable", "no: it ends with its last consumer")]
    left = "" if waiting is None else f", {waiting:,} not redriven"
    settings = cursor.settings
    return [
        *fields,
        ("state", "paused" if cursor.paused else "blocked" if cursor.blocked else "active"),
        ("lag", counted(cursor.lag, "message")),
        ("oldest", rounded_span(cursor.oldest_unacked_ms) if cursor.lag else "-"),
        ("in flight", f"{cursor.in_flight:,} ({rounded_size(cursor.in_flight_bytes)})"),
        ("redelivered", cursor.redelivered),
        ("dead letters", f"{cursor.dead_lettered:,}{left}"),
        ("late acks", f"{cursor.refused:,} since the broker started"),
        ("saved cursors", ", ".join(cursor.snapshots) or "-"),
        ("ack timeout", rounded_span(settings.ack_timeout_ms)),
        ("max deliveries", settings.max_deliveries or "-"),
        ("backoff", ", ".join(map(rounded_span, settings.backoff_ms)) or "-"),
        (
            "in flight max",
            f"{settings.in_flight_max:,} ({rounded_size(settings.in_flight_bytes_max)})",
        ),
        ("ordered keys", settings.ordered),
        ("poison", settings.poison),
        ("letters go to", letters or "one topic for each"),
    ]


def _dead_letters_of(row: SubscriptionReport) -> str:
    """Return the topic for its dead letters; empty for a live one, and where there are several."""
    if row.cursor is None:
        return ""
    return row.cursor.settings.dead_letter_topic or _default_letters(row)


async def _count_letters(client: Client, topic: str) -> int:
    """Return how many dead letters of a topic were not moved back by a redrive."""
    for one in await client.subscriptions(topic):
        if one.subscription == REDRIVE and one.cursor is not None:
            return one.cursor.lag
    rows = await client.topics(topic)
    return sum(row.next_offset - row.stream.first_offset for row in rows if row.stream is not None)


def _default_letters(row: SubscriptionReport) -> str:
    if is_wildcard(row.topic):
        return ""
    # The broker names it; half of the package is loaded for that, so only here.
    from ister.broker import default_dead_letter_topic

    return default_dead_letter_topic(row.topic, row.subscription)


def _busy(text: str) -> AbstractContextManager[object]:
    """Show on a terminal that something goes on."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.text import Text

    from ister.cli.console.terminal import stderr_console

    return stderr_console().status(Text(text))


def _filters(row: SubscriptionReport) -> str:
    words = [f"{name}={glob}" for name, glob in row.filters.items()]
    words += [f"key={glob}" for glob in row.key_filters]
    return ", ".join(words) or "-"
