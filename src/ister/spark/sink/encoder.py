"""Arrow batches of rows → the broker's batches, by stream, without touching single rows.

Always true:
- rows of one stream leave in the order they came in;
- a batch has at most `BATCH_COUNT_MAX` messages and is not larger than the broker takes;
- what waits here for more of its stream is bounded, however many streams there are.

Columns go over as they lie in memory: offsets and blob of Arrow's `binary` are those of the batch
format, so that the payload of a row is copied, and never becomes a Python object.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ister.base.errors import BadRequestError, MessageTooLargeError
from ister.base.limits import ATTRIBUTE_BYTES_MAX, BATCH_COUNT_MAX, KEY_BYTES_MAX, KIB, MIB
from ister.codec import Codec, LaidOut, encode_columns
from ister.spark.sink.partitioner import partition_rows

# A stream's rows leave as a batch at this size. Twice what a producer sends: nobody waits for a
# single batch here, and a publish of 1 GiB has 1,024 of them.
BATCH_BYTES = MIB
# All streams together: 64 partitions with nearly a batch each. Beyond it, the fullest leave.
WAITING_BYTES_MAX = 64 * MIB
# Header, producer's name, and the padding of up to eight parts.
OVERHEAD_BYTES = KIB

PAYLOAD_TYPES = ("binary", "string")
NUMBER_TYPES = ("tinyint", "smallint", "int", "bigint")
COLUMN_TYPES = {
    "payload": PAYLOAD_TYPES,
    "value": PAYLOAD_TYPES,
    "key": ("string",),
    "attributes": ("map<string,string>",),
    "topic": ("string",),
    "partition": NUMBER_TYPES,
}

# A stream, and the header and body of a batch for it.
EncodedBatch = tuple[str, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class SinkLayout:
    """The slots of the columns of a message in the rows; `None` for one that is not there."""

    payload: int
    key: int | None = None
    attributes: int | None = None
    topic: int | None = None
    partition: int | None = None

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], *, topic: str | None) -> "SinkLayout":
        """Return where the columns are, of their names and Spark's names of their types.

        `topic` is the one that all rows go to; a column of that name is then left alone.
        Raises `BadRequestError` with everything that is wrong.
        """
        found: dict[str, int] = {}
        mistakes = []
        for slot, (name, kind) in enumerate(fields):
            types = COLUMN_TYPES.get(name.lower())
            if types is None:
                mistakes.append(f"column `{name}` is none of {', '.join(COLUMN_TYPES)}")
            elif kind not in types:
                mistakes.append(f"column `{name}` is {kind}, not {' or '.join(types)}: cast it")
            elif name.lower() in found:
                mistakes.append(f"column `{name}` is there twice")
            else:
                found[name.lower()] = slot
        if "payload" in found and "value" in found:
            mistakes.append("columns `payload` and `value` mean the same: drop one")
        payload = found.get("payload", found.get("value"))
        if payload is None and not mistakes:
            mistakes.append("there is no column `payload`")
        if topic is None and "topic" not in found:
            mistakes.append("there is neither option `topic` nor a column `topic`")
        if mistakes or payload is None:
            raise BadRequestError(
                f"these rows cannot be written to a topic: {'; '.join(mistakes)}. Try "
                "df.select(to_json(struct('*')).alias('payload')), with a `key` beside it as "
                "needed"
            )
        return cls(
            payload,
            key=found.get("key"),
            attributes=found.get("attributes"),
            topic=None if topic else found["topic"],
            partition=found.get("partition"),
        )


@dataclass(frozen=True, slots=True)
class EncoderTarget:
    """How rows become batches."""

    layout: SinkLayout
    # The topic of all rows; `None`: each has its own.
    topic: str | None
    partitions_of: Callable[[str], int]
    message_bytes_max: int
    batch_bytes_max: int
    producer: bytes = b"spark"
    codec: Codec = Codec.NONE

    @property
    def batch_bytes(self) -> int:
        """What a batch is filled up to; with the row that fills it, the broker takes it still."""
        return max(1, min(BATCH_BYTES, self.batch_bytes_max // 4))


@dataclass(slots=True)
class _Waiting:
    """Rows of one stream that wait for more."""

    pieces: "list[_Rows]"
    size_bytes: int = 0


class RowEncoder:
    """Makes batches of the rows of one task."""

    def __init__(self, target: EncoderTarget, *, turn: int = 0) -> None:
        """`turn` says which partition the first rows without a key go to."""
        self._target = target
        self._turn = turn
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_bytes = 0
        self.rows = 0

    def add(self, batch: "pa.RecordBatch") -> Iterator[EncodedBatch]:
        """Take rows, and yield the batches that are full."""
        self.rows += batch.num_rows
        target = self._target
        layout = target.layout
        rows = _Rows.of(batch, layout)
        rows.check(target)
        placing = partition_rows(
            batch.num_rows,
            topics=target.topic or _text(batch.column(_slot(layout.topic))),
            keys=rows.keys,
            partitions=None if layout.partition is None else batch.column(layout.partition),
            partitions_of=target.partitions_of,
            turn=self._turn,
        )
        self._turn += 1
        for run in placing.runs:
            if placing.order is None:
                piece = rows
            else:
                # Copies: a row that waits must not keep the others of its Arrow batch in memory.
                piece = rows.take(pa.array(placing.order[run.start : run.end]))
            yield from self._add_piece(run.stream, piece)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            fullest = max(self._waiting, key=lambda stream: self._waiting[stream].size_bytes)
            yield from self._flush(fullest)

    def finish(self) -> Iterator[EncodedBatch]:
        """Yield the batches that were waiting for more."""
        for stream in list(self._waiting):
            yield from self._flush(stream)

    def _add_piece(self, stream: str, piece: "_Rows") -> Iterator[EncodedBatch]:
        size_bytes = piece.size_bytes()
        waiting = self._waiting.setdefault(stream, _Waiting([]))
        waiting.pieces.append(piece)
        waiting.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if waiting.size_bytes >= self._target.batch_bytes:
            yield from self._flush(stream)

    def _flush(self, stream: str) -> Iterator[EncodedBatch]:
        waiting = self._waiting.pop(stream)
        self._waiting_bytes -= waiting.size_bytes
        rows = _Rows.concat(waiting.pieces)
        for part in _cut_rows(rows, self._target):
            yield stream, part.encode(self._target)


def _cut_rows(rows: "_Rows", target: EncoderTarget) -> "Iterator[_Rows]":
    """Cut `rows` into even parts, each of about the size of a batch, and never over the limits."""
    size_bytes = rows.size_bytes()
    count = max(size_bytes // target.batch_bytes, -(-len(rows) // BATCH_COUNT_MAX), 1)
    edges = np.linspace(0, len(rows), min(count, len(rows)) + 1).astype(int).tolist()
    for start, end in pairwise(edges):
        yield from _halves(rows.slice(start, end), target.batch_bytes_max - OVERHEAD_BYTES)


def _halves(rows: "_Rows", size_bytes_max: int) -> "Iterator[_Rows]":
    """Cut `rows` in half as often as it takes: rows of uneven size end up here."""
    if len(rows) == 1 or rows.size_bytes() <= size_bytes_max:
        yield rows
        return
    middle = len(rows) // 2
    yield from _halves(rows.slice(0, middle), size_bytes_max)
    yield from _halves(rows.slice(middle, len(rows)), size_bytes_max)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns that become messages. Payloads have no nulls."""

    payloads: "pa.BinaryArray"
    keys: "pa.StringArray | None"
    attributes: "pa.MapArray | None"

    @classmethod
    def of(cls, batch: "pa.RecordBatch", layout: SinkLayout) -> "_Rows":
        payloads = batch.column(layout.payload)
        if payloads.null_count:
            # A tombstone has an empty payload; the bytes under a null may be anything.
            payloads = payloads.fill_null(b"" if _is_binary(payloads) else "")
        keys = _find(batch, layout.key)
        return cls(
            _narrow(payloads),
            None if keys is None else _text(keys),
            _find(batch, layout.attributes),
        )

    @classmethod
    def concat(cls, pieces: "Sequence[_Rows]") -> "_Rows":
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            pa.concat_arrays([piece.payloads for piece in pieces]),
            _concat([piece.keys for piece in pieces], pieces),
            _concat([piece.attributes for piece in pieces], pieces),
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def slice(self, start: int, end: int) -> "_Rows":
        return _Rows(
            self.payloads.slice(start, end - start),
            None if self.keys is None else self.keys.slice(start, end - start),
            None if self.attributes is None else self.attributes.slice(start, end - start),
        )

    def take(self, order: "pa.Array") -> "_Rows":
        return _Rows(
            self.payloads.take(order),
            None if self.keys is None else self.keys.take(order),
            None if self.attributes is None else self.attributes.take(order),
        )

    def size_bytes(self) -> int:
        """The size of their columns in a batch, padding aside."""
        size_bytes = _size_bytes(self.payloads)
        if self.keys is not None:
            size_bytes += _size_bytes(self.keys) + len(self) // 8 + 1
        if self.attributes is not None:
            _, names, values = _entries(self.attributes)
            size_bytes += 4 * len(self) + _size_bytes(names) + _size_bytes(values)
        return size_bytes

    def check(self, target: EncoderTarget) -> None:
        """Raise for a row that no broker would take, before anything of it is on its way."""
        largest = _largest(self.payloads)
        if largest > target.message_bytes_max:
            raise MessageTooLargeError(target.topic or "", largest, target.message_bytes_max)
        if self.keys is not None and (longest := _largest(self.keys)) > KEY_BYTES_MAX:
            raise BadRequestError(f"a key of {longest} B is longer than {KEY_BYTES_MAX} B")
        if self.attributes is not None:
            _, names, values = _entries(self.attributes)
            longest = max(_largest(names), _largest(values))
            if longest > ATTRIBUTE_BYTES_MAX:
                raise BadRequestError(
                    f"an attribute of {longest} B is longer than {ATTRIBUTE_BYTES_MAX} B"
                )

    def encode(self, target: EncoderTarget) -> tuple[bytes, bytes]:
        keys = None
        if self.keys is not None:
            keys = (_validity(self.keys), _lay_out(self.keys))
        attributes = None
        if self.attributes is not None:
            rows, names, values = _entries(self.attributes)
            attributes = (_bytes_of(rows), _lay_out(names), _lay_out(values))
        return encode_columns(
            _lay_out(self.payloads),
            count=len(self),
            keys=keys,
            attributes=attributes,
            producer=target.producer,
            codec=target.codec,
        )


