"""The cursors of a subscription as bytes: MessagePack, the number of a topic to its cursor.

A subscription may have a hundred thousand cursors, so they are encoded in steps.
"""

from collections.abc import Generator, Mapping

import msgspec

from ister.subscriptions import Cursor

# Cursors, or bytes of them, that are encoded in one step: 1 ms.
CURSORS_PER_STEP = 512
BYTES_PER_STEP = 256 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[dict[int, bytes]] = msgspec.msgpack.Decoder(dict[int, bytes])


def encode_cursors(cursors: Mapping[int, Cursor]) -> Generator[None, None, bytes]:
    """Encode cursors step by step; return what `decode_cursors` takes.

    Of a cursor that changes meanwhile, it has the state before or after that.
    """
    count = len(cursors)
    parts = [b"\xdf", count.to_bytes(4)]
    some = size_bytes = 0
    for number, cursor in list(cursors.items()):
        data = cursor.encode()
        parts += (_encode(number), _encode(data))
        some += 1
        size_bytes += len(data)
        if some >= CURSORS_PER_STEP or size_bytes >= BYTES_PER_STEP:
            some = size_bytes = 0
            yield
    return b"".join(parts)


def decode_cursors(data: bytes) -> dict[int, bytes]:
    """Return the cursors, each as `Cursor.decode` takes it. Raises `ValueError` for others."""
    return _decoder.decode(data)
