"""Which messages of a stored batch a subscription hands out, and which count as done."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby

from ister.codec import Batch, Column
from ister.subscriptions.filters import Filter, piece_end
from ister.subscriptions.offsets import Run

# The attribute that limits the life of one message, in milliseconds.
TTL_ATTRIBUTE = "ister-ttl-ms"


# What is looked at before the clock is. A message may take a microsecond, or 30 ms with 64 slow
# globs and a key of 4 KiB.
LOOK_US = 1_000
# Messages whose own limits are looked at in one go: 1 µs each.
LIVES_AT_ONCE = 2_048


class Selector:
    """Chooses messages by a filter and by their age.

    What it found out about the last batch it remembers: one batch is handed out bit by bit to a
    consumer that takes little at a time. It looks at a batch from the first message that it is
    asked about on, and no farther than it has time for.
    """

    __slots__ = ("_batch", "_chosen", "_end", "_filter", "_may_outlive", "_start")

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._batch: Batch | None = None
        # The slots that were looked at, and the wanted ones among them.
        self._start = self._end = 0
        self._chosen: set[int] = set()
        self._may_outlive = False

    @property
    def takes_all(self) -> bool:
        """Whether its filter takes every message."""
        return self._filter.takes_all

    def use(self, filter_: Filter) -> None:
        """Choose by another filter from now on."""
        self._filter = filter_
        self.clear()

    def choose(
        self,
        batch: Batch,
        slots: Sequence[int],
        *,
        ttl_ms: int,
        now_ms: int,
        elapsed_ms: Callable[[], int] = lambda: 0,
        end_ms: int = 1,
    ) -> tuple[Sequence[int], int]:
        """Return those of `slots` (rising) that are wanted and not too old.

        And how many of `slots` were looked at: one at least, and no more once `elapsed_ms` is at
        `end_ms`.
        """
        if not slots or (ttl_ms and batch.publish_time_ms + ttl_ms <= now_ms):
            return [], len(slots)
        if self._filter.takes_all and not batch.columns & Column.ATTRIBUTES:
            return slots, len(slots)
        if batch is not self._batch or slots[0] < self._start:
            self._begin(batch, slots[0])
        if not self._filter.takes_all:
            self._look(slots, elapsed_ms, end_ms)
            slots = slots[: bisect_left(slots, self._end)]
        if self._may_outlive:
            slots = slots[:LIVES_AT_ONCE]
        looked = len(slots)
        if not self._filter.takes_all:
            chosen = self._chosen
            slots = [s for s in slots if s in chosen]
        return (_fresh(batch, slots, now_ms) if self._may_outlive else slots), looked

    def clear(self) -> None:
        """Forget the last batch."""
        self._batch = None
        self._chosen = set()

    def _begin(self, batch: Batch, start: int) -> None:
        self._may_outlive = _may_outlive(batch)
        self._batch = batch
        self._chosen = set()
        self._start = self._end = start

    def _look(self, slots: Sequence[int], elapsed_ms: Callable[[], int], end_ms: int) -> None:
        """Go on looking up to the last of `slots`, past the first at least, while there is time."""
        batch = self._batch
        assert batch is not None, "looking begins with a batch"
        weight = self._filter.weight
        while self._end <= slots[-1] and (self._end <= slots[0] or elapsed_ms() < end_ms):
            end = piece_end(batch, self._end, weight=weight, work_us=LOOK_US)
            self._chosen.update(self._filter.select_between(batch, self._end, end))
            self._end = end


def fresh(batch: Batch, slots: Sequence[int], *, ttl_ms: int, now_ms: int) -> Sequence[int]:
    """Return those of `slots` that have not outlived their topic's limit or their own."""
    if ttl_ms and batch.publish_time_ms + ttl_ms <= now_ms:
        return []
    return _fresh(batch, slots, now_ms) if _may_outlive(batch) else slots


def _may_outlive(batch: Batch) -> bool:
    """Whether some message of a batch may have a limit of its own."""
    return bool(batch.columns & Column.ATTRIBUTES) and batch.names_attribute(TTL_ATTRIBUTE)


def _fresh(batch: Batch, slots: Sequence[int], now_ms: int) -> Sequence[int]:
    if not slots:
        return slots
    first = slots[0]
    rows = batch.attributes_between(first, slots[-1] + 1)
    assert rows is not None, "the column is there"
    age_ms = now_ms - batch.publish_time_ms
    return [s for s in slots if not _outlived(rows[s - first].get(TTL_ATTRIBUTE), age_ms)]


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


def runs_of(offsets: Sequence[int]) -> list[Run]:
    """Return rising offsets as runs."""
    runs: list[Run] = []
    for _, group in groupby(enumerate(offsets), key=lambda place: place[1] - place[0]):
        run = [offset for _, offset in group]
        runs.append((run[0], run[-1] + 1))
    return runs


def runs_between(start: int, end: int, offsets: Sequence[int]) -> list[Run]:
    """Return the runs of `start` to `end` that hold none of `offsets` (rising)."""
    runs: list[Run] = []
    for offset in offsets:
        if start < offset:
            runs.append((start, offset))
        start = offset + 1
    if start < end:
        runs.append((start, end))
    return runs
