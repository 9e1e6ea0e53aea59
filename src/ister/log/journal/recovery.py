"""Opening a log on a disk: replay what the snapshot does not have, and cut the end that was torn.

Nothing is changed before everything was read. A bad place that a crash cannot explain raises
`CorruptedError` and leaves the files as they are.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from ister.base.errors import CorruptedError
from ister.log.files.entry import (
    BATCH_KINDS,
    MAGIC,
    STAMP,
    TRAILER,
    Entry,
    FileHeader,
    Header,
    Kind,
    parse_transaction,
)
from ister.log.files.envelope import Envelope, open_envelope
from ister.log.files.extents import Extents
from ister.log.files.manifest import Manifest
from ister.log.files.options import LogOptions
from ister.log.files.ports import File
from ister.log.files.scan import PIECE_BYTES, Scan, corrupted, find_proof, read_file_header
from ister.log.files.segment import SEGMENTS, Place, Segment, number_of, segment_name
from ister.log.files.series import Series
from ister.log.index.index import Index
from ister.log.journal.backend import FileBackend
from ister.log.journal.journal import OpenFile

Apply = Callable[[Entry], None]

FIRST_ENTRY = 1


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found."""

    files: int = 0
    entries: int = 0
    replayed_bytes: int = 0
    # The torn end, if any: never acknowledged.
    cut_file: str = ""
    cut_position: int = 0
    cut_bytes: int = 0
    removed: list[str] = field(default_factory=list)
    # Files that are not encrypted.
    plain: list[str] = field(default_factory=list)


class Replayed(NamedTuple):
    """The end of a log on a disk."""

    entry_end: int
    next_segment: int
    resumed: OpenFile | None


class _Found(NamedTuple):
    """A journal file that is to be replayed; without a header when that is not intact."""

    number: int
    name: str
    header: tuple[Header, FileHeader] | None


def replay_files(
    backend: FileBackend,
    options: LogOptions,
    manifest: Manifest | None,
    index: Index,
    apply: Apply,
    report: RecoveryReport,
    *,
    opened: ExitStack,
) -> Replayed:
    """Apply every entry the snapshot may not have, and bring `index` up to date.

    `opened` closes the file that is resumed.
    """
    numbers = [number_of(name) for name in backend.names(SEGMENTS)]
    known = {s.number for s in manifest.segments if s.place is Place.LOCAL} if manifest else set()
    _check_presence(set(numbers), known, manifest)
    replay_from = manifest.replay_from if manifest else 0
    journal, leftovers = _sort_out(
        backend, [n for n in numbers if n >= 0 and n not in known], replay_from
    )
    entry_end = _check_beginning(journal, manifest)
    vouched_end = manifest.entry_end if manifest else FIRST_ENTRY
    resumed = None
    sealed = []
    for slot, found in enumerate(journal):
        later = [one.header[1].first_entry for one in journal[slot + 1 :] if one.header]
        replay = _Replay(backend, options, found, index, apply, report, entry_end, vouched_end)
        replay.is_unlisted = manifest is None
        replay.may_be_plain = manifest is None or manifest.may_be_plain(found.name)
        # Behind the end of the log there may still be a file whose making was cut short.
        found_end = replay.run(min(later, default=None))
        if found_end is not None:
            resumed = found_end
            opened.callback(resumed.file.close)
        entry_end = replay.entry_end
        if replay.is_junk:
            leftovers.append(found.name)
        if replay.sealed is not None:
            sealed.append((found.name, *replay.sealed))
    for name, position, rest, footer_position in sealed:
        _seal_again(backend, name, position, rest, footer_position)
    for name in leftovers:
        backend.remove(name)
    report.removed = leftovers
    next_segment = max([*numbers, manifest.next_segment - 1 if manifest else 0]) + 1
    return Replayed(entry_end, next_segment, resumed)


def _check_presence(present: set[int], known: set[int], manifest: Manifest | None) -> None:
    needed = set(known)
    if manifest is not None and manifest.replay_exists:
        needed.add(manifest.replay_from)
    for number in sorted(needed - present):
        raise CorruptedError(segment_name(number), 0, "the file is missing")


