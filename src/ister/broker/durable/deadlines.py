"""Wakes a subscription when leases or delays of its topics end.

Always true: a partition that is watched is in the heap under the time it is watched for. One timer
serves all of them and is set for the first. An entry of a partition that is watched for another
time by now is skipped when it comes up.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from ister.base import Clock, Timer
from ister.broker.durable.partition import NOT_DUE_MS, Partition

# Partitions dealt with in one turn of the loop: each may end hundreds of leases.
PARTITIONS_AT_ONCE = 16


class Deadlines:
    """The times at which partitions of a subscription are due.

    `on_due` gets each partition at its time, once, and may watch it again.
    """

    __slots__ = ("_clock", "_count", "_dues", "_on_due", "_timer", "_timer_ms")

    def __init__(self, clock: Clock, on_due: Callable[[list[Partition]], object]) -> None:
        self._clock = clock
        self._on_due = on_due
        # Time, a number that makes ties fair, partition.
        self._dues: list[tuple[int, int, Partition]] = []
        self._count = 0
        self._timer: Timer | None = None
        self._timer_ms = 0

    def schedule(self, partition: Partition, due_ms: int | None) -> None:
        """Look at a partition at that time, or earlier if it is watched for an earlier time."""
        if due_ms is None or due_ms >= partition.due_ms:
            return
        partition.due_ms = due_ms
        self._count += 1
        heappush(self._dues, (due_ms, self._count, partition))
        self._set_timer()

    def forget(self, partition: Partition) -> None:
        """A partition is gone."""
        partition.due_ms = NOT_DUE_MS

    def close(self) -> None:
        """Never ring again."""
        self._dues.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if not self._dues:
            return
        due_ms = self._dues[0][0]
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_ms = max(due_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._clock.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        due: list[Partition] = []
        while self._dues and self._dues[0][0] <= now_ms and len(due) < PARTITIONS_AT_ONCE:
            due_ms, _, partition = heappop(self._dues)
            if due_ms == partition.due_ms:
                partition.due_ms = NOT_DUE_MS
                due.append(partition)
        self._on_due(due)
        self._set_timer()
