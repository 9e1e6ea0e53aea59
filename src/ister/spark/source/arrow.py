"""Batches → Arrow record batches of the columns that Spark asked for, a column at a time.

Nothing is done for a message by itself: the offsets of many batches become one array in a few
passes of numpy, and their bytes are copied once, together. A large batch is used where it lies.
Attributes are the exception: they are decoded one by one, and only when they are asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ister.base.errors import BadBatchError
from ister.base.limits import MIB
from ister.codec import Attributes, Column, Places, VariablePlace
from ister.spark.source.slices import BatchSlice

# Rows of one record batch. Spark takes 10,000 to 100,000 at a time best; of messages of 100 B
# these are 4 MiB, which still fit into the cache of a core.
ROWS_TARGET = 32_768
# And bytes, for large messages. One batch may be larger: up to 64 MiB, far from the 2 GiB that
# offsets of 32 bits can count.
BYTES_TARGET = 16 * MIB
# And batches: of many tiny ones, the interpreter's collector looks through all that are held, again
# and again. With eight times as many, each of one message cost half as much more.
SLICES_TARGET = 2_048
# A batch of so many messages is a record batch by itself, over its own memory.
ALONE_ROWS = 10_000
# Names of producers whose columns are kept: a few hundred KiB each.
PRODUCERS_MAX = 16

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TYPES: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "publish_time": TIMESTAMP,
    "producer": pa.string(),
    "key": pa.string(),
    "payload": pa.binary(),
    "attributes": pa.map_(pa.string(), pa.string()),
}
# Milliseconds that do not fit as microseconds become the last that do.
_MS_MAX: Final = (2**63 - 1) // 1000

_INT: Final = Struct("<i")
_Int64Array = npt.NDArray[np.int64]


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return the schema of the columns called `names`, in that order."""
    return pa.schema([(name, TYPES[name]) for name in names])


def group_slices(slices: Iterable[BatchSlice]) -> Iterator[list[BatchSlice]]:
    """Yield slices in groups that make good record batches."""
    group: list[BatchSlice] = []
    rows = size_bytes = 0
    for slice_ in slices:
        count = slice_.end - slice_.start
        if group and count >= ALONE_ROWS:
            yield group
            group, rows, size_bytes = [], 0, 0
        group.append(slice_)
        rows += count
        # Of a part of a batch this is too much, but then it is the first or the last.
        size_bytes += slice_.batch.columns_bytes
        if (
            rows >= ROWS_TARGET
            or size_bytes >= BYTES_TARGET
            or count >= ALONE_ROWS
            or len(group) >= SLICES_TARGET
        ):
            yield group
            group, rows, size_bytes = [], 0, 0
    if group:
        yield group


class ColumnBuilder:
    """Makes record batches of some columns for one partition."""

    def __init__(self, names: Sequence[str], *, topic: str, partition: int) -> None:
        self.schema = arrow_schema(names)
        self._topic = pa.scalar(topic, pa.string())
        self._partition = pa.scalar(partition, pa.int32())
        self._constants: dict[pa.Scalar, pa.Array] = {}
        makers: dict[str, Callable[[SliceGroup], pa.Array]] = {
            "topic": lambda group: self._constant(self._topic, group.count),
            "partition": lambda group: self._constant(self._partition, group.count),
            "offset": lambda group: _fixed_column(pa.int64(), group.offsets()),
            "publish_time": lambda group: _fixed_column(TIMESTAMP, group.times_us()),
            "producer": self._producer,
            "key": lambda group: group.keys(),
            "payload": lambda group: group.payloads(),
            "attributes": lambda group: group.attributes(),
        }
        self._makers = [makers[name] for name in names]

    def build(self, slices: Sequence[BatchSlice]) -> pa.RecordBatch:
        """Return the messages of `slices`, one behind the other."""
        group = SliceGroup(slices)
        return pa.RecordBatch.from_arrays(
            [make(group) for make in self._makers], schema=self.schema
        )

    def _producer(self, group: "SliceGroup") -> pa.Array:
        codes: dict[bytes, int] = {}
        slots = [
            codes.setdefault(slice_.batch.producer_bytes, len(codes)) for slice_ in group.slices
        ]
        names = [name.decode(errors="replace") for name in codes]
        if len(names) == 1:
            return self._constant(pa.scalar(names[0], pa.string()), group.count)
        return pa.array(names, pa.string()).take(pa.array(np.repeat(slots, group.counts)))

    def _constant(self, value: pa.Scalar, count: int) -> pa.Array:
        """Return a column with one value, a slice of one that is kept."""
        found = self._constants.get(value)
        if found is None or len(found) < count:
            if len(self._constants) > PRODUCERS_MAX + 2:
                self._constants.clear()
            # A task with a single message makes no more than that.
            size = count if found is None else max(count, 2 * len(found))
            found = self._constants[value] = pa.repeat(value, size)
        return found.slice(0, count)


