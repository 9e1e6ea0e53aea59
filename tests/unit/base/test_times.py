"""Points in time and delays that applications give: a number is one or the other."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ister.base import check_milliseconds, delay_us, epoch_us
from ister.base.errors import BadRequestError

NOW_S = 1_763_500_000


@pytest.mark.parametrize(
    ("time", "expected_us"),
    [
        (NOW_S, NOW_S * 1_000_000),
        (NOW_S + 0.5, NOW_S * 1_000_000 + 500_000),
        (1_000_000_000, 1_000_000_000_000_000),
        (datetime.fromtimestamp(NOW_S, UTC), NOW_S * 1_000_000),
        (datetime.fromtimestamp(NOW_S, timezone(timedelta(hours=5))), NOW_S * 1_000_000),
        (datetime(1960, 1, 1, tzinfo=UTC), 0),
        (datetime(1980, 1, 1, tzinfo=UTC), 315_532_800_000_000),
    ],
)
def test_a_time_is_a_datetime_or_seconds_since_1970(time: Any, expected_us: int) -> None:
    assert epoch_us(time) == expected_us


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (60.0, r"write after=60\.0, for an old time a datetime"),
        (999_999_999, "write after=999999999"),
        (-1, "is long ago"),
        (float("nan"), "is long ago"),
        (NOW_S * 1000, "later than the year 9999: these are milliseconds, write 1763500000$"),
        (253_402_300_800, "later than the year 9999"),
        (float("inf"), "later than the year 9999$"),
        (datetime(2030, 1, 1), r"no time zone: use `datetime.now\(UTC\)`"),  # noqa: DTZ001
        (True, "not True"),
        ("2030-01-01", "not '2030-01-01'"),
    ],
)
def test_a_time_that_is_something_else_is_refused_with_the_fix(time: Any, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        epoch_us(time)


def test_a_delay_is_seconds_or_a_timedelta() -> None:
    assert delay_us(1.5) == delay_us(timedelta(seconds=1.5)) == 1_500_000
    assert delay_us(0) == 0
    assert delay_us(timedelta(days=20_000)) == 20_000 * 86_400_000_000


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (NOW_S, "write at=1763500000, for so long a delay a timedelta"),
        (NOW_S * 1000, "write at=1763500000,"),
        (-0.001, "0 or more"),
        (float("nan"), "0 or more"),
        (timedelta(seconds=-1), "0 or more"),
        (False, "not False"),
        (datetime(2030, 1, 1, tzinfo=UTC), "after is seconds from now"),
    ],
)
def test_a_delay_that_is_something_else_is_refused_with_the_fix(delay: Any, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        delay_us(delay)


def test_seconds_where_milliseconds_belong_are_refused() -> None:
    check_milliseconds(0, "`at`")
    check_milliseconds(NOW_S * 1000, "`at`")
    with pytest.raises(BadRequestError, match="write 1763500000000"):
        check_milliseconds(NOW_S, "`at`")
