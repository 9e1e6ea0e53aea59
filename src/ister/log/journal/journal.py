"""The open end of a log on a disk: the file that takes the next group.

Always true:
- one file is open at most; it is full or fails, and then never written to again;
- a file begins with a synced header, so that every later entry proves that the file was begun. Only
  what `recover` writes once more comes before the header, and such entries prove nothing;
- `position`, `entry_end` are the end of what was written, `synced`, `entry_synced` of what is on
  the disk; after a failure numbers go on from `entry_synced`, in another file. The header of that
  file says so, and thereby voids what the failed file has from there on;
- a group is written to what is allocated of a file, so that a sync need not write the file's size,
  and a full disk does not show in the middle of a write. A file that cannot grow is full.

Threads: everything here is for the one worker that writes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ister.log.files.entry import (
    HEADER_BYTES,
    MAGIC,
    TRAILER,
    Kind,
    pack_header,
    padded,
    padding,
)
from ister.log.files.envelope import Envelope
from ister.log.files.extents import Extents
from ister.log.files.header import begin_file
from ister.log.files.numbers import Numbers
from ister.log.files.options import LogOptions
from ister.log.files.ports import Buffer, File
from ister.log.files.segment import Place, Segment, segment_name
from ister.log.journal.backend import FileBackend
from ister.log.journal.group import Group, joined, lay_out
from ister.log.journal.space import is_disk_full


@dataclass(slots=True)
class OpenFile:
    """The file that is being written, or was when the log was closed."""

    file: File
    segment: Segment
    envelope: Envelope
    mark: int
    position: int
    synced: int
    entries: int = 0
    # What is allocated, and what it may hold; of one that was found at the start nothing more.
    allocated: int = 0
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a file that failed, and of the groups that were not on the disk yet."""

    # The failed file up to where it was synced, unless making it was what failed.
    closed: list[Segment]
    # The groups written anew; the last of them is synced, and so all are.
    groups: list[Group]


