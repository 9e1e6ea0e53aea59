"""A reader: sends a range of a stream as it is stored, as fast as its client takes it.

It has no subscription and acknowledges nothing. Always true: batches leave in the order of their
offsets, cut to the range, and never without credit (byte credit may be overdrawn by one batch).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ister.base import Origin, Position
from ister.base.errors import (
    ClosedError,
    CompactedError,
    InternalError,
    IsterError,
    OffsetGoneError,
    ShardMovedError,
    StorageFailedError,
)
from ister.base.limits import CREDIT_MAX
from ister.broker.scheduling import Turns
from ister.broker.streams.positions import resolve
from ister.broker.streams.read_ahead import ReadAhead, ReadAheadBudget, cut
from ister.broker.streams.stream import StreamTopic
from ister.codec import Batch


class ReaderSink(Protocol):
    """The way to a reader's client: a door implements it for one connection."""

    writable: bool

    def deliver(self, channel: int, topic: StreamTopic, batch: Batch) -> None:
        """Send a batch."""

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        """Tell that everything was sent, or why no more comes."""


class Reader:
    """Sends a range of one stream to one client."""

    def __init__(
        self,
        topic: StreamTopic,
        *,
        sink: ReaderSink,
        channel: int,
        start: int,
        end: int | None,
        turns: Turns,
        shared: ReadAheadBudget,
        past: "Past | None" = None,
    ) -> None:
        self.topic = topic
        self.position = start
        self.end = end
        # What has to be there still when everything was sent.
        self._past = past
        self._sink = sink
        self._channel = channel
        self._credit_count = 0
        self._credit_bytes = 0
        self._ended = False
        self._pumping = False
        self._turns = turns
        # Whether it goes on in a later turn of the loop.
        self._waits = False
        self._shared = shared
        self._window = ReadAhead(topic, shared, self._on_loaded)
        topic.followers[self] = None

    def grant(self, count: int, size_bytes: int) -> None:
        """Add credit, and use it."""
        self._credit_count = min(self._credit_count + count, CREDIT_MAX)
        self._credit_bytes = min(self._credit_bytes + size_bytes, CREDIT_MAX)
        self.pump()

    def pump(self) -> None:
        """Send while credit and connection allow."""
        if self._pumping or self._ended:
            return
        if not self._turns.join():
            self._wait()
            return
        self._pumping = True
        try:
            while self._step():
                if self._turns.is_over():
                    self._wait()
                    break
        finally:
            self._pumping = False
        if self._shared.crowded and not self._may_send:
            self._window.clear()

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._turns.wait(self)

    def go_through(self) -> None:
        """Go on with what an earlier turn was too short for."""
        self._waits = False
        self.pump()

    @property
    def _may_send(self) -> bool:
        return self._credit_count > 0 and self._credit_bytes > 0 and self._sink.writable

    @property
    def is_durable(self) -> bool:
        """See `Follower`."""
        return False

    @property
    def listening(self) -> bool:
        """See `Follower`: who reads up to an end is not interested in what comes now."""
        return self.end is None

    @property
    def floor(self) -> int | None:
        """See `Follower`."""
        return None

    def on_new(self) -> None:
        """Messages have become visible."""
        if self._credit_count > 0:
            self.pump()

    def on_trimmed(self) -> None:
        """See `Follower`."""
        self.on_new()

    def on_topic_deleted(self) -> None:
        """The topic is gone."""
        self._stop(ClosedError(f"the reader of {self.topic.name!r} (the topic was deleted)"))

    def on_lost(self, error: ShardMovedError) -> None:
        """See `Follower`."""
        self._stop(error)

    def close(self) -> None:
        """Send no more."""
        if not self._ended:
            self._ended = True
            self._window.clear()
            self.topic.followers.pop(self, None)

    def _step(self) -> bool:
        if self._ended:
            return False
        topic = self.topic
        end = topic.next_offset if self.end is None else min(self.end, topic.next_offset)
        if self.position >= end:
            if end == self.end:
                # A rewrite may have come into force while this was reading.
                self._stop(None if self._past is None else self._past.find_error())
            return False
        if self.position < topic.first_offset:
            self._stop(OffsetGoneError(topic.name, self.position, topic.first_offset))
            return False
        if not self._may_send:
            return False
        batch = self._window.batch_at(self.position)
        if batch is None:
            if self._window.loading:
                return False
            # Compaction has left nothing from here on: of a topic that is not compacted it would
            # be read now, or be an error.
            self.position = end
            return True
        part = cut(batch, self.position, end)
        if part is None:
            # Compaction has left nothing between here and the end.
            self.position = min(end, batch.offsets[-1] + 1)
            return True
        if part.count > self._credit_count:
            part = part.slice(0, self._credit_count)
        self._credit_count -= part.count
        self._credit_bytes -= part.size_bytes
        self.position = part.offsets[-1] + 1
        topic.messages_out += part.count
        self._sink.deliver(self._channel, topic, part)
        return True

    def _on_loaded(self, error: Exception | None) -> None:
        if error is None:
            self.pump()
        elif isinstance(error, IsterError):
            self._stop(error)
        elif isinstance(error, OSError):
            # Not corrupt, as far as anybody knows: a later attempt may well succeed.
            where = f"message {self.position} of {self.topic.name!r} cannot be read"
            self._stop(StorageFailedError(f"{where}: {error}"))
        else:
            self._stop(InternalError(type(error).__name__))

    def _stop(self, error: IsterError | None) -> None:
        self.close()
        self._sink.reader_ended(self._channel, error)


