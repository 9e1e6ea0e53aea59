"""Tables, read by the list of their files: exactly the rows of the newest manifest."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ister.base.errors import TableNotFoundError
from ister.spark.tables.folder import TableFolder, local_path
from ister.spark.tables.manifest import TableManifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def describe(table: str | Path) -> TableManifest:
    """Return the newest manifest of a table, or raise `TableNotFoundError`."""
    path = local_path(table)
    manifest = TableFolder(path).find()
    if manifest is None:
        raise TableNotFoundError(str(path))
    return manifest


def files(table: str | Path) -> list[str]:
    """Return the paths of the files that hold a table's rows now, those with all columns first.

    They stay for some time after the table has changed, so that a query that has begun sees the
    table as it was: all of its rows, each of them once. Raises `TableNotFoundError`.
    """
    folder = TableFolder(local_path(table))
    # Readers that look at one file to learn the columns look at the first.
    ordered = sorted(describe(table).files, key=lambda one: -one.columns)
    return [str(folder.stored_path(one.name)) for one in ordered]


def read(spark: "SparkSession", table: str | Path) -> "DataFrame":
    """Return a table as a DataFrame of Spark, with the table's own columns and types."""
    folder = TableFolder(local_path(table))
    manifest = describe(table)
    quoted = (one.name.replace("`", "``") for one in manifest.columns)
    schema = ", ".join(
        f"`{name}` {one.type}" for name, one in zip(quoted, manifest.columns, strict=True)
    )
    paths = [f"file://{folder.stored_path(one.name)}" for one in manifest.files]
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", f"file://{folder.stored}")
    return reader.parquet(*paths)


def dataset(table: str | Path) -> Any:
    """Return a table as a `pyarrow.dataset.Dataset`."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    paths = files(table)
    if not paths:
        return ds.dataset(pa.table({}))
    return ds.dataset(paths, format="parquet", partitioning="hive")
