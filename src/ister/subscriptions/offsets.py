"""A set of offsets that costs next to nothing while it is one run. The adapter of `pyroaring`.

Messages come, go out and are acknowledged in runs, so most sets are one run and stay two numbers.
Only a set with holes becomes a compressed bitmap. No operation touches single offsets except
`of` and `offsets`, which take and return them.

Always true: ranges are half-open, and `start <= end` is the caller's to see to; offsets lie
below 2**63.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

Run = tuple[int, int]

_RANGE = struct.Struct("<QQ")
_RANGE_KIND = b"\0"
_MAP_KIND = b"\1"
OFFSET_END_MAX = 2**63


class OffsetSet:
    """A set of offsets, kept as runs. Without arguments it is empty."""

    __slots__ = ("_end", "_start", "bitmap")

    def __init__(self, start: int = 0, end: int = 0) -> None:
        # The run; meaningless while there is a bitmap.
        self._start = start
        self._end = end
        # What is not one run, never empty. Read by other sets, changed only here.
        self.bitmap: BitMap64 | None = None

    @classmethod
    def of(cls, offsets: range | Sequence[int]) -> "OffsetSet":
        """Return the set of these offsets, which rise; a range has step 1."""
        if not offsets:
            return cls()
        start, end = offsets[0], offsets[-1] + 1
        if isinstance(offsets, range) or len(offsets) == end - start:
            return cls(start, end)
        return cls._of_map(BitMap64(array("Q", offsets)))

    @classmethod
    def _of_map(cls, bitmap: BitMap64) -> "OffsetSet":
        result = cls()
        if not bitmap:
            return result
        start, end = bitmap.min(), bitmap.max() + 1
        if end - start == len(bitmap):
            result._start, result._end = start, end
        else:
            result.bitmap = bitmap
        return result

    def __bool__(self) -> bool:
        return self.bitmap is not None or self._start < self._end

    def __contains__(self, offset: int) -> bool:
        if self.bitmap is not None:
            return offset in self.bitmap
        return self._start <= offset < self._end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self.runs() == other.runs()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"OffsetSet({self.runs()})"

    @property
    def count(self) -> int:
        """How many offsets there are."""
        return self._end - self._start if self.bitmap is None else len(self.bitmap)

    @property
    def first(self) -> int:
        """The lowest offset; of an empty set, some number that is also its end."""
        return self._start if self.bitmap is None else self.bitmap.min()

    @property
    def end(self) -> int:
        """One more than the highest offset."""
        return self._end if self.bitmap is None else self.bitmap.max() + 1

    def is_run(self, start: int, end: int) -> bool:
        """Tell whether this is exactly one run, known to be one."""
        return self.bitmap is None and self._start == start and self._end == end

    def copy(self) -> "OffsetSet":
        """Return an independent set of the same offsets."""
        result = OffsetSet(self._start, self._end)
        result.bitmap = None if self.bitmap is None else self.bitmap.copy()
        return result

    def clear(self) -> None:
        """Remove everything."""
        self._start = self._end = 0
        self.bitmap = None

    # Ranges.

    def count_within(self, start: int, end: int) -> int:
        """Return how many offsets lie in the range."""
        if self.bitmap is not None:
            return self.bitmap.range_cardinality(start, end)
        return max(0, min(end, self._end) - max(start, self._start))

    def add(self, start: int, end: int) -> None:
        """Add a range."""
        if start >= end:
            return
        if self.bitmap is None:
            if self._start == self._end:
                self._start, self._end = start, end
                return
            if start <= self._end and end >= self._start:
                self._start = min(start, self._start)
                self._end = max(end, self._end)
                return
        self._as_map().add_range(start, end)

    def discard(self, start: int, end: int) -> None:
        """Remove a range; what is not there is fine."""
        if self.bitmap is None:
            if end <= self._start or start >= self._end or start >= end:
                return
            if start <= self._start:
                self._start = min(end, self._end)
                return
            if end >= self._end:
                self._end = start
                return
        bitmap = self._as_map()
        bitmap.remove_range(start, end)
        if not bitmap:
            self.clear()

    def take_whole(self, start: int, end: int) -> bool:
        """Remove a range that is not empty if all of it is there; tell whether it was."""
        bitmap = self.bitmap
        if bitmap is None:
            if start < self._start or end > self._end:
                return False
            if start == self._start:
                self._start = end
                return True
            if end == self._end:
                self._end = start
                return True
            bitmap = self._as_map()
        elif not bitmap.contains_range(start, end):
            return False
        bitmap.remove_range(start, end)
        if not bitmap:
            self.clear()
        return True

    def take(self, start: int, end: int) -> "OffsetSet":
        """Remove a range and return what of it was there."""
        part = self.within(start, end)
        if part:
            self.discard(start, end)
        return part

    def within(self, start: int, end: int) -> "OffsetSet":
        """Return the part that lies in the range."""
        if self.bitmap is None:
            start, end = max(start, self._start), min(end, self._end)
            return OffsetSet(start, end) if start < end else OffsetSet()
        # A range from outside may be as wide as 2**64: clip it before it becomes a bitmap.
        start, end = max(start, self.bitmap.min()), min(end, self.bitmap.max() + 1)
        if start >= end:
            return OffsetSet()
        if self.bitmap.contains_range(start, end):
            return OffsetSet(start, end)
        return OffsetSet._of_map(self.bitmap & _map_of(start, end))

    def run_end(self, offset: int) -> int:
        """Return the first offset at or beyond `offset` that is not in the set."""
        if self.bitmap is None:
            return self._end if self._start <= offset < self._end else offset
        if offset not in self.bitmap:
            return offset
        # Gallop, then halve: as many steps as the length of the run has bits.
        contains_range = self.bitmap.contains_range
        step = 1
        while contains_range(offset, offset + step * 2):
            step *= 2
        good, bad = offset + step, offset + step * 2
        while bad - good > 1:
            middle = (good + bad) // 2
            if contains_range(offset, middle):
                good = middle
            else:
                bad = middle
        return good

    def next_at(self, offset: int, *, default: int) -> int:
        """Return the lowest offset of the set that is not below `offset`, or else `default`."""
        if self.bitmap is None:
            return max(offset, self._start) if offset < self._end else default
        return self.bitmap.next_set_bit(offset) if offset <= self.bitmap.max() else default

    def gaps(self, start: int, end: int) -> Iterator[Run]:
        """Yield the runs of the range that are not in the set, rising, each when asked for."""
        while start < end:
            start = self.run_end(start)
            if start >= end:
                return
            gap_end = min(self.next_at(start, default=end), end)
            yield start, gap_end
            start = gap_end

    def gaps_within(self, start: int, end: int) -> list[Run]:
        """Return the runs of the range that are not in the set, rising, all of them at once."""
        if self.bitmap is None:
            return list(self.gaps(start, end))
        # Beyond the last offset there is one gap, however far it goes.
        known_end = max(start, min(end, self.bitmap.max() + 1))
        known = _map_of(start, known_end)
        known.difference_update(self.bitmap)
        runs = _runs_of(known)
        if known_end < end:
            if runs and runs[-1][1] == known_end:
                known_end = runs.pop()[0]
            runs.append((known_end, end))
        return runs

    def runs(self) -> list[Run]:
        """Return the runs, rising; neighbours never touch."""
        if self.bitmap is not None:
            return _runs_of(self.bitmap)
        return [(self._start, self._end)] if self._start < self._end else []

    # Sets.

    def update(self, other: "OffsetSet") -> None:
        """Add every offset of another set."""
        if other.bitmap is None:
            self.add(other.first, other.end)
        else:
            self._as_map().update(other.bitmap)

    def subtract(self, other: "OffsetSet") -> None:
        """Remove every offset of another set."""
        if other.bitmap is None:
            self.discard(other.first, other.end)
        elif other.count_within(self.first, self.end):
            bitmap = self._as_map()
            bitmap.difference_update(other.bitmap)
            if not bitmap:
                self.clear()

    def intersection(self, other: "OffsetSet") -> "OffsetSet":
        """Return what is in both."""
        if other.bitmap is None:
            return self.within(other.first, other.end)
        if self.bitmap is None:
            return other.within(self._start, self._end)
        return OffsetSet._of_map(self.bitmap & other.bitmap)

    def lowest(self, count: int) -> "OffsetSet":
        """Return the lowest `count` offsets, or all when there are fewer."""
        if count >= self.count:
            return self.copy()
        if count <= 0:
            return OffsetSet()
        if self.bitmap is None:
            return OffsetSet(self._start, self._start + count)
        return self.within(self.bitmap.min(), self.bitmap[count - 1] + 1)

    def offsets(self) -> range | list[int]:
        """Return the offsets, rising: a range when they are one run."""
        if self.bitmap is None:
            return range(self._start, self._end)
        return self.bitmap.to_array().tolist()

    # Bytes.

    def encode(self) -> bytes:
        """Return the set as bytes: two numbers, or a portable roaring bitmap."""
        if self.bitmap is None:
            return _RANGE_KIND + _RANGE.pack(self._start, self._end)
        self.bitmap.run_optimize()
        return _MAP_KIND + self.bitmap.serialize()

    @classmethod
    def decode(cls, data: bytes) -> "OffsetSet":
        """Return the set that `encode` made these bytes of. Raises `ValueError` for others."""
        kind, body = data[:1], data[1:]
        if kind == _RANGE_KIND and len(body) == _RANGE.size:
            start, end = _RANGE.unpack(body)
            if start <= end <= OFFSET_END_MAX:
                return cls(start, end)
        elif kind == _MAP_KIND and body:
            # Checked inside and out by the library; it tolerates bytes behind the bitmap.
            bitmap = BitMap64.deserialize(body)
            if bitmap and bitmap.max() < OFFSET_END_MAX:
                return cls._of_map(bitmap)
        raise ValueError("these bytes are no set of offsets")

    def _as_map(self) -> BitMap64:
        if self.bitmap is None:
            self.bitmap = _map_of(self._start, self._end)
        return self.bitmap


def _map_of(start: int, end: int) -> BitMap64:
    bitmap = BitMap64()
    if start < end:
        bitmap.add_range(start, end)
    return bitmap


def _runs_of(bitmap: BitMap64) -> list[Run]:
    # A run starts where an offset is set and the one before is not, and ends the other way
    # round: the set, compared with itself moved on by one, has exactly these edges.
    edges = (bitmap ^ bitmap.shift(1)).to_array().tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
