"""`ister timeline`: messages at a point in time; make, see, change and consume them."""

import asyncio
import secrets
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, TypeVar

import typer

from ister.base import Time, printable
from ister.base.errors import (
    BadRequestError,
    BusyError,
    IsterError,
    RequestTimeoutError,
)
from ister.cli.console.access import URL, UrlOption
from ister.cli.console.terminal import (
    EXIT_INTERRUPTED,
    JsonOption,
    YesOption,
    confirm,
    counted,
    flush,
    json_line,
    parse_pairs,
    say,
    write,
    write_json,
    write_table,
)
from ister.cli.console.values import parse_delay_option, parse_span_option, parse_time_option
from ister.cli.timelines.calls import (
    AttributeOption,
    GroupOption,
    IdArgument,
    PayloadArgument,
    TopicArgument,
    VersionOption,
    payload_of,
    tell_changed,
    with_timeline,
    write_version,
)
from ister.cli.timelines.cron import cron
from ister.cli.timelines.rows import (
    COLUMNS,
    RULE_COLUMNS,
    cells,
    lease_row,
    rule_cells,
    rule_row,
    timeline_row,
)
from ister.client import (
    Timeline,
    TimelineConsumer,
    TimelineLease,
    TimelineMessage,
)

timeline = typer.Typer(
    no_args_is_help=True, help="Messages at a point in time: make, see, change and consume them."
)
timeline.add_typer(cron, name="cron")

# Messages of a listing unless more are asked for: what a table may have in memory.
LISTED_COUNT = 1_000
# Printed, and not yet known to be done. A commit takes a few milliseconds: 20,000 a second × 50 ms.
UNFINISHED_MAX = 1_000
# Printed in one turn of the event loop: they are finished in one command, and Ctrl-C waits for no
# more than these.
TURN_COUNT = 100
# For the broker to hear of what was printed before Ctrl-C; else it comes again.
FINISH_S = 2.0

TIME_HELP = "2026-11-15T10:00Z, or seconds since 1970"
SPAN_HELP = "10s, 5m, 2h, 7d"

AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help=f"When it is due: {TIME_HELP}.")
]
InOption = Annotated[
    str | None, typer.Option("--in", metavar="SPAN", help=f"Due so long from now: {SPAN_HELP}.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help=f"The first: {TIME_HELP}, or so long from now: {SPAN_HELP}.",
        show_default="the beginning",
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="Up to before this.", show_default="the end"),
]

_T = TypeVar("_T")


