"""Verifying a log that nobody has open: every byte is read, nothing is written.

Files the manifest names are held against their own footers and against the manifest. The files
behind them are replayed as at a start, onto nothing: what would stop a broker stops here too.
"""

from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from ister.base.errors import BadBatchError, CorruptedError
from ister.codec import Batch
from ister.log.files.entry import BATCH_KINDS, Entry, Header, Kind, parse_transaction
from ister.log.files.envelope import Envelope
from ister.log.files.extents import Extent, each_extent, rows_of
from ister.log.files.manifest import Manifest, decode_document, decode_manifest, is_encrypted
from ister.log.files.options import LogOptions
from ister.log.files.ports import Buffer, Disk, File, Keyring, Store
from ister.log.files.scan import Scan, find_entry, read_file_header
from ister.log.files.segment import (
    MANIFESTS,
    SNAPSHOTS,
    Segment,
    Span,
    manifest_name,
    number_of,
    snapshot_name,
)
from ister.log.files.series import Series
from ister.log.index.index import Index
from ister.log.journal.backend import ChunkBackend, FileBackend
from ister.log.journal.chunks import ChunkReplay
from ister.log.journal.recovery import RecoveryReport, replay_files
from ister.log.reading.reading import Reader, Stored, stored_batch

# A file of one entry after the other that are all bad is not worth a list of them.
PROBLEMS_PER_FILE_MAX = 20

RESTORE = "restore the file from a copy"
ACCEPT = (
    "if the log was encrypted before, restore a copy of it; if it never was, start the broker once "
    "with --accept-unencrypted"
)


class Problem(NamedTuple):
    """Something that is not as it was written."""

    file: str
    position: int
    reason: str
    # What to do about it.
    advice: str


@dataclass(slots=True)
class CheckReport:
    """What was found. Without problems, a broker starts and reads everything."""

    files: int = 0
    entries: int = 0
    checked_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    # Nothing to worry about: a torn end that the next start cuts, files it will remove.
    notes: list[str] = field(default_factory=list)


# Called with the name of a file and its size, before it is read.
Progress = Callable[[str, int], None]


def check_folder(
    backend: FileBackend | ChunkBackend,
    *,
    keyring: Keyring | None = None,
    remote: Store | None = None,
    on_progress: Progress = lambda _, __: None,
) -> CheckReport:
    """Verify every entry of every file. Never writes.

    Raises `EncryptionKeyError` when the key is missing, which says nothing about the data.
    """
    check = _Check(backend, keyring, remote, on_progress)
    check.run()
    return check.report


