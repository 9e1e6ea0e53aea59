"""The manifest: which segments there are, what is live in them, and where to replay from.

Manifests are numbered and never changed. Making number N + 1 is the only way to change the truth,
and whoever finds it made already has lost the log to somebody else. Snapshots of the broker's
state are made before the manifest that names them. Both are files of a header and one entry.
"""

from array import array
from typing import NamedTuple

import msgspec

from ister.base.errors import CorruptedError
from ister.log.files.entry import (
    HEADER_BYTES,
    Kind,
    pack_header,
    padding,
)
from ister.log.files.envelope import open_envelope
from ister.log.files.fences import Fence
from ister.log.files.header import begin_file
from ister.log.files.ports import Buffer, Keyring
from ister.log.files.scan import Scan, corrupted, read_file_header
from ister.log.files.segment import Form, Place, Segment, Span

# Kept for looking back after an accident; only the last one is ever used.
KEPT_COUNT = 3
# Numbers of one span: slot of the segment, offsets, times, bytes, window.
_STRIDE = 8


class Kept(NamedTuple):
    """A manifest that is not removed, and the snapshot it names."""

    number: int
    snapshot: int


class Manifest(NamedTuple):
    """What a log consists of."""

    number: int
    # The first journal file (or chunk) whose entries are not in the snapshot, and whether it was
    # there already: then it cannot be missing.
    replay_from: int
    replay_exists: bool
    # The entry number, and the number of a segment, that come next if nothing is replayed.
    entry_end: int
    next_segment: int
    # Number of the snapshot, or -1.
    snapshot: int
    segments: list[Segment]
    spans: dict[int, list[Span]]
    # How often the log had been opened when this was made: rises with every owner.
    epoch: int = 0
    # The manifests that stay, by rising number, this one last. Everything else may go.
    kept: tuple[Kept, ...] = ()
    # Chunks without entries that are not removed yet.
    fences: tuple[Fence, ...] = ()
    # Names of files that were written before the log was encrypted; every other one is encrypted.
    plain: frozenset[str] = frozenset()
    # Segments that a rewrite made, each with how many of its bytes were live by then.
    settled: tuple[tuple[Segment, int], ...] = ()
    # Whether the manifest is not encrypted itself: then neither need anything else be.
    is_plain: bool = False

    def may_be_plain(self, name: str) -> bool:
        """Tell whether a file may be there that is not encrypted, although there are keys."""
        return self.is_plain or name in self.plain

    def follow(self, kept: tuple[Kept, ...]) -> "Manifest":
        """Return the manifest as the one that comes after those in `kept`."""
        others = [one for one in kept if one.number < self.number]
        newest = [*others, Kept(self.number, self.snapshot)][-KEPT_COUNT:]
        return self._replace(kept=tuple(newest))


