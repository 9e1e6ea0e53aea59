"""The sink: rows of Spark become messages, each batch exactly once or, when it fails, not at all.

What is listed here needs no PySpark. `writers` does: only the data source imports it.
"""

from ister.spark.sink.options import series_of, write_options
from ister.spark.sink.topics import ensure_topic

__all__ = [
    "ensure_topic",
    "series_of",
    "write_options",
]
