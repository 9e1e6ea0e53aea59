"""Batch reads: everything between two places, which are settled once, when the read is planned."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ister.base import Origin
from ister.spark.clients import client_of
from ister.spark.layouts import COLUMNS, Layout
from ister.spark.offsets import divide, ranges_between
from ister.spark.options import ReadOptions
from ister.spark.pieces import Piece
from ister.spark.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa

    from ister.spark.filters import Condition


class BatchReader(DataSourceReader):
    """A batch read without filters."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """Settle what is read, and divide it into tasks."""
        survey = Survey(self.options, partial(client_of, self.options.url))
        heads = survey.heads()
        start = survey.places(self.options.start, heads, otherwise=Origin.EARLIEST)
        end = survey.places(self.options.end, heads, otherwise=Origin.LATEST)
        ranges = ranges_between(start, end)
        if self.conditions:
            from ister.spark.filters import narrow

            ranges = narrow(ranges, self.conditions)
        return [Piece(one) for one in divide(ranges, pieces_min=self.options.pieces_min)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of a piece, in order."""
        from ister.spark.reading import Reading

        rest: tuple[Condition, ...] = ()
        if self.conditions:
            from ister.spark.filters import left_over

            rest = tuple(left_over(self.conditions))
        return Reading(self.options, self.layout, rest).read(partition)


class _Push:
    """`pushFilters` of a reader, as Spark calls it.

    Spark refuses a reader with a method of that name while its own setting for it
    (`spark.sql.python.filterPushdown.enabled`) is off, and tells nobody what the setting is. It
    looks at `__func__` for that: with the one of the base class, the reader passes for one that
    pushes nothing, and is called all the same when the setting is on.
    """

    def __init__(self, reader: "FilteringReader") -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


class FilteringReader(BatchReader):
    """A batch read that takes what filters it can."""

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        """See `_Push`."""
        return _Push(self)

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take filters; return those that Spark must see to itself."""
        from ister.spark.filters import accept

        # Those that are read as they are: another type or collation compares in its own way.
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


def batch_reader(options: ReadOptions, layout: Layout) -> BatchReader:
    """Return the reader of a batch."""
    return FilteringReader(options, layout) if options.pushdown else BatchReader(options, layout)