class FileJournal:
    """Writes groups into files of `options.segment_bytes`."""

    def __init__(
        self,
        backend: FileBackend,
        options: LogOptions,
        *,
        numbers: Numbers,
        entry_end: int,
        owner: str,
    ) -> None:
        self._disk = backend.disk
        self._space = backend.space
        self._options = options
        self._numbers = numbers
        self._owner = owner
        self.entry_end = entry_end
        self.entry_synced = entry_end
        # The file, and whether it may be written to.
        self.open: OpenFile | None = None
        self.broken = False
        self._sync_failed = False
        # Whether the group that failed last is gone for good, although `recover` has not returned.
        self.voided = False
        # A file found at start-up is sealed before the first write: its numbers may have been
        # used under its key for entries that were cut off.
        self.resumed = False
        # Committed, but not on the disk.
        self.unsynced: list[Group] = []
        self._closed: list[Segment] = []
        # What the next file begins with: as much as the one before it needed.
        self._allocate_bytes = options.allocate_bytes

    def write(self, group: Group, extents_of_open: Callable[[], Extents]) -> None:
        """Write `group`, in a new file if need be. After an `OSError` only `recover` may follow."""
        if self.broken:
            raise OSError("the journal has failed and was not recovered")
        self.broken = True
        self.voided = False
        open_file = self.open
        if open_file is not None and self._is_full(open_file, group):
            group.sealed = self._seal(open_file, extents_of_open())
            open_file = None
        if open_file is None:
            # Changes may use up the reserve, messages only some of it.
            keep = self._space.kept if group.has_messages else 0
            open_file = self._create(group.size_bytes, keep=keep)
        self._append(open_file, group)
        if open_file.position * 2 > open_file.allocated < open_file.bytes_max:
            # Ahead of need, so that no group waits for more than this: the system takes some 30 µs
            # to allocate, and the sync of this group has the new size to write.
            self._grow(open_file, open_file.position)
        self.broken = False

    def sync(self, group: Group) -> None:
        """Have `group` on the disk. After an `OSError` only `recover` may follow."""
        open_file = self.open
        assert open_file is not None, "a group was written, so a file is open"
        try:
            open_file.file.sync()
        except OSError:
            # The system may have forgotten which pages it could not write: a second sync would
            # succeed without them.
            self.broken = self._sync_failed = True
            raise
        open_file.synced = group.end
        self.entry_synced = group.entry_end
        group.synced = True

    def fail(self) -> None:
        """Take no more groups until `recover`."""
        self.broken = True

    def recover(self) -> Recovered:
        """Leave the failed file, and write what was not synced of it into a new one.

        Raises `OSError` while the cause is still there; then call it again.
        """
        if self.open is not None:
            self._abandon(self.open)
        self.entry_end = self.entry_synced
        groups = [copy_of(group) for group in self.unsynced]
        self._create(sum(group.size_bytes for group in groups), again=groups)
        self.entry_synced = self.entry_end
        self.unsynced.clear()
        self.broken = self._sync_failed = False
        closed, self._closed = self._closed, []
        return Recovered(closed, groups)

    def close(self) -> None:
        """Sync and let go of the file, which stays open-ended."""
        open_file, self.open = self.open, None
        if open_file is None:
            return
        try:
            if not self.broken:
                open_file.file.sync()
        finally:
            self.broken = True
            open_file.file.close()

    def _is_full(self, open_file: OpenFile, group: Group) -> bool:
        if self.resumed:
            return True
        end = open_file.position + group.size_bytes
        if open_file.allocated < end <= open_file.bytes_max:
            self._grow(open_file, end)
        if not open_file.entries:
            return False  # A group larger than a file has one of its own.
        return (
            end > open_file.bytes_max
            or open_file.entries + len(group) > self._options.segment_entries
        )

    def _grow(self, open_file: OpenFile, bytes_min: int) -> None:
        """Allocate at least `bytes_min` of a file, twice as much if possible, or have it full."""
        size = open_file.allocated
        while size < 2 * bytes_min:
            size *= 2
        try:
            size = self._space.grow(
                open_file.file,
                open_file.allocated,
                allocate_bytes=min(size, open_file.bytes_max),
                bytes_min=bytes_min,
            )
        except OSError:
            size = open_file.allocated  # Making the next file tells why.
        if size == open_file.allocated:
            open_file.bytes_max = size
        open_file.allocated = self._allocate_bytes = size

    def _append(self, open_file: OpenFile, group: Group) -> None:
        position, number = open_file.position, self.entry_end
        extents: Extents | None = None
        for rows in group.slices():
            layout = lay_out(
                rows,
                open_file.envelope,
                position=position,
                number=number,
                synced=open_file.synced,
                mark=open_file.mark,
                extent_bytes=self._options.extent_bytes,
            )
            group.reached = True
            open_file.file.write(position, joined(layout.parts, layout.end - position))
            position, number = layout.end, layout.entry_end
            if extents is None:
                extents = layout.extents
            else:
                extents.merge(layout.extents)
        open_file.position = group.end = position
        open_file.entries += len(group)
        self.entry_end = group.entry_end = number
        group.segment = open_file.segment
        group.extents = extents

    def _create(self, size_bytes: int, *, keep: int = 0, again: Sequence[Group] = ()) -> OpenFile:
        """Begin a file with room for so many bytes of entries at least.

        The groups `again` are in an earlier file, which the header of this one voids. So they are
        written before the header: whoever finds a file without one takes the earlier file.
        """
        number = self._numbers.take()
        begun = begin_file(
            "journal",
            number,
            first_entry=self.entry_end,
            owner=self._owner,
            now_ms=self._options.now_ms(),
            keyring=self._options.ciphers,
        )
        size = begun.size_bytes
        file, allocated, bytes_max = self._space.create(
            segment_name(number),
            allocate_bytes=self._allocate_bytes,
            bytes_max=self._options.segment_bytes,
            bytes_min=size + size_bytes,
            keep=keep,
        )
        open_file = OpenFile(
            file,
            Segment(number, Place.LOCAL),
            begun.envelope,
            begun.mark,
            position=size,
            synced=0,
            allocated=allocated,
            bytes_max=bytes_max,
        )
        try:
            for group in again:
                self._append(open_file, group)
            if again:
                file.sync()
            file.write(0, begun.parts)
            file.sync()
        except OSError:
            file.close()
            with suppress(OSError):
                self._disk.remove(segment_name(number))
            raise
        open_file.synced = open_file.position
        self.open = open_file
        return open_file

    def _seal(self, open_file: OpenFile, extents: Extents) -> Segment:
        parts = footer_entries(
            extents,
            open_file.envelope,
            position=open_file.position,
            number=self.entry_end,
            synced=open_file.synced,
            mark=open_file.mark,
        )
        end = open_file.position
        size = end + sum(map(len, parts))
        try:
            open_file.file.write(end, parts)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # It is as good without a footer, only larger in the index.
            size = end
        try:
            open_file.file.truncate(size)
        except OSError:
            self._sync_failed = True
            raise
        open_file.file.close()
        self.open = None
        self.resumed = False
        self.entry_synced = self.entry_end
        self.unsynced.clear()
        return Segment(open_file.segment.number, Place.LOCAL, size, end, open_file.entries)

    def _abandon(self, open_file: OpenFile) -> None:
        """Close a failed file. Behind what was synced it may hold anything."""
        if not self._sync_failed:
            # Frees what was allocated ahead, and has the group that failed gone, also when there
            # is no room for another file. What was committed is read from here until it is in
            # the next file. A disk that fails here takes nothing from anybody: the header of the
            # next file voids the rest of this one.
            ends = [g.end for g in self.unsynced if g.segment == open_file.segment]
            with suppress(OSError):
                open_file.file.truncate(max(ends, default=open_file.synced))
                self.voided = True
        with suppress(OSError):
            open_file.file.close()
        self.open = None
        self.resumed = False
        synced = open_file.synced
        self._closed.append(
            Segment(open_file.segment.number, Place.LOCAL, synced, synced, open_file.entries)
        )


def copy_of(group: Group) -> Group:
    """Return the entries of a group, to be written once more."""
    copy = Group()
    copy.rows, copy.size_bytes = group.rows, group.size_bytes
    return copy


def footer_entries(
    extents: Extents, envelope: Envelope, *, position: int, number: int, synced: int, mark: int
) -> list[Buffer]:
    """Return the last entry of a file for `position`, and the trailer behind it."""
    stored = envelope.seal(Kind.FOOTER, 0, number, 0, synced, [extents.encode()])
    length = len(stored[0])
    head = pack_header(
        Kind.FOOTER,
        0,
        stored,
        length=length,
        number=number,
        synced=synced,
        count=0,
        mark=mark,
        flags=envelope.flags,
    )
    trailer = TRAILER.pack(position, HEADER_BYTES + padded(length), MAGIC)
    return [head, *stored, padding(length) + trailer]