class Past(NamedTuple):
    """What a stream held at an offset, for who wants all of that or an error."""

    topic: StreamTopic
    end: int
    # Whether the offset was found by a time: then it is that of the next message that is left.
    is_of_time: bool

    def find_error(self) -> CompactedError | None:
        """Return the error if compaction has dropped some of it."""
        topic = self.topic
        found = topic.storage.log.find_compacted(topic.record.topic, topic.first_offset)
        # The messages between the time and the next message that is left may be gone, too.
        is_unsure = self.is_of_time and found.ends_in_hole
        known_from = found.end_offset + is_unsure
        if not self.end or self.end >= known_from:
            return None
        return CompactedError(topic.name, self.end - 1, known_from - 1)


OnReader = Callable[[Reader | IsterError], object]


def open_reader(
    topic: StreamTopic,
    start: Position,
    end: Position | None,
    done: OnReader,
    *,
    turns: Turns,
    shared: ReadAheadBudget,
    sink: ReaderSink,
    channel: int,
    whole: bool = False,
) -> None:
    """Open a reader of one stream topic; it sends nothing before it is granted credit.

    With `whole` it ends with `CompactedError` if compaction has dropped some of what the stream
    held at the end of its range.
    """
    topic.storage.committer.check_owned()
    start.check()
    if end is not None:
        end.check()
    number = topic.record.topic

    def on_start(found: dict[int, int] | IsterError) -> None:
        if isinstance(found, IsterError):
            done(found)
        elif end is None:
            opened(found[number], None)
        else:
            first = found[number]
            resolve([topic], end, lambda last: on_end(first, last))

    def on_end(first: int, found: dict[int, int] | IsterError) -> None:
        if isinstance(found, OffsetGoneError) and not whole:
            opened(first, first)  # All of the range is gone.
        elif isinstance(found, IsterError):
            done(found)
        else:
            opened(first, max(first, found[number]))

    def opened(first: int, last: int | None) -> None:
        past = None
        if whole and last is not None and end is not None:
            past = Past(topic, last, end.origin == Origin.TIME)
            error = past.find_error()
            if error is not None:
                done(error)
                return
        reader = Reader(
            topic,
            sink=sink,
            channel=channel,
            start=first,
            end=last,
            turns=turns,
            shared=shared,
            past=past,
        )
        done(reader)

    resolve([topic], start, on_start)
