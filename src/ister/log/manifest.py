"""The manifest: which segments there are, what is live in them, and where to replay from.

Manifests are numbered and never changed. Making number N + 1 is the only way to change the truth,
and whoever finds it made already has lost the log to somebody else. Snapshots of the broker's
state are made before the manifest that names them. Both are files of a header and one entry.
"""

from array import array
from typing import NamedTuple

import msgspec

from ister.base.errors import CorruptedError
from ister.log.beginning import begin_file
from ister.log.entry import (
    HEADER_BYTES,
    Kind,
    pack_header,
    padding,
)
from ister.log.envelope import open_envelope
from ister.log.ports import Buffer, Keyring
from ister.log.scan import Scan, corrupted, read_file_header
from ister.log.segment import Form, Place, Segment, Span

# Numbers of one span: slot of the segment, offsets, times, bytes, window.
_STRIDE = 8


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
    stored = envelope.seal(kind, 0, 0, 0, [body])
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


def decode_document(kind: int, data: bytes, file: str, keyring: Keyring | None) -> memoryview:
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
            envelope = open_envelope(keyring, found[1])
            return envelope.unseal(header, body, file=file, position=position)
    raise corrupted(file, scan)
