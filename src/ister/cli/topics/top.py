"""`ister top`: a live view of a broker: topics, rates, lag, consumers, drops."""

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import BrokerReport, SubscriptionReport, TopicReport, rounded_span
from ister.base.errors import BusyError
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import JsonOption, counted, run, stdout_console, write_json
from ister.client import Client

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

# Lines of the view that are not rows: the header, three table heads, blank lines, and two for what
# is wrong with the storage.
FRAME_LINES = 14
ROWS_MIN = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """What the broker reported at one moment."""

    at_s: float
    broker: BrokerReport
    topics: dict[str, TopicReport]
    subscriptions: list[SubscriptionReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Messages and bytes per second between two samples."""

    messages_in: float
    messages_out: float
    messages_dropped: float
    bytes_in: float


def top(
    pattern: Annotated[str, topic_argument("Only such topics, as '/default/a.>'.")] = "",
    url: UrlOption = URL,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Two looks, one view, then end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a broker: rates, topics, lag, consumers, drops. Ctrl-C ends it.

    LAG is what a durable subscription has not acknowledged, IN FLIGHT what of it is delivered. DUE
    is how many messages of a timeline are due and not leased, of those in memory. With --json each
    look is one object on a line.

    \b
    Examples:
      ister top
      ister top '/default/orders.>' --interval 0.5
      ister top --once --json | jq .rates
    """

    async def watch() -> None:
        async with connect(url) as client:
            if as_json:
                await _stream(client, pattern, interval, once=once)
            elif once or not sys.stdout.isatty():
                await _print(client, pattern, interval, once=once)
            else:
                await _live(client, pattern, interval)

    run(watch(), interrupt_code=0)


def rates_between(
    before: TopicReport | BrokerReport | None, after: TopicReport | BrokerReport, elapsed_s: float
) -> Rates:
    """Return what happened per second. Counters that fell belong to a broker started anew."""

    def rate(name: str) -> float:
        grown: int = getattr(after, name) - (getattr(before, name) if before is not None else 0)
        return round(max(grown, 0) / elapsed_s, 1) if elapsed_s > 0 else 0.0

    return Rates(
        messages_in=rate("messages_in"),
        messages_out=rate("messages_out"),
        messages_dropped=rate("messages_dropped"),
        bytes_in=rate("bytes_in"),
    )


async def _sample(client: Client, pattern: str) -> Sample:
    topics = {row.topic: row for row in await client.topics(pattern)}
    subscriptions = await client.subscriptions()
    return Sample(time.monotonic(), await client.broker(), topics, subscriptions)


async def _stream(client: Client, pattern: str, interval_s: float, *, once: bool) -> None:
    before = await _sample(client, pattern)
    while True:
        await asyncio.sleep(interval_s)
        now = await _sample(client, pattern)
        elapsed_s = now.at_s - before.at_s
        write_json(
            {
                "broker": now.broker,
                "rates": rates_between(before.broker, now.broker, elapsed_s),
                "topics": [
                    {"report": row, "rates": rates_between(before.topics.get(name), row, elapsed_s)}
                    for name, row in now.topics.items()
                ],
                "subscriptions": now.subscriptions,
            }
        )
        if once:
            return
        before = now


async def _print(client: Client, pattern: str, interval_s: float, *, once: bool) -> None:
    # Wide enough that no name is cut: a script may read it.
    console = stdout_console(piped_width=10_000)
    before = await _sample(client, pattern)
    while True:
        await asyncio.sleep(interval_s)
        now = await _sample(client, pattern)
        console.print(_view(before, now, rows_max=1_000))
        if once:
            return
        before = now


async def _live(client: Client, pattern: str, interval_s: float) -> None:
    from rich.live import Live

    before = await _sample(client, pattern)
    console = stdout_console(piped_width=120)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        now = before
        while True:
            rows_max = max(ROWS_MIN, (live.console.height - FRAME_LINES) // 3)
            live.update(_view(before, now, rows_max=rows_max), refresh=True)
            before, now = now, await _next_sample(client, pattern, interval_s, live)


async def _next_sample(client: Client, pattern: str, interval_s: float, live: "Live") -> Sample:
    while True:
        await asyncio.sleep(interval_s)
        try:
            return await _sample(client, pattern)
        except BusyError as error:
            # The broker restarts: the client comes back by itself, and so does the view.
            live.update(f"waiting for the broker: {error}", refresh=True)


def _view(before: Sample, now: Sample, *, rows_max: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    elapsed_s = now.at_s - before.at_s
    rates = rates_between(before.broker, now.broker, elapsed_s)
    report = now.broker
    head = Text()
    head.append(f"{report.broker} ", style="bold")
    head.append(f"ister {report.version}, up {report.uptime_s:,.0f} s, ")
    counts = (
        counted(report.connections, "connection"),
        counted(report.topics, "topic"),
        counted(report.subscriptions, "subscription"),
    )
    head.append(f"{', '.join(counts)}\n")
    head.append(f"in {rates.messages_in:,.0f} msg/s", style="green")
    head.append(f" ({rates.bytes_in / 1e6:,.1f} MB/s)  ")
    head.append(f"out {rates.messages_out:,.0f} msg/s  ", style="cyan")
    style = "red" if rates.messages_dropped else "dim"
    head.append(f"dropped {rates.messages_dropped:,.0f} msg/s  ", style=style)
    head.append(f"queued {report.queued_bytes / 1e6:,.1f} MB  ")
    head.append(f"stored {report.stored_bytes / 1e6:,.1f} MB\n")
    if report.storage_error:
        head.append(f"{report.storage_error}\n", style="bold red")
    tables = [
        _topic_table(before, now, elapsed_s, rows_max),
        _lag_table(now, rows_max),
        _consumer_table(now, rows_max),
    ]
    return Group(head, *[part for one in tables for part in (one, "")][:-1])


def _topic_table(before: Sample, now: Sample, elapsed_s: float, rows_max: int) -> "Table":
    rows = [
        (rates_between(before.topics.get(name), row, elapsed_s), row)
        for name, row in now.topics.items()
    ]
    rows.sort(key=lambda pair: (-pair[0].messages_in, -pair[1].messages_in, pair[1].topic))
    names = ("KIND", "IN/S", "OUT/S", "DROP/S", "IN", "DROPPED", "DUE", "PRODUCERS", "SUBS")
    table = _table("TOPIC", *names, texts=("KIND",))
    for rates, row in rows[:rows_max]:
        table.add_row(
            row.topic,
            row.kind,
            *_flow(rates, row),
        )
    return table


def _flow(rates: Rates, row: TopicReport) -> tuple[str, ...]:
    """Return the cells of a topic; what does not apply to its kind is -."""
    out = f"{rates.messages_out:,.0f}"
    if row.timeline is not None:
        return ("-", out, "-", "-", "-", f"{row.timeline.due:,}", "-", "-")
    return (
        f"{rates.messages_in:,.0f}",
        out,
        f"{rates.messages_dropped:,.0f}",
        f"{row.messages_in:,}",
        f"{row.messages_dropped:,}",
        "-",
        f"{row.producers:,}",
        f"{row.subscriptions:,}",
    )


def _lag_table(now: Sample, rows_max: int) -> "Table":
    names = ("ON", "LAG", "IN FLIGHT", "OLDEST", "CONSUMERS")
    table = _table("SUBSCRIPTION", *names, texts=("ON",))
    rows = [(one, one.cursor) for one in now.subscriptions if one.cursor is not None]
    rows.sort(key=lambda pair: (-pair[1].lag, pair[0].topic, pair[0].subscription))
    for one, cursor in rows[:rows_max]:
        table.add_row(
            one.subscription,
            one.topic,
            f"{cursor.lag:,}",
            f"{cursor.in_flight:,}",
            rounded_span(cursor.oldest_unacked_ms) if cursor.lag else "-",
            f"{len(one.consumers):,}",
        )
    return table


def _consumer_table(now: Sample, rows_max: int) -> "Table":
    table = _table("CONSUMER", "QUEUED", "OUT", "DROPPED", "SUBSCRIPTION", texts=("SUBSCRIPTION",))
    rows = [(one, sub) for sub in now.subscriptions for one in sub.consumers]
    rows.sort(key=lambda pair: (-pair[0].dropped, -pair[0].queued, -pair[0].delivered))
    for one, sub in rows[:rows_max]:
        standby = "" if one.active else ", standby"
        table.add_row(
            one.name,
            f"{one.queued:,}",
            f"{one.delivered:,}",
            f"{one.dropped:,}",
            f"{sub.subscription} on {sub.topic} ({sub.type}{standby})",
        )
    return table


def _table(first: str, *others: str, texts: tuple[str, ...] = ()) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, overflow="ellipsis")
    for name in others:
        table.add_column(name, justify="left" if name in texts else "right", no_wrap=True)
    return table
