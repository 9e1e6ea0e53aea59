"""Figures that the index knows without reading a file."""

from array import array
from typing import cast

import pytest

from ister.log.files.segment import Place, Segment, Span
from ister.log.index.figures import offset_within, segment_count, time_of, total_bytes
from ister.log.index.index import Index

TOPIC = 7
FIRST, SECOND = Segment(1, Place.LOCAL), Segment(2, Place.LOCAL)


class FakeIndex:
    """Two sealed segments of 100 messages and 1,000 B each, then 20 messages in 200 B."""

    segments = (FIRST, SECOND)

    def spans(self, topic: int) -> list[Span]:
        if topic != TOPIC:
            return []
        return [
            Span(FIRST, 0, 100, 1_000, 1_999, 1_000),
            Span(SECOND, 100, 200, 2_000, 2_999, 1_000),
        ]

    def open_rows(self, topic: int) -> "array[int]":
        # position, end, first offset, end offset, first time, last time, own bytes
        return array("q", [0, 200, 200, 220, 3_000, 3_100, 200] if topic == TOPIC else [])


INDEX = cast("Index", FakeIndex())


@pytest.mark.parametrize(
    ("bytes_max", "offset"),
    [
        (10_000, 0),
        (2_200, 0),
        (2_199, 1),
        (1_200, 100),
        (700, 150),
        (200, 200),
        (100, 210),
        (0, 220),
    ],
)
def test_a_limit_in_bytes_keeps_the_newest_messages_that_fit(bytes_max: int, offset: int) -> None:
    assert offset_within(INDEX, TOPIC, bytes_max) == offset


def test_a_topic_without_messages_has_nothing_to_drop() -> None:
    assert offset_within(INDEX, 8, 0) == 0


@pytest.mark.parametrize(
    ("offset", "time_ms"),
    [(0, 1_000), (99, 1_000), (100, 2_000), (200, 3_000), (219, 3_000), (220, None)],
)
def test_a_time_is_that_of_the_first_message_nearby(offset: int, time_ms: int | None) -> None:
    assert time_of(INDEX, TOPIC, offset) == time_ms


def test_segments_and_bytes_are_counted() -> None:
    assert segment_count(INDEX, TOPIC) == 3
    assert segment_count(INDEX, 8) == 0
    assert total_bytes(INDEX) == sum(s.size_bytes for s in FakeIndex.segments)