def _sort_out(
    backend: FileBackend, numbers: list[int], replay_from: int
) -> tuple[list[_Found], list[str]]:
    """Return the journal files to replay, and what a former run left half-made or behind."""
    journal = []
    leftovers = []
    for number in numbers:
        name = segment_name(number)
        if number < replay_from:
            leftovers.append(name)  # Its removal was cut short.
            continue
        header = read_file_header(
            lambda position, size, name=name: backend.read(name, position, size),  # type: ignore[misc]
            backend.size(name),
            name,
        )
        if header is not None and header[1].role != "journal":
            leftovers.append(name)  # Rewritten, but no manifest came to name it.
        else:
            journal.append(_Found(number, name, header))
    return journal, leftovers


def _check_beginning(journal: list[_Found], manifest: Manifest | None) -> int:
    """Return the number of the first entry to replay."""
    end = manifest.entry_end if manifest else FIRST_ENTRY
    if manifest is not None and manifest.replay_exists:
        for one in journal:
            # A header is on the disk before anything else, so before the manifest as well.
            if one.number == manifest.replay_from and one.header is None:
                raise CorruptedError(one.name, 0, "the header of the file is not intact")
    first = next((one for one in journal if one.header), None)
    if first is None or first.header is None:
        return end
    number = first.header[1].first_entry
    may_begin_earlier = manifest is not None and first.number == manifest.replay_from
    if number != end and not (may_begin_earlier and number < end):
        if journal[0].header is None:
            raise CorruptedError(journal[0].name, 0, "the header of the file is not intact")
        raise CorruptedError(
            first.name, 0, f"it begins with entry {number}: the file with entry {end} is missing"
        )
    return number


class _Replay:
    """The replay of one file."""

    def __init__(
        self,
        backend: FileBackend,
        options: LogOptions,
        found: _Found,
        index: Index,
        apply: Apply,
        report: RecoveryReport,
        entry_end: int,
        vouched_end: int,
    ) -> None:
        self._disk = backend.disk
        self._options = options
        self._found = found
        self._index = index
        self._apply = apply
        self._report = report
        self.entry_end = entry_end
        # Entries below it were on the disk when the manifest was made: no crash takes them away.
        self._vouched_end = vouched_end
        self.is_junk = False
        self.may_be_plain = True
        # Whether there is no manifest to say so.
        self.is_unlisted = False
        # Of a sealed file: the end that may never have been synced, with its position, and the
        # position of the footer in the file.
        self.sealed: tuple[int, bytes, int] | None = None
        # Where the file was on the disk for sure, by what its entries say.
        self._synced = 0

    def run(self, void_from: int | None) -> OpenFile | None:
        """Replay up to entry `void_from`, where a later file goes on, or to the end of the log.

        Returns the file, open, when it is the end and not sealed.
        """
        file = self._disk.open(self._found.name)
        keep = False
        try:
            if self._found.header is None:
                self._skip_headless(file, void_from)
                return None
            opened = self._replay(file, *self._found.header, void_from)
            keep = opened is not None
            return opened
        finally:
            if not keep:
                file.close()

    def _skip_headless(self, file: File, void_from: int | None) -> None:
        """Pass over a file whose making was cut short: it has a header before anything else."""
        proof = find_proof(file.read, file.size(), position=0, number=self.entry_end, mark=None)
        if proof is not None and void_from != self.entry_end:
            raise CorruptedError(self._found.name, 0, "the header of the file is not intact")
        self.is_junk = True

    def _replay(
        self, file: File, first: Header, header: FileHeader, void_from: int | None
    ) -> OpenFile | None:
        name = self._found.name
        self._synced = first.size_bytes
        envelope = open_envelope(
            self._options.ciphers, first, header, file=name, may_be_plain=self.may_be_plain
        )
        if envelope.cipher is None:
            self._take_plain(name)
        extents = Extents(self._options.extent_bytes)
        scan = Scan(file.read, file.size(), position=first.size_bytes)
        series = Series()
        end = first.size_bytes
        footer = False
        entries = 0

        def take(entry: Header, position: int, stored: memoryview) -> None:
            body = envelope.unseal(entry, stored, file=name, position=position)
            end = position + entry.size_bytes
            add_extents(extents, entry, body, position=position, end=end, file=name)
            number, topic, count = entry.number, entry.topic, entry.count
            self._apply(Entry(entry.kind, topic, number, header.number, position, body, count))

        for entry, position, stored in scan:
            if entry.mark != first.mark:
                scan.fault = "the entry is of another file"
                break
            if void_from is not None and entry.number >= void_from and entry.kind != Kind.FOOTER:
                break
            if entry.number != self.entry_end + len(series):
                raise CorruptedError(
                    name,
                    position,
                    f"entry {entry.number} where {self.entry_end + len(series)} should be",
                )
            if series.holds(entry, position, name):
                continue
            self._synced = max(self._synced, entry.synced)
            if entry.kind == Kind.FOOTER:
                footer = True
                rest = file.read(self._synced, scan.position - self._synced)
                self.sealed = (self._synced, rest, position)
                break
            count = len(series) + 1
            for part in series.take(file.read):
                take(*part)
            take(entry, position, stored)
            end = scan.position
            self.entry_end += count
            entries += count
        if len(series) and not scan.fault:
            scan.fault = "a series is not closed"
        self._count(entries, end)
        size = scan.position + TRAILER.size if footer else end
        segment = Segment(header.number, Place.LOCAL, size, end, entries)
        if void_from is not None:
            if self.entry_end != void_from:
                raise CorruptedError(
                    name,
                    end,
                    f"{scan.fault or 'the file ends here'}, and entries {self.entry_end} to "
                    f"{void_from - 1} are missing",
                )
            self._index.close_segment(segment, extents)
            return None
        if footer:
            self._index.close_segment(segment, extents)
            return None
        return self._cut(file, scan, envelope, first.mark, segment, extents)

    def _take_plain(self, name: str) -> None:
        """Note a file that is not encrypted, or raise `NotEncryptedError`."""
        if self.is_unlisted:
            self._options.check_plain(name)
        self._report.plain.append(name)

    def _count(self, entries: int, end: int) -> None:
        self._report.files += 1
        self._report.entries += entries
        self._report.replayed_bytes += end

    def _cut(
        self,
        file: File,
        scan: Scan,
        envelope: Envelope,
        mark: int,
        segment: Segment,
        extents: Extents,
    ) -> OpenFile:
        """Cut the end of the log off behind its last good entry, unless it had been on the disk."""
        size = file.size()
        end = segment.end
        if find_proof(file.read, size, position=end, number=self.entry_end, mark=mark) is not None:
            raise corrupted(self._found.name, scan)
        if self.entry_end < self._vouched_end:
            raise CorruptedError(
                self._found.name,
                end,
                f"{scan.fault or 'the file ends here'}, and {self._vouched_end - self.entry_end} "
                f"entries from {self.entry_end} on are missing that were on the disk at the last "
                "checkpoint",
            )
        if scan.fault:
            self._report.cut_file = self._found.name
            self._report.cut_position = end
            self._report.cut_bytes = size - end
        # What was found is visible from now on, whether or not it had been synced before. Where a
        # sync had failed, the system shows bytes that are not on the disk and takes them for
        # written: only writing them once more makes the next sync true.
        for start in range(self._synced, end, PIECE_BYTES):
            file.write(start, [file.read(start, min(PIECE_BYTES, end - start))])
        if size != end:
            file.truncate(end)
        else:
            file.sync()
        open_segment = Segment(segment.number, Place.LOCAL)
        self._index.add(open_segment, extents, synced=True)
        return OpenFile(
            file, open_segment, envelope, mark, position=end, synced=end, entries=segment.entries
        )


