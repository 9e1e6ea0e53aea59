"""Timelines in memory: for brokers that are to leave nothing behind, for tests, and to compare.

What is done often finds its place by halving: a million messages take 20 steps. What a consumer has
(`held`) and a topic that goes away look at every message, which is done once in a while: 0.2 s for
a million.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import nsmallest

from ister.base.errors import TopicExistsError
from ister.timeline.model import Row, Slot, Work
from ister.timeline.port import Outcomes, TopicRow
from ister.timeline.rules import apply_changes


class MemoryStore:
    """See `Store`. Durable for as long as the process lives; `close` forgets nothing."""

    def __init__(self) -> None:
        self._topics: dict[int, TopicRow] = {}
        self._rows: dict[int, Row] = {}
        # The seq of each message, by topic and id.
        self._ids: dict[tuple[int, str], int] = {}
        # Position and seq of each message, in order, by topic and level. None is empty.
        self._order: dict[tuple[int, int], list[tuple[int, int]]] = {}
        # The last number of a topic, and the last version, that were given.
        self._number = 0
        self._version = 0

    def topics(self) -> list[TopicRow]:
        """See `Store`."""
        return list(self._topics.values())

    def create_topic(self, name: str, kind: str, settings: bytes) -> TopicRow:
        """See `Store`."""
        if any(topic.name == name for topic in self._topics.values()):
            raise TopicExistsError(name, "in the timelines")
        self._number += 1
        topic = TopicRow(self._number, name, kind, settings)
        self._topics[topic.number] = topic
        return topic

    def delete_topic(self, number: int) -> None:
        """See `Store`."""
        self._topics.pop(number, None)
        for row in [row for row in self._rows.values() if row.topic == number]:
            self.replace(row, None)

    def apply(self, now_ms: int, work: Sequence[Work]) -> list[Outcomes]:
        """See `Store`."""
        outcomes = apply_changes(self, now_ms, work, self._version + 1)
        self._version += sum(len(piece.changes) for piece in work)
        return outcomes

    def scan(
        self, topic: int, level: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[Slot]:
        """See `Store`."""
        order = self._order.get((topic, level), [])
        start = bisect_right(order, after)
        end = min(bisect_left(order, (until_ms + 1,)), start + limit)
        rows = (self._rows[seq] for _, seq in order[start:end])
        return [
            Slot(row.position_ms, row.seq, row.version, row.due_ms, bool(row.holder))
            for row in rows
        ]

    def levels(self, topic: int) -> dict[int, int]:
        """See `Store`."""
        return {level: order[0][0] for level, order in self._levels(topic)}

    def held(self, topic: int, holder: str, after: tuple[int, int], limit: int) -> list[Row]:
        """See `Store`."""
        found = (
            row
            for row in self._rows.values()
            if row.topic == topic and row.holder == holder != "" and _place_of(row) > after
        )
        return nsmallest(limit, found, key=_place_of)

    def get(self, topic: int, id: str) -> Row | None:
        """See `Store`."""
        return self.find(topic, id)

    def page(
        self, topic: int, start_ms: int, end_ms: int, after: tuple[int, int], limit: int
    ) -> list[Row]:
        """See `Store`."""
        found: list[tuple[int, int]] = []
        for _, order in self._levels(topic):
            start = max(bisect_left(order, (start_ms,)), bisect_right(order, after))
            end = min(bisect_left(order, (end_ms,)), start + limit)
            found += order[start:end]
        return [self._rows[seq] for _, seq in sorted(found)[:limit]]

    def count(self, topic: int, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        counts = (
            bisect_left(order, (end_ms,)) - bisect_left(order, (start_ms,))
            for _, order in self._levels(topic)
        )
        return sum(max(count, 0) for count in counts)

    def close(self) -> None:
        """See `Store`."""

    def _levels(self, topic: int) -> list[tuple[int, list[tuple[int, int]]]]:
        found = ((level, order) for (of, level), order in self._order.items() if of == topic)
        return sorted(found, key=lambda item: item[0])

    # See `Rows`

    def has_topic(self, number: int) -> bool:
        """See `Rows`."""
        return number in self._topics

    def find(self, topic: int, id: str) -> Row | None:
        """See `Rows`."""
        seq = self._ids.get((topic, id))
        return None if seq is None else self._rows[seq]

    def find_seq(self, topic: int, seq: int) -> Row | None:
        """See `Rows`."""
        row = self._rows.get(seq)
        return row if row is not None and row.topic == topic else None

    def replace(self, old: Row | None, new: Row | None) -> None:
        """See `Rows`."""
        if old is not None:
            self._remove(old)
        if new is not None:
            self._rows[new.seq] = new
            self._ids[new.topic, new.id] = new.seq
            order = self._order.setdefault((new.topic, new.level), [])
            insort(order, (new.position_ms, new.seq))

    def _remove(self, row: Row) -> None:
        del self._rows[row.seq]
        del self._ids[row.topic, row.id]
        order = self._order[row.topic, row.level]
        del order[bisect_left(order, (row.position_ms, row.seq))]
        if not order:
            del self._order[row.topic, row.level]


def _place_of(row: Row) -> tuple[int, int]:
    return row.position_ms, row.seq
