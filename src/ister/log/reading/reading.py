"""Reading batches back: one window of one file at a time, every entry in it verified.

A bad entry hurts only those whose messages it held. A reader of another topic goes around it, and
knows by its offsets that nothing of its own is missing.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from ister.base.errors import BadBatchError, CorruptedError
from ister.base.limits import MIB
from ister.codec import Batch, Column, crc32c
from ister.log.files.entry import (
    BATCH_KINDS,
    CRC,
    HEADER,
    HEADER_BYTES,
    KEEP_GIL,
    MAGIC,
    MAGIC_BYTES,
    MAGIC_POSITION,
    Header,
    Kind,
    is_intact,
    parse_header,
    parse_transaction,
)
from ister.log.files.envelope import Envelope, open_envelope
from ister.log.files.extents import Extent, decode_extents, find_offset, find_time, rows_of, window
from ister.log.files.ports import Keyring, Store
from ister.log.files.scan import read_file_header
from ister.log.files.segment import Place, Segment, Span
from ister.log.journal.backend import Readable

# Footers in memory. One of a segment with a single topic has 30 KiB; one of a thousand topics in
# small batches has 14 MiB, and compaction does away with it.
FOOTERS_BYTES_MAX = 32 * MIB
OPENED_MAX = 256


class Opened(NamedTuple):
    """What is needed of the header of a file to read the rest."""

    mark: int
    envelope: Envelope


class Reader:
    """Reads segments wherever they lie. Any thread may use it."""

    def __init__(
        self,
        backend: Readable,
        remote: Store | None,
        keyring: Keyring | None,
        *,
        plain: frozenset[str] = frozenset(),
    ) -> None:
        # With keys, the files that need not be encrypted: they were there before.
        self.plain = plain
        self._backend = backend
        self._remote = remote
        self._keyring = keyring
        self._lock = Lock()
        self._footers: OrderedDict[Segment, dict[int, bytes]] = OrderedDict()
        self._footers_bytes = 0
        self._opened: OrderedDict[tuple[Place, int], Opened] = OrderedDict()

    def read(self, segment: Segment, position: int, size_bytes: int) -> bytes:
        """Return a part of a segment, or raise `FileNotFoundError` when it is gone."""
        if segment.place is Place.REMOTE and self._remote is not None:
            return self._remote.get_range(segment.name, position, size_bytes)
        return self._backend.read(segment.name, position, size_bytes)

    @property
    def has_keys(self) -> bool:
        """Whether an entry that says it is not encrypted may not be believed."""
        return self._keyring is not None

    def rows(self, segment: Segment, topic: int) -> "array[int]":
        """Return the extents of `topic`, from the footer of `segment`."""
        return rows_of(self.footer(segment), topic)

    def footer(self, segment: Segment) -> dict[int, bytes]:
        """Return the extents of every topic in `segment`."""
        with self._lock:
            found = self._footers.get(segment)
            if found is not None:
                self._footers.move_to_end(segment)
                return found
        loaded = self._load_footer(segment)
        size = sum(map(len, loaded.values()))
        with self._lock:
            if segment not in self._footers:
                self._footers[segment] = loaded
                self._footers_bytes += size
            while self._footers_bytes > FOOTERS_BYTES_MAX and len(self._footers) > 1:
                _, old = self._footers.popitem(last=False)
                self._footers_bytes -= sum(map(len, old.values()))
        return loaded

    def opened(self, segment: Segment) -> "Opened":
        """Return what the header of `segment` says."""
        key = (segment.place, segment.number)
        with self._lock:
            found = self._opened.get(key)
        if found is not None:
            return found
        header = read_file_header(
            lambda position, size: self.read(segment, position, size), 2**62, segment.name
        )
        if header is None:
            raise CorruptedError(segment.name, 0, "the header of the file is not intact")
        name = segment.name
        plain = name in self.plain
        envelope = open_envelope(self._keyring, *header, file=name, may_be_plain=plain)
        opened = Opened(header[0].mark, envelope)
        with self._lock:
            self._opened[key] = opened
            if len(self._opened) > OPENED_MAX:
                self._opened.popitem(last=False)
        return opened

    def _load_footer(self, segment: Segment) -> dict[int, bytes]:
        data = memoryview(self.read(segment, segment.end, segment.size_bytes - segment.end))
        header = parse_header(data, 0) if len(data) >= HEADER_BYTES else None
        if (
            header is None
            or header.kind != Kind.FOOTER
            or HEADER_BYTES + header.length > len(data)
            or not is_intact(data, 0, header.length)
        ):
            raise CorruptedError(segment.name, segment.end, "the footer is not intact")
        body = data[HEADER_BYTES : HEADER_BYTES + header.length]
        if header.flags or self.has_keys:
            body = self.opened(segment).envelope.unseal(
                header, body, file=segment.name, position=segment.end
            )
        try:
            return decode_extents(body)
        except ValueError as error:
            raise CorruptedError(segment.name, segment.end, f"the footer: {error}") from None


class Stored(NamedTuple):
    """A batch as it was found: the messages `first_offset` to `end_offset` of its topic."""

    batch: Batch
    first_offset: int
    end_offset: int


class ReadPlan:
    """What to read next of one topic. It never changes; `run` may be called from any thread."""

    __slots__ = ("_again", "_bytes_max", "_reader", "_window", "offset", "segment", "topic")

    def __init__(
        self,
        reader: Reader,
        segment: Segment,
        found: Extent | None,
        *,
        topic: int,
        offset: int,
        bytes_max: int,
        again: "Callable[[int, int, int], ReadPlan | None]",
    ) -> None:
        self.segment = segment
        self.topic = topic
        self.offset = offset
        self._reader = reader
        self._window = found
        self._bytes_max = bytes_max
        self._again = again

    def run(self) -> list[Batch]:
        """Return batches in order; the first contains `offset`, or is the next one there is.

        Raises `CorruptedError` when what should be there is not intact, and `OSError`.
        """
        try:
            return self.read()
        except FileNotFoundError:
            # Rewritten and removed since this was planned; once more, by the present index.
            plan = self._again(self.topic, self.offset, self._bytes_max)
            if plan is None:
                return []
            if plan.segment == self.segment:
                raise
            return plan.read()

    def read(self) -> list[Batch]:
        """Return the batches where they were when this was planned."""
        found = self._window
        if found is None:
            rows = self._reader.rows(self.segment, self.topic)
            start = find_offset(rows, self.offset)
            if start == len(rows):
                raise CorruptedError(
                    self.segment.name,
                    self.segment.end,
                    f"the footer has no message {self.offset} of topic {self.topic}",
                )
            found = window(rows, start, self._bytes_max)
        batches = []
        size = 0
        for stored in read_window(self._reader, self.segment, found, self.topic, self.offset):
            batches.append(stored.batch)
            size += stored.batch.size_bytes
            if size >= self._bytes_max:
                break
        if not batches:
            raise CorruptedError(
                self.segment.name,
                found.position,
                f"message {self.offset} of topic {self.topic} is not where it should be",
            )
        return batches


def rows_of_span(reader: Reader, span: Span, topic: int) -> "array[int]":
    """Return the extents a span stands for."""
    if span.end:
        return array("q", (span.position, span.end, *span[1:6]))
    return reader.rows(span.segment, topic)


def find_time_in(
    reader: Reader, segment: Segment, rows: "array[int]", topic: int, time_ms: int
) -> int | None:
    """Return the offset of the first message of `time_ms` or later, if it is in `segment`."""
    start = find_time(rows, time_ms)
    if start == len(rows):
        return None
    for stored in read_window(reader, segment, window(rows, start, 0), topic, 0):
        if stored.batch.publish_time_ms >= time_ms:
            return stored.first_offset
    return None


def read_window(
    reader: Reader, segment: Segment, found: Extent, topic: int, offset: int
) -> Iterator[Stored]:
    """Yield the batches of `topic` in a window, from the one on that reaches past `offset`.

    Raises `CorruptedError` when one is missing, unless good ones could be returned before it: it
    is met again by whoever reads on from there.
    """
    data = reader.read(segment, found.position, found.end - found.position)
    if len(data) < found.end - found.position:
        raise CorruptedError(segment.name, found.position + len(data), "the file is cut off")
    # A view keeps the whole window in memory as long as its batch lives.
    keep_view = found.own_bytes * 2 >= len(data)
    # Once for all of them, which may be many.
    name = segment.name
    expected = found.first_offset
    damaged = -1
    given = False
    for at, header, stored_body in _bodies(memoryview(data), lambda: reader.opened(segment).mark):
        if header is None:
            damaged = found.position + at if damaged < 0 else damaged
            continue
        if header.topic != topic and header.kind != Kind.TRANSACTION:
            continue
        position = found.position + at
        body = stored_body
        if header.flags or reader.has_keys:
            body = reader.opened(segment).envelope.unseal(
                header, stored_body, file=name, position=position
            )
        for stored in _batches(header, body, topic, file=name, position=position):
            if damaged >= 0 and stored.first_offset > max(expected, offset):
                if given:
                    return
                raise CorruptedError(name, damaged, "an entry is not intact")
            expected = stored.end_offset
            damaged = -1
            if stored.end_offset > offset:
                given = True
                yield stored if keep_view or header.flags else _copied(stored)
    if damaged >= 0 and expected < found.end_offset and not given:
        raise CorruptedError(name, damaged, "an entry is not intact")


def _bodies(
    view: memoryview, mark: Callable[[], int]
) -> Iterator[tuple[int, Header | None, memoryview]]:
    """Yield the entries of a window; without a header where one is not intact."""
    at = 0
    size = len(view)
    while at < size:
        if size - at >= HEADER_BYTES:
            fields = HEADER.unpack_from(view, at)
            end = at + HEADER_BYTES + fields[1]
            if (
                fields[2] == MAGIC
                and end <= size
                and fields[0] == crc32c(view[at + CRC.size : end], 0, KEEP_GIL)
            ):
                yield at, tuple.__new__(Header, fields), view[at + HEADER_BYTES : end]
                at = (end + 7) & ~7
                continue
        yield at, None, view[at:at]
        at = _next_intact(view, at, mark())


def _next_intact(view: memoryview, at: int, mark: int) -> int:
    """Return where the next intact entry begins, or the end of the window.

    A message may contain something that looks like an entry, but not the mark of the file.
    """
    data = view.obj
    assert isinstance(data, bytes)
    found = data.find(MAGIC_BYTES, at + MAGIC_POSITION + 1)
    while found >= 0 and found - MAGIC_POSITION + HEADER_BYTES <= len(view):
        start = found - MAGIC_POSITION
        header = parse_header(view, start)
        if (
            start % 8 == at % 8
            and header is not None
            and header.mark == mark
            and start + header.size_bytes <= len(view)
            and is_intact(view, start, header.length)
        ):
            return start
        found = data.find(MAGIC_BYTES, found + 1)
    return len(view)


def _batches(
    header: Header, body: memoryview, topic: int, *, file: str, position: int
) -> Sequence[Stored]:
    try:
        if header.kind in BATCH_KINDS:
            return (stored_batch(Batch(body)),)
        if header.kind == Kind.TRANSACTION:
            return [
                stored_batch(Batch(inner.body)) for inner in parse_transaction(body, topic=topic)[0]
            ]
    except (BadBatchError, ValueError) as error:
        raise CorruptedError(file, position, str(error)) from None
    return ()


def stored_batch(batch: Batch) -> Stored:
    """Return a batch with the offsets it spans, which has gaps when it was compacted."""
    if batch.columns & Column.OFFSET:
        offsets = batch.offsets
        return Stored(batch, offsets[0], offsets[-1] + 1)
    return Stored(batch, batch.base_offset, batch.base_offset + batch.count)


def _copied(stored: Stored) -> Stored:
    return stored._replace(batch=Batch(stored.batch.to_bytes()))
