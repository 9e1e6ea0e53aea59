"""Recognises what a stream has stored before or is about to: by sequence numbers, and by ids.

Always true: what is taken for a batch that is not committed yet is the stream's own once it is, and
is cleared when the journal fails.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice

from ister.base.errors import SequenceError
from ister.broker.state import TopicRecord, keys_of
from ister.codec import Batch, Column


class Deduplication:
    """What was sent to one stream before. `record` has what is committed."""

    __slots__ = ("_ids", "_keys", "_now_ms", "_record", "_sequences")

    def __init__(self, record: TopicRecord, now_ms: Callable[[], int]) -> None:
        self._record = record
        self._now_ms = now_ms
        # Of batches that are not committed yet: by producer, the first number and the end of each.
        self._sequences: dict[str, dict[int, int]] = {}
        # Of batches with ids: the offset by the key of an id, and the keys by the first offset of a
        # batch. A long id takes as long to turn into its key as all else: that is done once.
        self._ids: dict[str, int] = {}
        self._keys: dict[int, list[str | None]] = {}

    # Sequence numbers

    def next_sequence(self, name: str) -> int:
        """Return the number the next message of a producer should have."""
        stored = self._record.producers.next_sequence(name)
        pending = self._sequences.get(name)
        return stored if pending is None else max(stored, *pending.values())

    def is_repeated(self, name: str, batch: Batch) -> bool:
        """Whether a batch of a producer was stored before, or is about to be."""
        if not name or not batch.numbered:
            return False
        sequence, due = batch.first_sequence, self.next_sequence(name)
        # A higher one is new: what lies between was refused; and so is that when it comes again.
        if sequence >= due or self._is_hole(name, batch):
            return False
        if sequence + batch.count <= due:
            return True
        # Some of a batch with ids may have been left out: the ids will tell.
        if not batch.columns & Column.ID:
            raise SequenceError(self._record.name, name, sequence, due)
        return False

    def _is_hole(self, name: str, batch: Batch) -> bool:
        """Whether none of a batch is stored or about to be, though later ones are."""
        first, end = batch.first_sequence, batch.first_sequence + batch.count
        pending = self._sequences.get(name, {})
        if any(other < end and other_end > first for other, other_end in pending.items()):
            return False
        return self._record.producers.is_hole(name, first, batch.count)

    def take_numbers(self, name: str, batch: Batch) -> None:
        """A batch of a producer is about to be stored: its numbers are taken."""
        if name and batch.numbered:
            first = batch.first_sequence
            pending = self._sequences.get(name)
            if pending is None:
                pending = self._sequences[name] = {}
            pending[first] = first + batch.count

    def on_numbers_stored(self, batch: Batch) -> None:
        """The record has the numbers of a batch."""
        name = batch.producer_bytes.decode(errors="replace")
        pending = self._sequences.get(name)
        if pending is not None:
            pending.pop(batch.first_sequence, None)
            if not pending:
                del self._sequences[name]

    # Message ids

    def sort_out(self, batch: Batch, next_offset: int) -> tuple[Batch | None, list[int] | None]:
        """Return what of a batch is new by its ids, to be stored at `next_offset`.

        When some of it is not, also the offset of each message: of one that was stored before as a
        negative number, its bits turned round.
        """
        if not batch.columns & Column.ID or not self._record.settings.dedup_window_ms:
            return batch, None
        keys = keys_of(batch.ids or ())
        known = self.find_offsets(keys, next_offset)
        new = [slot for slot, offset in enumerate(known) if offset is None]
        if len(new) == batch.count:
            self._take_ids(keys, next_offset)
            return batch, None
        offsets = [~o if o is not None else 0 for o in known]
        for place, slot in enumerate(new):
            offsets[slot] = next_offset + place
        rest = batch.unstamped(new) if new else None
        if rest is not None:
            self._take_ids([keys[slot] for slot in new], next_offset)
        return rest, offsets

    def plan_offsets(self, batches: Sequence[Batch], next_offset: int) -> list[int]:
        """Return the offset of the first new message of each of some batches, stored in turn."""
        dedup = self._record.settings.dedup_window_ms
        ids = [keys_of(b.ids or ()) if b.columns & Column.ID and dedup else [] for b in batches]
        listed = list(chain.from_iterable(ids))
        known = iter(self.find_offsets(listed, next_offset))
        offset, offsets = next_offset, []
        for batch, keys in zip(batches, ids, strict=True):
            offsets.append(offset)
            offset += sum(o is None for o in islice(known, len(keys))) if keys else batch.count
        return offsets

    def find_offsets(self, keys: Sequence[str | None], next_offset: int) -> list[int | None]:
        """Return for each key of an id the offset it was stored at before, `None` for a new one."""
        newer_than_ms = self._now_ms() - self._record.settings.dedup_window_ms
        find, pending = self._record.ids.find, self._ids
        known: list[int | None] = []
        fresh: dict[str, int] = {}
        # The offset of the next message that is new.
        following = next_offset
        for key in keys:
            if key is None:
                known.append(None)
                following += 1
                continue
            offset = pending.get(key)
            if offset is None:
                offset = find(key, newer_than_ms=newer_than_ms)
            if offset is None:
                # The second of two in one batch is known by the first, whose offset this will be.
                offset = fresh.get(key)
                if offset is None:
                    fresh[key] = following
                    following += 1
            known.append(offset)
        return known

    def _take_ids(self, keys: list[str | None], next_offset: int) -> None:
        """A batch with these keys of ids is about to be stamped and stored."""
        self._keys[next_offset] = keys
        for offset, key in enumerate(keys, next_offset):
            if key is not None:
                self._ids[key] = offset

    # What becomes of it

    def on_committed(self, batch: Batch, *, sequenced: bool) -> None:
        """A batch is committed: have it in the record."""
        keys = None
        if self._keys and batch.columns & Column.ID:
            keys = self._keys.pop(batch.base_offset, None)
        self._record.on_stored(batch, sequenced=sequenced, keys=keys)
        if sequenced and self._sequences and batch.numbered:
            self.on_numbers_stored(batch)
        for key in keys or ():
            if key is not None:
                self._ids.pop(key, None)

    def clear(self) -> None:
        """Nothing that was not committed will be."""
        self._sequences.clear()
        self._ids.clear()
        self._keys.clear()
