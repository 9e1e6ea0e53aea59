"""Avro's object container files, as some clients send a message in one: header, then blocks.

Read here and not by fastavro, which would unpack a block of a few bytes to any size, and trusts
the schema in the header.
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from ister.schemas.avro.walk import BadValueError, read_long

MAGIC = b"Obj\x01"
# Of a block after unpacking: twice the largest message of the default settings.
BLOCK_BYTES_MAX = 16 * 1024 * 1024
_SYNC_BYTES = 16


class Container(NamedTuple):
    """A container's header, and where its blocks begin."""

    definition: bytes
    codec: bytes
    sync: bytes
    position: int


def read_header(data: bytes) -> Container:
    """Return the header of `data`, which begins with `MAGIC`. Raises `BadValueError`."""
    meta: dict[bytes, bytes] = {}
    position = len(MAGIC)
    try:
        while True:
            count, position = read_long(data, position)
            if count == 0:
                break
            if count < 0:
                count = -count
                _, position = read_long(data, position)
            if count > len(data) - position:
                raise BadValueError("the container's header does not fit into the payload")
            for _ in range(count):
                key, position = _read_bytes(data, position)
                meta[key], position = _read_bytes(data, position)
    except IndexError:
        raise BadValueError("the container's header is cut off") from None
    sync = data[position : position + _SYNC_BYTES]
    if len(sync) != _SYNC_BYTES or b"avro.schema" not in meta:
        raise BadValueError("the container's header is cut off, or has no schema")
    codec = meta.get(b"avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise BadValueError(f"codec {codec[:20]!r} of the container is neither null nor deflate")
    return Container(meta[b"avro.schema"], codec, sync, position + _SYNC_BYTES)


def read_blocks(data: bytes, container: Container) -> Iterator[tuple[int, bytes]]:
    """Yield the count of values of each block, and their bytes. Raises `BadValueError`."""
    position = container.position
    while position < len(data):
        try:
            count, position = read_long(data, position)
            block, position = _read_bytes(data, position)
        except IndexError:
            raise BadValueError("a block of the container is cut off") from None
        if data[position : position + _SYNC_BYTES] != container.sync:
            raise BadValueError("a block of the container ends without its mark")
        position += _SYNC_BYTES
        if container.codec == b"deflate":
            block = _inflated(block)
        # A value of nothing still counts, but not a billion of them.
        if not 0 <= count <= len(block) + 1:
            raise BadValueError(f"{count} values do not fit into a block of {len(block)} B")
        yield count, block


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = read_long(data, position)
    if not 0 <= size <= len(data) - position:
        raise BadValueError(f"{size} B do not fit into the container")
    return data[position : position + size], position + size


def _inflated(block: bytes) -> bytes:
    # Avro's deflate has neither header nor checksum: negative window bits.
    inflater = zlib.decompressobj(-15)
    try:
        data = inflater.decompress(block, BLOCK_BYTES_MAX)
    except zlib.error as error:
        raise BadValueError(f"a block cannot be unpacked: {error}") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise BadValueError(f"a block is cut off, or larger than {BLOCK_BYTES_MAX} B unpacked")
    return data
