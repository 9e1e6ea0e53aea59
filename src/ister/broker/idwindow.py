"""The message ids of the last while: what a stream was sent before, and where it stored that.

Always true: ids are forgotten in the order they came. An id that comes again after its time stands
in that order twice, and is forgotten with the second.
"""

from collections import Counter, deque
from collections.abc import Iterator

from ister.base.limits import DEDUP_IDS_MAX

# Ids that are kept together: one step of a snapshot, of about 3 ms.
CHUNK_COUNT = 4_096


class IdWindow:
    """See the module."""

    __slots__ = ("_again", "_chunks", "_ids")

    def __init__(self) -> None:
        # id → offset, time of storing
        self._ids: dict[str, tuple[int, int]] = {}
        # In the order they came. In chunks, because a snapshot goes over them bit by bit, while
        # others come and go.
        self._chunks: deque[deque[str]] = deque()
        # How often an id stands there too often.
        self._again: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, message_id: str, *, newer_than_ms: int) -> int | None:
        """Return the offset of a message with this id, if it is not too long ago."""
        found = self._ids.get(message_id)
        return found[0] if found is not None and found[1] > newer_than_ms else None

    def add(self, message_id: str, offset: int, time_ms: int) -> None:
        """Remember an id. Once more changes nothing."""
        known, place = self._ids.get(message_id), (offset, time_ms)
        if known == place:
            return
        if known is not None:
            self._again[message_id] += 1
        self._ids[message_id] = place
        if not self._chunks or len(self._chunks[-1]) >= CHUNK_COUNT:
            self._chunks.append(deque())
        self._chunks[-1].append(message_id)

    def forget(self, *, older_than_ms: int) -> None:
        """Forget what is too old, and the oldest of too many."""
        ids, chunks, again = self._ids, self._chunks, self._again
        while chunks:
            oldest = chunks[0][0]
            if oldest in again:
                again[oldest] -= 1
                if not again[oldest]:
                    del again[oldest]
            elif len(ids) > DEDUP_IDS_MAX or ids[oldest][1] < older_than_ms:
                del ids[oldest]
            else:
                return
            chunks[0].popleft()
            if not chunks[0]:
                chunks.popleft()

    def rows(self) -> Iterator[list[tuple[str, int, int]]]:
        """Yield ids with their offsets and times, some at a time.

        What comes or goes between two steps may be among them or not.
        """
        ids = self._ids
        for chunk in list(self._chunks):
            yield [(i, *ids[i]) for i in chunk if i in ids]
