"""The source: streams of a broker as rows of Spark, in one batch or in micro-batches.

The driver plans (`batch_reader`, `stream_reader`, `discovery`), executors read (`reading` and what
it stands on). Planning runs in short processes: they do not load what only reading needs.
"""

from ister.spark.source.batch_reader import batch_reader
from ister.spark.source.layouts import COLUMNS, layout_of, schema_of
from ister.spark.source.stream_reader import StreamReader

__all__ = [
    "COLUMNS",
    "StreamReader",
    "batch_reader",
    "layout_of",
    "schema_of",
]
