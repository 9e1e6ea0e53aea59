"""Streaming reads: where each micro-batch ends, and which ranges it consists of.

Spark asks for an end, writes it down, and only then has the range read; after a restart it asks for
ranges it has written down. So every decision follows from the offsets that Spark passes in, never
from what is remembered here. What is remembered only saves requests to the broker.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ister.base import Origin
from ister.base.errors import (
    BadRequestError,
    ConfigError,
    MessagesLostError,
    NotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from ister.spark.clients import client_of
from ister.spark.offsets import (
    EndsByStream,
    Loss,
    StreamPosition,
    StreamPositions,
    admit,
    divide,
    limit_heads,
    positions_from_json,
    positions_to_json,
    ranges_between,
    reconcile,
    rows_for_bytes,
)
from ister.spark.options import ReadOptions
from ister.spark.source.discovery import StreamDiscovery
from ister.spark.source.input_partition import RangePartition
from ister.spark.source.layouts import ReadLayout
from ister.telemetry import library_logger

if TYPE_CHECKING:
    import pyarrow as pa

    from ister.client.sync import Client

# How often the broker is told how far a busy query is: each time is a write to its journal for
# each partition. An idle query tells at once.
PROGRESS_S = 1.0

logger = library_logger("ister.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Names of methods are Spark's."""

    def __init__(self, options: ReadOptions, layout: ReadLayout) -> None:
        self.options = options
        self.layout = layout
        connect = partial(client_of, options.broker)
        self._discovery = StreamDiscovery(options, connect)
        self._progress = (
            SubscriptionProgress(options.subscription, connect) if options.subscription else None
        )
        # Spark asks twice and needs the same answer.
        self._initial: dict[str, StreamPosition] | None = None
        # The broker's last answer.
        self._heads: EndsByStream | None = None
        # With the trigger `availableNow`: where the streams ended when the query began.
        self._target: EndsByStream | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        if self._initial is None:
            heads = self._discovery.heads()
            self._initial = self._discovery.positions(
                self.options.start, heads, otherwise=Origin.EARLIEST
            )
        return positions_to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that Spark hands back with every question for an end."""
        if self.options.rows_max:
            return ReadMaxRows(self.options.rows_max)
        if self.options.bytes_max:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` itself when there is nothing new.

        Waits a moment for something new.
        """
        # Without a start (Spark 4.1) everything there is.
        positions = (
            positions_from_json(start)
            if start is not None
            else positions_from_json(self.initialOffset())
        )
        heads = self._fetch_heads(positions)
        standing = reconcile(positions, heads)
        self._report_losses(standing.losses)
        end = admit(standing.known, heads, rows_max=self._rows_max(standing.known, heads, limit))
        end.update(standing.begun)
        if self._progress is not None:
            # Spark has finished everything before `start`: it asks one micro-batch after another.
            # A stream that was made again is another one, of which nothing is read yet.
            done = {s: position for s, position in positions.items() if s in standing.known}
            self._progress.report(done, at_once=end == positions)
        return positions_to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the streams as far as they are known: lag, in Spark's progress."""
        if self._heads is None:
            return None
        return positions_to_json(
            {s: StreamPosition(h.number, h.next_offset) for s, h in self._heads.items()}
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the streams end now: this run stops there."""
        self._target = self._discovery.heads()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Divide a micro-batch into tasks; none when there is nothing in it."""
        ranges = ranges_between(positions_from_json(start), positions_from_json(end))
        return [
            RangePartition(one)
            for one in divide(ranges, partitions_min=self.options.partitions_min)
        ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of one partition, in order. In an executor."""
        from ister.spark.source.reading import RangeReader

        return RangeReader(self.options, self.layout).read(partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the next `latestOffset` starts where finished batches end."""

    def stop(self) -> None:
        """Do nothing: no resource is held, and Spark seldom calls this."""

    def _fetch_heads(self, positions: StreamPositions) -> EndsByStream:
        beyond = {stream: position.offset for stream, position in positions.items()}
        wait_s = 0.0 if self._target is not None else self.options.poll_s
        try:
            self._heads = self._discovery.heads(beyond, wait_s)
        except TopicNotFoundError as error:
            raise MessagesLostError(error.topic, "the topic was deleted") from error
        return self._heads if self._target is None else limit_heads(self._heads, self._target)

    def _report_losses(self, losses: list[Loss]) -> None:
        if losses and self.options.fail_on_data_loss:
            raise MessagesLostError(losses[0].stream, losses[0].reason)
        for loss in losses:
            logger.warning("messages_lost", topic=loss.stream, reason=loss.reason)

    def _rows_max(
        self, start: StreamPositions, heads: EndsByStream, limit: ReadLimit | None
    ) -> int | None:
        """Return how many rows the next micro-batch may have; both limits hold."""
        if limit is None or isinstance(limit, ReadAllAvailable):
            return None
        rows_max: int | None = getattr(limit, "max_rows", None)
        bytes_max: int = getattr(limit, "max_bytes", self.options.bytes_max)
        if not bytes_max:
            return rows_max
        by_size = rows_for_bytes(
            start, heads, bytes_max=bytes_max, row_bytes=self._discovery.row_bytes()
        )
        return by_size if rows_max is None else min(rows_max, by_size)


class SubscriptionProgress:
    """Keeps a durable subscription of each stream at the query's position, to show the query's lag.

    Nothing is consumed from it. It also keeps retention by interest from dropping messages that
    the query has not read. The query itself resumes from Spark's checkpoint, not from here.
    """

    def __init__(self, subscription: str, connect: "partial[Client]") -> None:
        self._name = subscription
        self._connect = connect
        self._told: dict[str, StreamPosition] = {}
        self._told_at = -PROGRESS_S

    def report(self, positions: StreamPositions, *, at_once: bool) -> None:
        """Move the subscription; a busy query moves it once in `PROGRESS_S` seconds."""
        moved = {s: position for s, position in positions.items() if self._told.get(s) != position}
        now = time.monotonic()
        if not moved or not (at_once or now - self._told_at >= PROGRESS_S):
            return
        self._told_at = now
        for stream, position in moved.items():
            self._move(stream, position)
            self._told[stream] = position

    def _move(self, stream: str, position: StreamPosition) -> None:
        client = self._connect()
        if stream not in self._told:
            self._check_unused(client, stream)
        try:
            client.seek(stream, self._name, position.offset)
        except SubscriptionNotFoundError:
            # Opening makes it; with `pull` nothing is delivered.
            with client.subscribe(stream, self._name, start=position.offset, pull=True):
                pass
        except (BadRequestError, NotFoundError) as error:
            # The position is gone, or the topic: the next question for an end says so.
            logger.warning("progress_not_reported", topic=stream, reason=str(error))

    def _check_unused(self, client: "Client", stream: str) -> None:
        """Raise `ConfigError` when the subscription has consumers: they would lose messages."""
        for report in client.subscriptions(stream):
            if report.subscription == self._name and report.topic == stream and report.consumers:
                raise ConfigError(
                    [f"`subscription` {self._name!r} of {stream!r} has consumers: choose another"]
                )
