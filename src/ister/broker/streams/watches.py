"""Waiting for messages without taking any: a watch is answered once a stream has new ones.

Always true:
- a watch answers once: when a stream has messages beyond what its client knows, when one of its
  topics is gone, or when its time is over;
- afterwards nothing holds it: no topic, no timer, no list of those that wait for partitions;
- of a topic, it has what comes while it waits kept in memory, and that is the answer's cause.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ister.base import Clock, Timer
from ister.base.errors import BadRequestError, IsterError, ShardMovedError, TopicNotFoundError
from ister.base.limits import WATCH_MS_MAX, WATCHED_STREAMS_MAX
from ister.broker.streams.stream import StreamTopic


class Head(NamedTuple):
    """Where a stream begins and ends. `number` is that of its record: no other topic gets it."""

    topic: str
    number: int
    first_offset: int
    next_offset: int


OnHeads = Callable[[list[Head] | IsterError], object]


class Watch:
    """Somebody who waits for some streams. Made by `Watching.watch`."""

    def __init__(self, watching: "Watching", topics: Sequence[str], done: OnHeads) -> None:
        self._watching = watching
        self._topics = topics
        self._done = done
        self._seats: list[Seat] = []
        self._timer: Timer | None = None
        self._ended = False

    def close(self) -> None:
        """Tell nobody any more. Harmless when it has answered."""
        if self._ended:
            return
        self._ended = True
        self._watching.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for seat in self._seats:
            # A deleted one has forgotten its followers, or is about to.
            if not seat.stream.deleted:
                seat.stream.followers.pop(seat, None)
        self._seats = []

    def answer(self) -> None:
        """Tell the heads as they are now."""
        if self._ended:
            return
        self.close()
        self._done(self._watching.heads_or_error(self._topics))

    def asks_for(self, topic: str) -> bool:
        """Whether a topic is among those it was made for, by that very name."""
        return topic in self._topics

    def wait(
        self, streams: Sequence[StreamTopic], beyond: Mapping[str, int], wait_ms: int, clock: Clock
    ) -> None:
        """Answer later. Each of the streams is in `beyond`."""
        self._seats = [Seat(self, stream, beyond[stream.name]) for stream in streams]
        for seat in self._seats:
            seat.stream.followers[seat] = None
        self._watching.waiting.add(self)
        self._timer = clock.call_later(min(wait_ms, WATCH_MS_MAX) / 1000, self.answer)


class Seat:
    """The place of a watch at one of its streams: what comes there concerns no other stream."""

    __slots__ = ("_known", "_watch", "stream")

    def __init__(self, watch: Watch, stream: StreamTopic, known: int) -> None:
        self.stream = stream
        self._watch = watch
        self._known = known

    @property
    def is_durable(self) -> bool:
        """See `Follower`."""
        return False

    @property
    def listening(self) -> bool:
        """See `Follower`: who waits for messages comes for them next, and finds them in memory."""
        return True

    @property
    def floor(self) -> int | None:
        """See `Follower`."""
        return None

    def on_new(self) -> None:
        """Messages have become visible, or some are gone, which is nothing new."""
        if self.stream.next_offset > self._known:
            self._watch.answer()

    def on_trimmed(self) -> None:
        """See `Follower`."""
        self.on_new()

    def on_topic_deleted(self) -> None:
        """The topic is gone: the client gets the error of looking it up."""
        self._watch.answer()

    def on_lost(self, error: ShardMovedError) -> None:
        """See `Follower`: as when the topic is gone."""
        self._watch.answer()


class Watching:
    """The watches of a broker, and the heads of its streams."""

    def __init__(self, find_streams: Callable[[str], Sequence[StreamTopic]], clock: Clock) -> None:
        """`find_streams` finds a stream or the partitions of one, or raises what is wrong."""
        self.waiting: set[Watch] = set()
        self._find_streams = find_streams
        self._clock = clock

    def watch(
        self, topics: Sequence[str], beyond: Mapping[str, int], wait_ms: int, done: OnHeads
    ) -> Watch | None:
        """Call `done` with the heads of some streams, maybe at once; return the watch if it waits.

        A partitioned topic stands for its partitions, those to come as well. Raises
        `TopicNotFoundError` and `WrongKindError`.
        """
        streams = self._streams_of(topics)
        heads = [_head(stream) for stream in streams]
        is_new = any(head.next_offset > beyond.get(head.topic, -1) for head in heads)
        if wait_ms <= 0 or not streams or is_new:
            done(heads)
            return None
        # Only what there is: a client may name the same a hundred thousand times.
        watch = Watch(self, list(dict.fromkeys(topics)), done)
        watch.wait(streams, beyond, wait_ms, self._clock)
        return watch

    def heads_or_error(self, topics: Sequence[str]) -> list[Head] | IsterError:
        """Return the heads as they are now, or what is wrong with the names."""
        try:
            return [_head(stream) for stream in self._streams_of(topics)]
        except IsterError as error:
            return error

    def _streams_of(self, topics: Sequence[str]) -> list[StreamTopic]:
        found: dict[str, StreamTopic] = {}
        # Each name once: of one with a thousand partitions, a command has room for many.
        for name in dict.fromkeys(topics):
            # By name: a topic may be named beside one of its partitions.
            found |= {stream.name: stream for stream in self._find_streams(name)}
            if len(found) > WATCHED_STREAMS_MAX:
                raise BadRequestError(
                    f"more than {WATCHED_STREAMS_MAX} streams at once: ask for some of them"
                )
        for name, stream in found.items():
            # The catalog lists it until every follower was notified.
            if stream.deleted:
                raise TopicNotFoundError(name)
        return list(found.values())

    def on_partitions_added(self, topic: str) -> None:
        """A topic has more partitions: nobody who asked for it knows anything of those."""
        for watch in [watch for watch in self.waiting if watch.asks_for(topic)]:
            watch.answer()


def _head(stream: StreamTopic) -> Head:
    return Head(stream.name, stream.record.topic, stream.first_offset, stream.next_offset)
