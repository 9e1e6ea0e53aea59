"""Changes by the owner of a timeline: what they are checked for, and how they travel."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.unit.client.session.wire_end import WireEnd

from ister.base.errors import (
    BadRequestError,
    ConnectionLostError,
    IsterError,
    MessageExistsError,
    MessageTooLargeError,
    ProtocolError,
)
from ister.base.limits import TIMELINE_BYTES, TIMELINE_CHANGES_MAX, TIMELINE_MESSAGE_BYTES_MAX
from ister.client.session import (
    Change,
    ChangeBox,
    atomic_command,
    cut_changes,
    delete_change,
    due_ms_of,
    move_change,
    put_change,
    unpacked_attributes,
    update_change,
)
from ister.wire import DELETE, MOVE, PUT, UPDATE, ChangeTimeline, TimelineChanged, refusal

TOPIC = "/default/r"
NOW_MS = 1_700_000_000_000


def put(id: str = "a", payload: bytes = b"x", **changes: Any) -> Change:
    fields: dict[str, Any] = {"due_ms": 5, "attributes": None, "priority": 0} | changes
    return put_change(TOPIC, id, payload=payload, **fields)


def sent(end: WireEnd) -> list[tuple[int, ChangeTimeline]]:
    """Return the changes that the client has sent, each with its sequence number."""
    return [(s, c) for s, c in end.commands() if isinstance(c, ChangeTimeline)]


@pytest.fixture
def end() -> WireEnd:
    end = WireEnd()
    end.connect()
    return end


def test_changes_of_one_turn_travel_in_one_command(end: WireEnd) -> None:
    box = ChangeBox(end.session, TOPIC, "shop")
    told: list[list[int | IsterError]] = []
    box.add([put("a")], told.append)
    box.add(
        [move_change("b", 9, 3), update_change(TOPIC, "c", b"y", {"k": "v"}, None)], told.append
    )
    box.add([delete_change("d", None)], told.append)

    [(sequence, command)] = sent(end)
    assert command.kinds == bytes([PUT, MOVE, UPDATE, DELETE])
    assert command.ids == ["a", "b", "c", "d"]
    assert command.due_ms == [5, 9, 0, 0]
    assert command.versions == [0, 3, 0, 0]
    assert command.levels == []
    assert unpacked_attributes(command.attributes[2]) == {"k": "v"}

    errors = {0: refusal(MessageExistsError("a"))}
    end.tell(TimelineChanged(versions=[0, 11, 12, 13], errors=errors), sequence=sequence)

    [[first], second, third] = told
    assert isinstance(first, MessageExistsError)
    assert (second, third) == ([11, 12], [13])


def test_more_than_a_command_holds_travels_in_two(end: WireEnd) -> None:
    box = ChangeBox(end.session, TOPIC, "shop")
    many = [put(f"m-{n}") for n in range(TIMELINE_CHANGES_MAX)]
    box.add(many, lambda _: None)
    box.add([put("last")], lambda _: None)

    assert [len(command.ids) for _, command in sent(end)] == [TIMELINE_CHANGES_MAX, 1]


def test_everybody_is_told_when_the_connection_is_lost(end: WireEnd) -> None:
    box = ChangeBox(end.session, TOPIC, "shop")
    told: list[list[int | IsterError]] = []
    box.add([put("a"), put("b")], told.append)
    end.commands()
    end.session.disconnected("test")

    assert [type(outcome) for outcome in told[0]] == [ConnectionLostError] * 2


def test_who_loses_the_connection_is_told_what_to_do_about_a_change(end: WireEnd) -> None:
    told: list[list[int | IsterError]] = []
    box = ChangeBox(end.session, TOPIC, "shop")
    box.add([put("a")], told.append)
    box.flush()

    end.session.disconnected("test")

    text = str(told[0][0])
    assert "an id of your own is made once" in text
    assert "producer" not in text


def test_a_message_is_cut_off_from_the_others_when_it_is_large() -> None:
    half = b"x" * (TIMELINE_BYTES // 2)
    changes = [put("a", half), put("b", half), put("c")]

    assert [[c.id for c in piece] for piece in cut_changes(changes)] == [["a"], ["b", "c"]]
    assert list(cut_changes([])) == []


def test_a_message_may_be_as_large_as_the_limit_with_its_id() -> None:
    most = TIMELINE_MESSAGE_BYTES_MAX - 1
    put("a", b"x" * most)

    with pytest.raises(MessageTooLargeError, match="is fixed: split it"):
        put("a", b"x" * (most + 1))


def test_a_transaction_has_a_limit() -> None:
    atomic_command(TOPIC, "shop", [put("a", b"x" * (TIMELINE_MESSAGE_BYTES_MAX - 1))])

    with pytest.raises(BadRequestError, match="transaction"):
        atomic_command(TOPIC, "shop", [put(f"{n}") for n in range(TIMELINE_CHANGES_MAX + 1)])
    with pytest.raises(BadRequestError, match="transaction"):
        atomic_command(TOPIC, "shop", [put("a", b"x" * TIMELINE_BYTES_HALF)] * 3)


TIMELINE_BYTES_HALF = TIMELINE_BYTES // 2


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ""},
        {"id": "x" * 256},
        {"id": 7},
        {"id": "\ud800"},
        {"payload": "text"},
        {"priority": 32},
        {"priority": -1},
        {"attributes": {"a": 1}},
    ],
)
def test_what_no_message_can_have_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        put(**changes)


@pytest.mark.parametrize("version", [0, -1, 2**63, "1"])
def test_what_is_no_version_is_refused(version: Any) -> None:
    with pytest.raises(BadRequestError):
        move_change("a", 1, version)


def test_a_time_between_two_milliseconds_is_the_later_one() -> None:
    exact = datetime(2030, 1, 1, microsecond=123_000, tzinfo=UTC)
    later = exact + timedelta(microseconds=1)

    assert due_ms_of(later, None, NOW_MS) == due_ms_of(exact, None, NOW_MS) + 1
    assert due_ms_of(exact, None, NOW_MS) == round(exact.timestamp() * 1000)


def test_a_time_is_the_same_in_every_zone() -> None:
    vienna = datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))

    utc = datetime(2030, 1, 1, tzinfo=UTC)
    assert due_ms_of(vienna, None, NOW_MS) == due_ms_of(utc, None, NOW_MS)
    assert due_ms_of(utc.timestamp(), None, NOW_MS) == due_ms_of(utc, None, NOW_MS)


def test_seconds_count_from_now_and_are_never_cut_off() -> None:
    assert due_ms_of(None, 1.5, NOW_MS) == NOW_MS + 1_500
    assert due_ms_of(None, 0.0001, NOW_MS) == NOW_MS + 1
    assert due_ms_of(None, timedelta(minutes=1), NOW_MS) == NOW_MS + 60_000
    assert due_ms_of(timedelta(minutes=1), None, NOW_MS) == NOW_MS + 60_000
    assert due_ms_of(datetime(1960, 1, 1, tzinfo=UTC), None, NOW_MS) == 0
    assert due_ms_of(None, None, NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    "at",
    [
        -1,
        float("nan"),
        float("inf"),
        True,
        "soon",
        datetime(2030, 1, 1),  # noqa: DTZ001 - the very thing that is refused
        1e30,
        timedelta(days=3_000_000),
    ],
)
def test_what_is_no_time_is_refused(at: Any) -> None:
    with pytest.raises(BadRequestError):
        due_ms_of(at, None, NOW_MS)


def test_a_time_and_a_delay_together_are_refused() -> None:
    with pytest.raises(BadRequestError, match="give at or after, not both"):
        due_ms_of(1_800_000_000, 60, NOW_MS)


@pytest.mark.parametrize(
    "packed", [b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa1a\x01", b"\x81\xa1\xff\xa1a"]
)
def test_attributes_that_are_no_map_of_text_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpacked_attributes(packed)