def _seal_again(
    backend: FileBackend, name: str, position: int, rest: bytes, footer_position: int
) -> None:
    """Have the end of a sealed file on the disk: a sync of it may have failed, or been cut short.

    It is written once more because of what `_cut` says of failed syncs.
    """
    end = position + len(rest)
    trailer = TRAILER.pack(footer_position, end - footer_position, MAGIC)
    file = backend.disk.open(name)
    try:
        file.write(position, [rest, trailer])
        file.truncate(end + len(trailer))
    finally:
        file.close()


def add_extents(
    extents: Extents, header: Header, body: memoryview, *, position: int, end: int, file: str
) -> None:
    """Add what an entry holds, or raise `CorruptedError`."""
    if header.kind in BATCH_KINDS:
        base, time_ms = STAMP.unpack_from(body)
        extents.add(
            header.topic,
            position,
            end,
            base,
            base + header.count,
            time_ms,
            time_ms,
            end - position,
        )
    elif header.kind == Kind.TRANSACTION:
        try:
            batches, _ = parse_transaction(body)
        except ValueError as error:
            raise CorruptedError(file, position, f"the transaction: {error}") from None
        for batch in batches:
            base, time_ms = STAMP.unpack_from(batch.body)
            extents.add(
                batch.topic,
                position,
                end,
                base,
                base + batch.count,
                time_ms,
                time_ms,
                len(batch.body),
            )
