"""One entry of a journal as bytes. Spec: docs/journal-format.md.

Always true of an entry in a file:
- it starts at a multiple of eight, and its checksum covers everything in it but itself;
- `number` is one more than that of the entry before it; a header or footer of the file has the
  number of the entry that follows, and uses none up;
- `mark` is that of its file, drawn by chance: bytes that a producer sent cannot pass for an entry;
- everything in the file below `synced` was on the disk when this entry was written;
- PART entries lie directly before the TRANSACTION whose `count` says how many of them it closes:
  that is a series. Without that one, none of them counts.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ister.base.errors import CorruptedError
from ister.codec import crc32c
from ister.log.files.ports import Buffer

FORMAT_VERSION = 1
MAGIC: Final = 0x4A53
MAGIC_BYTES = MAGIC.to_bytes(2, "little")
MAGIC_POSITION = 8

CRC = struct.Struct("<I")
# length, magic, kind, flags, topic, number, synced, count, mark
CHECKED = struct.Struct("<IHBBIQQII")
# crc, and the same
HEADER = struct.Struct("<IIHBBIQQII")
HEADER_BYTES: Final = 40
# The broker's stamp in front of a batch: base offset, publish time.
STAMP = struct.Struct("<Qq")
TRANSACTION_START = struct.Struct("<I")
# The end of a sealed file: position and size of the footer, magic.
TRAILER = struct.Struct("<QII")

ENCRYPTED: Final = 1

# The checksum of large data would let other threads run, and then wait for its turn again: at a
# busy event loop, 5 ms for the 25 µs that 512 KiB take.
KEEP_GIL: Final = 0

_PADDING = tuple(bytes(n) for n in range(8))


class Kind:
    """What an entry holds. Plain numbers: an enum costs a microsecond on the latency path."""

    HEADER: Final = 1  # of a file, always its first entry
    BATCH: Final = 2  # one batch of one topic, with the broker's stamp
    CHANGES: Final = 3  # what the broker made of it; opaque here
    TRANSACTION: Final = 4  # batches of several topics and changes, whole or absent
    FOOTER: Final = 5  # the extents of a sealed file, always its last entry
    MANIFEST: Final = 6
    SNAPSHOT: Final = 7  # opaque here
    PART: Final = 8  # as a batch, but only if the transaction behind its series is there


JOURNAL_KINDS = (Kind.BATCH, Kind.CHANGES, Kind.TRANSACTION, Kind.PART)
# Those that hold one batch of one topic and nothing else.
BATCH_KINDS = (Kind.BATCH, Kind.PART)


class Entry(NamedTuple):
    """An entry that was read back; `body` is decrypted."""

    kind: int
    topic: int
    number: int
    segment: int
    position: int
    body: memoryview
    count: int  # type: ignore[assignment]  # Nobody counts the fields of a tuple.


class Header(NamedTuple):
    """The fixed part of an entry."""

    crc: int
    length: int
    magic: int
    kind: int
    flags: int
    topic: int
    number: int
    synced: int
    count: int  # type: ignore[assignment]  # Nobody counts the fields of a tuple.
    mark: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole entry with its padding."""
        return HEADER_BYTES + ((self.length + 7) & ~7)


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the first entry of a file."""

    version: int = FORMAT_VERSION
    # `journal`, `segment` (rewritten by the compactor), `chunk`, `fence` (a chunk made ahead of
    # the end), `manifest` or `snapshot`.
    role: str
    number: int
    # Of the first entry behind this one.
    first_entry: int
    created_ms: int
    # Who wrote it: tells an owner's own chunk from that of a newer owner.
    owner: str = ""
    # Encryption: id of the master key, and the data key of this file wrapped by it.
    key_id: str = ""
    wrapped_key: bytes = b""
    # Of a chunk or fence: how often the log had been opened when it was made. Others have none.
    epoch: int | msgspec.UnsetType = msgspec.UNSET
    # Of an encrypted file: made with its data key over all of the above and the mark of the file.
    proof: bytes | msgspec.UnsetType = msgspec.UNSET

    @property
    def unproved(self) -> "FileHeader":
        """The header without its proof."""
        return msgspec.structs.replace(self, proof=msgspec.UNSET)

    @property
    def maker_epoch(self) -> int:
        """The epoch of its maker; 0 where it is not said."""
        return 0 if isinstance(self.epoch, msgspec.UnsetType) else self.epoch


class TransactionBatch(NamedTuple):
    """A batch inside a transaction; `body` has the stamp."""

    topic: int
    count: int  # type: ignore[assignment]  # Nobody counts the fields of a tuple.
    body: memoryview


class _TransactionHeader(msgspec.Struct, frozen=True):
    # Of each batch: topic, count, position in the body, bytes.
    batches: list[tuple[int, int, int, int]]
    changes: bytes


_encoder = msgspec.msgpack.Encoder()
_file_headers = msgspec.msgpack.Decoder(FileHeader)
_transactions = msgspec.msgpack.Decoder(_TransactionHeader)


def padded(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to a multiple of eight."""
    return (size_bytes + 7) & ~7


