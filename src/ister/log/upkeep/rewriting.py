"""Writing segments anew: what is live of some others, in an order that is quicker to read.

Inputs are never changed. Outputs count only when a checkpoint names them, and until then a crash
leaves them for the next start to remove, or for the next checkpoint (see `uploads`).

Memory: one slice of `SLICE_BYTES`, and for an object store one output of `OBJECT_BYTES`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from ister.base.errors import BadBatchError, CorruptedError, ObjectExistsError
from ister.base.limits import MIB
from ister.codec import Batch
from ister.log.files.entry import BATCH_KINDS, HEADER_BYTES, Kind, parse_transaction
from ister.log.files.extents import STRIDE, Extents, window
from ister.log.files.header import begin_file
from ister.log.files.numbers import Numbers
from ister.log.files.options import LogOptions
from ister.log.files.ports import Buffer, File, Store
from ister.log.files.scan import Scan, corrupted, read_file_header
from ister.log.files.segment import Form, Place, Segment, Span, segment_name
from ister.log.index.index import span_of
from ister.log.journal.backend import Backend, FileBackend
from ister.log.journal.group import Row, lay_out
from ister.log.journal.journal import footer_entries
from ister.log.journal.space import Space
from ister.log.reading.reading import Reader, Stored, read_window, rows_of_span, stored_batch
from ister.log.upkeep.checkpoint import Rewritten
from ister.log.upkeep.key_compaction import KeyMap, newest_only
from ister.log.upkeep.uploads import Uploads

_T = TypeVar("_T")

# Entries sorted by topic in one go. With 1,000 topics a run of one topic is still 32 KiB, a good
# size to read.
SLICE_BYTES = 32 * MIB
# An object is made in one call, from memory.
OBJECT_BYTES = 32 * MIB
# One read of a topic that lies scattered.
READ_BYTES = 4 * MIB
# One write, and what is done between two pauses: some milliseconds of work.
STEP_BYTES = 1 * MIB

FIRST_NUMBER = 1


@dataclass(slots=True)
class RewriteFigures:
    """What a rewrite did, for metrics."""

    read_bytes: int = 0
    written_bytes: int = 0
    segments_in: int = 0
    segments_out: int = 0
    dropped_messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPolicy:
    """Which messages of a topic may give way to newer ones of their key."""

    # Messages from here on are left alone.
    safe_offset: int
    # A message without a payload deletes its key; one published before this goes itself.
    tombstones_before_ms: int = 0
    # Messages published at this time or later are left alone; 0: there is no such time.
    before_ms: int = 0


@dataclass(slots=True, kw_only=True)
class Rewrite:
    """Made by `plan_compaction`; `run`, then `Log.rewritten`, then a checkpoint."""

    reason: str
    # By topic, everything that is replaced, by rising offsets.
    spans: dict[int, list[Span]]
    # First live offset of each topic.
    horizon: dict[int, int]
    place: Place
    keys: KeyPolicy | None
    backend: Backend
    reader: Reader
    options: LogOptions
    numbers: Numbers
    owner: str
    # Into another log (see `relocation`): the numbers of its topics there, and what `order` new
    # segments have.
    numbers_there: Mapping[int, int] | None = None
    order: int | None = None
    figures: RewriteFigures = field(default_factory=RewriteFigures)
    result: Rewritten | None = None
    # Of each new segment, how much of it is live, as estimated by the offsets.
    live: dict[Segment, int] = field(default_factory=dict)

    @property
    def segments(self) -> list[Segment]:
        """The segments that are read, in the order of time."""
        found = {span.segment for spans in self.spans.values() for span in spans}
        # Those that one rewrite has made have one rank, and numbers in the order of time.
        return sorted(found, key=lambda segment: (segment.rank, segment.number))

    def run(self, pause: Callable[[int], None] = lambda _: None) -> None:
        """Write the new segments. For a worker; `pause` is called with the bytes done since.

        Raises `CorruptedError`, `FileNotFoundError` when an input is gone meanwhile, or another
        `OSError`; then nothing is left behind.
        """
        self._check_room()
        outputs = _Outputs(self, _Steps(pause))
        finished = False
        try:
            if self.keys is not None:
                self._write_newest(outputs, self.keys)
            elif self.numbers_there is not None:
                self._write_there(outputs, self.numbers_there)
            else:
                self._write_sorted(outputs)
            outputs.finish()
            finished = True
        finally:
            if not finished:
                outputs.discard()
        self.figures.segments_in = len(self.segments)
        self.figures.segments_out = len(outputs.made)
        there = self.numbers_there or {}
        spans: dict[int, list[Span]] = {there.get(topic, topic): [] for topic in self.spans}
        for segment, extents in outputs.made:
            for topic in extents.topics:
                span = span_of(segment, extents.summary(topic))
                spans[topic].append(span)
                live = live_bytes(span, self.horizon.get(topic, 0))
                self.live[segment] = self.live.get(segment, 0) + live
        self.result = Rewritten(
            frozenset(
                (span.segment, topic)
                for topic, rows in self.spans.items()
                for span in rows
                if topic not in there
            ),
            spans,
            frozenset(segment for segment, _ in outputs.made),
        )

    def _check_room(self) -> None:
        """Raise `OSError` where this would use up the room that the journal needs meanwhile.

        On a full disk it is done to free some: see `_Output`.
        """
        if self.place is not Place.LOCAL or not isinstance(self.backend, FileBackend):
            return
        space = self.backend.space
        if not space.is_full:
            rows = self.spans.items()
            space.check(
                sum(live_bytes(s, self.horizon.get(t, 0)) for t, some in rows for s in some)
            )

    def _write_sorted(self, outputs: "_Outputs") -> None:
        wanted: dict[Segment, set[int]] = {segment: set() for segment in self.segments}
        for topic, spans in self.spans.items():
            for span in spans:
                wanted[span.segment].add(topic)
        rows: list[Row] = []
        size = 0
        for segment, topics in wanted.items():
            outputs.steps.look()
            for topic, stored in scan_batches(self.reader, segment):
                outputs.steps.count(stored.batch.size_bytes)
                if topic not in topics or stored.end_offset <= self.horizon.get(topic, 0):
                    continue
                # A view would keep all that was read with it in memory.
                row = row_of(topic, stored._replace(batch=stored.batch.detached()))
                rows.append(row)
                size += HEADER_BYTES + row[3]
                if size >= SLICE_BYTES:
                    outputs.add(sorted(rows, key=_topic_of))
                    rows, size = [], 0
            self.figures.read_bytes += segment.size_bytes
        outputs.add(sorted(rows, key=_topic_of))

    def _write_newest(self, outputs: "_Outputs", policy: KeyPolicy) -> None:
        [(topic, spans)] = self.spans.items()
        floor = self.horizon.get(topic, 0)
        keys = KeyMap()
        # What was compacted before has no key twice; only what came since can say more.
        for stored in self._batches(topic, [s for s in spans if s.segment.form is not Form.KEYED]):
            keys.add(stored.batch)
            outputs.steps.count(stored.batch.size_bytes)
        rows: list[Row] = []
        size = 0
        for stored in self._batches(topic, spans):
            outputs.steps.count(stored.batch.size_bytes)
            if stored.end_offset <= floor:
                continue
            kept = newest_only(stored.batch, keys, policy.tombstones_before_ms)
            self.figures.dropped_messages += stored.batch.count - (kept.count if kept else 0)
            if kept is None:
                continue
            row = row_of(topic, stored_batch(kept))
            rows.append(row)
            size += HEADER_BYTES + row[3]
            if size >= STEP_BYTES:
                outputs.add(rows)
                rows, size = [], 0
        outputs.add(rows)

    def _write_there(self, outputs: "_Outputs", numbers: Mapping[int, int]) -> None:
        for topic, spans in self.spans.items():
            rows: list[Row] = []
            size = 0
            for stored in self._batches(topic, spans):
                outputs.steps.count(stored.batch.size_bytes)
                if stored.end_offset <= self.horizon.get(topic, 0):
                    continue
                row = row_of(numbers[topic], stored)
                rows.append(row)
                size += HEADER_BYTES + row[3]
                if size >= STEP_BYTES:
                    outputs.add(rows)
                    rows, size = [], 0
            outputs.add(rows)

    def _batches(self, topic: int, spans: list[Span]) -> Iterator[Stored]:
        for span in spans:
            rows = rows_of_span(self.reader, span, topic)
            at = 0
            while at < len(rows):
                found = window(rows, at, READ_BYTES)
                self.figures.read_bytes += found.end - found.position
                yield from read_window(self.reader, span.segment, found, topic, 0)
                while at < len(rows) and rows[at] < found.end:
                    at += STRIDE


class _Steps:
    """Lets others run every so often: a rewrite is the least urgent thing a broker does."""

    def __init__(self, pause: Callable[[int], None]) -> None:
        self._pause = pause
        self._size = 0

    def look(self) -> None:
        """Stop if the broker closes: of small objects in a slow store, few bytes take long."""
        self._pause(0)

    def count(self, size_bytes: int) -> None:
        """Pause if enough was done since the last time."""
        self._size += size_bytes
        if self._size >= STEP_BYTES:
            self._pause(self._size)
            self._size = 0


class _Outputs:
    """The segments that a rewrite makes, one after the other."""

    def __init__(self, rewrite: Rewrite, steps: "_Steps") -> None:
        self._rewrite = rewrite
        self.steps = steps
        self._open: _Output | None = None
        self.made: list[tuple[Segment, Extents]] = []
        self._ends: dict[int, int] = {}

    def add(self, rows: list[Row]) -> None:
        """Write entries, in new segments where one is full."""
        start = 0
        size = 0
        for slot, row in enumerate(rows):
            self._check_order(row)
            size += HEADER_BYTES + row[3]
            if size >= STEP_BYTES:
                self._write(rows[start : slot + 1])
                start, size = slot + 1, 0
        if start < len(rows):
            self._write(rows[start:])

    def finish(self) -> None:
        """Close the last one."""
        if self._open is not None:
            self.made.append(self._open.finish())
            self._rewrite.figures.written_bytes += self.made[-1][0].size_bytes
            self._open = None

    def discard(self) -> None:
        """Remove everything that was made."""
        if self._open is not None:
            self._open.discard()
        for segment, _ in self.made:
            _discard(self._rewrite, segment.number)

    def _write(self, rows: list[Row]) -> None:
        rewrite = self._rewrite
        if self._open is None:
            # What was compacted stays known to be: views of the past ask for it.
            is_keyed = all(segment.form is Form.KEYED for segment in rewrite.segments)
            form = Form.KEYED if is_keyed or rewrite.keys is not None else Form.SORTED
            self._open = _Output(rewrite, form, _free_number(rewrite))
            self._open.begin()
        self._open.add(rows)
        self.steps.count(sum(row[3] for row in rows))
        if self._open.position >= self._open.size_bytes_max:
            self.finish()

    def _check_order(self, row: Row) -> None:
        # Only our own bug can break this, and it must not reach a manifest.
        assert row[5] >= self._ends.get(row[1], 0), f"offsets of topic {row[1]} do not rise"
        self._ends[row[1]] = row[6]


class _Output:
    """One new segment: a file, or an object collected in memory."""

    def __init__(self, rewrite: Rewrite, form: Form, number: int) -> None:
        self._rewrite = rewrite
        self._form = form
        self._number = number
        self._envelope, self._mark, self._beginning = begin_file(
            "segment",
            number,
            first_entry=FIRST_NUMBER,
            owner=rewrite.owner,
            now_ms=rewrite.options.now_ms(),
            keyring=rewrite.options.ciphers,
        )
        self._entry_end = FIRST_NUMBER
        self._extents = Extents(rewrite.options.extent_bytes)
        # Without a file, what was written so far.
        self._file: File | None = None
        self._space: Space | None = None
        self._parts: list[Buffer] = []
        self.position = 0
        self.size_bytes_max = rewrite.options.segment_bytes

    def begin(self) -> None:
        """Make the file, if it is to be one, and write its header."""
        rewrite = self._rewrite
        if rewrite.place is Place.LOCAL and isinstance(rewrite.backend, FileBackend):
            name, disk = segment_name(self._number), rewrite.backend.disk
            self._space = rewrite.backend.space
            self._file = self._attempt(self._space, lambda: disk.create(name))
        else:
            self.size_bytes_max = min(self.size_bytes_max, OBJECT_BYTES)
        self._put(self._beginning)

    def add(self, rows: list[Row]) -> None:
        layout = lay_out(
            rows,
            self._envelope,
            position=self.position,
            number=self._entry_end,
            synced=0,
            mark=self._mark,
            extent_bytes=self._rewrite.options.extent_bytes,
        )
        self._put(layout.parts)
        self._entry_end = layout.entry_end
        self._extents.merge(layout.extents)

    def finish(self) -> tuple[Segment, Extents]:
        end = self.position
        self._put(
            footer_entries(
                self._extents,
                self._envelope,
                position=end,
                number=self._entry_end,
                synced=0,
                mark=self._mark,
            )
        )
        rewrite = self._rewrite
        order = rewrite.order
        segment = Segment(
            self._number,
            rewrite.place,
            self.position,
            end,
            self._entry_end - FIRST_NUMBER,
            self._form,
            min(one.rank for one in rewrite.segments) if order is None else order,
        )
        if self._file is not None:
            self._file.sync()
            self._file.close()
        else:
            store = _store_of(rewrite)
            store.put(segment.name, b"".join(self._parts))
        return segment, self._extents

    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        elif _uploads_of(self._rewrite) is None:
            return  # Nothing was made, unless a store could not say so; the next start looks.
        _discard(self._rewrite, self._number)

    def _put(self, parts: list[Buffer]) -> None:
        if self._file is not None and self._space is not None:
            file, position = self._file, self.position
            self._attempt(self._space, lambda: file.write(position, parts))
        else:
            self._parts += parts
        self.position += sum(map(len, parts))

    def _attempt(self, space: Space, call: Callable[[], _T]) -> _T:
        """Return what `call` does. On a full disk, what frees it may need some of it first.

        Not before: to let go of the reserve has messages refused.
        """
        return space.attempt(call, keep=space.kept) if space.is_full else call()


def live_bytes(span: Span, floor: int) -> int:
    """Return about how many bytes of a span are from offset `floor` on."""
    if span.first_offset >= floor:
        return span.own_bytes
    live = max(0, span.end_offset - floor)
    return span.own_bytes * live // (span.end_offset - span.first_offset)


def row_of(topic: int, stored: Stored) -> Row:
    """Return a batch as an entry to write."""
    batch = stored.batch
    return (
        Kind.BATCH,
        topic,
        [batch.stamp_bytes(), batch.tail],
        batch.size_bytes,
        batch.count,
        stored.first_offset,
        stored.end_offset,
        batch.publish_time_ms,
        (),
    )


def scan_batches(reader: Reader, segment: Segment) -> Iterator[tuple[int, Stored]]:
    """Yield topic and batch of everything in a segment, or raise `CorruptedError`."""

    def read(position: int, size_bytes: int) -> bytes:
        return reader.read(segment, position, size_bytes)

    header = read_file_header(read, segment.size_bytes, segment.name)
    if header is None:
        raise CorruptedError(segment.name, 0, "the header of the file is not intact")
    envelope = reader.opened(segment).envelope
    scan = Scan(read, segment.end, position=header[0].size_bytes)
    for entry, position, stored in scan:
        if entry.kind not in (*BATCH_KINDS, Kind.TRANSACTION):
            continue
        body = envelope.unseal(entry, stored, file=segment.name, position=position)
        try:
            if entry.kind in BATCH_KINDS:
                yield entry.topic, stored_batch(Batch(body))
                continue
            for inner in parse_transaction(body)[0]:
                yield inner.topic, stored_batch(Batch(inner.body))
        except (BadBatchError, ValueError) as error:
            raise CorruptedError(segment.name, position, str(error)) from None
    if scan.position < segment.end:
        raise corrupted(segment.name, scan)


def _discard(rewrite: Rewrite, number: int) -> None:
    """Remove an output, wherever it is; if that fails, a note or the next start knows of it."""
    uploads = _uploads_of(rewrite)
    with suppress(OSError):
        if uploads is not None:
            uploads.discard(number)
        else:
            rewrite.backend.remove(segment_name(number))


def _uploads_of(rewrite: Rewrite) -> Uploads | None:
    if rewrite.place is Place.REMOTE and rewrite.options.remote is not None:
        return Uploads(rewrite.backend, rewrite.options.remote, rewrite.owner)
    return None


def _store_of(rewrite: Rewrite) -> Backend | Store:
    if rewrite.place is Place.REMOTE and rewrite.options.remote is not None:
        return rewrite.options.remote
    return rewrite.backend


def _free_number(rewrite: Rewrite) -> int:
    """Return a number nobody uses, also not for an object that a crash left behind.

    If it is one in the remote tier, it is noted.
    """
    uploads = _uploads_of(rewrite)
    while True:
        number = rewrite.numbers.take()
        if uploads is None:
            return number  # In an object store the epoch is in it: nobody else has ever used it.
        try:
            _store_of(rewrite).size(segment_name(number))
        except FileNotFoundError:
            with suppress(ObjectExistsError):
                uploads.begin(number)
                return number


def _topic_of(row: Row) -> int:
    return row[1]
