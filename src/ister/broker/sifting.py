"""Which messages of a stored batch a subscription hands out, and which count as done."""

from collections.abc import Sequence
from itertools import groupby

from ister.broker.changes import Runs
from ister.codec import Batch, Column
from ister.subscriptions import Filter

# The attribute that limits the life of one message, in milliseconds.
TTL_ATTRIBUTE = "ister-ttl-ms"


class Sieve:
    """Chooses messages by a filter and by their age.

    What it found out about the last batch it remembers: one batch is handed out bit by bit to a
    consumer that takes little at a time.
    """

    __slots__ = ("_batch", "_chosen", "_filter", "_may_outlive")

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._batch: Batch | None = None
        # Slots; `None` stands for all.
        self._chosen: frozenset[int] | None = None
        self._may_outlive = False

    def choose(
        self, batch: Batch, slots: Sequence[int], *, ttl_ms: int, now_ms: int
    ) -> Sequence[int]:
        """Return those of `slots` that are wanted and not too old."""
        if ttl_ms and batch.publish_time_ms + ttl_ms <= now_ms:
            return []
        if self._filter.takes_all and not batch.columns & Column.ATTRIBUTES:
            return slots
        if batch is not self._batch:
            self._look_at(batch)
        chosen = self._chosen
        if chosen is not None:
            slots = [s for s in slots if s in chosen]
        return _fresh(batch, slots, now_ms) if self._may_outlive else slots

    def clear(self) -> None:
        """Forget the last batch."""
        self._batch = self._chosen = None

    def _look_at(self, batch: Batch) -> None:
        selected = self._filter.select(batch)
        self._chosen = None if selected is None else frozenset(selected)
        self._may_outlive = _may_outlive(batch)
        self._batch = batch


def fresh(batch: Batch, slots: Sequence[int], *, ttl_ms: int, now_ms: int) -> Sequence[int]:
    """Return those of `slots` that have not outlived their topic's limit or their own."""
    if ttl_ms and batch.publish_time_ms + ttl_ms <= now_ms:
        return []
    return _fresh(batch, slots, now_ms) if _may_outlive(batch) else slots


def _may_outlive(batch: Batch) -> bool:
    """Whether some message of a batch may have a limit of its own."""
    return bool(batch.columns & Column.ATTRIBUTES) and batch.names_attribute(TTL_ATTRIBUTE)


def _fresh(batch: Batch, slots: Sequence[int], now_ms: int) -> Sequence[int]:
    rows = batch.attributes
    assert rows is not None, "the column is there"
    age_ms = now_ms - batch.publish_time_ms
    return [s for s in slots if not _outlived(rows[s].get(TTL_ATTRIBUTE), age_ms)]


def _outlived(ttl: str | None, age_ms: int) -> bool:
    # A producer may have written anything there; what is no number limits nothing. `isdecimal`
    # alone takes the digits of every script, and so does `int`.
    return ttl is not None and ttl.isdecimal() and len(ttl) < 20 and int(ttl) <= age_ms


def slots_between(batch: Batch, start: int, end: int) -> Sequence[int]:
    """Return the slots of the messages with offsets `start` to `end`."""
    offsets = batch.offsets
    if isinstance(offsets, range):
        first = max(start - offsets.start, 0)
        return range(first, max(min(end - offsets.start, batch.count), first))
    return [slot for slot, offset in enumerate(offsets) if start <= offset < end]


def slots_of(batch: Batch, offsets: Sequence[int]) -> list[int]:
    """Return the slots of those of `offsets` (rising) that are in the batch."""
    places = batch.offsets
    if isinstance(places, range):
        return [places.index(offset) for offset in offsets if offset in places]
    slot_by_offset = {offset: slot for slot, offset in enumerate(places)}
    return [slot_by_offset[offset] for offset in offsets if offset in slot_by_offset]


def runs_of(offsets: Sequence[int]) -> Runs:
    """Return rising offsets as runs."""
    runs = []
    for _, group in groupby(enumerate(offsets), key=lambda place: place[1] - place[0]):
        run = [offset for _, offset in group]
        runs.append((run[0], run[-1] + 1))
    return runs


def runs_between(start: int, end: int, offsets: Sequence[int]) -> Runs:
    """Return the runs of `start` to `end` that hold none of `offsets` (rising)."""
    runs: Runs = []
    for offset in offsets:
        if start < offset:
            runs.append((start, offset))
        start = offset + 1
    if start < end:
        runs.append((start, end))
    return runs
