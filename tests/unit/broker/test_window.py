"""Walking over a stream: from memory when it can, else by reading ahead."""

from collections.abc import Callable
from typing import cast

import pytest

from ister.broker.streams.read_ahead import READ_BYTES_MIN, ReadAhead, ReadAheadBudget, cut
from ister.broker.streams.stream import READ_BYTES, StreamTopic
from ister.codec import Batch, encode


def batch(base_offset: int, count: int = 10, offsets: list[int] | None = None) -> Batch:
    head, body = encode([b"x"] * count, offsets=offsets)
    made = Batch(head + body)
    made.stamp(base_offset, 0)
    return made


class FakeTopic:
    """Ten batches of ten messages; those from `in_memory` on are in memory."""

    def __init__(self, in_memory: int = 100) -> None:
        self.next_offset = 100
        self.in_memory = in_memory
        self.batches = [batch(base) for base in range(0, 100, 10)]
        self.loads: list[tuple[int, int]] = []
        self.pending: list[Callable[[list[Batch] | Exception], object]] = []

    def find(self, offset: int) -> Batch | None:
        return self.batches[offset // 10] if self.in_memory <= offset < 100 else None

    def load(
        self, offset: int, bytes_max: int, done: Callable[[list[Batch] | Exception], object]
    ) -> bool:
        self.loads.append((offset, bytes_max))
        self.pending.append(done)
        return offset < 100

    def loaded(self, count: int = 2) -> None:
        """Finish the read that was asked for last."""
        start = self.loads[-1][0] // 10
        self.pending.pop()(self.batches[start : start + count])


class Walk:
    def __init__(self, topic: FakeTopic, shared: ReadAheadBudget | None = None) -> None:
        self.topic = topic
        self.told: list[Exception | None] = []
        self.window = ReadAhead(
            cast("StreamTopic", topic), shared or ReadAheadBudget(), self.told.append
        )


def test_what_is_in_memory_is_never_read() -> None:
    walk = Walk(FakeTopic(in_memory=0))

    assert walk.window.batch_at(42) is walk.topic.batches[4]
    assert walk.topic.loads == []


def test_what_is_not_in_memory_is_read_once_and_told() -> None:
    walk = Walk(FakeTopic())

    assert walk.window.batch_at(0) is None
    assert walk.window.batch_at(0) is None
    assert [offset for offset, _ in walk.topic.loads] == [0]
    walk.topic.loaded()

    assert walk.told == [None]
    assert walk.window.batch_at(0) is walk.topic.batches[0]


def test_the_next_read_is_under_way_while_the_last_batch_is_used() -> None:
    walk = Walk(FakeTopic())
    walk.window.batch_at(0)
    walk.topic.loaded(count=2)

    walk.window.batch_at(0)
    assert len(walk.topic.loads) == 1
    walk.window.batch_at(10)

    assert [offset for offset, _ in walk.topic.loads] == [0, 20]


def test_reading_ahead_stops_where_memory_begins() -> None:
    walk = Walk(FakeTopic(in_memory=20))
    walk.window.batch_at(0)
    walk.topic.loaded(count=2)
    walk.window.batch_at(10)

    assert len(walk.topic.loads) == 1
    assert walk.window.batch_at(20) is walk.topic.batches[2]


def test_going_back_reads_anew() -> None:
    walk = Walk(FakeTopic())
    walk.window.batch_at(50)
    walk.topic.loaded()
    walk.window.batch_at(50)

    assert walk.window.batch_at(10) is None
    assert walk.topic.loads[-1][0] == 10


def test_a_read_from_before_a_clear_is_not_used() -> None:
    walk = Walk(FakeTopic())
    walk.window.batch_at(50)
    walk.window.clear()
    walk.topic.loaded()

    assert walk.told == []
    assert walk.window.batch_at(0) is None


def test_a_failed_read_is_told_and_may_be_tried_again() -> None:
    walk = Walk(FakeTopic())
    walk.window.batch_at(0)
    error = OSError("unreadable")
    walk.topic.pending.pop()(error)

    assert walk.told == [error]
    walk.window.batch_at(0)
    assert len(walk.topic.loads) == 2


def test_many_windows_read_less_each() -> None:
    shared = ReadAheadBudget()
    assert shared.read_bytes == READ_BYTES
    walks = [Walk(FakeTopic(), shared) for _ in range(1_000)]
    for walk in walks:
        walk.window.batch_at(0)

    # None has come yet, so that nothing can be let go.
    assert shared.windows == 1_000
    assert shared.read_bytes == READ_BYTES_MIN
    for walk in walks:
        walk.window.clear()
    assert shared.read_bytes == READ_BYTES


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 100, range(20, 30)),
        (20, 30, range(20, 30)),
        (25, 100, range(25, 30)),
        (0, 25, range(20, 25)),
        (29, 30, range(29, 30)),
        (30, 40, None),
        (0, 20, None),
    ],
)
def test_a_batch_is_cut_to_a_range(start: int, end: int, expected: range | None) -> None:
    part = cut(batch(20), start, end)

    assert (None if part is None else part.offsets) == expected


def test_a_compacted_batch_is_cut_by_the_offsets_it_has() -> None:
    sparse = batch(20, count=3, offsets=[20, 25, 29])

    kept = cut(sparse, 21, 29)

    assert kept is not None
    assert list(kept.offsets) == [25]
    assert cut(sparse, 26, 29) is None
