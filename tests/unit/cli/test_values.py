"""What people type for places, spans and sizes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ister.base.errors import BadRequestError
from ister.cli.console.values import (
    parse_delay_option,
    parse_place,
    parse_size_option,
    parse_span_option,
    parse_time_option,
)

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("123456789", 123_456_789),
        ("15m", NOW - timedelta(minutes=15)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-15T10:00Z", datetime(2026, 11, 15, 10, tzinfo=UTC)),
        ("2026-11-15T10:00+02:00", datetime(2026, 11, 15, 8, tzinfo=UTC)),
    ],
)
def test_a_place_is_a_word_an_offset_a_time_or_a_span_ago(text: str, place: object) -> None:
    assert parse_place(text, "--start", now=NOW) == place


def test_a_time_without_a_zone_is_refused_with_the_fix() -> None:
    wanted = r"no time zone: write 2026-11-15T10:00:00Z, or"
    with pytest.raises(BadRequestError, match=wanted):
        parse_place("2026-11-15T10:00", "--start")
    with pytest.raises(BadRequestError, match=wanted):
        parse_time_option("2026-11-15T10:00", "--at", "--in")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-15T10:00Z", datetime(2026, 11, 15, 10, tzinfo=UTC)),
        (
            "2026-11-15T10:00:00.5+02:00",
            datetime(2026, 11, 15, 10, 0, 0, 500_000, tzinfo=timezone(timedelta(hours=2))),
        ),
        ("1763500000", 1_763_500_000.0),
        ("1763500000.5", 1_763_500_000.5),
    ],
)
def test_a_time_has_a_zone_or_counts_from_1970(text: str, time: object) -> None:
    assert parse_time_option(text, "--at", "--in") == time


@pytest.mark.parametrize("text", ["", "soon", "10s", "60", "2026-13-01", "99999-01-01"])
def test_what_is_no_time_is_refused_with_the_option_and_the_way_out(text: str) -> None:
    with pytest.raises(BadRequestError, match=r"--at .* is no time: write it as 2026-"):
        parse_time_option(text, "--at", "--in")


def test_numbers_of_the_wrong_size_are_refused_with_the_fix() -> None:
    with pytest.raises(BadRequestError, match=r"milliseconds, write 1763500000$"):
        parse_time_option("1763500000000", "--at", "--in")
    with pytest.raises(BadRequestError, match=r"since 1970 write --at=1763500000\.0"):
        parse_delay_option("1763500000", "--in", "--at")


@pytest.mark.parametrize("text", ["", "soon", "-1", "2026-13-01", "1e9", "999999999999d"])
def test_what_is_no_place_is_refused_with_the_option_and_the_way_out(text: str) -> None:
    with pytest.raises(BadRequestError, match=r"--start .* is no place: earliest, latest"):
        parse_place(text, "--start", now=NOW)


def test_options_that_were_not_given_stay_unset() -> None:
    assert parse_span_option(None, "--ttl") is None
    assert parse_size_option(None, "--max-bytes") is None


def test_options_are_spans_and_sizes() -> None:
    assert parse_span_option("1h", "--ttl") == 3_600.0
    assert parse_size_option("2KiB", "--max-bytes") == 2_048


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(BadRequestError, match="--ttl 'x' is no time span"):
        parse_span_option("x", "--ttl")
    with pytest.raises(BadRequestError, match="--max-bytes 'x' is no size"):
        parse_size_option("x", "--max-bytes")
