"""What acknowledgements mean for retention."""

import pytest

from ister.base import Retention
from ister.subscriptions import limits_end, settled_end


@pytest.mark.parametrize(
    ("retention", "floors", "expected"),
    [
        (Retention.INTEREST, [7, 3, 9], 3),
        (Retention.INTEREST, [], 20),
        (Retention.WORKQUEUE, [7], 7),
        (Retention.WORKQUEUE, [], 0),
        (Retention.LIMITS, [7], 0),
        (Retention.COMPACT, [7], 0),
    ],
)
def test_messages_go_when_all_who_are_interested_have_acked_them(
    retention: str, floors: list[int], expected: int
) -> None:
    assert settled_end(retention, floors, next_offset=20) == expected


@pytest.mark.parametrize(
    ("retention", "floors", "expected"),
    [
        (Retention.WORKQUEUE, [7], 7),
        (Retention.WORKQUEUE, [], 0),
        (Retention.INTEREST, [7], 20),
        (Retention.LIMITS, [7], 20),
    ],
)
def test_limits_never_remove_from_a_work_queue_what_is_not_acked(
    retention: str, floors: list[int], expected: int
) -> None:
    assert limits_end(retention, floors, next_offset=20) == expected