@timeline.command("put")
def put(
    topic: TopicArgument,
    payload: PayloadArgument = "-",
    url: UrlOption = URL,
    at: AtOption = None,
    span: InOption = None,
    id: Annotated[
        str | None, typer.Option(help="Id of the message; it gets one unless given.")
    ] = None,
    group: GroupOption = "default",
    priority: Annotated[
        int, typer.Option(min=0, max=31, help="On a priority topic: 0 goes first.")
    ] = 0,
    attribute: AttributeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a message that is due at a time; at once without --at and --in. Prints its id.

    It is stored when this returns. The topic is made by `ister topics create --kind timeline`.

    \b
    Examples:
      ister timeline put /default/reminders "call back" --in 10m
      ister timeline put /default/reminders "invoice" --at 2026-12-01T08:00Z --id invoice-7
      ister timeline put /default/jobs "now, before others" --priority 0
    """
    due = _due(at, span)
    attributes = parse_pairs(attribute or (), "--attribute")
    data = payload_of(payload)
    made = with_timeline(
        url,
        topic,
        group,
        lambda one: one.put(data, due, id=id, attributes=attributes or None, priority=priority),
    )
    if as_json:
        write_version(topic, made)
    else:
        write(made.id.encode() + b"\n")
        say(f"stored in {topic} at version {made.version}")


@timeline.command("get")
def get(
    topic: TopicArgument, id: IdArgument, url: UrlOption = URL, as_json: JsonOption = False
) -> None:
    """Show a message as it stands: when it is due, who has it, and what it says.

    \b
    Examples:
      ister timeline get /default/reminders invoice-7
      ister timeline get /default/reminders invoice-7 --json
    """
    message = with_timeline(url, topic, "default", lambda one: one.get(id))
    now_ms = _now_ms()
    is_rule = message.cron is not None
    if as_json:
        write_json(rule_row(topic, message) if is_rule else timeline_row(topic, message, now_ms))
        return
    if is_rule:
        write_table(RULE_COLUMNS, [rule_cells(message)])
    else:
        write_table(COLUMNS, [cells(message, now_ms)])
    if message.attributes:
        write_table(("ATTRIBUTE", "VALUE"), sorted(message.attributes.items()))
    write(message.payload + b"\n")


@timeline.command("move")
def move(
    topic: TopicArgument,
    id: IdArgument,
    url: UrlOption = URL,
    at: AtOption = None,
    span: InOption = None,
    group: GroupOption = "default",
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a message due at another time. After that nobody gets it before.

    \b
    Examples:
      ister timeline move /default/reminders invoice-7 --at 2026-12-02T08:00Z
      ister timeline move /default/reminders invoice-7 --in 1h --version 41
    """
    due = _due(at, span)
    if due is None:
        raise typer.BadParameter("say when it is due: --at or --in")
    moved = with_timeline(url, topic, group, lambda one: one.move(id, due, version))
    tell_changed(topic, moved, "moved", as_json=as_json)


@timeline.command("update")
def update(
    topic: TopicArgument,
    id: IdArgument,
    payload: PayloadArgument = "-",
    url: UrlOption = URL,
    attribute: AttributeOption = None,
    group: GroupOption = "default",
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a message another payload; its attributes become those given here, or none.

    \b
    Example:
      ister timeline update /default/reminders invoice-7 "invoice, corrected"
    """
    attributes = parse_pairs(attribute or (), "--attribute")
    data = payload_of(payload)
    updated = with_timeline(
        url,
        topic,
        group,
        lambda one: one.update(id, data, attributes=attributes or None, version=version),
    )
    tell_changed(topic, updated, "updated", as_json=as_json)


@timeline.command("delete")
def delete(
    topic: TopicArgument,
    id: IdArgument,
    url: UrlOption = URL,
    group: GroupOption = "default",
    version: VersionOption = None,
    yes: YesOption = False,
) -> None:
    """Remove a message. After that nobody gets it.

    \b
    Examples:
      ister timeline delete /default/reminders invoice-7
      ister timeline delete /default/reminders invoice-7 --version 41 --yes
    """
    confirm(f"deletes message {printable(id)} of {topic}", yes=yes)
    with_timeline(url, topic, group, lambda one: one.delete(id, version))
    say(f"message {printable(id)} of {topic} is deleted")


@timeline.command("list")
def list_messages(
    topic: TopicArgument,
    url: UrlOption = URL,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[
        int, typer.Option(min=1, help="At most this many. Of many, --json is quicker.")
    ] = LISTED_COUNT,
    as_json: JsonOption = False,
) -> None:
    """List the messages of a range of time, the earliest first.

    One that a consumer has stands where its lease ends. With --json each line is a message.

    \b
    Examples:
      ister timeline list /default/reminders
      ister timeline list /default/reminders --from 0s --to 1h
      ister timeline list /default/reminders --from 2026-12-01T00:00Z --json | jq .id
    """
    first, last = _moment(start, "--from"), _moment(end, "--to")
    now_ms = _now_ms()

    async def collect(one: Timeline) -> tuple[list[TimelineMessage], bool]:
        found: list[TimelineMessage] = []
        count = 0
        async for message in one.list(first, last):
            if count == limit:
                return found, True
            count += 1
            if as_json:
                write(json_line(timeline_row(topic, message, now_ms)))
            else:
                # The table has no payloads: without them, a million rows fit into memory.
                found.append(message._replace(payload=b"", attributes={}))
        return found, False

    found, more = with_timeline(url, topic, "default", collect)
    if not as_json:
        write_table(COLUMNS[:-1], [cells(message, now_ms)[:-1] for message in found])
    flush()
    if more:
        say("there are more: `--limit` shows them, `ister timeline count` counts them")


@timeline.command("count")
def count_messages(
    topic: TopicArgument,
    url: UrlOption = URL,
    start: FromOption = None,
    end: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the messages of a range of time: the load that is to come.

    \b
    Examples:
      ister timeline count /default/reminders
      ister timeline count /default/reminders --from 0s --to 24h
    """
    first, last = _moment(start, "--from"), _moment(end, "--to")
    count = with_timeline(url, topic, "default", lambda one: one.count(first, last))
    if as_json:
        write_json({"topic": topic, "count": count})
    else:
        write(b"%d\n" % count)


@timeline.command("redrive")
def redrive(
    topic: TopicArgument,
    url: UrlOption = URL,
    count: Annotated[
        int | None, typer.Option(min=1, help="At most this many; all there are unless given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send the dead letters of a timeline back to it, due now.

    TOPIC is the topic they come from. Each letter is moved in one step, so none is lost or doubled.
    Letters that a consumer has, or that are due later, stay.

    \b
    Examples:
      ister timeline redrive /default/reminders
      ister timeline redrive /default/reminders --count 100
    """
    moved = with_timeline(url, topic, "default", lambda one: one.redrive(count=count))
    if as_json:
        write_json({"topic": topic, "moved": moved})
    else:
        say(f"{counted(moved, 'dead letter')} moved back to {topic}")


@timeline.command("consume")
def consume(
    topic: TopicArgument,
    url: UrlOption = URL,
    consumer: Annotated[
        str | None,
        typer.Option(help="Its name: it ends the leases that an earlier process of it has left."),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="How long each message is ours, as 5m.",
            show_default="60s, or the topic's longest",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="SECONDS", help="End when no message came for this long."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No words on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print messages when they are due, one per line, and finish each: it is gone then.

    Ctrl-C gives back what was not printed. With --json each line is an object: topic, id, version,
    due, attempt, priority, lateness_ms, attributes, and payload or payload_base64.

    \b
    Examples:
      ister timeline consume /default/reminders
      ister timeline consume /default/reminders --consumer worker-1 --lease 5m
      ister timeline consume /default/reminders --count 10 --timeout 60 --json
    """
    lease_s = parse_span_option(lease, "--lease")
    name = consumer or f"cli-{secrets.token_hex(4)}"

    async def print_all(one: Timeline) -> int:
        async with one.consume(
            name, lease=lease_s, credit=min(count or UNFINISHED_MAX, UNFINISHED_MAX)
        ) as leases:
            if not quiet:
                say(f"listening on {topic} as {name}; Ctrl-C ends")
            printer = _Printer(topic, as_json=as_json)
            try:
                return await _print_all(leases, printer, count=count, timeout_s=timeout)
            finally:
                await printer.settle()

    endless = count is None and timeout is None
    code = 0 if endless else EXIT_INTERRUPTED
    printed = with_timeline(url, topic, "default", print_all, interrupt_code=code)
    if count is not None and printed < count:
        say(f"ister: {printed:,} of {count:,} messages came, then none for {timeout:g} s")
        raise typer.Exit(BusyError.exit_code)


class _Printer:
    """Prints messages and finishes them, without waiting for the broker after each."""

    def __init__(self, topic: str, *, as_json: bool) -> None:
        self._topic = topic
        self._as_json = as_json
        # In the order they were printed.
        self._unfinished: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def print(self, lease: TimelineLease) -> None:
        """Print a message, then finish it; one that cannot be printed is given back."""
        try:
            if self._as_json:
                write(json_line(lease_row(self._topic, lease)))
            else:
                write(lease.payload + b"\n")
            # Print before acking: the reader of stdout has it, or it is delivered again.
            flush()
        except OSError:
            lease.release()
            raise
        self._unfinished.append((lease.id, lease.done()))
        while self._unfinished and (
            self._unfinished[0][1].done() or len(self._unfinished) >= UNFINISHED_MAX
        ):
            await self._look()

    async def settle(self) -> None:
        """Wait until the broker has stored that what was printed is done."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while self._unfinished:
                    await self._look()
        for name, _ in self._unfinished:
            self._tell(name, "no answer in time")

    async def _look(self) -> None:
        name, future = self._unfinished[0]
        try:
            await asyncio.shield(future)
        except IsterError as error:
            self._tell(name, str(error))
        self._unfinished.popleft()

    def _tell(self, name: str, why: str) -> None:
        say(f"ister: message {printable(name)} was printed, and may come again: {why}")


async def _print_all(
    leases: TimelineConsumer, printer: _Printer, *, count: int | None, timeout_s: float | None
) -> int:
    """Print messages until there were `count`, or none came for a time; return how many."""
    printed = 0
    while count is None or printed < count:
        try:
            lease = await leases.receive(timeout_s)
        except RequestTimeoutError:
            break
        await printer.print(lease)
        printed += 1
        if printed % TURN_COUNT == 0:
            await asyncio.sleep(0)
    return printed


def _due(at: str | None, span: str | None) -> Time | timedelta | None:
    if at is not None and span is not None:
        raise typer.BadParameter("give --at or --in, one of them")
    if span is not None:
        return parse_delay_option(span, "--in", "--at")
    return None if at is None else parse_time_option(at, "--at", "--in")


def _moment(text: str | None, option: str) -> Time | timedelta | None:
    """Return a time of a range: a point of it, or so long from now by the broker's clock."""
    if text is None:
        return None
    with suppress(BadRequestError):
        return parse_delay_option(text, option, option)
    try:
        return parse_time_option(text, option, option)
    except BadRequestError as error:
        raise BadRequestError(f"{error}, or so long from now: {SPAN_HELP}") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
