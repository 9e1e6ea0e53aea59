"""Columns of values as PostgreSQL takes them: arrays in their binary form, for `unnest`.

psycopg looks at every value of a list to find out what it is; we know, and it is most of the time
that a large batch takes in this process.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import ClassVar

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

# Dimensions, whether there are nulls, type of the elements; their count, the number of the first.
_HEADER = struct.Struct(">iiIii")
_BIGINT = struct.Struct(">iq")
_INTEGER = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_BIGINT_OID = 20
_INTEGER_OID = 23
_TEXT_OID = 25
_BYTEA_OID = 17


class Bigints(bytes):
    """A `bigint[]`."""

    oid: ClassVar[int] = 1016

    @classmethod
    def of(cls, values: Sequence[int]) -> "Bigints":
        """Return a column of some numbers."""
        cells = map(_BIGINT.pack, repeat(8), values)
        return cls(_HEADER.pack(1, 0, _BIGINT_OID, len(values), 1) + b"".join(cells))


class Integers(bytes):
    """An `integer[]`."""

    oid: ClassVar[int] = 1007

    @classmethod
    def of(cls, values: Sequence[int]) -> "Integers":
        """Return a column of some small numbers."""
        cells = map(_INTEGER.pack, repeat(4), values)
        return cls(_HEADER.pack(1, 0, _INTEGER_OID, len(values), 1) + b"".join(cells))


class Texts(bytes):
    """A `text[]`."""

    oid: ClassVar[int] = 1009

    @classmethod
    def of(cls, values: Sequence[str]) -> "Texts":
        """Return a column of some texts, which have no NUL."""
        cells = _with_lengths(map(str.encode, values))
        return cls(_HEADER.pack(1, 0, _TEXT_OID, len(values), 1) + cells)


class Blobs(bytes):
    """A `bytea[]`."""

    oid: ClassVar[int] = 1001

    @classmethod
    def of(cls, values: Sequence[bytes]) -> "Blobs":
        """Return a column of some bytes."""
        return cls(_HEADER.pack(1, 0, _BYTEA_OID, len(values), 1) + _with_lengths(values))


def _with_lengths(values: Iterable[bytes]) -> bytes:
    parts: list[bytes] = []
    for value in values:
        parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


def register_arrays(context: AdaptContext) -> None:
    """Let a connection take columns as parameters."""
    for column in (Bigints, Integers, Texts, Blobs):
        name = f"{column.__name__}Dumper"
        dumper = type(name, (_ArrayDumper,), {"oid": column.oid})
        context.adapters.register_dumper(column, dumper)