class _Check:
    def __init__(
        self,
        backend: FileBackend | ChunkBackend,
        keyring: Keyring | None,
        remote: Store | None,
        on_progress: Progress,
    ) -> None:
        self._backend = backend
        self._keyring = keyring
        self._on_progress = on_progress
        self._reader = Reader(backend, remote, keyring)
        self.report = CheckReport()

    def run(self) -> None:
        manifest = self._check_documents()
        if manifest is not None:
            self._reader.plain = manifest.plain
            if manifest.is_plain:
                self._reader.plain |= {segment.name for segment in manifest.segments}
            for segment in manifest.segments:
                self._check_segment(segment, manifest)
            if manifest.is_plain:
                self._check_plain(manifest_name(manifest.number))
        self._check_journal(manifest)

    def _check_plain(self, name: str) -> None:
        if self._keyring is not None:
            reason = "it is not encrypted: a broker with a key file does not start with it"
            self._problem(name, 0, reason, ACCEPT)

    def _problem(self, file: str, position: int, reason: str, advice: str = RESTORE) -> None:
        self.report.problems.append(Problem(file, position, reason, advice))

    # Manifests and snapshots.

    def _check_documents(self) -> Manifest | None:
        backend = self._backend
        numbers = sorted(n for n in map(number_of, backend.names(MANIFESTS)) if n >= 0)
        manifest = None
        for number in numbers:
            name = manifest_name(number)
            body = self._document(Kind.MANIFEST, name, newest=number == numbers[-1])
            if body is not None and number == numbers[-1]:
                try:
                    plain = not is_encrypted(backend.get(name), name)
                    manifest = decode_manifest(number, body, name)._replace(is_plain=plain)
                except CorruptedError as error:
                    self._problem(name, error.position, error.reason)
        if manifest is None:
            return None
        used = snapshot_name(manifest.snapshot) if manifest.snapshot >= 0 else ""
        for name in {*backend.names(SNAPSHOTS), used} - {""}:
            plain = name != used or manifest.may_be_plain(name)
            self._document(Kind.SNAPSHOT, name, newest=name == used, may_be_plain=plain)
        return manifest

    def _document(
        self, kind: int, name: str, *, newest: bool, may_be_plain: bool = True
    ) -> memoryview | None:
        try:
            data = self._backend.get(name)
            self._started(name, len(data))
            return decode_document(kind, data, name, self._keyring, may_be_plain=may_be_plain)
        except FileNotFoundError:
            self._problem(name, 0, "the file is missing")
        except CorruptedError as error:
            if newest:
                self._problem(
                    name,
                    error.position,
                    error.reason,
                    f"{RESTORE}; removing it goes back to the one before, which may name segments "
                    "that are gone",
                )
            else:
                self.report.notes.append(f"{name} is not intact; it is not in use")
        return None

    def _started(self, name: str, size_bytes: int) -> None:
        self.report.files += 1
        self.report.checked_bytes += size_bytes
        self._on_progress(name, size_bytes)

    # Segments of the manifest.

    def _check_segment(self, segment: Segment, manifest: Manifest) -> None:
        def read(position: int, size_bytes: int) -> bytes:
            return self._reader.read(segment, position, size_bytes)

        try:
            header = read_file_header(read, segment.size_bytes, segment.name)
        except FileNotFoundError:
            self._problem(segment.name, 0, "the file is missing")
            return
        except CorruptedError as error:
            self._problem(segment.name, 0, error.reason)
            return
        self._started(segment.name, segment.size_bytes)
        if header is None:
            self._problem(segment.name, 0, "the header of the file is not intact")
            return
        contents = _Contents(self, segment, header[0].mark, manifest)
        try:
            envelope = self._reader.opened(segment).envelope
        except CorruptedError as error:
            self._problem(segment.name, error.position, error.reason)
            return
        contents.scan(read, header[0].size_bytes, envelope)
        contents.compare(self._reader)

    # The open end.

    def _check_journal(self, manifest: Manifest | None) -> None:
        options = LogOptions(ciphers=self._keyring)
        index = Index(options.extent_bytes)
        found = RecoveryReport()
        try:
            if isinstance(self._backend, ChunkBackend):
                replay = ChunkReplay(
                    self._backend, options, manifest, index, self._check_entry, found
                )
                replay.replay()
                found.removed = replay.leftovers
            else:
                with ExitStack() as opened:
                    replay_files(
                        FileBackend(_FrozenDisk(self._backend.disk)),
                        options,
                        manifest,
                        index,
                        self._check_entry,
                        found,
                        opened=opened,
                    )
        except CorruptedError as error:
            self._problem(error.file, error.position, error.reason)
            return
        if manifest is None and found.plain:
            self._check_plain(found.plain[0])
        self.report.files += found.files
        self.report.checked_bytes += found.replayed_bytes
        if found.cut_file:
            self.report.notes.append(
                f"{found.cut_file} has a torn end at byte {found.cut_position}, never "
                "acknowledged; the next start cuts it off"
            )
        self.report.notes += [
            f"{name} is not in use; the next start removes it" for name in found.removed
        ]

    def _check_entry(self, entry: Entry) -> None:
        self.report.entries += 1
        try:
            for _ in batches_of(entry.kind, entry.topic, entry.body):
                pass
        except ValueError as error:
            name = f"segment {entry.segment}"
            self._problem(name, entry.position, str(error))


