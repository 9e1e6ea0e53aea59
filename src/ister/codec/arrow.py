"""A batch as a `pyarrow.RecordBatch`. The only file that knows pyarrow, which is an extra.

The payload column is used in place; Arrow checks the offsets again before anything is read.
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
        pa.array(batch.keys, pa.string()) if batch.keys else pa.nulls(count, pa.string()),
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


def _payload(column: "Values", count: int) -> pa.Array:
    buffers = [None, pa.py_buffer(column.raw_offsets), pa.py_buffer(column.blob)]
    array = pa.Array.from_buffers(pa.binary(), count, buffers)
    array.validate(full=True)
    return array
