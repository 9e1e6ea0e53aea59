"""What executors do: read a range of a stream and yield it as Arrow, in the columns asked for.

Always true: a range yields the messages of exactly its offsets, each time it is read; or it
raises, or, when losses are to be borne, what is left of them, with a warning.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from ister.base.errors import (
    BadRequestError,
    BusyError,
    IsterError,
    MessagesLostError,
    OffsetGoneError,
    SchemaViolationError,
    TopicNotFoundError,
)
from ister.client.sync import Client
from ister.codec import SchemaRef
from ister.schemas import Schema, parse_schema, parse_type
from ister.spark.clients import client_of
from ister.spark.offsets import OffsetRange, base_of, retention_loss
from ister.spark.options import ReadOptions
from ister.spark.source.arrow import ColumnBuilder, group_slices
from ister.spark.source.input_partition import RangePartition
from ister.spark.source.layouts import ERROR_COLUMN, ReadLayout
from ister.spark.source.segments import SegmentAccess
from ister.spark.source.slices import BatchSlice
from ister.spark.source.tail import read_range, read_tail
from ister.telemetry import library_logger

if TYPE_CHECKING:
    from ister.spark.source.decoding import Decoder
    from ister.spark.source.filters import Condition

# So few are read from the broker at once: asking it first what is there, and where it lies, takes
# two round trips more, of the few milliseconds that a micro-batch of one event has. They are in
# memory together: at 8 MiB each, which is the most, 512 MiB.
FEW_ROWS = 64

logger = library_logger("ister.spark")


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges with the options and columns of one read. It is pickled to executors."""

    options: ReadOptions
    layout: ReadLayout
    conditions: "tuple[Condition, ...]" = ()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, in order."""
        # Spark makes up a partition of its own when there is none.
        if isinstance(partition, RangePartition):
            connect = partial(client_of, self.options.broker)
            slices = read_slices(self.options, partition.range, connect)
            yield from _RangeAssembly(self, partition.range, connect).batches(slices)


# From ranges to slices


def read_slices(
    options: ReadOptions, range_: OffsetRange, connect: Callable[[], Client]
) -> Iterator[BatchSlice]:
    """Yield the messages of a range: from sealed segments where possible, else the broker."""
    if range_.rows <= FEW_ROWS:
        try:
            found = list(
                read_tail(connect(), range_.stream, range_.start, range_.end, number=range_.number)
            )
        except (BadRequestError, OffsetGoneError, TopicNotFoundError):
            pass  # Not all of it is there any more: how much, is found out below.
        else:
            yield from found
            return
    start = range_.start
    while start < range_.end:
        try:
            start, end = _available(options, range_, start, connect())
            yield from _read_available(options, range_.stream, range_.number, start, end, connect)
            return
        except OffsetGoneError as error:
            # Retention came in between. What was yielded lies before that.
            _lose(options, range_.stream, retention_loss(error.offset, error.first_offset), error)
            start = max(start + 1, error.first_offset)
        except TopicNotFoundError as error:
            _lose(options, range_.stream, "the topic was deleted", error)
            return


def _available(
    options: ReadOptions, range_: OffsetRange, start: int, client: Client
) -> tuple[int, int]:
    """Return what of a range is still there, from `start` on; the rest is lost."""
    [head] = client.heads([range_.stream])
    if head.number != range_.number:
        _lose(options, range_.stream, "the topic was deleted and made again")
        return range_.end, range_.end
    if start < head.first_offset:
        _lose(options, range_.stream, retention_loss(start, head.first_offset))
    if range_.end > head.next_offset:
        _lose(options, range_.stream, f"it ends at {head.next_offset}, not at {range_.end}")
    return max(start, head.first_offset), min(range_.end, head.next_offset)


def _read_available(
    options: ReadOptions,
    stream: str,
    number: int,
    start: int,
    end: int,
    connect: Callable[[], Client],
) -> Iterator[BatchSlice]:
    if start >= end:
        return
    if not options.from_segments:
        yield from read_tail(connect(), stream, start, end, number=number)
        return
    located = connect().locate(stream, start, end)
    if located.number != number:
        raise TopicNotFoundError(stream)
    yield from read_range(
        connect,
        stream,
        start,
        end,
        number=number,
        stores=located.stores,
        rows=located.rows,
        access=SegmentAccess(dict(options.store_options), options.key_file),
    )


def _lose(options: ReadOptions, stream: str, reason: str, cause: IsterError | None = None) -> None:
    """Raise `MessagesLostError`; with `failOnDataLoss` false, log the loss instead."""
    if options.fail_on_data_loss:
        raise MessagesLostError(stream, reason) from cause
    logger.warning("messages_lost", topic=stream, reason=reason)


# From slices to record batches


class _RangeAssembly:
    """Makes the record batches of one range."""

    def __init__(
        self, reading: RangeReader, range_: OffsetRange, connect: Callable[[], Client]
    ) -> None:
        layout = reading.layout
        self._layout = layout
        self._stream = range_.stream
        self._conditions = reading.conditions
        self._null_errors = reading.options.null_errors
        self._connect = connect
        self._target: pa.Schema = to_arrow_schema(layout.schema, timezone="UTC")
        self._decoder: Decoder | None = None
        self._by_schema = False
        names = list(layout.own)
        if layout.source is not None and (layout.decoded or layout.with_error):
            fields = [self._target.field(name) for name in layout.decoded]
            # With pandas, which pyarrow asks for then: half a second that most reads do without.
            from ister.spark.source.decoding import decoder_for

            self._decoder = decoder_for(layout.source, fields, self._writer)
            self._by_schema = layout.source.format in ("avro", "protobuf")
            # The offset is for errors.
            names += [name for name in ("payload", "offset") if name not in names]
        if not names:
            names = ["offset"]  # Something has to say how many rows there are.
        topic, partition = base_of(range_.stream)
        self._columns = ColumnBuilder(names, topic=topic, partition=partition)
        self._known: dict[SchemaRef, Schema | IsterError] = {}

    def batches(self, slices: Iterator[BatchSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of all slices."""
        # A task that is given up closes its generator: a reader of the broker ends then too.
        with closing(slices):  # type: ignore[type-var]
            for group in group_slices(slices):
                for schema, some in self._split_by_schema(group):
                    batch = self._columns.build(some)
                    if self._conditions:
                        batch = self._select(batch)
                    if batch.num_rows:
                        yield self._finish(batch, schema)

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from ister.spark.source.filters import select

        return select(batch, self._conditions)

    def _split_by_schema(
        self, group: list[BatchSlice]
    ) -> Iterable[tuple[SchemaRef | None, Sequence[BatchSlice]]]:
        """Divide slices by what they were written with, where that makes a difference."""
        if not self._by_schema:
            return [(None, group)]
        return [
            (schema, list(run))
            for schema, run in groupby(group, lambda slice_: slice_.batch.schema)
        ]

    def _finish(self, batch: pa.RecordBatch, schema: SchemaRef | None) -> pa.RecordBatch:
        layout = self._layout
        found = {name: batch.column(name) for name in layout.own}
        if self._decoder is not None:
            decoded = self._decoder.decode(batch.column("payload"), schema)
            first = decoded.first_error()
            if first is not None and not self._null_errors:
                raise self._violation(batch.column("offset")[first[0]].as_py(), first[1])
            found.update(zip(layout.decoded, decoded.columns, strict=True))
            if layout.with_error:
                nothing = pa.nulls(batch.num_rows, pa.string())
                found[ERROR_COLUMN] = nothing if decoded.errors is None else decoded.errors
        arrays = []
        for field in self._target:
            array = found[field.name]
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _violation(self, offset: int, reason: str) -> SchemaViolationError:
        source = self._layout.source
        assert source is not None
        return SchemaViolationError(
            self._stream,
            source.name,
            f"message {offset}: {reason}; set `decodeErrors` to null to go on without it",
        )

    def _writer(self, ref: SchemaRef) -> Schema | IsterError:
        """Return the schema that messages name, from the registry when it is new here."""
        found = self._known.get(ref)
        if found is None:
            try:
                version = self._connect().schemas.get(*ref)
                found = parse_schema(parse_type(version.type), version.definition)
            except BusyError:
                # Says nothing about the messages: a task that is repeated finds the schema.
                raise
            except IsterError as error:
                found = error
            self._known[ref] = found
        return found
