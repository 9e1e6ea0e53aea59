"""Pages of reports, and sums over topics."""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Protocol, TypeAlias, TypeVar, cast

from ister.base import SubscriptionReport, TimelineReport, TopicReport, compile_pattern
from ister.base.limits import LISTING_BYTES

# Rows of one page.
ROWS_MAX = 1_000
# Names looked at between two turns of others: 0.3 ms.
NAMES_PER_STEP = 512

Reported = TypeVar("Reported")
# A listing in steps, so that other work can run between them. The last step is the answer.
Steps: TypeAlias = Generator[None, None, Reported]


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


class SortedNames:
    """Names in order, changed one by one and put in order when somebody looks."""

    __slots__ = ("_added", "_gone", "_names")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._added: dict[str, None] = {}
        self._gone: set[str] = set()

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        if name in self._gone:
            self._gone.discard(name)
        else:
            self._added[name] = None

    def discard(self, name: str) -> None:
        """Remove a name that is there."""
        if self._added.pop(name, name) is not None:
            self._gone.add(name)

    def after(self, name: str) -> Iterator[str]:
        """Yield the names behind one, or all; those that are made meanwhile are left out."""
        if self._gone:
            self._names = [one for one in self._names if one not in self._gone]
            self._gone.clear()
        if self._added:
            # Sorting what is nearly in order costs one comparison for each.
            self._names = [*self._names, *self._added]
            self._names.sort()
            self._added.clear()
        names = self._names
        return islice(names, bisect_right(names, name) if name else 0, None)


def topic_page(
    names: Iterator[str], *, pattern: str, limit: int, report: Callable[[str], TopicReport | None]
) -> Steps[tuple[list[TopicReport], str]]:
    """Return a page of topics whose names match, and where the next one starts (empty: at the end).

    Topics that are gone meanwhile have no report.
    """
    is_wanted = compile_pattern(pattern) if pattern else bool
    rows: list[TopicReport] = []
    count_max = max(1, min(limit, ROWS_MAX))
    for number, name in enumerate(names):
        if number % NAMES_PER_STEP == 0:
            yield
        if not is_wanted(name):
            continue
        if len(rows) >= count_max:
            return rows, rows[-1].topic
        row = report(name)
        if row is not None:
            rows.append(row)
    return rows, ""


def subscription_page(
    reports: Iterable[tuple[str, Callable[[], SubscriptionReport]]], *, after: str, limit: int
) -> Steps[tuple[list[SubscriptionReport], str]]:
    """Return a page of subscriptions that fits a frame, and where the next one starts."""
    count_max = max(1, min(limit, ROWS_MAX))
    # The first ones by name, and one more.
    first: list[tuple[str, Callable[[], SubscriptionReport]]] = []
    some = (named for named in reports if named[0] > after)
    while more := list(islice(some, NAMES_PER_STEP)):
        first = nsmallest(count_max + 1, first + more, key=_name)
        yield
    rows: list[SubscriptionReport] = []
    size_bytes = 0
    for number, (_, report) in enumerate(first):
        if number >= count_max or size_bytes > LISTING_BYTES:
            return rows, first[number - 1][0]
        rows.append(report())
        size_bytes += _listed_bytes(rows[-1])
        yield
    return rows, ""


def run_through(steps: Steps[Reported]) -> Reported:
    """Take all steps at once, and return what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Reported", end.value)


def _name(named: tuple[str, object]) -> str:
    return named[0]


def _listed_bytes(row: SubscriptionReport) -> int:
    """Return about how large a row is when it is sent: names of 255 B, and figures."""
    filters = sum(map(len, (*row.filters, *row.filters.values(), *row.key_filters)))
    size_bytes = 1_000 + 450 * len(row.consumers) + 4 * filters
    if row.cursor is not None:
        size_bytes += 300 * (len(row.cursor.floors) + len(row.cursor.snapshots)) + 1_000
    return size_bytes
