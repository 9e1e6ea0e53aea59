"""What became of many messages: their ids, each made when it is looked at.

A batch of thousands is acknowledged by one number. Making an object for each of its messages would
cost more than sending them did.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, overload

from ister.base import find_partition

# What the broker answers about a message that it stored so long ago that it forgot where.
OFFSET_FORGOTTEN = 2**64 - 1
# What a message has that waits to be published.
OFFSET_DELAYED = 2**64 - 2
# What the application is told then.
OFFSET_UNKNOWN = -1


class MessageId(NamedTuple):
    """Where a sent message ended up."""

    topic: str
    offset: int

    @property
    def partition(self) -> int | None:
        """The partition, or `None` when the topic has none."""
        found = find_partition(self.topic)
        return found[1] if found else None

    @property
    def duplicate(self) -> bool:
        """Whether a message of the same id was there before, so that this one was not stored."""
        return False

    @property
    def delayed(self) -> bool:
        """Whether it waits for its time, on the broker's disk: until then `offset` is -1."""
        return False


class DuplicateId(MessageId):
    """Where the message is that was sent before under the same id. Equal to its own id."""

    __slots__ = ()

    @property
    def duplicate(self) -> bool:
        """See `MessageId`."""
        return True


class DelayedId(MessageId):
    """The topic that a message will be published to. It gets an offset when it is due."""

    __slots__ = ()

    @property
    def delayed(self) -> bool:
        """See `MessageId`."""
        return True


@dataclass(frozen=True, slots=True)
class Stored:
    """Messages that were acknowledged together."""

    topic: str
    base_offset: int
    count: int
    # Of each message, when they do not follow each other; as in `PublishedEach`.
    offsets: list[int] | None = None

    def id_at(self, slot: int) -> MessageId:
        """Return the id of one of them."""
        if self.offsets is not None:
            return message_id(self.topic, self.offsets[slot])
        return MessageId(self.topic, self.base_offset + slot)


def message_id(topic: str, offset: int) -> MessageId:
    """Return the id for an offset as `PublishedEach` has it: inverted when it was known before."""
    if offset < 0:
        return DuplicateId(topic, ~offset)
    if offset == OFFSET_DELAYED:
        return DelayedId(topic, OFFSET_UNKNOWN)
    return MessageId(topic, OFFSET_UNKNOWN if offset == OFFSET_FORGOTTEN else offset)


def places_of(order: Sequence[int]) -> list[int]:
    """Return for each message its place in `order`, which lists them all as they were stored."""
    places = [0] * len(order)
    for place, slot in enumerate(order):
        places[slot] = place
    return places


class MessageIds(Sequence[MessageId]):
    """The ids of many messages, in the order they were given to be sent.

    A sequence like a list, and equal to a list of the same ids.
    """

    __slots__ = ("_ends", "_places", "_stored")

    def __init__(self, stored: Sequence[Stored], places: Sequence[int] | None = None) -> None:
        """`places` says for every message which of all those stored it is; `None`: in order."""
        self._stored = stored
        self._ends = list(accumulate(s.count for s in stored))
        self._places = places

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, slot: int) -> MessageId: ...
    @overload
    def __getitem__(self, slot: slice) -> list[MessageId]: ...
    def __getitem__(self, slot: int | slice) -> MessageId | list[MessageId]:
        count = len(self)
        if isinstance(slot, slice):
            return [self._id(s) for s in range(*slot.indices(count))]
        if not -count <= slot < count:
            raise IndexError(f"message {slot} of {count}")
        return self._id(slot % count)

    def __iter__(self) -> Iterator[MessageId]:
        if self._places is not None:
            yield from map(self._id, range(len(self)))
            return
        for stored in self._stored:
            yield from map(stored.id_at, range(stored.count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageIds | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def __repr__(self) -> str:
        first = ", ".join(repr(one) for one in self[:3])
        return f"MessageIds([{first}{', ...' if len(self) > 3 else ''}], count={len(self)})"

    def _id(self, slot: int) -> MessageId:
        place = slot if self._places is None else self._places[slot]
        number = bisect_right(self._ends, place)
        start = self._ends[number - 1] if number else 0
        return self._stored[number].id_at(place - start)
