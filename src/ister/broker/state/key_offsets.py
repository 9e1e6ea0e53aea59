"""The offset of the newest message of each key, of streams that are set to keep it.

Always true:
- a key is here with the offset of its newest message in the journal, or it has none at
  `forgotten_below` or later. On a topic with retention `compact` a message without a payload
  deletes its key, which is not here then;
- a key takes about 200 B, however long it is: see `key_of`. All streams of a broker together
  have at most as many as their `SharedBudget` says; beyond that the streams with the most forget
  the keys that were silent longest, and say so to whoever asks for one of them;
- applying a batch again changes nothing, so that a snapshot may be newer than the entries that are
  replayed on top of it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from ister.base.errors import BadRequestError, KeyOffsetMismatchError, LimitReachedError
from ister.base.limits import BATCH_KEYS_MAX
from ister.broker.state.message_ids import key_of, keys_of
from ister.broker.state.shared_budget import FORGET_COUNT, SharedBudget
from ister.codec import Batch, Column

# A key without messages.
NO_OFFSET = -1
# Keys of one row of a snapshot: one step, of about 3 ms.
CHUNK_COUNT = 4_096
# What part of the keys of a stream is forgotten at once, at least.
FORGOTTEN_PART = 1_024


class KeyOffsetRow(NamedTuple):
    """A row of a snapshot; a stream with many keys has several."""

    topic: int
    forgotten_below: int
    offsets: dict[str, int]


class KeyOffsets:
    """The offset of the newest message of each key of one stream."""

    __slots__ = ("_budget", "_is_compact", "_newest", "counted", "forgotten_below")

    def __init__(self, budget: SharedBudget, *, is_compact: bool) -> None:
        # The budget's own: how many keys it knows of.
        self.counted = 0
        # Messages below this may be the newest of a key that is not here.
        self.forgotten_below = 0
        # `None` when the stream is gone.
        self._budget: SharedBudget | None = budget
        self._is_compact = is_compact
        # Those that were silent longest first.
        self._newest: dict[str, int] = {}

    @property
    def size(self) -> int:
        """How many keys there are."""
        return len(self._newest)

    def find(self, key: str, *, first_offset: int) -> int:
        """Return the newest offset of a key from `first_offset` on, or `NO_OFFSET`.

        Raises `LimitReachedError` when the key may have been forgotten.
        """
        offset = self._newest.get(key)
        if offset is None:
            if self.forgotten_below > first_offset and self._budget is not None:
                raise LimitReachedError("key_offsets_max", self._budget.size_max)
            return NO_OFFSET
        return offset if offset >= first_offset else NO_OFFSET

    def newest_of(self, batch: Batch) -> dict[str, int]:
        """Return the offset of the last message of each key in a batch; of a deletion `~offset`."""
        keys = batch.keys
        if keys is None:
            return {}
        # Of equal keys, a dictionary keeps the last.
        slots = dict(zip(keys_of(keys), range(batch.count), strict=True))
        slots.pop(None, None)
        offsets = batch.offsets
        if not self._is_compact:
            return {key: offsets[slot] for key, slot in slots.items() if key is not None}
        ends = batch.payload_column.offsets
        return {
            key: offsets[slot] if ends[slot + 1] > ends[slot] else ~offsets[slot]
            for key, slot in slots.items()
            if key is not None
        }

    def on_stored(self, batch: Batch) -> None:
        """A batch is in the journal."""
        newest = self._newest
        for key, offset in self.newest_of(batch).items():
            if newest.get(key, NO_OFFSET) <= max(offset, ~offset):
                # Behind those that were silent longer.
                newest.pop(key, None)
                if offset >= 0:
                    newest[key] = offset
        self._recount()

    def forget(self, *, below: int) -> Iterator[None]:
        """Forget the keys whose newest message is below an offset, step by step."""
        while self._forget_first(FORGET_COUNT, below):
            self._recount()
            yield
        self._recount()

    def forget_oldest(self, size: int) -> None:
        """Forget some keys that may be asked for."""
        # Of a large stream many at once: getting to the first one passes all that were removed.
        size = max(size, len(self._newest) // FORGOTTEN_PART)
        first = dict(islice(self._newest.items(), size))
        self.forgotten_below = max([self.forgotten_below, *(o + 1 for o in first.values())])
        for key in first:
            del self._newest[key]

    def close(self) -> None:
        """The stream is gone: nothing of it counts any more."""
        if self._budget is not None:
            self._budget.remove(self)
            self._budget = None

    def rows(self, topic: int) -> Iterator[KeyOffsetRow]:
        """Yield all of it for a snapshot, some at a time.

        What changes between two steps may be in it or not. So may what was forgotten: that is said
        last, and again the next time.
        """
        newest = self._newest
        # 5 ms for a million.
        keys = list(newest)
        for start in range(0, len(keys), CHUNK_COUNT):
            some = {key: newest[key] for key in keys[start : start + CHUNK_COUNT] if key in newest}
            yield KeyOffsetRow(topic, 0, some)
        yield KeyOffsetRow(topic, self.forgotten_below, {})

    def restore(self, row: KeyOffsetRow) -> None:
        """Take a row that `rows` has yielded."""
        self.forgotten_below = max(self.forgotten_below, row.forgotten_below)
        self._newest |= row.offsets
        self._recount()

    def _recount(self) -> None:
        if self._budget is not None:
            self._budget.on_changed(self)

    def _forget_first(self, count: int, below: int) -> bool:
        """Look at some of the first keys; return whether there may be more to forget."""
        first = list(islice(self._newest.items(), count))
        gone = [key for key, offset in first if offset < below]
        for key in gone:
            del self._newest[key]
        return len(gone) == count


class Keyed(Protocol):
    """A stream as far as its keys go."""

    name: str
    first_offset: int
    key_offsets: KeyOffsets | None


def check_keys(batches: Iterable[Batch]) -> None:
    """Raise `LimitReachedError` for more messages with keys than are remembered in one go."""
    if sum(batch.count for batch in batches if batch.columns & Column.KEY) > BATCH_KEYS_MAX:
        raise LimitReachedError("batch_keys_max", BATCH_KEYS_MAX)


class PendingKeys:
    """The keys of one stream, with those of batches that are on their way to the journal."""

    __slots__ = ("_batches", "_newest", "_record")

    def __init__(self, record: Keyed) -> None:
        self._record = record
        # As `KeyOffsets.newest_of` says.
        self._newest: dict[str, int] = {}
        # By the first offset of a batch.
        self._batches: dict[int, dict[str, int]] = {}

    def add(self, batch: Batch, known: KeyOffsets) -> None:
        """A batch is on its way."""
        self._batches[batch.base_offset] = newest = known.newest_of(batch)
        self._newest |= newest

    def on_stored(self, batch: Batch) -> None:
        """A batch is in the journal."""
        for key, offset in self._batches.pop(batch.base_offset, {}).items():
            if self._newest.get(key) == offset:
                del self._newest[key]

    def clear(self) -> None:
        """None of them will be stored."""
        self._newest.clear()
        self._batches.clear()

    def check(self, batch: Batch, expected: int) -> None:
        """Raise unless the newest message of a batch's one key is at `expected`."""
        topic, known = self._record.name, self._record.key_offsets
        if known is None:
            raise BadRequestError(
                f"topic {topic!r} keeps no offsets of keys: create one with key_offsets=True, or "
                "use expected_offset"
            )
        key = batch.keys[0] if batch.count == 1 and batch.keys is not None else None
        if key is None:
            raise BadRequestError("expected_key_offset is for one message with a key")
        kept = key_of(key)
        if (newest := self._newest.get(kept)) is None:
            newest = known.find(kept, first_offset=self._record.first_offset)
        if max(newest, NO_OFFSET) != expected:
            raise KeyOffsetMismatchError(topic, key, expected, max(newest, NO_OFFSET))
