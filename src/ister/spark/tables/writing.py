"""Writes batches of Spark into tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ister.base.errors import BadRequestError
from ister.spark.tables.applying import TableBatch, WrittenBatch, apply
from ister.spark.tables.folder import TableFolder, local_path
from ister.spark.tables.known import remember
from ister.spark.tables.manifest import TableColumn
from ister.spark.tables.rules import FittedColumns

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

# Spark's own default is a type that others read as a time without a zone, or not at all.
TIMESTAMP_SETTING = "spark.sql.parquet.outputTimestampType"
TIMESTAMP_TYPE = "TIMESTAMP_MICROS"
# Where Spark tells a batch which query it is of: the same after every restart of a checkpoint.
QUERY_PROPERTY = "sql.streaming.queryId"
OPTIONS = ("keys",)


def write_batch(
    table: str | Path,
    df: "DataFrame",
    *,
    query_id: str,
    batch_id: int,
    partition_by: Sequence[str] = (),
    mode: str = "append",
    keys: Sequence[str] = (),
    topics: Sequence[str] = (),
) -> WrittenBatch:
    """Write a batch of a query into the table in a folder, exactly once; call it in `foreachBatch`.

    The table has the whole batch afterwards, on the disk; if it had it before, nothing is done.
    It is made by its first batch. `mode` is that of the query: `append` adds the rows, `complete`
    replaces all rows, `update` replaces those with the same `keys`. `topics` are where the rows
    came from: `ister topics table` finds the table by them.

    Raises `TableSchemaError` when the columns do not fit, `TableBusyError` when another process
    does not end writing, `BadRequestError` for what cannot be done.
    """
    folder = TableFolder(local_path(table))
    batch = TableBatch(
        query=query_id,
        number=batch_id,
        columns=columns_of(df),
        write=lambda fitted, path: _write(df, fitted, path, partition_by),
        partition_by=tuple(partition_by),
        mode=mode,
        keys=tuple(keys),
        topics=tuple(topics),
    )
    before = folder.find()
    if topics and (before is None or not set(topics) <= set(before.topics)):
        # First: a process that is killed after its first batch would never note it.
        remember(folder.path, topics)
    return apply(folder, batch)


def batch_writer(
    table: str | Path,
    *,
    partition_by: Sequence[str] = (),
    mode: str = "append",
    topics: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    query_id: str | None = None,
) -> Callable[["DataFrame", int], None]:
    """Return a function for `foreachBatch` that writes every batch into a table.

    `options` may have `keys`, names with commas between. Without `query_id` it is asked of Spark,
    which knows it on a driver of its own but not behind Spark Connect.
    """
    given = dict(options or {})
    if unknown := sorted(set(given) - set(OPTIONS)):
        raise BadRequestError(
            f"option {unknown[0]!r} of table {table} is not one of {', '.join(OPTIONS)}"
        )
    keys = tuple(word.strip() for word in given.get("keys", "").split(",") if word.strip())
    local_path(table)

    def write(df: "DataFrame", batch_id: int) -> None:
        write_batch(
            table,
            df,
            query_id=query_id or _query_id(df),
            batch_id=batch_id,
            partition_by=partition_by,
            mode=mode,
            keys=keys,
            topics=topics,
        )

    return write


def columns_of(df: "DataFrame") -> tuple[TableColumn, ...]:
    """Return the columns of a DataFrame."""
    return tuple(TableColumn(one.name, type_text(one.dataType)) for one in df.schema.fields)


def type_text(kind: "DataType") -> str:
    """Return a type in words that Spark understands again, whatever its fields are called."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            fields = (f"{_quote_field(one.name)}:{type_text(one.dataType)}" for one in kind.fields)
            return f"struct<{','.join(fields)}>"
        case ArrayType():
            return f"array<{type_text(kind.elementType)}>"
        case MapType():
            return f"map<{type_text(kind.keyType)},{type_text(kind.valueType)}>"
        case _:
            return kind.simpleString()


def _write(df: "DataFrame", fitted: FittedColumns, path: Path, partition_by: Sequence[str]) -> int:
    """Write the rows as files of the table's columns and return how many Spark says there were."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    folders = [one.name for one in fitted.columns if one.name.lower() in _lower(partition_by)]
    ordered = sorted(folders, key=lambda name: _lower(partition_by).index(name.lower()))
    counted = Observation()
    settings = df.sparkSession.conf
    before = str(settings.get(TIMESTAMP_SETTING))
    settings.set(TIMESTAMP_SETTING, TIMESTAMP_TYPE)
    try:
        (
            df.select(*_select_columns(fitted))
            .observe(counted, count(lit(1)).alias("rows"))
            .write.option("compression", "zstd")
            .partitionBy(*ordered)
            # Not `as_uri`: Hadoop does not decode what that encodes.
            .parquet(f"file://{path}")
        )
    finally:
        settings.set(TIMESTAMP_SETTING, before)
    return int(counted.get["rows"])


def _select_columns(fitted: FittedColumns) -> "list[SparkColumn]":
    from pyspark.sql.functions import col, lit

    return [
        (lit(None) if taken is None else col(_quote(taken))).cast(one.type).alias(one.name)
        for one, taken in zip(fitted.columns, fitted.taken, strict=True)
    ]


def _quote_field(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else _quote(name)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _lower(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _query_id(df: "DataFrame") -> str:
    found = df.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
    if found is None:
        raise BadRequestError(
            "a table is written by a streaming query: use it in `foreachBatch`, or give `query_id`"
        )
    return str(found)
