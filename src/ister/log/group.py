"""A group of entries that are written and synced together, and how it becomes bytes."""

from collections.abc import Sequence
from typing import NamedTuple

from ister.base.limits import KIB
from ister.codec import crc32c
from ister.log.entry import CHECKED, CRC, HEADER_BYTES, KEEP_GIL, MAGIC, Kind, padding
from ister.log.envelope import Envelope
from ister.log.extents import Extents
from ister.log.ports import Buffer
from ister.log.segment import Segment

# Below this a copy costs less than one more part in a system call.
SMALL_PART_BYTES = 4 * KIB


# An entry that waits to be written: kind, topic, parts, their size, count, first and end offset,
# time, and of a transaction each batch as topic, first and end offset, time and bytes. A plain
# tuple: a named one takes longer to make than all the rest of an append.
Row = tuple[
    int,
    int,
    Sequence[Buffer],
    int,
    int,
    int,
    int,
    int,
    Sequence[tuple[int, int, int, int, int]],
]


class Group:
    """Entries collected while the group before was written.

    `Log.write` fills in where they are; until `Log.committed` nobody else may look.
    """

    __slots__ = (
        "end",
        "entry_end",
        "extents",
        "needs_sync",
        "rows",
        "sealed",
        "segment",
        "size_bytes",
        "synced",
    )

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size_bytes = 0
        self.needs_sync = False
        # Where it was written, and up to which position and entry number.
        self.segment: Segment | None = None
        self.end = 0
        self.entry_end = 0
        self.extents: Extents | None = None
        # The file that was sealed to make room for it.
        self.sealed: Segment | None = None
        self.synced = False

    def __len__(self) -> int:
        return len(self.rows)


class Layout(NamedTuple):
    """The bytes of some entries, to be written at a position chosen before."""

    parts: list[Buffer]
    end: int
    entry_end: int
    extents: Extents


def lay_out(
    rows: Sequence[Row],
    envelope: Envelope,
    *,
    position: int,
    number: int,
    synced: int,
    mark: int,
    extent_bytes: int,
) -> Layout:
    """Return the entries as bytes for `position`, the first with entry number `number`."""
    parts: list[Buffer] = []
    extents = Extents(extent_bytes)
    flags = envelope.flags
    for kind, topic, plain, size, count, first_offset, end_offset, time_ms, batches in rows:
        stored, length = plain, size
        if envelope.cipher is not None:
            stored = envelope.seal(kind, topic, number, count, plain)
            length = len(stored[0])
        # As `pack_header` does, without the call: this is on the way of every publish.
        checked = CHECKED.pack(length, MAGIC, kind, flags, topic, number, synced, count, mark)
        crc = crc32c(checked)
        for part in stored:
            crc = crc32c(part, crc, KEEP_GIL)
        parts.append(CRC.pack(crc) + checked)
        parts.extend(stored)
        if length & 7:
            parts.append(padding(length))
        end = position + HEADER_BYTES + ((length + 7) & ~7)
        if kind == Kind.BATCH:
            extents.add(
                topic,
                position,
                end,
                first_offset,
                end_offset,
                time_ms,
                time_ms,
                end - position,
            )
        for inner, first, last, time, own in batches:
            extents.add(inner, position, end, first, last, time, time, own)
        position = end
        number += 1
    return Layout(parts, position, number, extents)


def joined(parts: list[Buffer], size_bytes: int) -> list[Buffer]:
    """Return the same bytes in a shape that is quick to write: small parts in one."""
    if size_bytes < SMALL_PART_BYTES * len(parts):
        return [b"".join(parts)]
    return parts
