"""Spark's writers: micro-batches exactly once, a batch job at its end or not at all.

Tasks stage their rows with the broker, where nobody sees them (`writing`). Spark's driver then
publishes what the successful attempts have staged, as number `batchId` of a series that is the
query's own. A batch that Spark repeats, because it died between the publish and its commit log,
stages everything again and publishes the same number: the broker knows it, and forgets the rest.

Spark creates an object of these classes for every micro-batch, pickles it to the tasks, and creates
another one for the commit: the only thing that gets from a task to the commit is its message.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ister.base import size_text
from ister.base.errors import BadRequestError
from ister.base.limits import SERIES_BATCHES_MAX, SERIES_BYTES_MAX
from ister.spark.clients import client_of
from ister.spark.sink.encoder import SinkLayout
from ister.spark.sink.options import WriteOptions, series_of, write_options
from ister.spark.sink.staging import StagedRows, StageSize, drop_stages, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Names that Spark gives its own local properties. `None` in a version that renames them.
_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The message of a task to the commit: its stages, and the query they belong to."""

    staged: StagedRows
    query: str = ""


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query to topics, each exactly once."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        self._options = write_options(options, streaming=True)
        self._layout = sink_layout_of(schema, self._options)
        self._place = _checkpoint_mark(options)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query = context.getLocalProperty(_QUERY_PROPERTY) or self._place
        if not query:
            raise BadRequestError(
                "nothing tells this query from others: set option `checkpointLocation`"
            )
        staged = stage_rows(
            client_of(self._options.broker),
            iterator,
            options=self._options,
            layout=self._layout,
            # Else the only task of a small batch would begin with the same partition for ever.
            turn=context.partitionId() + int(context.getLocalProperty(_BATCH_PROPERTY) or 0),
        )
        return StagedMessage(staged, query)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Publish the batch, unless it was published before."""
        staged = _messages_of(messages)
        stages = [stage for one in staged for stage in one.staged.stages]
        if not stages:
            return  # No rows, and nothing to repeat.
        # Spark has written down which rows the batch has, and would begin with the same again.
        _check_size(
            stages,
            "lower `maxOffsetsPerTrigger` or `maxBytesPerTrigger` of the source, remove the file "
            f"`offsets/{batchId}` of the checkpoint, and start the query again",
        )
        series = series_of(staged[0].query, self._options.topic)
        words = [stage.word for stage in stages]
        done = client_of(self._options.broker).publish_stages(words, series=series, number=batchId)
        if done.overtaken:
            raise _overtaken_error(batchId)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Drop the stages. Spark also calls this after a commit that only seemed to fail."""
        _drop(self._options, messages)


class BatchSink(DataSourceArrowWriter):
    """Writes the rows of one job to topics when all tasks have succeeded.

    Up to 1 GiB all at once; more in several steps, and a failure between them leaves the first.
    With options `series` and `number` a repeated write is recognised: for `foreachBatch`.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001 (as Spark passes it)
    ) -> None:
        if overwrite:
            raise BadRequestError(
                "a topic is only appended to: use mode('append'), or `ister topics purge` first"
            )
        self._options = write_options(options, streaming=False)
        self._layout = sink_layout_of(schema, self._options)
        # Made here, on the driver: the same for all tasks and for the commit.
        self._job = uuid4().hex

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        staged = stage_rows(
            client_of(self._options.broker),
            iterator,
            options=self._options,
            layout=self._layout,
            # Another partition to begin with in every job.
            turn=context.partitionId() + int(self._job[:8], 16),
        )
        return StagedMessage(staged)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Publish what all tasks have staged."""
        stages = [stage for one in _messages_of(messages) for stage in one.staged.stages]
        if not stages:
            return
        client = client_of(self._options.broker)
        if self._options.series:
            _check_size(stages, "write fewer rows at a time, or leave out `series` and `number`")
            words = [stage.word for stage in stages]
            number = self._options.number
            done = client.publish_stages(words, series=self._options.series, number=number)
            if done.overtaken:
                raise _overtaken_error(number)
            return
        for number, words in enumerate(publish_steps(stages)):
            client.publish_stages(words, series=f"spark-job/{self._job}", number=number)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Drop the stages."""
        _drop(self._options, messages)


def sink_layout_of(schema: "StructType", options: WriteOptions) -> SinkLayout:
    """Return where the columns are, or raise `BadRequestError` with all that is wrong."""
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return SinkLayout.of(fields, topic=options.topic)


def publish_steps(stages: Sequence[StageSize]) -> Iterator[list[str]]:
    """Yield the words of as many stages at a time as one publish takes together."""
    words: list[str] = []
    size_bytes = batches = 0
    for stage in stages:
        size_bytes += stage.size_bytes
        batches += stage.batches
        if words and (size_bytes > SERIES_BYTES_MAX or batches > SERIES_BATCHES_MAX):
            yield words
            words, size_bytes, batches = [], stage.size_bytes, stage.batches
        words.append(stage.word)
    if words:
        yield words


def _messages_of(messages: "Sequence[WriterCommitMessage | None]") -> list[StagedMessage]:
    # Tasks that failed have no message.
    return [message for message in messages if isinstance(message, StagedMessage)]


def _check_size(stages: Sequence[StageSize], remedy: str) -> None:
    size_bytes = sum(stage.size_bytes for stage in stages)
    batches = sum(stage.batches for stage in stages)
    if size_bytes > SERIES_BYTES_MAX or batches > SERIES_BATCHES_MAX:
        raise BadRequestError(
            f"a batch of {size_bytes} B, in {batches} batches of the broker, is over the "
            f"{size_text(SERIES_BYTES_MAX)} or {SERIES_BATCHES_MAX} of one publish: {remedy}"
        )


def _overtaken_error(number: int) -> BadRequestError:
    # Spark repeats the last batch only. What it has planned anew under a number of before may hold
    # other rows than that one did: going on would lose them without a word.
    return BadRequestError(
        f"this query has written batches after {number} before: its checkpoint is older than what "
        "it wrote, as one from a backup is. Start it with a new `checkpointLocation`, and "
        "`startingOffsets` where it is to go on"
    )


def _drop(options: WriteOptions, messages: "Sequence[WriterCommitMessage | None]") -> None:
    words = [stage.word for one in _messages_of(messages) for stage in one.staged.stages]
    if words:
        drop_stages(client_of(options.broker), words)


def _checkpoint_mark(options: Mapping[str, str]) -> str:
    """Return a name made of the checkpoint, for a Spark that does not reveal the query's id."""
    for name, value in options.items():
        if name.lower() == "checkpointlocation":
            return f"at-{hashlib.sha256(value.encode()).hexdigest()[:32]}"
    return ""
