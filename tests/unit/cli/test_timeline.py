"""What people are shown of messages of a timeline."""

import pytest

from ister.base.limits import TIME_MS_MAX
from ister.cli.timelines.rows import state_of, timeline_row
from ister.client import TimelineMessage

DUE_MS = 1_000_000


def message(
    *, due_ms: int = DUE_MS, holder: str = "", until_ms: int = 0, payload: bytes = b"x"
) -> TimelineMessage:
    return TimelineMessage(
        id="r-1",
        version=7,
        due_ms=due_ms,
        payload=payload,
        attributes={"a": "1"},
        group="shop",
        attempts=1 if holder else 0,
        holder=holder,
        until_ms=until_ms,
        priority=0,
    )


@pytest.mark.parametrize(("now_ms", "state"), [(DUE_MS - 1, "waiting"), (DUE_MS, "available")])
def test_what_nobody_has_is_available_from_when_it_is_due(now_ms: int, state: str) -> None:
    assert state_of(message(), now_ms) == state


@pytest.mark.parametrize(
    ("now_ms", "state"),
    [
        (DUE_MS - 1, "prefetched"),
        (DUE_MS, "processing"),
        (DUE_MS + 999, "processing"),
        (DUE_MS + 1_000, "available"),
    ],
)
def test_what_a_consumer_has_is_processing_until_its_lease_ends(now_ms: int, state: str) -> None:
    assert state_of(message(holder="w", until_ms=DUE_MS + 1_000), now_ms) == state


def test_a_row_has_everything_about_a_message() -> None:
    held = message(holder="w", until_ms=DUE_MS + 1_000)

    assert timeline_row("/default/a", held, DUE_MS) == {
        "topic": "/default/a",
        "id": "r-1",
        "version": 7,
        "due": "1970-01-01T00:16:40.000+00:00",
        "state": "processing",
        "group": "shop",
        "priority": 0,
        "attempts": 1,
        "holder": "w",
        "until": "1970-01-01T00:16:41.000+00:00",
        "attributes": {"a": "1"},
        "payload": "x",
    }


def test_a_payload_that_is_no_text_is_base64_in_a_row() -> None:
    row = timeline_row("/default/a", message(payload=b"\xff"), DUE_MS)

    assert row["payload_base64"] == "/w=="
    assert "payload" not in row


def test_a_date_that_python_does_not_know_is_shown() -> None:
    last = timeline_row("/default/a", message(due_ms=TIME_MS_MAX - 1), 0)
    beyond = timeline_row("/default/a", message(due_ms=TIME_MS_MAX), 0)

    assert last["due"] == "9999-12-31T23:59:59.999+00:00"
    assert beyond["due"] == "after 9999"
