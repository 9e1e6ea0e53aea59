"""Where the batches of each topic lie in one file.

An extent is a window of the file that holds neighbouring batches of a topic; those of other topics
may lie between them, a reader skips them. It grows up to `extent_bytes`, and a larger batch is an
extent of its own: four rows for each MiB of the file and topic at most, however small the batches.

Always true of the rows of a topic: positions and offsets rise; extents do not share a batch.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ister.base.limits import KIB
from ister.log.files.ports import Buffer

# Numbers of one row, flat in an array: a tuple for each would take five times the memory.
POSITION: Final = 0
END: Final = 1
FIRST_OFFSET: Final = 2
END_OFFSET: Final = 3
FIRST_MS: Final = 4
LAST_MS: Final = 5
OWN_BYTES: Final = 6
STRIDE: Final = 7

# What one read may fetch for nothing between two extents: less work than a second read.
GAP_BYTES_MAX = 64 * KIB

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, bytes]])


class Extent(NamedTuple):
    """A window `position` to `end` with the messages `first_offset` to `end_offset` of a topic."""

    position: int
    end: int
    first_offset: int
    end_offset: int
    first_ms: int
    last_ms: int
    # Of this topic's entries alone.
    own_bytes: int


class Extents:
    """The extents of one file, or of a part of it, by topic."""

    __slots__ = ("extent_bytes", "topics")

    def __init__(self, extent_bytes: int) -> None:
        self.extent_bytes = extent_bytes
        self.topics: dict[int, array[int]] = {}

    def add(
        self,
        topic: int,
        position: int,
        end: int,
        first_offset: int,
        end_offset: int,
        first_ms: int,
        last_ms: int,
        own_bytes: int,
    ) -> None:
        """Add a window behind all others of its topic."""
        rows = self.topics.get(topic)
        if rows is None:
            self.topics[topic] = array(
                "q", (position, end, first_offset, end_offset, first_ms, last_ms, own_bytes)
            )
        elif end - rows[-STRIDE] <= self.extent_bytes:
            rows[END - STRIDE] = end
            # A transaction may hold several batches of a topic, in one window.
            rows[END_OFFSET - STRIDE] = end_offset
            rows[LAST_MS - STRIDE] = max(rows[LAST_MS - STRIDE], last_ms)
            rows[OWN_BYTES - STRIDE] += own_bytes
        elif position < rows[END - STRIDE]:
            # The same entry once more, too large to share a window with what is before it.
            rows[END_OFFSET - STRIDE] = end_offset
            rows[OWN_BYTES - STRIDE] += own_bytes
        else:
            rows.extend((position, end, first_offset, end_offset, first_ms, last_ms, own_bytes))

    def merge(self, later: "Extents") -> None:
        """Add everything of `later`, which lies behind this in the same file."""
        topics = self.topics
        for topic, rows in later.topics.items():
            if topic in topics:
                self.add(topic, *rows[:STRIDE])
                topics[topic].extend(rows[STRIDE:])
            else:
                topics[topic] = rows[:]

    def summary(self, topic: int) -> Extent:
        """Return everything of `topic` as one window."""
        rows = self.topics[topic]
        last = len(rows) - STRIDE
        return Extent(
            rows[POSITION],
            rows[last + END],
            rows[FIRST_OFFSET],
            rows[last + END_OFFSET],
            rows[FIRST_MS],
            max(rows[LAST_MS::STRIDE]),
            sum(rows[OWN_BYTES::STRIDE]),
        )

    def encode(self) -> bytes:
        """Return the body of a footer."""
        return _encoder.encode([(topic, rows.tobytes()) for topic, rows in self.topics.items()])


def decode_extents(body: Buffer) -> dict[int, bytes]:
    """Return the rows of each topic of a footer as bytes, or raise `ValueError`."""
    try:
        found = dict(_decoder.decode(body))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if any(not rows or len(rows) % (8 * STRIDE) for rows in found.values()):
        raise ValueError("rows of a topic are cut off")
    return found


def rows_of(topics: Mapping[int, bytes], topic: int) -> "array[int]":
    """Return the rows of `topic`; none when it is not there."""
    rows = array("q")
    rows.frombytes(topics.get(topic, b""))
    return rows


def each_extent(rows: "array[int]") -> Iterator[Extent]:
    """Yield the rows one by one."""
    for at in range(0, len(rows), STRIDE):
        yield Extent._make(rows[at : at + STRIDE])


def find_offset(rows: "array[int]", offset: int) -> int:
    """Return where the first row begins that ends behind `offset`; the length when none does."""
    return _find(rows, END_OFFSET, offset + 1)


def find_time(rows: "array[int]", time_ms: int) -> int:
    """Return where the first row begins with a message of `time_ms` or later."""
    return _find(rows, LAST_MS, time_ms)


def window(rows: "array[int]", start: int, size_bytes: int) -> Extent:
    """Return the extent that begins at `start`, with those behind it up to `size_bytes` in all."""
    end = start + STRIDE
    limit = rows[start + POSITION] + size_bytes
    while end < len(rows) and rows[end + END] <= limit:
        # What lies between two extents is read for nothing.
        if rows[end + POSITION] - rows[end + END - STRIDE] > GAP_BYTES_MAX:
            break
        end += STRIDE
    last = end - STRIDE
    return Extent(
        rows[start + POSITION],
        rows[last + END],
        rows[start + FIRST_OFFSET],
        rows[last + END_OFFSET],
        rows[start + FIRST_MS],
        rows[last + LAST_MS],
        sum(rows[start + OWN_BYTES : end : STRIDE]),
    )


def _find(rows: "array[int]", column: int, least: int) -> int:
    """Return where the first row begins whose `column`, which rises, is at least `least`."""
    low, high = 0, len(rows) // STRIDE
    while low < high:
        middle = (low + high) // 2
        if rows[middle * STRIDE + column] < least:
            low = middle + 1
        else:
            high = middle
    return low * STRIDE