def padding(size_bytes: int) -> bytes:
    """Return the zeros that fill `size_bytes` up to a multiple of eight."""
    return _PADDING[-size_bytes & 7]


def pack_header(
    kind: int,
    topic: int,
    parts: Sequence[Buffer],
    *,
    length: int,
    number: int,
    synced: int,
    count: int,
    mark: int,
    flags: int = 0,
) -> bytes:
    """Return the header of an entry whose body is `parts`, `length` bytes together."""
    checked = CHECKED.pack(length, MAGIC, kind, flags, topic, number, synced, count, mark)
    crc = crc32c(checked)
    for part in parts:
        crc = crc32c(part, crc, KEEP_GIL)
    return CRC.pack(crc) + checked


def parse_header(data: Buffer, position: int) -> Header | None:
    """Return the header at `position`, or `None` when there is none."""
    header = Header._make(HEADER.unpack_from(data, position))
    return header if header.magic == MAGIC else None


def is_intact(data: memoryview, position: int, length: int) -> bool:
    """Tell whether the checksum of the entry at `position` holds. All of it must be in `data`."""
    checked = data[position + CRC.size : position + HEADER_BYTES + length]
    return bool(CRC.unpack_from(data, position)[0] == crc32c(checked, 0, KEEP_GIL))


def encode_file_header(header: FileHeader) -> bytes:
    """Return the body of a header entry."""
    return _encoder.encode(header)


def decode_file_header(body: Buffer, file: str) -> FileHeader:
    """Return the header of `file`, or raise `CorruptedError`."""
    try:
        header = _file_headers.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptedError(file, 0, f"header does not decode: {error}") from None
    if header.version != FORMAT_VERSION:
        raise CorruptedError(
            file, 0, f"format version {header.version} is not {FORMAT_VERSION}: use a newer ister"
        )
    return header


def encode_transaction(
    batches: Sequence[tuple[int, int, Sequence[Buffer]]], changes: bytes
) -> list[Buffer]:
    """Return the parts of the body of a transaction. A batch is topic, count and its parts."""
    sizes = [sum(map(len, parts)) for _, _, parts in batches]
    # Positions depend on the size of the header, which depends on the positions: they are told
    # from the first batch on.
    rows = []
    position = 0
    for (topic, count, _), size in zip(batches, sizes, strict=True):
        rows.append((topic, count, position, size))
        position += padded(size)
    head = _encoder.encode(_TransactionHeader(rows, changes))
    start = TRANSACTION_START.size + len(head)
    body: list[Buffer] = [TRANSACTION_START.pack(len(head)) + head + padding(start)]
    for (_, _, parts), size in zip(batches, sizes, strict=True):
        body.extend(parts)
        body.append(padding(size))
    return body


def parse_transaction(
    body: memoryview, *, topic: int | None = None
) -> tuple[list[TransactionBatch], bytes]:
    """Return the batches, all or those of a topic, and the changes of a transaction.

    Raises `ValueError` when this is no transaction.
    """
    if len(body) < TRANSACTION_START.size:
        raise ValueError("a transaction without a header")
    (head_bytes,) = TRANSACTION_START.unpack_from(body)
    end = TRANSACTION_START.size + head_bytes
    try:
        head = _transactions.decode(body[TRANSACTION_START.size : end])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    start = padded(end)
    # A transaction may be read once for each of a thousand topics: first leave out the others.
    rows = head.batches if topic is None else [row for row in head.batches if row[0] == topic]
    if any(start + position + size > len(body) for _, _, position, size in rows):
        raise ValueError("a batch reaches past the end of its transaction")
    found = [
        TransactionBatch(number, count, body[start + position : start + position + size])
        for number, count, position, size in rows
    ]
    return found, head.changes
