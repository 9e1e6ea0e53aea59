"""What can still be read of a damaged log on a disk. Every byte is read, nothing is written.

Every file is gone through entry by entry, from one that is intact to the next (`salvage_file`).
Always true: what may never have been committed is not found. Voided entries are not; and where a
file that may have voided some is missing, only those are that a later entry proves to have been
synced.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ister.base.errors import BadRequestError, CorruptedError, EncryptionKeyError
from ister.log.files.entry import Entry, FileHeader, Header, Kind
from ister.log.files.manifest import Manifest, decode_document, decode_manifest, is_encrypted
from ister.log.files.options import LogOptions
from ister.log.files.scan import header_of, read_file_header
from ister.log.files.segment import (
    EPOCHS,
    MANIFESTS,
    SEGMENTS,
    SNAPSHOTS,
    Form,
    Place,
    Segment,
    manifest_name,
    number_of,
    segment_name,
    snapshot_name,
)
from ister.log.journal.backend import FileBackend
from ister.log.journal.recovery import FIRST_ENTRY
from ister.log.maintenance.check import Problem, Progress
from ister.log.maintenance.salvage_file import Finding, FoundFile, Look
from ister.log.reading.reading import Reader


@dataclass(slots=True)
class Survey:
    """What was found in all files."""

    reader: Reader
    manifest: Manifest | None = None
    # Whether entries between the snapshot and the manifest may be missing, beside `lost_entries`.
    is_stale: bool = False
    files: list[FoundFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Entries of the journal that should be there, by number: start and end; `None`: not known.
    lost_entries: list[tuple[int, int | None]] = field(default_factory=list)
    epoch: int = 0


def survey_folder(
    backend: FileBackend,
    options: LogOptions,
    *,
    restore: Callable[[bytes], None],
    apply: Callable[[Entry], None],
    on_progress: Progress = lambda _, __: None,
) -> Survey:
    """Find what can be read, and have the newest state that can be: see `open_log`.

    `restore` raises `ValueError` for a snapshot that it does not take. Raises `EncryptionKeyError`
    when something is encrypted and no keys are given, and `NotEncryptedError`.
    """
    survey = _Surveyor(backend, options, apply, on_progress)
    survey.run(restore)
    return survey.found


class _Surveyor:
    def __init__(
        self,
        backend: FileBackend,
        options: LogOptions,
        apply: Callable[[Entry], None],
        on_progress: Progress,
    ) -> None:
        self.reader = Reader(backend, options.remote, options.ciphers)
        self.keyring = options.ciphers
        self.finding = Finding(self.reader, options.ciphers, options.extent_bytes, apply)
        self.found = Survey(
            self.reader,
            problems=self.finding.problems,
            notes=self.finding.notes,
            lost_entries=self.finding.lost_entries,
        )
        self._backend = backend
        self._options = options
        self._on_progress = on_progress
        # The first file of which the snapshot may lack something.
        self._replay_from = 0

    def run(self, restore: Callable[[bytes], None]) -> None:
        names = self._backend.names(SEGMENTS)
        numbers = sorted(n for n in map(number_of, names) if n >= 0)
        headers = {number: self._header(segment_name(number)) for number in numbers}
        manifests = self._manifests()
        manifest = self.found.manifest = next(iter(manifests), None)
        self._restore(manifests, headers, restore)
        self.reader.plain = self._plain(numbers, manifest)
        named = {(s.place, s.number): s for s in manifest.segments} if manifest else {}
        if self._options.remote is None and any(place is Place.REMOTE for place, _ in named):
            raise BadRequestError("some segments were moved to a store: name it by --tier")
        journal = [n for n in numbers if self._is_journal(n, headers[n], named)]
        for number in numbers:
            segment = named.get((Place.LOCAL, number))
            if segment is not None:
                self._look(segment, headers[number])
            else:
                self._look_unnamed(number, journal, headers)
        for segment in named.values():
            if segment.place is Place.REMOTE or segment.number not in headers:
                self._look(segment, None)
        self._check_end(manifest, headers)
        epochs = [number_of(name) for name in self._backend.names(EPOCHS)]
        self.found.epoch = max([manifest.epoch if manifest else 0, *epochs])

    # Manifests and snapshots.

    def _header(self, name: str) -> tuple[Header, FileHeader] | None:
        try:
            return read_file_header(
                lambda position, size: self._backend.read(name, position, size),
                self._backend.size(name),
                name,
            )
        except CorruptedError:
            return None

    def _manifests(self) -> list[Manifest]:
        """Return those that are intact, the newest first."""
        found = []
        numbers = [n for n in map(number_of, self._backend.names(MANIFESTS)) if n >= 0]
        for number in sorted(numbers, reverse=True):
            name = manifest_name(number)
            try:
                data = self._backend.get(name)
                body = decode_document(Kind.MANIFEST, data, name, self.keyring)
                one = decode_manifest(number, body, name)
            except CorruptedError as error:
                self.finding.problem(name, error.position, error.reason)
                continue
            except EncryptionKeyError as error:
                self._on_no_key(name, error)
                continue
            found.append(one._replace(is_plain=not is_encrypted(data, name)))
            if found[-1].is_plain:
                self._options.check_plain(name)
        return found

    def _restore(
        self,
        manifests: list[Manifest],
        headers: dict[int, tuple[Header, FileHeader] | None],
        restore: Callable[[bytes], None],
    ) -> None:
        """Restore the newest snapshot that is intact."""
        numbers = {n for n in map(number_of, self._backend.names(SNAPSHOTS)) if n >= 0}
        newest = manifests[0].snapshot if manifests else max(numbers, default=-1)
        if newest >= 0 and newest not in numbers:
            self.finding.problem(snapshot_name(newest), 0, "the file is missing")
        if numbers and not manifests:
            self.finding.problem(MANIFESTS, 0, "no manifest can be read")
        for number in sorted(numbers, reverse=True):
            name = snapshot_name(number)
            manifest = next((m for m in manifests if m.snapshot == number), None)
            try:
                data = self._backend.get(name)
                plain = manifest.may_be_plain(name) if manifest else self._options.accept_plain
                body = decode_document(Kind.SNAPSHOT, data, name, self.keyring, may_be_plain=plain)
                restore(bytes(body))
            except CorruptedError as error:
                self.finding.problem(name, error.position, error.reason)
            except ValueError as error:
                self.finding.problem(name, 0, str(error))
            except EncryptionKeyError as error:
                self._on_no_key(name, error)
            else:
                self._begin(manifest, header_of(data, name), headers)
                self.found.is_stale = number < newest
                return
        if manifests and newest < 0:
            self._begin(manifests[0], None, headers)
        else:
            self.found.is_stale = newest >= 0

    def _begin(
        self,
        manifest: Manifest | None,
        header: FileHeader | None,
        headers: dict[int, tuple[Header, FileHeader] | None],
    ) -> None:
        """Say where the replay onto a snapshot begins."""
        if manifest is not None:
            self._replay_from = manifest.replay_from
            self.finding.entry_end = self.finding.known_end = manifest.entry_end
            return
        # No manifest tells. Applying an entry twice changes nothing: the file that was written to
        # when the snapshot was made is early enough.
        made_ms = header.created_ms if header is not None else 0
        before = [
            number
            for number, one in headers.items()
            if one is not None and one[1].role == "journal" and one[1].created_ms <= made_ms
        ]
        self._replay_from = max(before, default=0)
        self.finding.entry_end = None

    def _plain(self, numbers: list[int], manifest: Manifest | None) -> frozenset[str]:
        """Return the files that need not be encrypted."""
        if self.keyring is None or (manifest is None and self._options.accept_plain):
            return frozenset(segment_name(number) for number in numbers)
        if manifest is None:
            return frozenset()
        if manifest.is_plain:
            remote = (segment.name for segment in manifest.segments)
            return frozenset([*map(segment_name, numbers), *remote])
        return manifest.plain

    def _on_no_key(self, name: str, error: EncryptionKeyError) -> None:
        """A file cannot be read for want of its key; without any key, that is a mistake."""
        if self.keyring is None:
            raise error
        self.finding.problem(name, 0, f"it is encrypted with key {error.key!r}: {error.reason}")

    # Segments.

    def _is_journal(
        self,
        number: int,
        header: tuple[Header, FileHeader] | None,
        named: dict[tuple[Place, int], Segment],
    ) -> bool:
        segment = named.get((Place.LOCAL, number))
        if segment is not None:
            return segment.form is Form.JOURNAL
        return header is None or header[1].role == "journal"

    def _look(self, segment: Segment, header: tuple[Header, FileHeader] | None) -> None:
        """Go through a file that the manifest names."""
        found = FoundFile(segment, is_current=True, is_named=True)
        self.found.files.append(found)
        try:
            if header is None and segment.place is Place.REMOTE:
                header = read_file_header(
                    lambda position, size: self.reader.read(segment, position, size),
                    segment.size_bytes,
                    segment.name,
                )
            size = (
                segment.size_bytes
                if segment.place is Place.REMOTE
                else self._backend.size(segment.name)
            )
        except FileNotFoundError:
            self.finding.problem(segment.name, 0, "the file is missing")
            found.bad.append((0, segment.end))
            return
        self._on_progress(segment.name, size)
        is_replayed = segment.form is Form.JOURNAL and segment.place is Place.LOCAL
        is_replayed = is_replayed and segment.number >= self._replay_from
        Look(self.finding, found, header, min(size, segment.end), is_replayed=is_replayed).run()
        if size < segment.end:
            self.finding.problem(segment.name, size, "the file is cut off")
            found.bad.append((size, segment.end))

    def _look_unnamed(
        self,
        number: int,
        journal: list[int],
        headers: dict[int, tuple[Header, FileHeader] | None],
    ) -> None:
        """Go through a file that no manifest names: the end of the journal, or left over."""
        name = segment_name(number)
        size = self._backend.size(name)
        self._on_progress(name, size)
        is_journal = number in journal
        manifest = self.found.manifest
        is_current = is_journal and (manifest is None or number >= manifest.replay_from)
        form = Form.JOURNAL if is_journal else Form.SORTED
        found = FoundFile(
            Segment(number, Place.LOCAL, size, size, 0, form),
            is_current=is_current,
            is_named=False,
        )
        is_replayed = is_journal and number >= self._replay_from
        look = Look(self.finding, found, headers[number], size, is_replayed=is_replayed)
        if not is_current:
            look.is_quiet = True
        if is_journal:
            later = journal[journal.index(number) + 1 :]
            self._bound(look, number, later, headers)
        look.run()
        self.found.files.append(found)

    def _bound(
        self,
        look: Look,
        number: int,
        later: list[int],
        headers: dict[int, tuple[Header, FileHeader] | None],
    ) -> None:
        """Say which of the entries of a journal file may not count."""
        firsts = [h[1].first_entry for n in later if (h := headers[n]) is not None]
        look.void_from = min(firsts, default=None)
        manifest = self.found.manifest
        look.is_last = not later
        if look.is_last and manifest is not None and number >= manifest.replay_from:
            look.vouched_end = manifest.entry_end
        if later and not look.has_footer():
            header = headers[later[0]]
            # One that is missing in between may have voided the last entries of this one. While the
            # newest manifest is there, only damage takes away one that is not named.
            rewritten = manifest.segments if manifest is not None else []
            known = {s.number for s in rewritten if s.form is not Form.JOURNAL} | headers.keys()
            is_gone = any(n not in known for n in range(number + 1, later[0]))
            look.is_followed_by_any = header is None or bool(self.finding.problems)
            look.is_uncertain = header is None or is_gone

    def _check_end(
        self, manifest: Manifest | None, headers: dict[int, tuple[Header, FileHeader] | None]
    ) -> None:
        """Note what is missing at the end of the journal."""
        if manifest is None:
            if self.found.problems:
                # Nothing tells how much there was.
                self.found.lost_entries.append((self.finding.entry_end or FIRST_ENTRY, None))
            return
        if manifest.replay_exists and manifest.replay_from not in headers:
            self.finding.problem(segment_name(manifest.replay_from), 0, "the file is missing")
        entry_end = self.finding.entry_end
        if entry_end is None:
            return
        lost = self.found.lost_entries
        if entry_end < manifest.entry_end:
            lost.append((entry_end, manifest.entry_end))
        is_behind = any(
            one.segment.number > manifest.replay_from and one.is_current and not one.is_named
            for one in self.found.files
        )
        if manifest.replay_exists and manifest.replay_from not in headers and not is_behind:
            lost.append((max(entry_end, manifest.entry_end), None))
