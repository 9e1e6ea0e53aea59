"""Asks the broker which streams a read has now, and where each begins and ends."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ister.base import Origin, find_partition
from ister.base.errors import BadRequestError, MessagesLostError, TopicNotFoundError
from ister.spark.offsets import EndsByStream, StreamEnds, StreamPosition, base_of, retention_loss
from ister.spark.options import ReadBound, ReadOptions
from ister.telemetry import library_logger

if TYPE_CHECKING:
    from ister.client.sync import Client

# How long the list of topics of a pattern is cached: a new topic is found after this at most.
TOPICS_S = 1.0
# The same for the average size of messages, which moves slowly.
SIZES_S = 10.0

logger = library_logger("ister.spark")


class StreamDiscovery:
    """Asks the broker about the streams of one read."""

    def __init__(
        self,
        options: ReadOptions,
        connect: "Callable[[], Client]",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._connect = connect
        self._now = now
        # Of a pattern; each with the time it was asked for.
        self._topics: tuple[float, list[str]] | None = None
        self._sizes: tuple[float, dict[str, float]] | None = None

    def heads(
        self, beyond: Mapping[str, int] | None = None, wait_s: float = 0.0
    ) -> dict[str, StreamEnds]:
        """Return the heads of all streams, within `wait_s` of something being beyond `beyond`.

        A topic that does not exist is left out when a pattern was given, or with `failOnDataLoss`
        false; otherwise this raises `TopicNotFoundError`.
        """
        names = self._names()
        while names:
            try:
                rows = self._connect().heads(names, beyond, wait_s)
            except TopicNotFoundError as error:
                if not self._options.pattern and self._options.fail_on_data_loss:
                    raise
                self._topics = None
                gone_names = {error.topic, base_of(error.topic)[0]}
                names = [name for name in names if name not in gone_names]
                continue
            return {
                row.topic: StreamEnds(row.number, row.first_offset, row.next_offset) for row in rows
            }
        # Nothing to wait for, but nothing to hurry for either.
        time.sleep(wait_s)
        return {}

    def row_bytes(self) -> Mapping[str, float]:
        """Return the average size of the messages of each stream as it is stored."""
        now = self._now()
        if self._sizes is None or now - self._sizes[0] > SIZES_S:
            found: dict[str, float] = {}
            for pattern in (self._options.pattern,) if self._options.pattern else self._names():
                for report in self._connect().topics(pattern):
                    if report.stream is not None:
                        count = report.next_offset - report.stream.first_offset
                        found[report.topic] = report.stream.stored_bytes / max(1, count)
            self._sizes = now, found
        return self._sizes[1]

    def positions(
        self, bound: ReadBound, heads: EndsByStream, *, otherwise: Origin
    ) -> dict[str, StreamPosition]:
        """Return where a bound lies in each stream; `otherwise` where it does not say.

        Raises `MessagesLostError` for an offset that retention has dropped, unless
        `failOnDataLoss` is false, and `BadRequestError` for one beyond the end.
        """
        _check_partitions_exist(bound, heads)
        found: dict[str, StreamPosition] = {}
        for stream, head in heads.items():
            topic, partition = base_of(stream)
            wanted = bound.offset(topic, partition, otherwise=otherwise)
            if wanted is Origin.EARLIEST:
                offset = head.first_offset
            elif wanted is Origin.LATEST:
                offset = head.next_offset
            elif wanted is Origin.TIME:
                offset = self._offset_at(stream, bound.at_ms)
            else:
                assert isinstance(wanted, int)
                offset = self._check_offset(stream, wanted, head)
            found[stream] = StreamPosition(head.number, offset)
        return found

    def _check_offset(self, stream: str, offset: int, head: StreamEnds) -> int:
        if offset > head.next_offset:
            raise BadRequestError(
                f"offset {offset} of {stream!r} is beyond its end, which is {head.next_offset}"
            )
        if offset >= head.first_offset:
            return offset
        reason = retention_loss(offset, head.first_offset)
        if self._options.fail_on_data_loss:
            raise MessagesLostError(stream, reason)
        logger.warning("messages_lost", topic=stream, reason=reason)
        return head.first_offset

    def _offset_at(self, stream: str, at_ms: int) -> int:
        """Return the first offset from a time on; the broker knows it when a reader is opened."""
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        # With nothing to read: only the answer to opening it is wanted.
        with self._connect().reader(stream, start=at, end=at) as reader:
            return reader.ranges[stream][0]

    def _names(self) -> list[str]:
        if not self._options.pattern:
            return list(self._options.topics)
        now = self._now()
        if self._topics is None or now - self._topics[0] > TOPICS_S:
            found = self._connect().topics(self._options.pattern)
            names = {_base(one.topic) for one in found if one.kind == "stream"}
            self._topics = now, sorted(names)
        return self._topics[1]


def _base(stream: str) -> str:
    found = find_partition(stream)
    return found[0] if found is not None else stream


def _check_partitions_exist(bound: ReadBound, heads: EndsByStream) -> None:
    """Raise `BadRequestError` when a bound names a partition that does not exist."""
    there = {base_of(stream) for stream in heads}
    for topic, partition in sorted(bound.offsets):
        if (topic, partition) not in there:
            raise BadRequestError(
                f"there is no partition {partition} of {topic!r} that offsets are given for"
            )