def _slot(slot: int | None) -> int:
    assert slot is not None
    return slot


def _is_binary(values: "pa.Array") -> bool:
    return bool(pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type))


def _narrow(values: "pa.Array") -> "pa.BinaryArray":
    """Return values with 32-bit offsets, which is what Spark sends unless it is told otherwise."""
    if pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.binary())
    return values.view(pa.binary()) if pa.types.is_string(values.type) else values


def _text(values: "pa.Array") -> "pa.StringArray":
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _find(batch: "pa.RecordBatch", slot: int | None) -> "pa.Array | None":
    """Return a column that has values, or `None`."""
    if slot is None or batch.column(slot).null_count == batch.num_rows:
        return None
    return _clear_nulls(batch.column(slot))


def _concat(arrays: "Sequence[pa.Array | None]", pieces: Sequence[_Rows]) -> "pa.Array | None":
    kind = next((array.type for array in arrays if array is not None), None)
    if kind is None:
        return None
    return pa.concat_arrays(
        [
            pa.nulls(len(piece), kind) if array is None else array
            for array, piece in zip(arrays, pieces, strict=True)
        ]
    )


def _offsets(values: "pa.Array") -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Return where the values begin in their blob, and where the last one ends."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def _size_bytes(values: "pa.Array") -> int:
    if not len(values):
        return 4
    offsets = _offsets(values)
    return int(offsets[-1] - offsets[0]) + 4 * len(offsets)


