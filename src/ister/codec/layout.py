"""The bytes of a batch: header fields, column flags, padding. Spec: docs/batch-format.md."""

import struct
import sys
from enum import IntEnum
from typing import Final

from ister.base.errors import CodecMissingError

if sys.byteorder != "little":  # The columns are used in place, as Arrow does.
    raise ImportError("ister needs a little-endian machine")

FORMAT_VERSION = 1

# Offsets are unsigned in the header, but signed in the offset column and in Arrow.
OFFSET_MAX = 2**63 - 1

# base offset, publish time | crc | version, codec, columns, count, columns bytes, stored bytes,
# name bytes; behind it flags, producer id, first sequence, schema id, schema version
HEADER_START = struct.Struct("<QqIBBHIIIH")
HEADER_BYTES = 64
NAME_BYTES = struct.Struct("<H")
NAME_BYTES_POSITION = 36
FLAGS_POSITION = 38
SEQUENCE = struct.Struct("<QQ")
SEQUENCE_POSITION = 40
SCHEMA = struct.Struct("<II")
SCHEMA_POSITION = 56
# The offsets of a column with one value.
BARE = struct.Struct("<II")
# The time column of one message.
TIME = struct.Struct("<q")
# The reply column of one message.
REPLY = struct.Struct("<qq")
# The broker's own fields come first and outside the checksum: stamping a batch is replacing
# these 16 bytes, and everything behind them is forwarded as the producer made it.
STAMP = struct.Struct("<Qq")
STAMP_BYTES = STAMP.size
CRC = struct.Struct("<I")
CRC_POSITION = STAMP_BYTES
CHECKED_POSITION = CRC_POSITION + CRC.size
CHECKED = struct.Struct("<BBHIIIHHQQII")
# A flag: the numbers of the messages are the producer's own business, and may come again.
UNNUMBERED: Final = 1


class Codec(IntEnum):
    """How the columns are compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2

    @classmethod
    def parse(cls, name: str) -> "Codec":
        """Return the codec called `name` (`none`, `lz4`, `zstd`)."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise CodecMissingError(name) from None


class Column:
    """The optional columns of a batch, in the order they are stored. Payload is always there.

    Plain numbers: `IntFlag` runs Python code for every `&`, a microsecond on the latency path.
    """

    KEY: Final = 1
    ATTRIBUTES: Final = 2
    TIMESTAMP: Final = 4
    ID: Final = 8
    OFFSET: Final = 16
    REPLY: Final = 32


UNKNOWN_COLUMNS: Final = 0xFFFF & ~63

_PADDING = tuple(bytes(n) for n in range(8))


def padding(size_bytes: int) -> bytes:
    """Return the zero bytes that fill `size_bytes` up to a multiple of eight."""
    return _PADDING[-size_bytes & 7]


def padded(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to a multiple of eight."""
    return (size_bytes + 7) & ~7
