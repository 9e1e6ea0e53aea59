"""Dead letters of a pipeline: rows that cannot be processed, kept with the reason.

Two kinds become dead letters:
- messages whose payload is not in the format of their source, unchanged: payload and key;
- rows of a step that has a column `_failed` with a text in it, as JSON. SQL may say
  `CASE WHEN amount < 0 THEN 'negative amount' END AS _failed`; Python has `safely`.

Always true:
- a row goes either to the dead letters or to the sinks, never to both: one condition decides it;
- the attributes have the names the broker gives its own dead letters (docs/guide.md).

The dead letters of a source or a step are a query of their own, which reads the source once more
(ADR 15 has what one query would cost).
A step behind an aggregation would aggregate twice: say `_failed` before, not after.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

FAILED_COLUMN = "_failed"
# The row that failed, as JSON, when the step has another shape than what it was given.
ORIGINAL_COLUMN = "_original"

TOPIC_ATTRIBUTE = "x-original-topic"
PARTITION_ATTRIBUTE = "x-original-partition"
OFFSET_ATTRIBUTE = "x-original-topic-offset"
PRODUCER_ATTRIBUTE = "x-original-producer"
PIPELINE_ATTRIBUTE = "x-original-pipeline"
STEP_ATTRIBUTE = "x-original-step"
REASON_ATTRIBUTE = "x-failure-reason"

# The reason goes into an attribute; a long one is a stack trace that nobody reads there.
REASON_CHARACTERS_MAX = 1_000

RowMapping = Mapping[str, Any]


def safely(
    function: Callable[[RowMapping], RowMapping | None], *, returns: str
) -> "Callable[[DataFrame], DataFrame]":
    """Return a function of DataFrames that calls `function` for every row.

    A row is given as a dictionary; what is returned becomes a row with the columns `returns`
    (DDL), and `None` leaves the row out. A row for which `function` raises, or returns what does
    not fit, goes to the pipeline's dead letters with the error as the reason; the others go on.

    This calls Python for each row: 100,000 a second and core, where SQL does millions.

        def score(row):
            return {"order_id": row["order_id"], "score": 1.0 / row["amount"]}

        scored = ister.spark.safely(score, returns="order_id string, score double")(orders)
    """

    def call(frame: "DataFrame") -> "DataFrame":
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StringType, StructField, StructType

        made = StructType.fromDDL(returns)
        assert isinstance(made, StructType), "a list of fields makes a struct"
        own = [StructField(name, StringType()) for name in _OWN_COLUMNS]
        schema = StructType([*made.fields, *own])
        target = to_arrow_schema(schema, timezone="UTC")
        return frame.mapInArrow(lambda batches: _each(function, batches, target), schema)

    return call


def _each(
    function: Callable[[RowMapping], RowMapping | None],
    batches: "Iterator[pa.RecordBatch]",
    target: "pa.Schema",
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    shape = pa.struct([field for field in target if field.name not in _OWN_COLUMNS])
    for batch in batches:
        rows = []
        for given in batch.to_pylist():
            try:
                made = function(given)
                if made is None:
                    continue
                # A value that does not fit would fail the whole batch below.
                pa.scalar(dict(made), type=shape)
                rows.append(dict(made))
            except Exception as error:  # noqa: BLE001 (the user's function)
                rows.append(failed_row(given, error))
        yield pa.RecordBatch.from_pylist(rows, schema=target)


_OWN_COLUMNS = (FAILED_COLUMN, ORIGINAL_COLUMN)


def failed_row(given: RowMapping, error: Exception) -> dict[str, str]:
    """Return what stands for a row that failed."""
    import json

    reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
    return {FAILED_COLUMN: reason, ORIGINAL_COLUMN: json.dumps(given, default=_as_text)}


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def letters_of_source(bad: "DataFrame", reason: "Column", *, pipeline: str) -> "DataFrame":
    """Return messages that could not be decoded as dead letters."""
    from pyspark.sql import functions as f

    attributes = f.create_map(
        *_pair(TOPIC_ATTRIBUTE, f.col("topic")),
        *_pair(PARTITION_ATTRIBUTE, f.col("partition").cast("string")),
        *_pair(OFFSET_ATTRIBUTE, f.col("offset").cast("string")),
        *_pair(PRODUCER_ATTRIBUTE, f.coalesce(f.col("producer"), f.lit(""))),
        *_pair(PIPELINE_ATTRIBUTE, f.lit(pipeline)),
        *_pair(REASON_ATTRIBUTE, f.left(reason, f.lit(REASON_CHARACTERS_MAX))),
    )
    return bad.select("key", "payload", attributes.alias("attributes"))


def letters_of_step(frame: "DataFrame", *, step: str, pipeline: str) -> "DataFrame":
    """Return the rows of a step that failed as dead letters."""
    from pyspark.sql import functions as f

    failed = frame.filter(f.col(FAILED_COLUMN).isNotNull())
    columns = [name for name in frame.columns if name not in _OWN_COLUMNS]
    payload = f.to_json(f.struct(*(f.col(f"`{name}`") for name in columns)))
    if ORIGINAL_COLUMN in frame.columns:
        payload = f.coalesce(f.col(ORIGINAL_COLUMN), payload)
    attributes = f.create_map(
        *_pair(PIPELINE_ATTRIBUTE, f.lit(pipeline)),
        *_pair(STEP_ATTRIBUTE, f.lit(step)),
        *_pair(REASON_ATTRIBUTE, f.left(f.col(FAILED_COLUMN), f.lit(REASON_CHARACTERS_MAX))),
    )
    return failed.select(payload.cast("binary").alias("payload"), attributes.alias("attributes"))


def rest_of_step(frame: "DataFrame") -> "DataFrame":
    """Return the rows of a step that did not fail, as they are for the steps behind it."""
    from pyspark.sql import functions as f

    return frame.filter(f.col(FAILED_COLUMN).isNull()).drop(*_OWN_COLUMNS)


def _pair(name: str, value: "Column") -> "tuple[Column, Column]":
    from pyspark.sql import functions as f

    return f.lit(name), value
