"""Batch reads: everything between two positions of each stream, fixed when the read is planned."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ister.base import Origin
from ister.spark.clients import client_of
from ister.spark.offsets import divide, ranges_between
from ister.spark.options import ReadOptions
from ister.spark.source.discovery import StreamDiscovery
from ister.spark.source.input_partition import RangePartition
from ister.spark.source.layouts import COLUMNS, ReadLayout

if TYPE_CHECKING:
    import pyarrow as pa

    from ister.spark.source.filters import Condition


class BatchReader(DataSourceReader):
    """A batch read without filters."""

    def __init__(self, options: ReadOptions, layout: ReadLayout) -> None:
        self.options = options
        self.layout = layout
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """Decide which offsets are read, and divide them among tasks."""
        discovery = StreamDiscovery(self.options, partial(client_of, self.options.broker))
        heads = discovery.heads()
        start = discovery.positions(self.options.start, heads, otherwise=Origin.EARLIEST)
        end = discovery.positions(self.options.end, heads, otherwise=Origin.LATEST)
        ranges = ranges_between(start, end)
        if self.conditions:
            from ister.spark.source.filters import narrow

            ranges = narrow(ranges, self.conditions)
        return [
            RangePartition(one)
            for one in divide(ranges, partitions_min=self.options.partitions_min)
        ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of one partition, in order."""
        from ister.spark.source.reading import RangeReader

        rest: tuple[Condition, ...] = ()
        if self.conditions:
            from ister.spark.source.filters import left_over

            rest = tuple(left_over(self.conditions))
        return RangeReader(self.options, self.layout, rest).read(partition)


class FilteringReader(BatchReader):
    """A batch read that applies the filters it understands.

    It is off unless asked for: up to version 4.3, Spark keeps a reader with the filters of one
    query and uses it for other queries of the same frame, which then silently miss rows.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the filters that are applied here; return those that Spark has to apply."""
        from ister.spark.source.filters import accept

        # Columns with their own type: with another type or collation values compare differently.
        own = {field.name: field.dataType for field in COLUMNS}
        columns = {
            field.name for field in self.layout.schema if own.get(field.name) == field.dataType
        }
        left: list[Filter] = []
        for one in filters:
            found = accept(one, columns)
            if found is None:
                left.append(one)
            else:
                self.conditions += (found,)
        return left


def batch_reader(options: ReadOptions, layout: ReadLayout) -> BatchReader:
    """Return the reader of a batch."""
    return FilteringReader(options, layout) if options.pushdown else BatchReader(options, layout)
