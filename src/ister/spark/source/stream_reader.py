"""Streaming reads: how far each micro-batch goes, and what it consists of.

Spark asks for an end, writes it down, and only then has the range read; after a restart it asks for
ranges it has written down. So everything here follows from the offsets that Spark hands in, never
from what was remembered. What is remembered only saves questions to the broker.
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
    Heads,
    Loss,
    Place,
    Places,
    admit,
    divide,
    from_json,
    ranges_between,
    reconcile,
    rows_for_bytes,
    to_json,
    up_to,
)
from ister.spark.options import ReadOptions
from ister.spark.source.discovery import Survey
from ister.spark.source.input_partition import Piece
from ister.spark.source.layouts import Layout
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

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        connect = partial(client_of, options.broker)
        self._survey = Survey(options, connect)
        self._progress = Progress(options.subscription, connect) if options.subscription else None
        # Asked for twice, and to be answered the same.
        self._initial: dict[str, Place] | None = None
        # The last that the broker told.
        self._heads: Heads | None = None
        # With the trigger `availableNow`: where the streams ended when the query began.
        self._target: Heads | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        if self._initial is None:
            heads = self._survey.heads()
            self._initial = self._survey.places(
                self.options.start, heads, otherwise=Origin.EARLIEST
            )
        return to_json(self._initial)

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
        places = from_json(start) if start is not None else from_json(self.initialOffset())
        heads = self._fetch_heads(places)
        standing = reconcile(places, heads)
        self._report_losses(standing.losses)
        end = admit(standing.known, heads, rows_max=self._rows_max(standing.known, heads, limit))
        end.update(standing.begun)
        if self._progress is not None:
            # Spark has finished everything before `start`: it asks one micro-batch after another.
            # A stream that was made again is another one, of which nothing is read yet.
            done = {s: place for s, place in places.items() if s in standing.known}
            self._progress.report(done, at_once=end == places)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the streams as far as they are known: lag, in Spark's progress."""
        if self._heads is None:
            return None
        return to_json({s: Place(h.number, h.next_offset) for s, h in self._heads.items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Settle where this run ends."""
        self._target = self._survey.heads()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Divide a micro-batch into tasks; none when there is nothing in it."""
        ranges = ranges_between(from_json(start), from_json(end))
        return [Piece(one) for one in divide(ranges, pieces_min=self.options.pieces_min)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of a piece, in order. In an executor."""
        from ister.spark.source.reading import Reading

        return Reading(self.options, self.layout).read(partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything up to `end` is done. `latestOffset` knew that already."""

    def stop(self) -> None:
        """Nothing is held that would have to be let go: Spark seldom gets to call this."""

    def _fetch_heads(self, places: Places) -> Heads:
        beyond = {stream: place.offset for stream, place in places.items()}
        wait_s = 0.0 if self._target is not None else self.options.poll_s
        try:
            self._heads = self._survey.heads(beyond, wait_s)
        except TopicNotFoundError as error:
            raise MessagesLostError(error.topic, "the topic was deleted") from error
        return self._heads if self._target is None else up_to(self._heads, self._target)

    def _report_losses(self, losses: list[Loss]) -> None:
        if losses and self.options.fail_on_data_loss:
            raise MessagesLostError(losses[0].stream, losses[0].reason)
        for loss in losses:
            logger.warning("messages_lost", topic=loss.stream, reason=loss.reason)

    def _rows_max(self, start: Places, heads: Heads, limit: ReadLimit | None) -> int | None:
        """Return how many rows the next micro-batch may have; both limits hold."""
        if limit is None or isinstance(limit, ReadAllAvailable):
            return None
        rows_max: int | None = getattr(limit, "max_rows", None)
        bytes_max: int = getattr(limit, "max_bytes", self.options.bytes_max)
        if not bytes_max:
            return rows_max
        by_size = rows_for_bytes(
            start, heads, bytes_max=bytes_max, row_bytes=self._survey.row_bytes()
        )
        return by_size if rows_max is None else min(rows_max, by_size)


class Progress:
    """Moves a durable subscription on each stream to where the query is: its lag is the query's.

    Nothing is ever consumed from it. It is a figure for people, and a hold on retention by
    interest; the truth is in Spark's checkpoint.
    """

    def __init__(self, subscription: str, connect: "partial[Client]") -> None:
        self._name = subscription
        self._connect = connect
        self._told: dict[str, Place] = {}
        self._told_at = -PROGRESS_S

    def report(self, places: Places, *, at_once: bool) -> None:
        """Move the subscription, unless that was done a moment ago and the query is busy."""
        moved = {s: place for s, place in places.items() if self._told.get(s) != place}
        now = time.monotonic()
        if not moved or not (at_once or now - self._told_at >= PROGRESS_S):
            return
        self._told_at = now
        for stream, place in moved.items():
            self._move(stream, place)
            self._told[stream] = place

    def _move(self, stream: str, place: Place) -> None:
        client = self._connect()
        if stream not in self._told:
            self._check_unused(client, stream)
        try:
            client.seek(stream, self._name, place.offset)
        except SubscriptionNotFoundError:
            # Opening makes it; with `pull` nothing is delivered.
            with client.subscribe(stream, self._name, start=place.offset, pull=True):
                pass
        except (BadRequestError, NotFoundError) as error:
            # The place is gone, or the topic: the next question for an end says so.
            logger.warning("progress_not_reported", topic=stream, reason=str(error))

    def _check_unused(self, client: "Client", stream: str) -> None:
        """Raise `ConfigError` when consumers have that subscription: it would be moved off them."""
        for report in client.subscriptions(stream):
            if report.subscription == self._name and report.topic == stream and report.consumers:
                raise ConfigError(
                    [f"`subscription` {self._name!r} of {stream!r} has consumers: choose another"]
                )
