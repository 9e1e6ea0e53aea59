"""The open end of a log in an object store: every group is an object of its own.

Chunks are numbered without gaps and made only once. Making the next number is the fence: a new
owner makes a chunk before its first write, the former owner's next chunk then meets it, and that
owner stops. Epochs never fall from one chunk to the next: whoever puts a fence has read all chunks
before it, and its epoch is not below theirs. The first entry number in a chunk voids what earlier
chunks have from there on: an attempt that failed, and reached the store nevertheless.

A former owner that writes without a pause wins every race for the next number: it needs one
request for a chunk, and the new owner needs two, to read it and to try again. So after the first
race it has lost, the new owner makes a *far fence*, some numbers ahead. The former owner makes its
chunks in order, and cannot get past that number. The new owner reads on, and is at the end when it
wins a race or has read everything below its far fence: a bounded number of requests, whatever the
former owner does.

Far fences are the only chunks that may have a gap in front of them. They hold no entries and void
none. An owner steps over those of its own epoch or an older one: only one owner has made a manifest
of an epoch, so all others that made a fence in it have begun again or are gone.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count

from ister.base.errors import CorruptedError, ObjectExistsError, StorageTakenError
from ister.log.files.entry import Entry, FileHeader, Header
from ister.log.files.envelope import open_envelope
from ister.log.files.extents import Extents
from ister.log.files.fences import FENCE_ROLE, encode_far_fence
from ister.log.files.header import begin_file
from ister.log.files.manifest import Manifest
from ister.log.files.options import LogOptions
from ister.log.files.scan import Scan, corrupted, header_of, read_file_header
from ister.log.files.segment import (
    CHUNKS,
    FENCE_BYTES_MAX,
    SEGMENTS,
    Place,
    Segment,
    chunk_name,
    epoch_of,
    number_of,
)
from ister.log.files.series import Series
from ister.log.index.index import Index
from ister.log.journal.backend import ChunkBackend
from ister.log.journal.fetching import fetch_in_order
from ister.log.journal.group import Group, lay_out
from ister.log.journal.journal import Recovered
from ister.log.journal.recovery import FIRST_ENTRY, Apply, RecoveryReport, add_extents

# How far ahead of the end a far fence is made. A former owner that makes 32 chunks while the new
# one lists them and makes the fence has passed it already: then the next distance is tried. The
# last one is out of reach even at 1,000 chunks a second, when those two requests take 8 s.
FAR_FENCE_DISTANCES = (32, 128, 512, 2_048, 8_192)
# Chunks that somebody may meet at the end of a log: more than the largest distance.
FENCE_ATTEMPTS_MAX = 10_000


class ChunkJournal:
    """Writes each group as a chunk."""

    def __init__(
        self,
        backend: ChunkBackend,
        options: LogOptions,
        *,
        number: int,
        entry_end: int,
        owner: str,
        epoch: int,
    ) -> None:
        self._backend = backend
        self._options = options
        self._number = number
        self._owner = owner
        self.epoch = epoch
        self.entry_end = entry_end
        self.broken = False
        # As of `FileJournal`: only `recover` does that here.
        self.voided = False
        # A chunk is durable or absent.
        self.unsynced: list[Group] = []

    def write(self, group: Group, _: Callable[[], Extents]) -> None:
        """Make the next chunk. After an `OSError` only `recover` may follow.

        Raises `StorageTakenError` when somebody else has made it: the log is theirs.
        """
        if self.broken:
            raise OSError("the journal has failed and was not recovered")
        self.broken = True
        group.segment = self._put(group)[-1]
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
        """Make an empty chunk, behind which no earlier attempt can arrive any more.

        Raises `StorageTakenError` when a newer owner may have the group that failed.
        """
        closed = self.put_fence()
        # An attempt that failed may have arrived. A newer owner then has replayed it, and may have
        # removed its chunk since, so that its number was free again. That owner's fence is right
        # behind it and is kept.
        self.check_owner()
        self.broken = False
        return Recovered(closed, [])

    def put_fence(self) -> list[Segment]:
        """Make an empty chunk, and return it behind the chunks that were stepped over.

        Among them may be an attempt that failed and did arrive: the last chunk voids it.
        """
        return self._put(Group())

    def check_owner(self) -> None:
        """Raise `StorageTakenError` when a newer owner has made the next chunk."""
        for _ in range(FENCE_ATTEMPTS_MAX):
            try:
                data = self._backend.get(chunk_name(self._number))
            except FileNotFoundError:
                return
            self._step_over(data)

    def close(self) -> None:
        """Take no more groups."""
        self.broken = True

    def _put(self, group: Group) -> list[Segment]:
        """Make the next chunk that is free, and return it behind those that were stepped over.

        Those need no place in the index, but for that of a start: nobody else is stopped by them.
        """
        made: list[Segment] = []
        for _ in range(FENCE_ATTEMPTS_MAX):
            data, entry_end, extents = self._encode(group)
            name = chunk_name(self._number)
            group.reached = True
            try:
                self._backend.put(name, data)
            except ObjectExistsError:
                group.reached = False
                try:
                    found = self._backend.get(name)
                except FileNotFoundError:
                    raise StorageTakenError(name, "another broker") from None
                made.append(self._step_over(found))
                continue
            group.end, group.entry_end, group.extents = len(data), entry_end, extents
            made.append(Segment(self._number, Place.CHUNK, len(data), len(data), len(group)))
            self._number += 1
            return made
        raise StorageTakenError(chunk_name(self._number), "another broker")

    def _step_over(self, data: bytes) -> Segment:
        """Go on behind the chunk that has the next number, or raise `StorageTakenError`.

        It is an attempt of our own that was taken for failed, and is void when the next chunk is
        made; or a far fence of a start that did not become the owner, or was one before us.
        """
        name = chunk_name(self._number)
        header = header_of(data, name)
        if header is None or not (
            header.owner == self._owner
            or (header.role == FENCE_ROLE and header.maker_epoch <= self.epoch)
        ):
            raise StorageTakenError(name, "another broker")
        self._number += 1
        return Segment(self._number - 1, Place.CHUNK, len(data), len(data))

    def _encode(self, group: Group) -> tuple[bytearray, int, Extents]:
        """Return the next chunk, its last entry number and where its topics are."""
        begun = begin_file(
            "chunk",
            self._number,
            first_entry=self.entry_end,
            owner=self._owner,
            now_ms=self._options.now_ms(),
            keyring=self._options.ciphers,
            epoch=self.epoch,
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
        return data, entry_end, extents


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
        # The highest in a chunk so far.
        self._epoch = 0
        # What nobody needs: objects whose removal was cut short, or which no manifest came to name.
        self.leftovers: list[str] = []

    def remove_leftovers(self) -> None:
        """Remove what nobody needs. For the owner, once its own manifest is in force.

        What cannot be removed is left for the next start.
        """
        for name in self.leftovers:
            with suppress(OSError):
                self._backend.remove(name)
        self._report.removed = self.leftovers

    def put_fence(self, number: int, owner: str) -> ChunkJournal:
        """Put a fence behind the chunks below `number`, and return the journal behind it.

        Chunks that the former owner makes meanwhile are replayed as well. The epoch of the journal
        is above that of the manifest, and not below that of any chunk.
        """
        begun = (self._manifest.epoch if self._manifest else 0) + 1
        far = 0
        for _ in range(FENCE_ATTEMPTS_MAX):
            epoch = max(begun, self._epoch)
            journal = ChunkJournal(
                self._backend,
                self._options,
                number=number,
                entry_end=self._entry_end,
                owner=owner,
                epoch=epoch,
            )
            try:
                fences = journal.put_fence()
            except StorageTakenError:
                # The former owner still writes: its chunk comes before our fence.
                if not far:
                    end, far = self._make_far_fence(number, owner, epoch)
                    self._replay_row(range(number, end))
                    number = end
                elif number > far:
                    raise  # Somebody has become the owner who need not stop at our far fence.
                number = self._read_on(number, far)
            else:
                # More than one when a first try arrived that was taken for failed, or when there
                # are far fences: the former owner will meet the first of them.
                for fence in fences:
                    self._index.close_segment(fence, Extents(self._options.extent_bytes))
                return journal
        raise StorageTakenError(chunk_name(number), "another broker")

    def _make_far_fence(self, number: int, owner: str, epoch: int) -> tuple[int, int]:
        """Make a chunk so far ahead that the former owner is not there yet.

        Returns where the chunks from `number` on ended when it was made, and its own number.
        """
        for distance in FAR_FENCE_DISTANCES:
            end = self._row_end(number, self._listed())
            far = end + distance
            fence = encode_far_fence(far, owner=owner, epoch=epoch, now_ms=self._options.now_ms())
            with suppress(ObjectExistsError):
                self._backend.put(chunk_name(far), fence)
                return end, far
        raise StorageTakenError(chunk_name(far), "another broker")

    def _read_on(self, number: int, far: int) -> int:
        """Replay the chunks that there are by now, up to `far`, and return what comes next."""
        while number <= far:
            try:
                data = self._backend.get(chunk_name(number))
            except FileNotFoundError:
                break
            self._replay(number, data, None)
            number += 1
        return number

    def replay(self) -> int:
        """Replay every chunk the snapshot may not have, and return the number that comes next."""
        row = self._present(self._manifest.replay_from if self._manifest else 1)
        self._replay_row(row)
        return row.stop

    def _replay_row(self, numbers: range) -> None:
        # A chunk, and the far fences behind it.
        held: list[tuple[int, bytes]] = []
        names = [chunk_name(number) for number in numbers]
        contents = fetch_in_order(self._backend, names, at_once=self._backend.reads_at_once)
        for number, data in zip(numbers, contents, strict=True):
            header = self._header(number, data)[1]
            if header.role != FENCE_ROLE:
                # The next chunk is enough to know: where chunks begin never goes back, because
                # what was committed is never voided.
                for one in held:
                    self._replay(*one, header.first_entry)
                held.clear()
            held.append((number, data))
        for one in held:
            self._replay(*one, None)

    def _listed(self) -> set[int]:
        """Return the numbers of all chunks there are."""
        return {n for n in map(number_of, self._backend.names(CHUNKS)) if n >= 0}

    def _present(self, replay_from: int) -> range:
        """Return the chunks to replay, after a look that everything else is there."""
        numbers, rewritten = self._listed(), self._backend.names(SEGMENTS)
        segments = self._manifest.segments if self._manifest else []
        known = {s.number for s in segments if s.place is Place.CHUNK}
        present = {*map(chunk_name, numbers), *rewritten}
        for segment in segments:
            if segment.name not in present:
                raise CorruptedError(segment.name, 0, "the object is missing")
        self.leftovers = self._unneeded(numbers, replay_from, known, rewritten)
        return range(replay_from, self._row_end(replay_from, numbers))

    def _row_end(self, first: int, numbers: set[int]) -> int:
        """Return the first number from `first` on that is not there, or raise `CorruptedError`.

        Behind it may be far fences and nothing else. What is there was made in order, but a store
        that is written to may list a chunk without one that is older: so it is asked twice.
        """
        end = next(n for n in count(first) if n not in numbers)
        behind = sorted((n for n in numbers if n > end), reverse=True)
        last = next((n for n in behind if not self._is_far_fence(n)), end)
        if last == end:
            return end
        again = self._listed()
        missing = [n for n in range(first, last) if n not in again]
        if missing:
            raise CorruptedError(chunk_name(missing[0]), 0, "the object is missing")
        return last + 1

    def _is_far_fence(self, number: int) -> bool:
        name = chunk_name(number)
        header = header_of(self._backend.read(name, 0, FENCE_BYTES_MAX), name)
        return header is not None and header.role == FENCE_ROLE

    def _unneeded(
        self, numbers: set[int], replay_from: int, known: set[int], rewritten: list[str]
    ) -> list[str]:
        """Return what neither this manifest nor any later one can name.

        Of segments only what former epochs have made: the manifest of a newer one is not known
        here, and its owner may have taken over by the time they are removed.
        """
        fences = {
            n for fence in (self._manifest.fences if self._manifest else ()) for n in fence.numbers
        }
        unneeded = [
            chunk_name(n)
            for n in sorted(numbers)
            if n < replay_from and n not in known and n not in fences
        ]
        segments = self._manifest.segments if self._manifest else []
        named = {segment.name for segment in segments}
        epoch = self._manifest.epoch if self._manifest else 0
        unneeded += [
            name
            for name in rewritten
            if name not in named and number_of(name) >= 0 and epoch_of(number_of(name)) <= epoch
        ]
        return unneeded

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
        if header.role == FENCE_ROLE:
            self._take_far_fence(number, data, first, header)
            return
        if header.first_entry < self._entry_end:
            raise StorageTakenError(name, "another broker, which has gone back to an earlier entry")
        if header.first_entry > self._entry_end:
            # Also when there is no entry in it that would show that. A start that was stopped for
            # long must not put a fence behind entries that it has not read.
            missing = f"entries {self._entry_end} to {header.first_entry - 1} are missing"
            raise CorruptedError(name, 0, f"{missing} in front of it")
        if header.maker_epoch < self._epoch:
            reason = f"a chunk of epoch {header.maker_epoch} behind one of epoch {self._epoch}"
            raise CorruptedError(name, 0, f"{reason}: a former owner wrote after a fence")
        self._epoch = header.maker_epoch
        plain = self._manifest is None or self._manifest.may_be_plain(name)
        envelope = open_envelope(
            self._options.ciphers, first, header, file=name, may_be_plain=plain
        )
        if envelope.cipher is None:
            if self._manifest is None:
                self._options.check_plain(name)
            self._report.plain.append(name)
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

    def _take_far_fence(self, number: int, data: bytes, first: Header, header: FileHeader) -> None:
        """Take note of a chunk that somebody made ahead of the end, and that was reached since.

        It may be older than the chunk before it, whose owner has stepped over it.
        """
        if first.size_bytes != len(data) or header.number != number:
            raise CorruptedError(chunk_name(number), 0, "it says that it is a fence, and is not")
        self._epoch = max(self._epoch, header.maker_epoch)
        self._report.files += 1
        segment = Segment(number, Place.CHUNK, len(data), len(data))
        self._index.close_segment(segment, Extents(self._options.extent_bytes))