def _largest(values: "pa.Array") -> int:
    return int(np.diff(_offsets(values)).max(initial=0)) if len(values) else 0


def _lay_out(values: "pa.Array") -> LaidOut:
    """Return a column as the batch format has it, over Arrow's memory where that is possible."""
    if not len(values):
        return memoryview(bytes(4)), memoryview(b"")
    offsets = _offsets(values)
    start, end = int(offsets[0]), int(offsets[-1])
    data = values.buffers()[2]
    blob = memoryview(b"") if data is None else memoryview(data)[start:end]
    return _bytes_of(offsets - start if start else offsets), blob


def _bytes_of(numbers: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> memoryview:
    return np.ascontiguousarray(numbers, np.int32).data.cast("B")


def _validity(values: "pa.Array") -> bytes:
    if not values.null_count:
        return ((1 << len(values)) - 1).to_bytes((len(values) + 7) // 8, "little")
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return np.packbits(valid, bitorder="little").tobytes()


def _entries(
    rows: "pa.MapArray",
) -> "tuple[np.ndarray[tuple[int], np.dtype[np.int32]], pa.StringArray, pa.StringArray]":
    """Return row offsets from 0, and the names and values of all entries. A null value is empty."""
    offsets = _offsets(rows)
    start, end = int(offsets[0]), int(offsets[-1])
    names, values = rows.keys.slice(start, end - start), rows.items.slice(start, end - start)
    if values.null_count:
        values = values.fill_null("")
    return offsets - start, _text(names), _text(values)


def _clear_nulls(values: "pa.Array") -> "pa.Array":
    """Return values that have nothing under a null: what is there would go to the broker too.

    Spark writes nothing there; copies by `take` do the same.
    """
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        if np.diff(_offsets(values))[~valid].any():
            return values.take(pa.array(np.arange(len(values))))
    return values
