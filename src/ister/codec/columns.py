"""One column ⇄ bytes. Layouts are Arrow's, so a column can be used in place.

- variable column: 32-bit offsets (count + 1), padding, blob, padding;
- nullable column: validity bits (least significant first), padding, then a variable column;
- fixed column: 64-bit numbers.

Always true of a parsed column: its offsets start at 0, never fall, and end at the blob's size.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, pairwise
from operator import sub
from struct import Struct

from ister.base.errors import BadBatchError
from ister.base.limits import BATCH_COUNT_MAX
from ister.codec.layout import padded, padding

Attributes = dict[str, str]


def encode_values(values: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a variable column."""
    count = len(values)
    size = len(values[0]) if count else 0
    if count == 1:  # One message at a time is the latency path.
        return [b"\0\0\0\0" + size.to_bytes(4, "little"), values[0], padding(size)]
    if 0 < count <= BATCH_COUNT_MAX and len(values[-1]) == size and len(set(map(len, values))) == 1:
        offsets, total = even_offsets(count, size), count * size
    else:
        sums = array("i", accumulate(map(len, values), initial=0))
        offsets, total = sums.tobytes(), sums[-1]
    return [offsets, padding(len(offsets)), *values, padding(total)]


# Messages of one size are common (readings, ticks, fixed records), and then the offsets are
# known without looking: four times quicker to write, check and cut. 32 × 256 KiB at the most.
@lru_cache(maxsize=32)
def even_offsets(count: int, size_bytes: int) -> bytes:
    """Return the offsets of `count` values of one size."""
    if size_bytes == 0:
        return bytes(4 * (count + 1))
    return array("i", range(0, count * size_bytes + 1, size_bytes)).tobytes()


@lru_cache(maxsize=32)
def _cutters(size_bytes: int) -> tuple[Struct, Struct]:
    """Return what cuts values of one size, 64 at a time and one at a time."""
    return Struct(f"{size_bytes}s" * 64), Struct(f"{size_bytes}s")


