"""The open end of a log in an object store: every group is an object of its own.

Chunks are numbered without gaps and made only once. Making the next number is the fence: a new
owner makes a chunk before its first write, the former owner's next chunk then meets it, and that
owner stops. The first entry number in a chunk voids what earlier chunks have from there on: an
attempt that failed, and reached the store nevertheless.
"""

from collections.abc import Callable

from ister.base.errors import CorruptedError, ObjectExistsError, StorageTakenError
from ister.log.backend import ChunkBackend
from ister.log.beginning import begin_file
from ister.log.entry import Entry, FileHeader, Header
from ister.log.envelope import open_envelope
from ister.log.extents import Extents
from ister.log.group import Group, lay_out
from ister.log.index import Index
from ister.log.journal import Recovered
from ister.log.manifest import Manifest
from ister.log.options import LogOptions
from ister.log.recovery import FIRST_ENTRY, Apply, RecoveryReport, add_extents
from ister.log.scan import Scan, corrupted, owner_of, read_file_header
from ister.log.segment import (
    CHUNKS,
    FENCE_BYTES_MAX,
    SEGMENTS,
    Place,
    Segment,
    chunk_name,
    number_of,
)
from ister.log.series import Series

# Chunks that a former owner may add while a new one tries to put its fence behind them.
FENCE_ATTEMPTS_MAX = 1_000
# Fences of former starts that stay: whoever was stopped so many starts ago does not come back.
FENCES_KEPT = 16


class ChunkJournal:
    """Writes each group as a chunk."""

    def __init__(
        self, backend: ChunkBackend, options: LogOptions, *, number: int, entry_end: int, owner: str
    ) -> None:
        self._backend = backend
        self._options = options
        self._number = number
        self._owner = owner
        self.entry_end = entry_end
        self.broken = False
        # A chunk is durable or absent.
        self.unsynced: list[Group] = []

    def write(self, group: Group, _: Callable[[], Extents]) -> None:
        """Make the next chunk. After an `OSError` only `recover` may follow.

        Raises `StorageTakenError` when somebody else has made it: the log is theirs.
        """
        if self.broken:
            raise OSError("the journal has failed and was not recovered")
        self.broken = True
        group.segment = self._put(group)
        group.synced = True
        self.entry_end = group.entry_end
        self.broken = False

    def sync(self, group: Group) -> None:
        """A chunk is durable when it is made."""
        assert group.synced

    def fail(self) -> None:
        """Take no more groups until `recover`."""
        self.broken = True

    def recover(self) -> Recovered:
        """Make an empty chunk, behind which no earlier attempt can arrive any more."""
        closed = []
        for _ in range(FENCE_ATTEMPTS_MAX):
            try:
                closed.append(self._put(Group()))
            except StorageTakenError:
                name = chunk_name(self._number)
                data = self._backend.get(name)
                if owner_of(data, name) != self._owner:
                    raise
                # The attempt that failed did arrive. The next chunk voids it.
                size = len(data)
                closed.append(Segment(self._number, Place.CHUNK, size, size))
                self._number += 1
            else:
                self.broken = False
                return Recovered(closed, [])
        raise StorageTakenError(chunk_name(self._number), "another broker")

    def close(self) -> None:
        """Take no more groups."""
        self.broken = True

    def _put(self, group: Group) -> Segment:
        number = self._number
        begun = begin_file(
            "chunk",
            number,
            first_entry=self.entry_end,
            owner=self._owner,
            now_ms=self._options.now_ms(),
            keyring=self._options.ciphers,
        )
        # An object is made in one call: here all of it is in memory, but only once.
        data = bytearray().join(begun.parts)
        entry_end = self.entry_end
        extents = Extents(self._options.extent_bytes)
        for rows in group.slices():
            layout = lay_out(
                rows,
                begun.envelope,
                position=len(data),
                number=entry_end,
                synced=0,
                mark=begun.mark,
                extent_bytes=self._options.extent_bytes,
            )
            data += b"".join(layout.parts)
            entry_end = layout.entry_end
            extents.merge(layout.extents)
        name = chunk_name(number)
        try:
            self._backend.put(name, data)
        except ObjectExistsError:
            raise StorageTakenError(name, "another broker") from None
        self._number += 1
        group.end, group.entry_end, group.extents = len(data), entry_end, extents
        return Segment(number, Place.CHUNK, len(data), len(data), len(group))


