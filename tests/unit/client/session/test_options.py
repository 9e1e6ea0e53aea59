"""What applications say about streams, as the wire has it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ister.base import AckSettings, Origin, Position, StreamSettings
from ister.base.errors import BadRequestError
from ister.client.session import (
    ack_settings,
    milliseconds,
    position_of,
    stream_settings,
)

NOTHING_SAID: dict[str, Any] = dict.fromkeys(
    (
        "ack_timeout",
        "max_deliveries",
        "backoff",
        "dead_letter_topic",
        "ordered",
        "in_flight_max",
        "in_flight_bytes_max",
    )
)
NO_SETTINGS: dict[str, Any] = dict.fromkeys(
    ("durability", "retention", "max_age", "max_bytes", "max_messages", "ttl", "dedup_window")
)


@pytest.mark.parametrize(
    ("place", "position"),
    [
        ("latest", Position()),
        ("earliest", Position(origin=Origin.EARLIEST)),
        (0, Position(origin=Origin.OFFSET)),
        (7, Position(origin=Origin.OFFSET, at=7)),
        (datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC), Position(origin=Origin.TIME, at=1_000)),
        (datetime(1969, 1, 1, tzinfo=UTC), Position(origin=Origin.TIME, at=0)),
    ],
)
def test_a_place_is_a_word_an_offset_or_a_time(place: Any, position: Position) -> None:
    assert position_of(place) == position


@pytest.mark.parametrize(
    "place",
    ["first", -1, 2**63, True, 1.5, None, "snapshot", datetime(2024, 1, 1)],  # noqa: DTZ001
)
def test_anything_else_is_no_place(place: Any) -> None:
    with pytest.raises(BadRequestError):
        position_of(place)


def test_a_span_is_seconds_or_a_timedelta() -> None:
    assert milliseconds(1.5, "x") == 1_500
    assert milliseconds(timedelta(minutes=1), "x") == 60_000


@pytest.mark.parametrize("span", [-0.001, 10.001, float("nan"), float("inf"), "1", None])
def test_a_span_is_within_its_bounds(span: Any) -> None:
    with pytest.raises(BadRequestError):
        milliseconds(span, "x", most_ms=10_000)


@pytest.mark.parametrize(
    ("span", "bounds", "text"),
    [
        ("7d", {}, "x is seconds or a timedelta, not '7d': write 604800, or timedelta(days=7)"),
        (None, {}, "x is seconds or a timedelta, not None"),
        (-1, {}, "x is 0 or more, not -1s"),
        (timedelta(days=2), {"least_ms": 1, "most_ms": 86_400_000}, "x is 1ms to 1d, not 2d"),
        (1e300, {"most_ms": 86_400_000}, "x is 0 to 1d, not 1e+300 seconds"),
    ],
)
def test_a_span_out_of_bounds_is_shown_as_people_write_it(
    span: Any, bounds: dict[str, int], text: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        milliseconds(span, "x", **bounds)

    assert str(refused.value) == text


def test_settings_out_of_bounds_are_shown_as_people_write_them() -> None:
    with pytest.raises(BadRequestError, match="dedup_window is 0 to 1d, not 2d"):
        stream_settings("stream", **NO_SETTINGS | {"dedup_window": timedelta(days=2)})
    with pytest.raises(BadRequestError, match="an ack timeout is 1s to 12h, not 13h"):
        ack_settings(ack_timeout=timedelta(hours=13))


def test_who_says_nothing_about_acks_leaves_them_as_they_are() -> None:
    assert ack_settings(**NOTHING_SAID) is None


def test_what_is_said_about_acks_is_checked() -> None:
    said = NOTHING_SAID | {"ack_timeout": 60, "backoff": [1, 2.5], "ordered": True}

    assert ack_settings(**said) == AckSettings(
        ack_timeout_ms=60_000, backoff_ms=(1_000, 2_500), ordered=True
    )
    with pytest.raises(BadRequestError):
        ack_settings(**(NOTHING_SAID | {"ack_timeout": 0.5}))
    with pytest.raises(BadRequestError):
        ack_settings(**(NOTHING_SAID | {"max_deliveries": -1}))


def test_a_stream_has_defaults() -> None:
    assert stream_settings("stream", **NO_SETTINGS) == StreamSettings()


def test_what_is_said_about_a_stream_is_checked() -> None:
    said = NO_SETTINGS | {"max_age": timedelta(days=1), "retention": "compact", "dedup_window": 5}

    assert stream_settings("stream", **said) == StreamSettings(
        max_age_ms=86_400_000, retention="compact", dedup_window_ms=5_000
    )
    with pytest.raises(BadRequestError):
        stream_settings("stream", **(NO_SETTINGS | {"durability": "tape"}))


def test_a_live_topic_has_no_settings() -> None:
    assert stream_settings("live", **NO_SETTINGS) is None
    with pytest.raises(BadRequestError):
        stream_settings("live", **(NO_SETTINGS | {"max_age": 1.0}))
    with pytest.raises(BadRequestError, match="a live topic takes no max_bytes and no ttl"):
        stream_settings("live", **(NO_SETTINGS | {"ttl": 1.0, "max_bytes": 1}))
