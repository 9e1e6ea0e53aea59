"""Tables: folders of Parquet files that a pipeline writes exactly once, for any reader.

`write_batch` and `batch_writer` write them from Spark, `read`, `dataset` and `files` read them,
`compact` merges small files. docs/tables.md has the layout. Nothing here imports PySpark or
pyarrow before it is used.
"""

from ister.spark.tables.applying import TableBatch, TableCompaction, WrittenBatch, apply, compact
from ister.spark.tables.folder import TableFolder, local_path
from ister.spark.tables.known import known_tables, tables_of
from ister.spark.tables.manifest import DataFile, TableColumn, TableManifest, latest_batch
from ister.spark.tables.querying import queries
from ister.spark.tables.reading import dataset, describe, files, read
from ister.spark.tables.writing import batch_writer, write_batch

__all__ = [
    "DataFile",
    "TableBatch",
    "TableColumn",
    "TableCompaction",
    "TableFolder",
    "TableManifest",
    "WrittenBatch",
    "apply",
    "batch_writer",
    "compact",
    "dataset",
    "describe",
    "files",
    "known_tables",
    "latest_batch",
    "local_path",
    "queries",
    "read",
    "tables_of",
    "write_batch",
]