class SliceGroup:
    """Slices that become one record batch."""

    def __init__(self, slices: Sequence[BatchSlice]) -> None:
        self.slices = slices
        self.counts = np.array([slice_.end - slice_.start for slice_ in slices], np.int64)
        # Of each slice, the row it begins at; and behind the last.
        self.starts = np.zeros(len(slices) + 1, np.int64)
        np.cumsum(self.counts, out=self.starts[1:])
        self.count = int(self.starts[-1])
        self._found: list[Places] | None = None

    @property
    def places(self) -> list[Places]:
        """Where the columns of each slice lie; compressed ones are unpacked once."""
        if self._found is None:
            self._found = [slice_.batch.places() for slice_ in self.slices]
        return self._found

    def offsets(self) -> _Int64Array:
        """Return the offset of each message."""
        # A slot counts from the first message of its batch; compacted batches say it themselves.
        first = [slice_.batch.base_offset + slice_.start for slice_ in self.slices]
        numbers = np.repeat(_numbers(first) - self.starts[:-1], self.counts)
        numbers += np.arange(self.count)
        return self._overlay(numbers, Column.OFFSET, lambda places: places.offsets)

    def times_us(self) -> _Int64Array:
        """Return the publish time of each message in microseconds."""
        times = [slice_.batch.publish_time_ms for slice_ in self.slices]
        numbers = np.repeat(_numbers(times), self.counts)
        numbers = self._overlay(numbers, Column.TIMESTAMP, lambda places: places.timestamps)
        return np.clip(numbers, -_MS_MAX, _MS_MAX) * 1000

    def payloads(self) -> pa.Array:
        """Return the payload of each message."""
        array = self._variable(pa.binary(), [places.payload for places in self.places])
        return _validate(array)

    def keys(self) -> pa.Array:
        """Return the key of each message, null where there is none."""
        if not any(slice_.batch.columns & Column.KEY for slice_ in self.slices):
            return pa.nulls(self.count, pa.string())
        array = self._variable(pa.string(), [places.key for places in self.places])
        valid = self._key_validity()
        if valid is not None:
            # In front of a column that is used in place lie the messages that are not asked for.
            padded = np.pad(valid, (array.offset, 0))
            bits = pa.py_buffer(np.packbits(padded, bitorder="little"))
            buffers = [bits, *array.buffers()[1:]]
            array = pa.Array.from_buffers(pa.string(), len(array), buffers, offset=array.offset)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            # A key that is no text by itself, with U+FFFD in it; or a broken column, which raises.
            return pa.array(self._each_key(), pa.string())
        return array

    def attributes(self) -> pa.Array:
        """Return the attributes of each message, one by one; null where a batch has none."""
        rows: list[list[tuple[str, str]] | None] = []
        for batch, start, end in self.slices:
            found: list[Attributes] | None = None
            if batch.columns & Column.ATTRIBUTES:
                found = batch.attributes
            if found is None:
                rows += [None] * (end - start)
            else:
                rows += [list(row.items()) for row in found[start:end]]
        return pa.array(rows, TYPES["attributes"])

    def _each_key(self) -> list[str | None]:
        keys: list[str | None] = []
        for batch, start, end in self.slices:
            found = batch.keys
            keys += [None] * (end - start) if found is None else found[start:end]
        return keys

    def _key_validity(self) -> npt.NDArray[np.bool_] | None:
        """Return which messages have a key; `None` when all have."""
        valid: npt.NDArray[np.bool_] | None = None
        for slot, ((batch, start, end), places) in enumerate(
            zip(self.slices, self.places, strict=True)
        ):
            if places.key is None:
                bits: npt.NDArray[np.uint8] | int = 0
            else:
                size = (batch.count + 7) // 8
                raw = bytes(places.view[places.validity : places.validity + size])
                if raw == _all_valid(batch.count):
                    continue
                flags = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
                bits = flags[start:end]
            if valid is None:
                valid = np.ones(self.count, np.bool_)
            valid[self.starts[slot] : self.starts[slot + 1]] = bits
        return valid

    def _variable(self, kind: pa.DataType, found: Sequence[VariablePlace | None]) -> pa.Array:
        """Return a variable column of all slices; empty values where a batch does not have it."""
        if len(found) == 1 and found[0] is not None:
            return _in_place(kind, self.slices[0], self.places[0].view, found[0])
        raws: list[bytes | memoryview] = []
        blobs: list[memoryview] = []
        firsts: list[int] = []
        shifts: list[int] = []
        total = 0
        for (batch, start, end), places, place in zip(self.slices, self.places, found, strict=True):
            if place is None:
                raws.append(bytes(4 * (end - start + 1)))
                firsts.append(0)
                shifts.append(total)
                continue
            view = places.view
            at, blob, blob_end = place
            if start or end < batch.count:
                (first,) = _INT.unpack_from(view, at + 4 * start)
                (last,) = _INT.unpack_from(view, at + 4 * end)
                if not 0 <= first <= last <= blob_end - blob:
                    raise BadBatchError("offsets of a column do not rise from 0")
            else:
                first, last = 0, blob_end - blob
            raws.append(view[at + 4 * start : at + 4 * end + 4])
            blobs.append(view[blob + first : blob + last])
            firsts.append(first)
            shifts.append(total - first)
            total += last - first
        offsets = np.frombuffer(b"".join(raws), np.int32)
        # Where each slice begins among them: every one has an offset more than it has messages.
        begins = self.starts[:-1] + np.arange(len(found))
        if (offsets[begins] != firsts).any():
            raise BadBatchError("offsets of a column do not rise from 0")
        offsets = offsets + np.repeat(np.array(shifts, np.int32), self.counts + 1)
        # And all but the first begin with the offset that the one before ends with.
        kept = np.ones(len(offsets), np.bool_)
        kept[begins[1:]] = False
        buffers = [None, pa.py_buffer(offsets[kept]), pa.py_buffer(b"".join(blobs))]
        return pa.Array.from_buffers(kind, self.count, buffers)

    def _overlay(
        self, numbers: _Int64Array, column: int, position: Callable[[Places], int]
    ) -> _Int64Array:
        """Put the numbers of those slices that have a column for them over `numbers`."""
        for slot, (batch, start, end) in enumerate(self.slices):
            if batch.columns & column:
                places = self.places[slot]
                at = position(places)
                own = np.frombuffer(places.view[at : at + 8 * batch.count], np.int64)
                numbers[self.starts[slot] : self.starts[slot + 1]] = own[start:end]
        return numbers


def _in_place(
    kind: pa.DataType, slice_: BatchSlice, view: memoryview, place: VariablePlace
) -> pa.Array:
    """Return a variable column over the memory of its batch."""
    count = slice_.batch.count
    raw = view[place.offsets : place.offsets + 4 * (count + 1)]
    if bytes(raw[:4]) != b"\0\0\0\0":
        raise BadBatchError("offsets of a column do not rise from 0")
    buffers = [None, pa.py_buffer(raw), pa.py_buffer(view[place.blob : place.end])]
    rows = slice_.end - slice_.start
    return pa.Array.from_buffers(kind, rows, buffers, offset=slice_.start)


def _validate(array: pa.Array) -> pa.Array:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise BadBatchError("offsets of a column do not rise from 0") from None
    return array


def _fixed_column(kind: pa.DataType, numbers: _Int64Array) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _numbers(values: list[int]) -> _Int64Array:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise BadBatchError("a base offset is past the last offset") from None


@lru_cache(maxsize=64)
def _all_valid(count: int) -> bytes:
    """Return the validity bits of messages that all have a value."""
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
