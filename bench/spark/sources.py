"""The other contenders of the Spark benchmark: a source without cost, a writer without effect.

Spark's Python workers import this module, so it is found by its name there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)


class Ticks(DataSource):
    """One row in each micro-batch, as fast as Spark asks: the floor of any Python source."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_ticks"

    def schema(self) -> str:
        """Return the only column."""
        return "payload binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader."""
        return TicksReader()


class TicksReader(DataSourceStreamReader):
    """Counts the batches."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Begin at nothing."""
        return {"tick": 0}

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """There is always one more."""
        return {"tick": (start or {"tick": 0})["tick"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task."""
        return [InputPartition(end["tick"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield pa.RecordBatch.from_pydict({"payload": [b"tick"]})

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do."""


class Nothing(WriterCommitMessage):
    """So many rows were thrown away."""

    def __init__(self, rows: int, at_s: float) -> None:
        self.rows = rows
        self.at_s = at_s


class Hole(DataSource):
    """A writer that takes Arrow batches and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_hole"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - Spark's
        """Return the writer."""
        return HoleWriter()


class HoleWriter(DataSourceStreamArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Look at every batch, and at nothing in it."""
        return Nothing(sum(batch.num_rows for batch in iterator), time.time())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do."""
