"""Which topics retention checks each second for messages to drop.

A topic that has changed is checked within a second: it has new messages or, if retention depends on
acknowledgements, new acknowledgements. The other topics are checked in turn, because messages also
expire by age: `ROUND_COUNT` topics each second, so each of 10,000 is checked every ten seconds.

Always true: one turn of the event loop checks at most `TURN_COUNT` topics.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.broker.storage.storage import Storage
    from ister.broker.streams.stream import StreamTopic

# 5 to 20 µs each: a millisecond.
TURN_COUNT = 64
# One percent of a processor.
ROUND_COUNT = 1_000


class Upkeep:
    """The topics of several storages, in the order they are checked."""

    def __init__(self) -> None:
        self._due: deque[StreamTopic] = deque()
        # The topics of this round that are not yet checked, by storage; the last one is next.
        self._rounds: dict[Storage, list[StreamTopic]] = {}

    def begin(self, storage: "Storage") -> None:
        """Queue the topics of a storage that are to be checked in this second."""
        changed, storage.changed = storage.changed, []
        left = self._rounds.get(storage)
        if not left:
            left = self._rounds[storage] = list(storage.topics.values())
        self._due += changed
        self._due += (topic for topic in left[-ROUND_COUNT:] if not topic.changed)
        del left[-ROUND_COUNT:]
        for topic in changed:
            topic.changed = False

    def take(self) -> list["StreamTopic"]:
        """Return the topics to check in this turn of the loop; an empty list when all are done."""
        return [self._due.popleft() for _ in range(min(TURN_COUNT, len(self._due)))]
