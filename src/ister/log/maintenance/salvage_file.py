"""What can still be read of one file of a damaged log.

Always true:
- only what has a good checksum, the mark of its file, and parses, is found;
- a series is found whole or not at all, also when it had been committed: readers were promised
  that;
- of the last file of the journal, the end is treated as at a start: what nothing proves was never
  promised.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ister.base.errors import CorruptedError, EncryptionKeyError
from ister.log.files.entry import (
    BATCH_KINDS,
    HEADER_BYTES,
    MAGIC,
    TRAILER,
    Entry,
    FileHeader,
    Header,
    Kind,
)
from ister.log.files.envelope import Envelope, open_envelope
from ister.log.files.ports import Keyring
from ister.log.files.scan import Scan, find_entry, find_proof
from ister.log.files.segment import Form, Segment, Span
from ister.log.journal.recovery import FIRST_ENTRY
from ister.log.maintenance.check import PROBLEMS_PER_FILE_MAX, Problem, batches_of
from ister.log.reading.reading import Reader, Stored

# What a disk reads or does not.
SECTOR_BYTES = 4096
GIVEN_UP = "what is in it is not salvaged"


@dataclass(slots=True)
class Finding:
    """What is found in the files of a log, one after the other."""

    reader: Reader
    keyring: Keyring | None
    extent_bytes: int
    # Takes the entries that the snapshot may lack.
    apply: Callable[[Entry], None]
    # The entry that comes next; `None`: not known.
    entry_end: int | None = FIRST_ENTRY
    # The snapshot has all entries below.
    known_end: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Entries of the journal that should be there, by number: start and end; `None`: not known.
    lost_entries: list[tuple[int, int | None]] = field(default_factory=list)

    def problem(self, file: str, position: int, reason: str) -> None:
        """Note that something is not as it was written."""
        self.problems.append(Problem(file, position, reason, GIVEN_UP))


@dataclass(slots=True)
class FoundFile:
    """What was found in one file."""

    segment: Segment
    # Whether what is in it counts by itself; else it is a copy of something, or what is left of it.
    is_current: bool
    is_named: bool
    # By topic, windows in which all entries of the topic are intact, without a gap between offsets.
    windows: dict[int, list[Span]] = field(default_factory=dict)
    # Positions and ends of what is not intact.
    bad: list[tuple[int, int]] = field(default_factory=list)


class Look:
    """One look at one file."""

    def __init__(
        self,
        finding: Finding,
        found: FoundFile,
        header: tuple[Header, FileHeader] | None,
        end: int,
        *,
        is_replayed: bool,
    ) -> None:
        self._finding = finding
        self._found = found
        self._segment = found.segment
        self._header = header
        self._end = end
        self._is_replayed = is_replayed
        # Entries from this number on do not count.
        self.void_from: int | None = None
        # Whether nothing comes behind it; then entries up to here are known to be committed.
        self.is_last = False
        self.vouched_end = 0
        # Whether only what was proved to be synced counts.
        self.is_uncertain = False
        # Whether also one that begins where this one ends may not be the next one.
        self.is_followed_by_any = False
        # Whether nobody needs to know what is wrong with it.
        self.is_quiet = False
        self._mark = 0
        self._envelope = Envelope(0)
        # Of each topic, the window that may still grow; and the last offset in the file.
        self._growing: dict[int, Span] = {}
        self._ends: dict[int, int] = {}
        self._parts: list[tuple[Header, int]] = []
        # Whether the beginning of a series may have been lost just before.
        self._is_torn = False
        # The number of the entry that comes next, once one was replayed; and in any file.
        self._number: int | None = None
        self._seen_end = 0
        self._told = 0
        self._proved = 0
        self._has_gaps = False

    def run(self) -> None:
        position = self._open()
        if position is None:
            self._found.bad.append((0, self._end))
            return
        if self.is_uncertain:
            self._find_proved(position)
        for header, at, end, stored in self._entries(position, tell=not self.is_quiet):
            if header.kind == Kind.FOOTER and not self._found.is_named:
                break
            if header.kind == Kind.HEADER or self._is_void(header):
                self._break()
                continue
            if self.is_uncertain and at >= self._proved:
                self._found.bad.append((at, end))
                self._lose()
                continue
            self._seen_end = header.number + (header.kind != Kind.FOOTER)
            self._take(header, at, end, stored)
        if self._parts:
            self._drop_series("a series is not closed")
        self._break()
        self._close()

    def _find_proved(self, position: int) -> None:
        """Find out what was synced for sure, if that matters."""
        entry_end = 0
        for header, at, _, _ in self._entries(position):
            entry_end = header.number + 1
            if header.synced <= at:
                self._proved = max(self._proved, header.synced)
        self._found.bad.clear()
        # One that begins where this one ends, or before, is the next one.
        follows = self.void_from is not None and self.void_from <= entry_end
        self.is_uncertain = self.is_followed_by_any or not follows

    def has_footer(self) -> bool:
        """Whether the file was sealed, as far as its end tells."""
        if self._end < TRAILER.size:
            return False
        data = self._read(self._end - TRAILER.size, TRAILER.size)
        position, size, magic = TRAILER.unpack(data)
        return bool(magic == MAGIC and position + size + TRAILER.size == self._end)

    def _read(self, position: int, size_bytes: int) -> bytes:
        read = self._finding.reader.read
        try:
            return read(self._segment, position, size_bytes)
        except FileNotFoundError:
            raise
        except OSError:
            # What the disk cannot read is damage: look for what lies around it.
            data = bytearray()
            for at in range(position, position + size_bytes, SECTOR_BYTES):
                size = min(SECTOR_BYTES, position + size_bytes - at)
                try:
                    data += read(self._segment, at, size)
                except OSError:
                    data += bytes(size)
            return bytes(data)

    def _problem(self, position: int, reason: str) -> None:
        self._told += 1
        if not self.is_quiet and self._told <= PROBLEMS_PER_FILE_MAX:
            self._finding.problem(self._segment.name, position, reason)

    def _open(self) -> int | None:
        """Find out how the file is to be read; return where its entries begin."""
        name = self._segment.name
        keyring = self._finding.keyring
        plain = name in self._finding.reader.plain
        if self._header is None:
            self._problem(0, "the header of the file is not intact")
            mark = self._guess_mark() if keyring is None or plain else None
            if mark is None:
                return None
            self._mark, self._envelope = mark, Envelope(mark)
            return 0
        first, header = self._header
        try:
            self._envelope = open_envelope(keyring, first, header, file=name, may_be_plain=plain)
        except CorruptedError as error:
            self._problem(error.position, error.reason)
            return None
        except EncryptionKeyError as error:
            if keyring is None:
                raise
            self._problem(0, f"it is encrypted with key {header.key_id!r}: {error.reason}")
            return None
        self._mark, self._seen_end = first.mark, header.first_entry
        return first.size_bytes

    def _guess_mark(self) -> int | None:
        """Return the mark that most of the bytes have. A message may hold entries of its own."""
        sizes: dict[int, int] = {}
        synced = 0
        position: int | None = 0
        while position is not None and position < self._end:
            scan = Scan(self._read, self._end, position=position)
            for header, _, stored in scan:
                sizes[header.mark] = sizes.get(header.mark, 0) + len(stored)
                synced = max(synced, header.synced)
            position = find_entry(
                self._read, self._end, position=scan.position, accept=lambda _, __: True
            )
        if not synced and not self._found.is_named:
            # Entries of a file that was made whole, for which no manifest was: a copy.
            self._is_replayed = self._found.is_current = False
        return max(sizes, key=lambda mark: sizes[mark]) if sizes else None

    def _entries(
        self, position: int, *, tell: bool = False
    ) -> Iterator[tuple[Header, int, int, memoryview]]:
        """Yield the intact entries with position and end; note the places between them."""
        if not position:
            start = find_entry(self._read, self._end, position=0, accept=self._is_ours)
            self._found.bad.append((0, self._end if start is None else start))
            self._lose()
            if start is None:
                return
            position = start
        while position < self._end:
            scan = Scan(self._read, self._end, position=position)
            for header, at, stored in scan:
                if header.mark != self._mark:
                    scan.position, scan.fault = at, "the entry is of another file"
                    break
                yield header, at, scan.position, stored
                if header.kind == Kind.FOOTER and not self._found.is_named:
                    return
            if scan.position >= self._end:
                return
            following = self._find_next(scan, tell=tell)
            if following is None:
                return
            position = following

    def _find_next(self, scan: Scan, *, tell: bool) -> int | None:
        """Return where the next intact entry is, if entries are to be there."""
        at = scan.position
        if self.void_from is not None and self._seen_end >= self.void_from:
            return None
        if self.is_last and not self._is_missing(at):
            if scan.fault and tell:
                self._finding.notes.append(
                    f"{self._segment.name} has a torn end at byte {at}, never acknowledged"
                )
            return None
        following = find_entry(self._read, self._end, position=at, accept=self._is_ours)
        is_end = following is None and not self._found.is_named and not scan.fault
        if not is_end:
            if tell:
                self._problem(at, scan.fault or "zeros where an entry should be")
            self._found.bad.append((at, self._end if following is None else following))
            self._lose()
        return following

    def _is_missing(self, position: int) -> bool:
        """Whether entries at the end of the journal had been on the disk."""
        number = self._seen_end or self._finding.entry_end or FIRST_ENTRY
        if number < self.vouched_end:
            return True
        proof = find_proof(self._read, self._end, position=position, number=number, mark=self._mark)
        return proof is not None

    def _is_ours(self, header: Header, _: int) -> bool:
        return header.mark == self._mark

    def _is_void(self, header: Header) -> bool:
        return self.void_from is not None and header.number >= self.void_from

    def _lose(self) -> None:
        """Something is not intact here."""
        if self._parts:
            self._drop_series("a part of a series is not intact")
        self._is_torn = True
        self._break()

    def _drop_series(self, reason: str) -> None:
        position = self._parts[0][1]
        self._problem(position, reason)
        self._found.bad.append((position, self._parts[-1][1] + self._parts[-1][0].size_bytes))
        self._parts.clear()
        self._break()

    # Entries.

    def _take(self, header: Header, position: int, end: int, stored: memoryview) -> None:
        if header.kind == Kind.PART:
            if self._is_torn and not self._parts:
                self._refuse(position, end, "the beginning of a series is not intact")
                return
            self._parts.append((header, position))
            return
        self._is_torn = False
        closes = header.count if header.kind == Kind.TRANSACTION else 0
        if closes != len(self._parts):
            if self._parts:
                self._drop_series("a series is not closed")
            if closes:
                self._refuse(position, end, "the series that it closes is not intact")
                return
        parts, self._parts = self._parts, []
        for part, at in parts:
            body = memoryview(self._read(at + HEADER_BYTES, part.length))
            if not self._read_entry(part, at, at + part.size_bytes, body):
                return  # A disk that answers differently each time.
        self._read_entry(header, position, end, stored)

    def _refuse(self, position: int, end: int, reason: str) -> None:
        self._problem(position, reason)
        self._found.bad.append((position, end))
        self._break()

    def _read_entry(self, header: Header, position: int, end: int, stored: memoryview) -> bool:
        name = self._segment.name
        try:
            body = self._envelope.unseal(header, stored, file=name, position=position)
            batches = batches_of(header.kind, header.topic, body)
        except (CorruptedError, ValueError) as error:
            self._refuse(position, end, str(getattr(error, "reason", error)))
            return False
        if any(one.first_offset < self._ends.get(topic, 0) for topic, one, _ in batches):
            self._refuse(position, end, "its offsets do not rise")
            return False
        for topic, one, size in batches:
            own = end - position if header.kind in BATCH_KINDS else size
            self._grow(topic, one, position, end, own)
        if self._is_replayed:
            self._replay(header, position, body)
        return True

    def _replay(self, header: Header, position: int, body: memoryview) -> None:
        finding = self._finding
        due = finding.entry_end
        if self._number is None and due is not None and header.number < due:
            due = header.number  # The snapshot may be newer.
        if self._number is not None:
            due = self._number
        if due is not None and header.number > due:
            if header.number > finding.known_end:
                finding.lost_entries.append((max(due, finding.known_end), header.number))
        elif due is not None and header.number < due:
            return
        self._number = header.number + 1
        finding.entry_end = max(finding.entry_end or 0, self._number)
        number = self._segment.number
        entry = Entry(
            header.kind, header.topic, header.number, number, position, body, header.count
        )
        try:
            finding.apply(entry)
        except CorruptedError as error:
            self._problem(position, error.reason)
            finding.lost_entries.append((header.number, header.number + 1))

    def _grow(self, topic: int, one: Stored, position: int, end: int, own: int) -> None:
        time_ms = one.batch.publish_time_ms
        last = self._ends.get(topic)
        if one.end_offset - one.first_offset != one.batch.count or (
            last is not None and one.first_offset != last
        ):
            self._has_gaps = True
        self._ends[topic] = one.end_offset
        span = self._growing.get(topic)
        if span is not None and (
            span.position == position
            or (
                one.first_offset == span.end_offset
                and end - span.position <= self._finding.extent_bytes
            )
        ):
            self._growing[topic] = span._replace(
                end_offset=one.end_offset,
                last_ms=max(span.last_ms, time_ms),
                own_bytes=span.own_bytes + own,
                end=end,
            )
            return
        if span is not None:
            self._found.windows.setdefault(topic, []).append(span)
        self._growing[topic] = Span(
            self._segment, one.first_offset, one.end_offset, time_ms, time_ms, own, position, end
        )

    def _break(self) -> None:
        """No window reaches over this place."""
        for topic, span in self._growing.items():
            self._found.windows.setdefault(topic, []).append(span)
        self._growing.clear()

    def _close(self) -> None:
        if self._found.is_named or self._segment.form is Form.JOURNAL or not self._has_gaps:
            return
        # No manifest says what it is: compaction has left the gaps.
        keyed = replace(self._segment, form=Form.KEYED)
        self._found.segment = keyed
        for spans in self._found.windows.values():
            spans[:] = [span._replace(segment=keyed) for span in spans]


def split_window(reader: Reader, span: Span, topic: int) -> Iterator[Span]:
    """Yield a window for each entry of a topic in a window that was found."""

    def read(position: int, size_bytes: int) -> bytes:
        return reader.read(span.segment, position, size_bytes)

    envelope: Envelope | None = None
    scan = Scan(read, span.end, position=span.position)
    for header, position, stored in scan:
        if header.kind != Kind.TRANSACTION and header.topic != topic:
            continue
        body = stored
        if header.flags:
            envelope = envelope or reader.opened(span.segment).envelope
            body = envelope.unseal(header, stored, file=span.segment.name, position=position)
        batches = [one for t, one, _ in batches_of(header.kind, header.topic, body) if t == topic]
        if batches:
            times = [one.batch.publish_time_ms for one in batches]
            offsets = batches[0].first_offset, batches[-1].end_offset
            size = scan.position - position
            yield Span(
                span.segment, *offsets, min(times), max(times), size, position, scan.position
            )