def encode_nullable(values: Sequence[bytes | None]) -> list[bytes]:
    """Return the parts of a nullable column."""
    count = len(values)
    if None in values:
        bits = int("".join(["0" if v is None else "1" for v in reversed(values)]), 2)
    else:
        bits = (1 << count) - 1
    validity = bits.to_bytes(padded((count + 7) // 8), "little")
    return [validity, *encode_values([v or b"" for v in values])]


def encode_numbers(values: Iterable[int]) -> list[bytes]:
    """Return the parts of a fixed column of signed 64-bit numbers."""
    return [array("q", values).tobytes()]


def encode_attributes(rows: Sequence[Attributes | None]) -> list[bytes]:
    """Return the parts of the attributes column: row offsets, names, values."""
    offsets = array("i", accumulate((len(row) if row else 0 for row in rows), initial=0))
    items = list(chain.from_iterable(row.items() for row in rows if row))
    names = [name.encode() for name, _ in items]
    values = [value.encode() for _, value in items]
    return [
        offsets.tobytes(),
        padding(len(offsets) * 4),
        *encode_values(names),
        *encode_values(values),
    ]


class Cursor:
    """Walks over the columns of one batch, and never past their end."""

    __slots__ = ("_buffer", "position")

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.position = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return the next `size_bytes` and step over them and their padding."""
        start = self.position
        end = start + size_bytes
        if end > len(self._buffer):
            raise BadBatchError("a column reaches past the end of the batch")
        self.position = start + padded(size_bytes)
        return self._buffer[start:end]

    def take_offsets(self, count: int) -> list[int]:
        """Return `count + 1` offsets that start at 0 and never fall."""
        return _rising(self.take((count + 1) * 4))

    def take_values(self, count: int) -> "Values":
        """Read a variable column."""
        raw = self.take((count + 1) * 4)
        total = int.from_bytes(raw[-4:], "little", signed=True)
        size, rest = divmod(total, count) if 0 < count <= BATCH_COUNT_MAX else (0, 1)
        if rest == 0 and total >= 0 and bytes(raw) == even_offsets(count, size):
            return Values(raw, None, size, self.take(total))
        offsets = _rising(raw)
        return Values(raw, offsets, 0, self.take(offsets[-1]))

    def take_nullable(self, count: int) -> "NullableValues":
        """Read a nullable column."""
        validity = self.take(padded((count + 7) // 8))
        bits = int.from_bytes(validity, "little")
        if bits >> count:
            raise BadBatchError("validity bits are set past the last message")
        return NullableValues(bits, self.take_values(count))

    def take_numbers(self, count: int) -> list[int]:
        """Read a fixed column."""
        return self.take(count * 8).cast("q").tolist()

    def take_attributes(self, count: int) -> "AttributeRows":
        """Read the attributes column."""
        offsets = self.take_offsets(count)
        return AttributeRows(offsets, self.take_values(offsets[-1]), self.take_values(offsets[-1]))


def _rising(raw: memoryview) -> list[int]:
    offsets = raw.cast("i").tolist()
    # Sorting a sorted list is one pass over it in C, the cheapest check there is.
    if offsets[0] != 0 or offsets != sorted(offsets):
        raise BadBatchError("offsets of a column do not rise from 0")
    return offsets


class Values:
    """A variable column, checked."""

    __slots__ = ("_even_bytes", "_offsets", "blob", "raw_offsets")

    def __init__(
        self, raw: memoryview, offsets: list[int] | None, even_bytes: int, blob: memoryview
    ) -> None:
        self.raw_offsets = raw
        self.blob = blob
        # Not known yet when all values have one size, which is then `_even_bytes`.
        self._offsets = offsets
        self._even_bytes = even_bytes

    @property
    def offsets(self) -> list[int]:
        """The offsets as a list."""
        if self._offsets is None:
            self._offsets = self.raw_offsets.cast("i").tolist()
        return self._offsets

    def values(self) -> list[bytes]:
        """Return every value."""
        size = self._even_bytes
        if size and self._offsets is None:
            many, one = _cutters(size)
            cut = len(self.blob) // many.size * many.size
            values = list(chain.from_iterable(many.iter_unpack(self.blob[:cut])))
            values += chain.from_iterable(one.iter_unpack(self.blob[cut:]))
            return values
        # Slices of one bytes object are the quickest copies that Python makes.
        blob = bytes(self.blob)
        return [blob[start:end] for start, end in pairwise(self.offsets)]

    def texts(self, start: int = 0, end: int | None = None) -> list[str]:
        """Return values as text, all or some; one that is no UTF-8 by itself gets U+FFFD."""
        offsets = self.offsets
        if start or end is not None:
            offsets = offsets[start : None if end is None else end + 1]
        first = offsets[0]
        blob = bytes(self.blob[first : offsets[-1]])
        pairs = pairwise([offset - first for offset in offsets] if first else offsets)
        if blob.isascii():
            text = blob.decode("ascii")
            return [text[start:end] for start, end in pairs]
        return [blob[start:end].decode(errors="replace") for start, end in pairs]

    def bytes_between(self, start: int, end: int) -> int:
        """Return the size of values `start` to `end` together."""
        if self._offsets is None:
            return (end - start) * self._even_bytes
        return self._offsets[end] - self._offsets[start]

    def check_text(self, size_bytes_max: int) -> None:
        """Raise `BadBatchError` unless this is UTF-8 and no value is over the limit."""
        if not bytes(self.blob).isascii():
            try:
                str(self.blob, "utf-8")
            except UnicodeDecodeError:
                raise BadBatchError("text is not UTF-8") from None
        if len(self.blob) > size_bytes_max and self.value_bytes_max() > size_bytes_max:
            raise BadBatchError(f"a key, id or attribute is longer than {size_bytes_max} B")

    def value_bytes_max(self) -> int:
        """Return the size of the largest value."""
        if self._offsets is None:
            return self._even_bytes
        return max(map(sub, self._offsets[1:], self._offsets), default=0)

    def slice(self, start: int, end: int) -> list[bytes]:
        """Return the parts of a column of messages `start` to `end`, without touching each."""
        offsets = self.offsets
        first, last = offsets[start], offsets[end]
        moved = array("i", [o - first for o in offsets[start : end + 1]])
        size = last - first
        return [
            moved.tobytes(),
            padding(len(moved) * 4),
            bytes(self.blob[first:last]),
            padding(size),
        ]

    def pick(self, slots: Sequence[int]) -> list[bytes]:
        """Return the parts of a column of the messages at `slots`."""
        if len(slots) * 4 > len(self.raw_offsets) // 4:
            # For most of them it is quicker to cut all.
            values = self.values()
            return encode_values([values[s] for s in slots])
        offsets, blob = self.offsets, self.blob
        return encode_values([bytes(blob[offsets[s] : offsets[s + 1]]) for s in slots])


class NullableValues:
    """A nullable column. A message without a value has `None`."""

    __slots__ = ("bits", "column")

    def __init__(self, bits: int, column: Values) -> None:
        self.bits = bits
        self.column = column

    def texts(self, start: int = 0, end: int | None = None) -> list[str | None]:
        """Return values as text, all or some, `None` where there is none."""
        texts: list[str | None] = list(self.column.texts(start, end))
        count = len(texts)
        every = (1 << count) - 1
        bits = (self.bits >> start) & every
        if bits != every:
            missing = [bit == "0" for bit in reversed(f"{bits:0{count}b}")]
            for slot in compress(range(count), missing):
                texts[slot] = None
        return texts

    def slice(self, start: int, end: int) -> list[bytes]:
        """Return the parts of a column of messages `start` to `end`."""
        count = end - start
        bits = (self.bits >> start) & ((1 << count) - 1)
        validity = bits.to_bytes(padded((count + 7) // 8), "little")
        return [validity, *self.column.slice(start, end)]

    def pick(self, slots: Sequence[int]) -> list[bytes]:
        """Return the parts of a column of the messages at `slots`."""
        validity = self.bits.to_bytes(slots[-1] // 8 + self.bits.bit_length() // 8 + 1, "little")
        bits = "".join(["1" if validity[s >> 3] >> (s & 7) & 1 else "0" for s in reversed(slots)])
        picked = int(bits, 2).to_bytes(padded((len(slots) + 7) // 8), "little")
        return [picked, *self.column.pick(slots)]


class AttributeRows:
    """The attributes of each message."""

    __slots__ = ("names", "offsets", "values")

    def __init__(self, offsets: list[int], names: Values, values: Values) -> None:
        self.offsets = offsets
        self.names = names
        self.values = values

    def check(self, count_max: int, size_bytes_max: int) -> None:
        """Raise `BadBatchError` unless every message keeps to the limits of attributes."""
        self.names.check_text(size_bytes_max)
        self.values.check_text(size_bytes_max)
        if max(map(sub, self.offsets[1:], self.offsets)) > count_max:
            raise BadBatchError(f"a message has more than {count_max} attributes")

    def slice(self, start: int, end: int) -> list[bytes]:
        """Return the parts of a column of messages `start` to `end`."""
        first, last = self.offsets[start], self.offsets[end]
        moved = array("i", [o - first for o in self.offsets[start : end + 1]])
        return [
            moved.tobytes(),
            padding(len(moved) * 4),
            *self.names.slice(first, last),
            *self.values.slice(first, last),
        ]

    def pick(self, slots: Sequence[int]) -> list[bytes]:
        """Return the parts of a column of the messages at `slots`."""
        offsets = self.offsets
        entries = [n for s in slots for n in range(offsets[s], offsets[s + 1])]
        ends = array("i", accumulate((offsets[s + 1] - offsets[s] for s in slots), initial=0))
        return [
            ends.tobytes(),
            padding(len(ends) * 4),
            *self.names.pick(entries),
            *self.values.pick(entries),
        ]

    def rows(self, start: int = 0, end: int | None = None) -> list[Attributes]:
        """Return a dictionary for each message, or each of some."""
        offsets = self.offsets[start : None if end is None else end + 1]
        first, last = offsets[0], offsets[-1]
        items = list(
            zip(self.names.texts(first, last), self.values.texts(first, last), strict=True)
        )
        return [dict(items[a - first : b - first]) for a, b in pairwise(offsets)]
