"""Pages of reports, and sums over topics."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from ister.base import SubscriptionReport, TimelineReport, TopicReport
from ister.base.limits import LISTING_BYTES

Reported = TypeVar("Reported")


class Counted(Protocol):
    """What counts messages."""

    messages_in: int
    bytes_in: int
    messages_out: int
    messages_dropped: int


class Totals:
    """Sums of what topics count."""

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.messages_dropped = 0

    def add(self, other: Counted) -> None:
        """Add the counts of a topic."""
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.messages_dropped += other.messages_dropped


def timeline_report(report: TimelineReport) -> TopicReport:
    """Return what to tell of a timeline among other topics."""
    return TopicReport(
        topic=report.topic,
        kind=report.settings.kind,
        partitions=0,
        producers=0,
        subscriptions=0,
        messages_in=0,
        bytes_in=0,
        messages_out=report.delivered,
        messages_dropped=0,
        next_offset=0,
        timeline=report,
    )


def page_of(names: list[str], *, after: str, limit: int) -> tuple[list[str], str]:
    """Return a page of sorted names, and after which the next one starts (empty: at the end)."""
    start = bisect_right(names, after) if after else 0
    page = names[start : start + max(1, min(limit, 1_000))]
    more = page[-1] if page and start + len(page) < len(names) else ""
    return page, more


def subscription_page(
    by_name: Mapping[str, Callable[[], SubscriptionReport]], *, after: str, limit: int
) -> tuple[list[SubscriptionReport], str]:
    """Return a page of subscriptions that fits a frame, and where the next one starts."""
    page, more = page_of(sorted(by_name), after=after, limit=limit)
    rows: list[SubscriptionReport] = []
    size_bytes = 0
    for name in page:
        if size_bytes > LISTING_BYTES:
            return rows, page[len(rows) - 1]
        rows.append(by_name[name]())
        size_bytes += _listed_bytes(rows[-1])
    return rows, more


def _listed_bytes(row: SubscriptionReport) -> int:
    """Return about how large a row is when it is sent: names of 255 B, and figures."""
    filters = sum(map(len, (*row.filters, *row.filters.values(), *row.key_filters)))
    size_bytes = 1_000 + 450 * len(row.consumers) + 4 * filters
    if row.cursor is not None:
        size_bytes += 300 * (len(row.cursor.floors) + len(row.cursor.snapshots)) + 1_000
    return size_bytes
