"""Figures that the index knows without reading a file: times, sizes, counts."""

from bisect import bisect_right

from ister.log.files.extents import END_OFFSET, FIRST_MS, FIRST_OFFSET, OWN_BYTES, STRIDE
from ister.log.index.index import Index


def time_of(index: Index, topic: int, offset: int) -> int | None:
    """Return a time at or before which the message at `offset` was published, if it is stored.

    As near as the index knows: the first message of its extent, or of its segment.
    """
    spans = index.spans(topic)
    if spans and offset < spans[-1].end_offset:
        slot = bisect_right([span.end_offset for span in spans], offset)
        return spans[slot].first_ms
    rows = index.open_rows(topic)
    slot = bisect_right(rows[END_OFFSET::STRIDE], offset)
    return rows[slot * STRIDE + FIRST_MS] if slot * STRIDE < len(rows) else None


def offset_within(index: Index, topic: int, bytes_max: int) -> int:
    """Return the first offset from which on a topic takes no more than about `bytes_max`.

    Inside a segment or extent as if all of its messages had the same size. 0 when all fits.
    """
    rows = index.open_rows(topic)
    parts = [(s.first_offset, s.end_offset, s.own_bytes) for s in index.spans(topic)]
    parts += zip(
        rows[FIRST_OFFSET::STRIDE],
        rows[END_OFFSET::STRIDE],
        rows[OWN_BYTES::STRIDE],
        strict=True,
    )
    left = bytes_max
    for first_offset, end_offset, own_bytes in reversed(parts):
        if own_bytes > left:
            return end_offset - (end_offset - first_offset) * left // own_bytes
        left -= own_bytes
    return 0


def segment_count(index: Index, topic: int) -> int:
    """Return how many segments hold something of a topic."""
    return len({span.segment for span in index.spans(topic)}) + bool(index.open_rows(topic))


def total_bytes(index: Index) -> int:
    """Return the size of every segment that is not written to any more."""
    return sum(segment.size_bytes for segment in index.segments)
