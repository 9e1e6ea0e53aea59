"""A group of entries that are written and synced together, and how it becomes bytes."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ister.base.limits import KIB, MIB
from ister.codec import crc32c
from ister.log.files.entry import BATCH_KINDS, CHECKED, CRC, HEADER_BYTES, KEEP_GIL, MAGIC, padding
from ister.log.files.envelope import Envelope
from ister.log.files.extents import Extents
from ister.log.files.ports import Buffer
from ister.log.files.segment import Segment

# Below this a copy costs less than one more part in a system call.
SMALL_PART_BYTES = 4 * KIB
# What is read and written in one go of a group that is not in memory.
SLICE_BYTES = 1 * MIB


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


class SeriesPart(NamedTuple):
    """A batch of a series. Its bytes are read from elsewhere when they are written, and not kept.

    `load` returns stamp and tail, `size_bytes` together, in whatever thread it is called; what it
    raises fails the group.
    """

    topic: int
    base_offset: int
    time_ms: int
    count: int  # type: ignore[assignment]  # Nobody counts the fields of a tuple.
    size_bytes: int
    load: Callable[[], Sequence[Buffer]]


class Group:
    """Entries collected while the group before was written.

    `Log.write` fills in where they are; until `Log.committed` nobody else may look.
    """

    __slots__ = (
        "deferred",
        "end",
        "entry_end",
        "extents",
        "needs_sync",
        "reached",
        "rows",
        "sealed",
        "segment",
        "size_bytes",
        "synced",
    )

    def __init__(self) -> None:
        self.rows: list[Row] = []
        # By its slot in there, what gives the parts of a row that has none yet.
        self.deferred: dict[int, Callable[[], Sequence[Buffer]]] = {}
        self.size_bytes = 0
        self.needs_sync = False
        # Whether some of it may have come to the disk or the store, also when writing it failed.
        self.reached = False
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

    @property
    def has_messages(self) -> bool:
        """Whether it is more than changes. For once in a while: it looks at every entry."""
        return any(row[0] in BATCH_KINDS or row[8] for row in self.rows)

    def slices(self) -> Iterator[list[Row]]:
        """Yield the entries with all their parts: all at once, unless they are still to be read.

        Then a few at a time, so that no more of them is in memory. For the worker.
        """
        if not self.deferred:
            yield self.rows
            return
        rows: list[Row] = []
        size = 0
        for slot, row in enumerate(self.rows):
            load = self.deferred.get(slot)
            rows.append(row if load is None else (*row[:2], load(), *row[3:]))
            size += row[3]
            if size >= SLICE_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows


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
            stored = envelope.seal(kind, topic, number, count, synced, plain)
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
        if kind in BATCH_KINDS:
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