class _Contents:
    """What the entries of one segment say, beside what footer and manifest say about them."""

    def __init__(self, check: _Check, segment: Segment, mark: int, manifest: Manifest) -> None:
        self._check = check
        self._segment = segment
        self._mark = mark
        self._spans = {
            topic: [span for span in spans if span.segment == segment]
            for topic, spans in manifest.spans.items()
        }
        # Position, end, offsets and own bytes of each batch, by topic.
        self._found: dict[int, list[tuple[int, int, int, int, int]]] = {}
        self._bad: list[tuple[int, str]] = []

    def scan(self, read: Callable[[int, int], bytes], position: int, envelope: Envelope) -> None:
        """Read every entry; go on behind bad ones."""
        end = self._segment.end
        while position < end:
            scan = Scan(read, end, position=position)
            # Behind a bad place the beginning of a series may be missing, and is reported already.
            series = Series() if not self._bad else None
            for header, at, stored in scan:
                if series is not None:
                    self._follow(series, header, at)
                self._take(header, at, scan.position, stored, envelope)
            if scan.position >= end:
                if series:
                    self._bad.append((series.position, "a series is not closed"))
                return
            self._bad.append((scan.position, scan.fault or "zeros where an entry should be"))
            following = find_entry(
                read,
                end,
                position=scan.position,
                accept=lambda header, _: header.mark == self._mark,
            )
            position = end if following is None else following

    def _follow(self, series: Series, header: Header, position: int) -> None:
        try:
            if series.holds(header, position, self._segment.name):
                return
        except CorruptedError as error:
            self._bad.append((position, error.reason))
        series.forget()

    def _take(
        self, header: Header, position: int, end: int, stored: memoryview, envelope: Envelope
    ) -> None:
        self._check.report.entries += 1
        if header.mark != self._mark:
            self._bad.append((position, "the entry is of another file"))
            return
        try:
            body = envelope.unseal(header, stored, file=self._segment.name, position=position)
            for topic, one, size in batches_of(header.kind, header.topic, body):
                own = end - position if header.kind in BATCH_KINDS else size
                row = (position, end, one.first_offset, one.end_offset, own)
                self._found.setdefault(topic, []).append(row)
        except CorruptedError as error:
            self._bad.append((position, error.reason))
        except ValueError as error:
            self._bad.append((position, str(error)))

    def compare(self, reader: Reader) -> None:
        """Hold the entries against footer and manifest."""
        segment = self._segment
        topics: dict[int, list[Extent]] = {
            topic: [Extent(s.position, s.end, *s[1:6]) for s in spans]
            for topic, spans in self._spans.items()
        }
        if segment.has_footer:
            try:
                footer = reader.footer(segment)
                topics = {topic: list(each_extent(rows_of(footer, topic))) for topic in footer}
            except CorruptedError as error:
                self._check.report.problems.append(
                    Problem(segment.name, error.position, error.reason, RESTORE)
                )
                topics = {}
        self._report_bad(topics)
        if self._bad or not topics:
            return
        for topic, extents in topics.items():
            self._compare_extents(topic, extents)
        for topic, spans in self._spans.items():
            self._compare_spans(topic, spans)

    def _report_bad(self, topics: dict[int, list[Extent]]) -> None:
        for position, reason in self._bad[:PROBLEMS_PER_FILE_MAX]:
            hit = [
                f"topic {topic} between messages {extent.first_offset} and {extent.end_offset - 1}"
                for topic, extents in topics.items()
                for extent in extents
                if extent.position <= position < extent.end
            ]
            advice = RESTORE
            if hit:
                advice += "; without one, messages may be lost of " + ", ".join(sorted(hit)[:5])
            self._check.report.problems.append(
                Problem(self._segment.name, position, reason, advice)
            )

    def _compare_extents(self, topic: int, extents: list[Extent]) -> None:
        # What a manifest says of a window is trimmed to what is live.
        exact = self._segment.has_footer
        own = dict.fromkeys(range(len(extents)), 0)
        starts = [one.position for one in extents]
        for position, end, first, last, size in self._found.get(topic, []):
            floor = 0 if exact else extents[0].first_offset if extents else last
            if last <= floor:
                continue
            slot = bisect_right(starts, position) - 1
            one = extents[slot]
            first_live = max(first, floor)
            if (
                slot < 0
                or end > one.end
                or not one.first_offset <= first_live < last <= one.end_offset
            ):
                self._disagrees(position, f"a batch of topic {topic} is in no extent")
                return
            own[slot] += size
        if exact and any(own[slot] != one.own_bytes for slot, one in enumerate(extents)):
            self._disagrees(self._segment.end, f"extents of topic {topic} have other sizes")

    def _compare_spans(self, topic: int, spans: list[Span]) -> None:
        found = self._found.get(topic, [])
        if spans and (not found or max(row[3] for row in found) != spans[-1].end_offset):
            self._disagrees(0, f"the manifest expects topic {topic} up to {spans[-1].end_offset}")

    def _disagrees(self, position: int, reason: str) -> None:
        self._check.report.problems.append(
            Problem(self._segment.name, position, reason, f"{RESTORE}, and report a bug")
        )


def batches_of(kind: int, topic: int, body: memoryview) -> list[tuple[int, Stored, int]]:
    """Return topic, batch and size of every batch in an entry, or raise `ValueError`."""
    try:
        if kind in BATCH_KINDS:
            return [(topic, _checked(body), len(body))]
        if kind == Kind.TRANSACTION:
            return [
                (one.topic, _checked(one.body), len(one.body)) for one in parse_transaction(body)[0]
            ]
    except BadBatchError as error:
        raise ValueError(str(error)) from None
    return []


def _checked(body: memoryview) -> Stored:
    batch = Batch(body)
    batch.check()
    return stored_batch(batch)


class _FrozenDisk:
    """A disk that takes every change and makes none."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def create(self, name: str, *, allocate_bytes: int = 0) -> File:
        raise AssertionError(f"a check makes no file, not {name} of {allocate_bytes} B")

    def open(self, name: str) -> File:
        return _FrozenFile(self._disk.open(name))

    def put(self, name: str, data: Buffer) -> None:
        raise AssertionError(f"a check makes no file, not {name} of {len(data)} B")

    def names(self, folder: str) -> list[str]:
        return self._disk.names(folder)

    def remove(self, name: str) -> None:
        pass

    def room(self) -> None:
        return None


class _FrozenFile:
    def __init__(self, file: File) -> None:
        self._file = file

    def write(self, position: int, parts: object) -> None:
        pass

    def read(self, position: int, size_bytes: int) -> bytes:
        return self._file.read(position, size_bytes)

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return self._file.size()

    def allocate(self, size_bytes: int) -> None:
        pass

    def truncate(self, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        self._file.close()
