"""What reading yields: slices of batches, and ranges that have to be read from the broker."""

from bisect import bisect_left
from typing import NamedTuple

from ister.codec import Batch, Column


class BatchSlice(NamedTuple):
    """The messages at slots `start` to `end` of a batch."""

    batch: Batch
    start: int
    end: int


class MissingRange(NamedTuple):
    """Offsets that could not be read from a sealed segment; they are read from the broker."""

    start: int
    end: int
    reason: str


def slice_batch(batch: Batch, start: int, end: int) -> BatchSlice | None:
    """Return the messages of a batch with offsets from `start` to `end`, if it has any."""
    if batch.columns & Column.OFFSET:
        # Compaction has left gaps.
        offsets = batch.offsets
        first, last = bisect_left(offsets, start), bisect_left(offsets, end)
    else:
        base = batch.base_offset
        first, last = max(start - base, 0), min(end - base, batch.count)
    return BatchSlice(batch, first, last) if first < last else None
