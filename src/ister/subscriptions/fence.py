"""Tell a repeated acknowledgement from one under a lease that has lost the message.

An acknowledgement may be repeated under the same lease, because the first answer may be lost. Under
a lease that had lost the message before, it is refused: another consumer acknowledged the message,
and both consumers would believe that the acknowledgement was theirs.

`Fence` knows what the leases of one topic have lost since the last start of the broker. What it has
forgotten it refuses. `Confirmations` knows which lease was confirmed: the journal has that, so an
acknowledgement can be repeated after a restart, and one that `Fence` refuses for no other reason
than that it has forgotten the lease is accepted.

Always true:
- a message that was taken from a lease cannot be acknowledged under it;
- under a lease from before the last `begin`, or one that is forgotten, nothing is accepted but what
  the lease still has.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

from ister.subscriptions.offsets import OffsetSet, Run

# Leases of one topic that lost messages. A client repeats an acknowledgement until its timeout of
# 30 s, so this suffices for 30 lost leases per second. Each takes about 200 B: 200 KB for a topic.
LOST_LEASES_MAX = 1_024
# Runs that are refused one by one. The last one reaches to the end of the acknowledged run.
STALE_RUNS_MAX = 16
# Confirmed runs of one journal that are remembered. An answer is on its way for milliseconds: this
# suffices for 1.6 s at 20,000 confirmations of single messages a second. Each takes 450 B: 15 MB.
CONFIRMED_RUNS_MAX = 32_768

# Lease, start, end.
LeasedRun = tuple[int, int, int]


class Fence:
    """The leases of one topic of a subscription that have lost messages."""

    __slots__ = ("_first", "_forgotten", "_leases_max", "_lost", "_numbers")

    def __init__(self, *, leases_max: int = LOST_LEASES_MAX) -> None:
        self._leases_max = leases_max
        self._lost: dict[int, OffsetSet] = {}
        # The numbers of these, as a heap.
        self._numbers: list[int] = []
        # No lease with a higher number was forgotten.
        self._forgotten = -1
        self.begin()

    def begin(self) -> None:
        """Void all leases so far."""
        # The number of the first lease since `begin`.
        self._first: int | None = None

    def on_lease(self, number: int) -> None:
        """Record a new lease. The numbers of leases rise."""
        if self._first is None:
            self._first = number

    def on_lost(self, number: int, offsets: OffsetSet) -> None:
        """Record that a lease ended for messages that were not acknowledged under it."""
        if number <= self._forgotten:
            return
        lost = self._lost.get(number)
        if lost is not None:
            lost.update(offsets)
            return
        self._lost[number] = offsets.copy()
        heappush(self._numbers, number)
        if len(self._numbers) > self._leases_max:
            self._forgotten = heappop(self._numbers)
            del self._lost[self._forgotten]

    def stale_runs(self, number: int, start: int, end: int, *, held: OffsetSet) -> list[Run]:
        """Return the parts of a run that cannot be acknowledged under a lease, which has `held`.

        The result may contain more, never less, when there are very many parts.
        """
        if self._first is None or number < self._first or number <= self._forgotten:
            return _limit(held.gaps(start, end), end) if start < end else []
        lost = self._lost.get(number)
        return [] if lost is None else _limit(lost.within(start, end).runs(), end)


class Confirmations:
    """What was acknowledged under which lease, as the journal has it: the last confirmed runs.

    Leases are told apart by the number of their subscription and their own.
    """

    __slots__ = ("_by_lease", "_runs", "_runs_max")

    def __init__(self, runs_max: int = CONFIRMED_RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._by_lease: dict[tuple[int, int], OffsetSet] = {}
        # The same, oldest first: subscription, lease, start, end.
        self._runs: deque[tuple[int, int, int, int]] = deque()

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return iter(self._runs)

    def add(self, subscription: int, lease: int, start: int, end: int) -> None:
        """Add a run, and forget the oldest one above the limit. Adding it again changes nothing."""
        known = self._by_lease.setdefault((subscription, lease), OffsetSet())
        if known.count_within(start, end) == end - start:
            return
        known.add(start, end)
        self._runs.append((subscription, lease, start, end))
        if len(self._runs) > self._runs_max:
            self._forget(*self._runs.popleft())

    def _forget(self, subscription: int, lease: int, start: int, end: int) -> None:
        known = self._by_lease[subscription, lease]
        known.discard(start, end)
        if not known:
            del self._by_lease[subscription, lease]

    def missing(self, subscription: int, runs: Iterable[LeasedRun]) -> list[LeasedRun]:
        """Return the parts of runs that are not known to be acknowledged under their leases.

        The result may contain more, never less, when there are very many parts.
        """
        return [
            (lease, *part)
            for lease, start, end in runs
            for part in self._missing((subscription, lease), start, end)
        ]

    def _missing(self, key: tuple[int, int], start: int, end: int) -> list[Run]:
        known = self._by_lease.get(key)
        return [(start, end)] if known is None else _limit(known.gaps(start, end), end)


def merge_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the same offsets in as few runs as possible."""
    found: list[Run] = []
    for start, end in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _limit(runs: Iterable[Run], end: int) -> list[Run]:
    found = list(islice(runs, STALE_RUNS_MAX + 1))
    if len(found) > STALE_RUNS_MAX:
        found[STALE_RUNS_MAX - 1 :] = [(found[STALE_RUNS_MAX - 1][0], end)]
    return found