class ChunkReplay:
    """Opening a log in an object store: replay its chunks, then put a fence behind them."""

    def __init__(
        self,
        backend: ChunkBackend,
        options: LogOptions,
        manifest: Manifest | None,
        index: Index,
        apply: Apply,
        report: RecoveryReport,
    ) -> None:
        self._backend = backend
        self._options = options
        self._manifest = manifest
        self._index = index
        self._apply = apply
        self._report = report
        self._entry_end = manifest.entry_end if manifest else FIRST_ENTRY
        # Chunks whose removal was cut short.
        self.leftovers: list[str] = []

    def run(self, owner: str) -> ChunkJournal:
        """Replay every chunk the snapshot may not have, and return the journal behind them."""
        number = self.replay()
        for name in self.leftovers:
            self._backend.remove(name)
        self._report.removed = self.leftovers
        for _ in range(FENCE_ATTEMPTS_MAX):
            journal = ChunkJournal(
                self._backend,
                self._options,
                number=number,
                entry_end=self._entry_end,
                owner=owner,
            )
            try:
                fence = journal.recover().closed[-1]
            except StorageTakenError:
                # The former owner still writes: its chunk comes before our fence.
                self._replay(number, self._backend.get(chunk_name(number)), None)
                number += 1
            else:
                self._index.close_segment(fence, Extents(self._options.extent_bytes))
                return journal
        raise StorageTakenError(chunk_name(number), "another broker")

    def replay(self) -> int:
        """Replay every chunk the snapshot may not have, and return the number that comes next."""
        replay_from = self._manifest.replay_from if self._manifest else 1
        numbers = self._present(replay_from)
        held: tuple[int, bytes] | None = None
        for number in numbers:
            data = self._backend.get(chunk_name(number))
            if held is not None:
                # The next chunk is enough to know: where chunks begin never goes back, because
                # what was committed is never voided.
                self._replay(*held, self._header(number, data)[1].first_entry)
            held = (number, data)
        if held is not None:
            self._replay(*held, None)
        return replay_from + len(numbers)

    def _present(self, replay_from: int) -> list[int]:
        numbers = [n for n in map(number_of, self._backend.names(CHUNKS)) if n >= 0]
        segments = self._manifest.segments if self._manifest else []
        known = {s.number for s in segments if s.place is Place.CHUNK}
        present = {*self._backend.names(CHUNKS), *self._backend.names(SEGMENTS)}
        for segment in segments:
            if segment.name not in present:
                raise CorruptedError(segment.name, 0, "the object is missing")
        named = {segment.name for segment in segments}
        unknown = [n for n in numbers if n < replay_from and n not in known]
        self.leftovers = self._without_fences(unknown)
        # Rewritten, but no manifest came to name it.
        self.leftovers += [n for n in self._backend.names(SEGMENTS) if n not in named]
        found = [n for n in numbers if n >= replay_from]
        for slot, number in enumerate(found):
            if number != replay_from + slot:
                raise CorruptedError(chunk_name(replay_from + slot), 0, "the object is missing")
        return found

    def _without_fences(self, numbers: list[int]) -> list[str]:
        """Return the names of these chunks without the newest fences, which are still needed."""
        fences = 0
        leftovers = []
        for number in reversed(numbers):
            if fences < FENCES_KEPT and self._is_fence(number):
                fences += 1
            else:
                leftovers.append(chunk_name(number))
        return leftovers[::-1]

    def _is_fence(self, number: int) -> bool:
        name = chunk_name(number)
        if self._backend.size(name) > FENCE_BYTES_MAX:
            return False
        data = self._backend.get(name)
        try:
            return self._header(number, data)[0].size_bytes == len(data)
        except CorruptedError:
            return False

    def _header(self, number: int, data: bytes) -> tuple[Header, FileHeader]:
        name = chunk_name(number)
        found = read_file_header(
            lambda position, size: data[position : position + size], len(data), name
        )
        if found is None:
            raise CorruptedError(name, 0, "the header of the chunk is not intact")
        return found

    def _replay(self, number: int, data: bytes, void_from: int | None) -> None:
        name = chunk_name(number)
        first, header = self._header(number, data)
        if header.first_entry < self._entry_end:
            raise StorageTakenError(name, "another broker, which has gone back to an earlier entry")
        envelope = open_envelope(self._options.ciphers, header)
        extents = Extents(self._options.extent_bytes)

        def read(position: int, size_bytes: int) -> bytes:
            return data[position : position + size_bytes]

        scan = Scan(read, len(data), position=first.size_bytes)
        series = Series()
        entries = 0

        def take(entry: Header, position: int, stored: memoryview) -> None:
            body = envelope.unseal(entry, stored, file=name, position=position)
            end = position + entry.size_bytes
            add_extents(extents, entry, body, position=position, end=end, file=name)
            self._apply(
                Entry(entry.kind, entry.topic, entry.number, number, position, body, entry.count)
            )

        for entry, position, stored in scan:
            if void_from is not None and entry.number >= void_from:
                break
            expected = self._entry_end + len(series)
            if entry.number != expected or entry.mark != first.mark:
                raise CorruptedError(
                    name, position, f"entry {entry.number} where {expected} should be"
                )
            if series.holds(entry, position, name):
                continue
            count = len(series) + 1
            for part in series.take(read):
                take(*part)
            take(entry, position, stored)
            self._entry_end += count
            entries += count
        else:
            if scan.position < len(data):
                raise corrupted(name, scan)
        if len(series):
            # A chunk is made whole, and voided whole.
            raise CorruptedError(name, series.position, "a series is not closed")
        self._report.files += 1
        self._report.entries += entries
        self._report.replayed_bytes += len(data)
        segment = Segment(number, Place.CHUNK, len(data), len(data), entries)
        self._index.close_segment(segment, extents)
