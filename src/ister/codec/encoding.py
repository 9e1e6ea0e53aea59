"""Messages → the bytes of a batch, unstamped. Spec: docs/batch-format.md."""

from collections.abc import Sequence
from typing import cast

from ister.codec.checksum import crc32c
from ister.codec.columns import (
    Attributes,
    encode_attributes,
    encode_nullable,
    encode_numbers,
    encode_values,
)
from ister.codec.compression import compress
from ister.codec.layout import (
    BARE,
    CHECKED,
    CRC,
    FORMAT_VERSION,
    REPLY,
    STAMP_BYTES,
    TIME,
    UNNUMBERED,
    Codec,
    Column,
    padded,
    padding,
)

# Where replies to a request go: the session of the asking client, and its number there.
ReplyAddress = tuple[int, int]
# What the payloads of a batch are: the id of a schema in the registry, and its version.
SchemaRef = tuple[int, int]

NO_SCHEMA: SchemaRef = (0, 0)

# A variable column as Arrow has it, in bytes: the offsets, which begin at 0, and the blob.
LaidOut = tuple[memoryview, memoryview]

_UNSTAMPED = bytes(STAMP_BYTES)


def encode(
    payloads: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None = None,
    attributes: Sequence[Attributes | None] | None = None,
    timestamps_ms: Sequence[int] | None = None,
    ids: Sequence[str | None] | None = None,
    offsets: Sequence[int] | None = None,
    replies: Sequence[ReplyAddress] | None = None,
    producer: bytes = b"",
    producer_id: int = 0,
    first_sequence: int = 0,
    numbered: bool = True,
    schema: SchemaRef = NO_SCHEMA,
    codec: Codec = Codec.NONE,
) -> tuple[bytes, bytes]:
    """Return a batch as header and body, unstamped.

    `numbered`: whether `first_sequence` tells a repetition from something new.

    Two parts, because joining them would copy every payload once more; a socket takes both.
    """
    parts = encode_values(payloads)
    columns = 0
    if keys is not None:
        columns |= Column.KEY
        parts += encode_nullable([None if k is None else k.encode() for k in keys])
    if attributes is not None:
        columns |= Column.ATTRIBUTES
        parts += encode_attributes(attributes)
    if timestamps_ms is not None:
        columns |= Column.TIMESTAMP
        parts += encode_numbers(timestamps_ms)
    if ids is not None:
        columns |= Column.ID
        parts += encode_nullable([None if i is None else i.encode() for i in ids])
    if offsets is not None:
        columns |= Column.OFFSET
        parts += encode_numbers(offsets)
    if replies is not None:
        columns |= Column.REPLY
        parts += encode_numbers([number for address in replies for number in address])
    return seal(
        parts,
        columns=columns,
        count=len(payloads),
        producer=producer,
        producer_id=producer_id,
        first_sequence=first_sequence,
        numbered=numbered,
        schema=schema,
        codec=codec,
    )


def encode_columns(
    payloads: LaidOut,
    *,
    count: int,
    keys: tuple[bytes, LaidOut] | None = None,
    attributes: tuple[memoryview, LaidOut, LaidOut] | None = None,
    producer: bytes = b"",
    schema: SchemaRef = NO_SCHEMA,
    codec: Codec = Codec.NONE,
) -> tuple[bytes, bytes]:
    """Return what `encode` makes of columns that are laid out already, unnumbered.

    `keys` come with their validity bits, of which none is set past the last message, and
    `attributes` with their row offsets. Everything is copied once, and nothing is looked at.
    """
    parts = _laid_out(payloads)
    columns = 0
    if keys is not None:
        validity, texts = keys
        columns |= Column.KEY
        parts += [validity, padding(len(validity)), *_laid_out(texts)]
    if attributes is not None:
        rows, names, values = attributes
        columns |= Column.ATTRIBUTES
        parts += [rows, padding(len(rows)), *_laid_out(names), *_laid_out(values)]
    return seal(
        # They are only joined, which any buffer will do for.
        cast("list[bytes]", parts),
        columns=columns,
        count=count,
        producer=producer,
        producer_id=0,
        first_sequence=0,
        numbered=False,
        schema=schema,
        codec=codec,
    )


