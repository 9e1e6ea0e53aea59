"""The newest batches of streams, in memory: what consumers that keep up are served from.

Always true: all tails together stay within one budget, and what makes room is the oldest of all.
"""

from bisect import bisect_right
from collections import deque

from ister.base.limits import MIB
from ister.codec import Batch

# What a batch costs beside its bytes: the object, its view, and places in lists.
BATCH_OVERHEAD_BYTES = 600


class RecentBudget:
    """What all tails of a broker hold together."""

    __slots__ = ("_order", "limit_bytes", "size_bytes")

    def __init__(self, limit_bytes: int = 64 * MIB) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._order: deque[RecentBatches] = deque()

    def add(self, tail: "RecentBatches", size_bytes: int) -> None:
        """Account for a batch at the end of `tail`, and make room for it."""
        self._order.append(tail)
        self.size_bytes += size_bytes
        while self.size_bytes > self.limit_bytes and len(self._order) > 1:
            # One place in the order for each batch: those of a tail leave in their order.
            self.size_bytes -= self._order.popleft().drop_first()

    def forget(self, tail: "RecentBatches") -> None:
        """A topic is gone."""
        self.size_bytes -= tail.size_bytes
        self._order = deque(t for t in self._order if t is not tail)


class RecentBatches:
    """The newest batches of one stream, by offset. What came while nobody listened is missing."""

    __slots__ = ("_bases", "_batches", "_budget", "_first", "size_bytes")

    def __init__(self, budget: RecentBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        # Slot of the first batch still held.
        self._first = 0

    def append(self, batch: Batch) -> None:
        """Add the newest batch."""
        batch.detached()
        size_bytes = batch.size_bytes + BATCH_OVERHEAD_BYTES
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self.size_bytes += size_bytes
        self._budget.add(self, size_bytes)

    def find(self, offset: int) -> Batch | None:
        """Return the batch with the message at `offset`, if it is held."""
        slot = bisect_right(self._bases, offset, self._first) - 1
        if slot < self._first:
            return None
        batch = self._batches[slot]
        assert batch is not None
        return batch if offset < batch.base_offset + batch.count else None

    def drop_first(self) -> int:
        """Let go of the oldest batch; returns the bytes freed."""
        batch = self._batches[self._first]
        assert batch is not None
        self._batches[self._first] = None
        self._first += 1
        if self._first > 64 and self._first * 2 > len(self._batches):
            del self._bases[: self._first], self._batches[: self._first]
            self._first = 0
        freed = batch.size_bytes + BATCH_OVERHEAD_BYTES
        self.size_bytes -= freed
        return freed