class _Body(msgspec.Struct, frozen=True):
    replay_from: int
    replay_exists: bool
    entry_end: int
    next_segment: int
    snapshot: int
    # number, place, size, end, entries, form, order
    segments: list[tuple[int, str, int, int, int, str, int]]
    # topic, spans as 64-bit numbers
    spans: list[tuple[int, bytes]]
    epoch: int = 0
    # number, snapshot
    kept: list[tuple[int, int]] = []
    # first, end, dropped_ms
    fences: list[tuple[int, int, int]] = []
    # Left out where it is empty.
    plain: list[str] | msgspec.UnsetType = msgspec.UNSET
    # slot of the segment, live bytes; left out where it is empty
    settled: list[tuple[int, int]] | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the body of a manifest."""
    slots = {segment: slot for slot, segment in enumerate(manifest.segments)}
    spans = [
        (topic, array("q", [n for s in rows for n in (slots[s.segment], *s[1:])]).tobytes())
        for topic, rows in manifest.spans.items()
    ]
    segments = [
        (s.number, str(s.place), s.size_bytes, s.end, s.entries, str(s.form), s.order)
        for s in manifest.segments
    ]
    return _encoder.encode(
        _Body(
            manifest.replay_from,
            manifest.replay_exists,
            manifest.entry_end,
            manifest.next_segment,
            manifest.snapshot,
            segments,
            spans,
            manifest.epoch,
            list(manifest.kept),
            list(manifest.fences),
            sorted(manifest.plain) or msgspec.UNSET,
            [(slots[segment], live) for segment, live in manifest.settled] or msgspec.UNSET,
        )
    )


def decode_manifest(number: int, body: Buffer, file: str) -> Manifest:
    """Return manifest `number`, or raise `CorruptedError`."""
    try:
        found = _decoder.decode(body)
        segments = [
            Segment(n, Place(place), size, end, entries, Form(form), order)
            for n, place, size, end, entries, form, order in found.segments
        ]
        spans = {topic: _decode_spans(rows, segments) for topic, rows in found.spans}
        made = () if isinstance(found.settled, msgspec.UnsetType) else found.settled
        settled = tuple((segments[slot], live) for slot, live in made)
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise CorruptedError(file, 0, f"the manifest does not decode: {error}") from None
    return Manifest(
        number,
        found.replay_from,
        found.replay_exists,
        found.entry_end,
        found.next_segment,
        found.snapshot,
        segments,
        spans,
        found.epoch,
        tuple(Kept._make(row) for row in found.kept) or (Kept(number, found.snapshot),),
        tuple(Fence._make(row) for row in found.fences),
        frozenset(() if isinstance(found.plain, msgspec.UnsetType) else found.plain),
        settled,
    )


def _decode_spans(data: bytes, segments: list[Segment]) -> list[Span]:
    rows = array("q")
    rows.frombytes(data)
    columns = [rows[column::_STRIDE] for column in range(_STRIDE)]
    return [Span(segments[slot], *rest) for slot, *rest in zip(*columns, strict=True)]


def encode_document(
    kind: int,
    number: int,
    body: bytes,
    keyring: Keyring | None,
    *,
    owner: str,
    now_ms: int,
) -> bytes:
    """Return a manifest or snapshot as a whole file."""
    envelope, mark, beginning = begin_file(
        "manifest" if kind == Kind.MANIFEST else "snapshot",
        number,
        first_entry=0,
        owner=owner,
        now_ms=now_ms,
        keyring=keyring,
    )
    stored = envelope.seal(kind, 0, 0, 0, 0, [body])
    length = len(stored[0])
    head = pack_header(
        kind,
        0,
        stored,
        length=length,
        number=0,
        synced=0,
        count=0,
        mark=mark,
        flags=envelope.flags,
    )
    return b"".join([*beginning, head, *stored, padding(length)])


def is_encrypted(data: bytes, file: str) -> bool:
    """Tell whether a document says that it is encrypted; `decode_document` checks that."""
    found = read_file_header(
        lambda position, size: data[position : position + size], len(data), file
    )
    return found is not None and bool(found[1].key_id)


def decode_document(
    kind: int, data: bytes, file: str, keyring: Keyring | None, *, may_be_plain: bool = True
) -> memoryview:
    """Return the body of a manifest or snapshot.

    Raises `CorruptedError`, or `EncryptionKeyError` when the key for it is not there.
    """

    def read(position: int, size_bytes: int) -> bytes:
        return data[position : position + size_bytes]

    found = read_file_header(read, len(data), file)
    if found is None:
        raise CorruptedError(file, 0, "the header of the file is not intact")
    scan = Scan(read, len(data), position=found[0].size_bytes)
    for header, position, body in scan:
        if header.kind == kind and position + HEADER_BYTES + len(body) <= len(data):
            envelope = open_envelope(keyring, *found, file=file, may_be_plain=may_be_plain)
            return envelope.unseal(header, body, file=file, position=position)
    raise corrupted(file, scan)
