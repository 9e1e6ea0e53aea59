"""What a stream need not keep, as a plan."""

from typing import Any

import pytest

from ister.base import Retention, StreamSettings
from ister.broker.streams.retention import RetentionPlan, plan_retention

NOW_MS = 1_000_000


def plan(floors: tuple[int, ...] = (), bytes_start: int = 0, **settings: Any) -> RetentionPlan:
    return plan_retention(
        StreamSettings(**settings),
        floors,
        next_offset=20,
        bytes_start=bytes_start,
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize(
    ("retention", "floors", "expected"),
    [
        (Retention.INTEREST, (7, 3, 9), 3),
        (Retention.INTEREST, (), 20),
        (Retention.WORKQUEUE, (7,), 7),
        (Retention.WORKQUEUE, (), 0),
        (Retention.LIMITS, (7,), 0),
        (Retention.COMPACT, (7,), 0),
    ],
)
def test_messages_are_dropped_once_all_who_are_interested_have_acked_them(
    retention: str, floors: tuple[int, ...], expected: int
) -> None:
    assert plan(floors, retention=retention) == RetentionPlan(expected, 0)


def test_no_limit_drops_unacknowledged_messages_of_a_work_queue() -> None:
    found = plan(
        (2,),
        bytes_start=9,
        retention=Retention.WORKQUEUE,
        max_messages=1,
        max_bytes=1,
        max_age_ms=1,
    )

    assert found == RetentionPlan(2, 0)


def test_the_strictest_limit_counts() -> None:
    assert plan(bytes_start=9, max_messages=5, max_bytes=1).first_offset == 15
    assert plan(bytes_start=17, max_messages=5, max_bytes=1).first_offset == 17
    assert plan(bytes_start=17, max_messages=5).first_offset == 15
    assert plan((18,), max_messages=5, retention=Retention.INTEREST).first_offset == 18


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ({}, 0),
        ({"max_age_ms": 300}, NOW_MS - 300),
        ({"ttl_ms": 200}, NOW_MS - 200),
        ({"max_age_ms": 300, "ttl_ms": 200}, NOW_MS - 200),
        ({"max_age_ms": 300, "retention": Retention.COMPACT}, 0),
    ],
)
def test_messages_are_dropped_at_the_shorter_of_two_ages_unless_compacted(
    ages: dict[str, Any], expected: int
) -> None:
    assert plan(**ages).older_than_ms == expected
