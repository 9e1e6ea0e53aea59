"""Places in streams: turns positions that users name into offsets."""

from collections.abc import Callable, Sequence
from functools import partial

from ister.base import TURN_S, Origin, Position
from ister.base.errors import BadRequestError, IsterError, OffsetGoneError
from ister.broker.scheduling import Steps, after_all
from ister.broker.streams.stream import StreamTopic

# Offsets by the number of the topic, or what went wrong.
OnOffsets = Callable[[dict[int, int] | IsterError], object]


# Topics looked at in one step, and topics in which a time is looked up: below 1 ms.
OFFSETS_PER_STEP = 1_024
TIMES_PER_STEP = 64

# For an offset that may be meant as a time, such as `int(time.time())`.
_TIME_HINT = "an int is an offset; for a time give a datetime, or seconds since 1970 as a float"


def resolve(topics: Sequence[StreamTopic], position: Position, done: OnOffsets) -> None:
    """Turn a position into an offset of each topic; a time has to be looked up on the disk."""
    for _ in resolving(topics, position, done):
        pass


def resolving(topics: Sequence[StreamTopic], position: Position, done: OnOffsets) -> Steps:
    """Do as `resolve`, some topics in each step."""
    if position.origin == Origin.TIME:
        yield from _find_times(topics, position.at, done)
        return
    found: dict[int, int] = {}
    try:
        for count, topic in enumerate(topics, 1):
            found[topic.record.topic] = _offset_of(topic, position)
            if count % OFFSETS_PER_STEP == 0:
                yield
    except (BadRequestError, OffsetGoneError) as error:
        done(error)
    else:
        done(found)


def _offset_of(topic: StreamTopic, position: Position) -> int:
    match position.origin:
        case Origin.LATEST:
            return topic.next_offset
        case Origin.EARLIEST:
            return topic.first_offset
        case Origin.OFFSET:
            offset = position.at
            if offset < topic.first_offset:
                raise OffsetGoneError(topic.name, offset, topic.first_offset)
            if offset > topic.next_offset:
                hint = f": {_TIME_HINT}" if offset >= TURN_S else ""
                raise BadRequestError(
                    f"offset {offset} of {topic.name!r} is beyond its end, which is "
                    f"{topic.next_offset}{hint}"
                )
            return offset
        case _:
            raise BadRequestError("a saved cursor is a place to seek to, not to start at")


def _find_times(topics: Sequence[StreamTopic], time_ms: int, done: OnOffsets) -> Steps:
    offsets: dict[int, int] = {}
    each = after_all(len(topics), lambda error: done(error or offsets))

    def on_found(topic: StreamTopic, found: int | Exception) -> None:
        if isinstance(found, int):
            # Retention may have been faster than the disk.
            offsets[topic.record.topic] = max(found, topic.first_offset)
            each(None)
        elif isinstance(found, IsterError):
            each(found)
        else:
            each(BadRequestError(f"{topic.name} cannot be read: {found}"))

    for count, topic in enumerate(topics, 1):
        topic.find_time(time_ms, partial(on_found, topic))
        if count % TIMES_PER_STEP == 0:
            yield
