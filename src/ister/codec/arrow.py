"""A batch as a `pyarrow.RecordBatch`. The only file that knows pyarrow, which is an extra.

The columns of payloads and keys are used in place; Arrow checks the offsets again, and that keys
are text, before anything is read.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from ister.codec.batch import Batch
    from ister.codec.columns import Values

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("publish_time", pa.timestamp("ms", tz="UTC")),
        ("producer", pa.string()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)


def to_arrow(batch: "Batch") -> pa.RecordBatch:
    """Return `batch` with the columns of `SCHEMA`."""
    count = len(batch)
    attributes = batch.attributes
    columns = [
        pa.array(batch.offsets, pa.int64()),
        pa.array(batch.timestamps_ms, SCHEMA.field("publish_time").type),
        pa.repeat(pa.scalar(batch.producer, pa.string()), count),
        _keys(batch, count),
        _payload(batch.payload_column, count),
        pa.array(
            [list(row.items()) for row in attributes] if attributes else [None] * count,
            SCHEMA.field("attributes").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def to_table(batches: "Sequence[Batch]") -> pa.Table:
    """Return `batches` one behind the other, with the columns of `SCHEMA`."""
    return pa.Table.from_batches([to_arrow(batch) for batch in batches], schema=SCHEMA)


def _keys(batch: "Batch", count: int) -> pa.Array:
    column = batch.key_column
    if column is None:
        return pa.nulls(count, pa.string())
    validity = column.bits.to_bytes((count + 7) // 8, "little")
    values = column.column
    buffers = [pa.py_buffer(part) for part in (validity, values.raw_offsets, values.blob)]
    array = pa.Array.from_buffers(pa.string(), count, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        # Some key is no text by itself: it gets U+FFFD.
        return pa.array(batch.keys, pa.string())
    return array


def _payload(column: "Values", count: int) -> pa.Array:
    buffers = [None, pa.py_buffer(column.raw_offsets), pa.py_buffer(column.blob)]
    array = pa.Array.from_buffers(pa.binary(), count, buffers)
    array.validate(full=True)
    return array