def _laid_out(column: LaidOut) -> list[bytes | memoryview]:
    offsets, blob = column
    return [offsets, padding(len(offsets)), blob, padding(len(blob))]


def encode_bare(
    payload: bytes,
    *,
    reply: ReplyAddress | None = None,
    producer: bytes = b"",
    producer_id: int = 0,
    first_sequence: int = 0,
    schema: SchemaRef = NO_SCHEMA,
) -> bytes:
    """Return what `encode` makes of one payload, in one piece: the latency path."""
    size = len(payload)
    reply_bytes = b"" if reply is None else REPLY.pack(*reply)
    body = b"%b%b\0\0\0\0%b%b%b%b" % (
        producer,
        padding(len(producer)),
        size.to_bytes(4, "little"),
        payload,
        padding(size),
        reply_bytes,
    )
    columns_bytes = BARE.size + padded(size) + len(reply_bytes)
    checked = CHECKED.pack(
        FORMAT_VERSION,
        0,
        0 if reply is None else Column.REPLY,
        1,
        columns_bytes,
        columns_bytes,
        len(producer),
        0,
        producer_id,
        first_sequence,
        *schema,
    )
    return b"%b%b%b%b" % (_UNSTAMPED, CRC.pack(crc32c(body, crc32c(checked))), checked, body)


def encode_timed(
    payload: bytes,
    time_ms: int,
    *,
    producer: bytes,
    producer_id: int,
    first_sequence: int,
    schema: SchemaRef = NO_SCHEMA,
) -> bytes:
    """Return what `encode` makes of one payload with its time, unnumbered, in one piece.

    For doors whose clients send one message at a time.
    """
    size = len(payload)
    body = b"%b%b\0\0\0\0%b%b%b%b" % (
        producer,
        padding(len(producer)),
        size.to_bytes(4, "little"),
        payload,
        padding(size),
        TIME.pack(time_ms),
    )
    columns_bytes = BARE.size + padded(size) + TIME.size
    checked = CHECKED.pack(
        FORMAT_VERSION,
        0,
        Column.TIMESTAMP,
        1,
        columns_bytes,
        columns_bytes,
        len(producer),
        UNNUMBERED,
        producer_id,
        first_sequence,
        *schema,
    )
    return b"%b%b%b%b" % (_UNSTAMPED, CRC.pack(crc32c(body, crc32c(checked))), checked, body)


def seal(
    parts: list[bytes],
    *,
    columns: int,
    count: int,
    producer: bytes,
    producer_id: int,
    first_sequence: int,
    numbered: bool,
    schema: SchemaRef,
    codec: Codec,
) -> tuple[bytes, bytes]:
    """Put encoded columns behind a header with their sizes and checksum."""
    name = producer + padding(len(producer))
    if codec is Codec.NONE:
        parts.insert(0, name)
        body = b"".join(parts)
        columns_bytes = stored_bytes = len(body) - len(name)
    else:
        plain = b"".join(parts)
        stored = compress(codec, plain)
        columns_bytes, stored_bytes = len(plain), len(stored)
        body = name + stored
    checked = CHECKED.pack(
        FORMAT_VERSION,
        codec,
        columns,
        count,
        columns_bytes,
        stored_bytes,
        len(producer),
        0 if numbered else UNNUMBERED,
        producer_id,
        # A hostile batch may begin at the last number there is; its slices begin at 0 again.
        first_sequence & 0xFFFF_FFFF_FFFF_FFFF,
        *schema,
    )
    crc = crc32c(body, crc32c(checked))
    return _UNSTAMPED + CRC.pack(crc) + checked, body
