"""Messages to be published later: when they are due, how they travel, and what is sent again."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.unit.client.session.wire_end import TIMEOUT_MS, TOPIC, WireEnd, opened, send

from ister.base.errors import (
    BadRequestError,
    LimitReachedError,
    MessageTooLargeError,
    ProducerFullError,
    RequestTimeoutError,
)
from ister.base.limits import MIB, PRODUCER_PENDING_BYTES_MAX, TIMELINE_CHANGES_MAX
from ister.client.session import Due, ProducerChannel, Sent, due_of
from ister.codec import Batch
from ister.wire import Done, OpenProducer, SendDelayed, error_reply

NOW_MS = 5_000


@pytest.fixture
def end() -> WireEnd:
    end = WireEnd()
    end.connect()
    return end


def delay(
    producer: ProducerChannel,
    payload: bytes,
    due: Due = Due(1_000, 0),  # noqa: B008 - a value
    *,
    key: str | None = None,
    id: str | None = None,
    attributes: dict[str, str] | None = None,
) -> Sent:
    return producer.send_delayed(payload, key, attributes, id, due, Sent)


def sent(end: WireEnd) -> list[tuple[int, SendDelayed]]:
    """Return what the client has sent to be published later."""
    return [(s, c) for s, c in end.commands() if isinstance(c, SendDelayed)]


# When


def test_a_point_of_time_is_that_of_its_zone_and_rounded_up() -> None:
    vienna = timezone(timedelta(hours=1))

    assert due_of(datetime(1970, 1, 1, 1, 0, 1, 1, tzinfo=vienna), None, NOW_MS) == Due(1_001, 0)
    assert due_of(1_700_000_000.0001, None, NOW_MS) == Due(1_700_000_000_001, 0)


def test_a_span_counts_from_now_by_a_clock_that_is_never_set() -> None:
    assert due_of(None, 0.0101, NOW_MS) == Due(0, NOW_MS + 11)
    assert due_of(None, timedelta(seconds=2), NOW_MS) == Due(0, NOW_MS + 2_000)
    assert due_of(None, 0, NOW_MS) == Due(0, NOW_MS)


@pytest.mark.parametrize(
    ("at", "after"),
    [
        (1.0, 1.0),
        (datetime(2030, 1, 1), None),  # noqa: DTZ001 - that is what is refused
        (999_999_999, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        ("2030-01-01", None),
        (None, -0.001),
        (None, float("nan")),
        (None, float("inf")),
        (None, False),
        (None, "1s"),
        (None, timedelta(seconds=-1)),
        (None, datetime(2030, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_that_cannot_be_are_refused(at: Any, after: Any) -> None:
    with pytest.raises(BadRequestError):
        due_of(at, after, NOW_MS)


# How


def test_messages_of_one_turn_travel_in_one_command(end: WireEnd) -> None:
    producer = end.open_producer()
    futures = [delay(producer, b"%d" % n, Due(n, 0), key=f"k{n}") for n in range(3)]
    [(sequence, command)] = sent(end)
    waits = [future.done() for future in futures]
    end.tell(Done(), sequence=sequence)

    batch = Batch(command.batch)
    assert (batch.payloads, batch.keys) == ([b"0", b"1", b"2"], ["k0", "k1", "k2"])
    assert (batch.producer, batch.numbered, command.due_ms) == ("shop", False, [0, 1, 2])
    assert waits == [False] * 3
    assert [future.result() for future in futures] == [(TOPIC, -1)] * 3
    assert futures[0].result().delayed
    assert producer.pending_bytes == 0


def test_a_command_has_no_more_messages_and_bytes_than_a_broker_takes(end: WireEnd) -> None:
    producer = end.open_producer()
    for _ in range(TIMELINE_CHANGES_MAX + 1):
        delay(producer, b"x")
    for _ in range(3):
        delay(producer, bytes(MIB // 2))
    counts = [Batch(command.batch).count for _, command in sent(end)]

    assert counts[0] == TIMELINE_CHANGES_MAX
    assert sum(counts) == TIMELINE_CHANGES_MAX + 4
    assert len(counts) == 4


def test_what_is_sent_at_once_does_not_wait_for_what_is_sent_later(end: WireEnd) -> None:
    producer = end.open_producer()
    delay(producer, b"later")
    send(producer, b"now")

    assert [payloads for _, _, payloads in end.published()] == [[b"now"]]


def test_a_delay_is_shorter_by_what_it_took_to_send_it(end: WireEnd) -> None:
    producer = end.open_producer()
    delay(producer, b"x", Due(0, end.now_ms + 10_000))
    end.session.disconnected("test")
    end.now_ms += 4_000
    end.resume()
    [(_, command)] = sent(end)

    assert (command.due_ms, command.delays_ms) == ([], [6_000])


def test_what_was_under_way_when_the_connection_was_lost_is_sent_again_under_its_word(
    end: WireEnd,
) -> None:
    producer = end.open_producer()
    future = delay(producer, b"x", id="i")
    [(_, first)] = sent(end)
    end.resume()
    [(sequence, again)] = sent(end)
    end.tell(Done(), sequence=sequence)

    assert again == first
    assert future.result().delayed


def test_words_are_never_used_twice(end: WireEnd) -> None:
    words = []
    for producer in (end.open_producer(), end.open_producer()):
        for _ in range(2):
            delay(producer, b"x")
            words += [command.word for _, command in sent(end)]

    assert len(set(words)) == 4


def test_what_the_broker_refuses_fails_with_its_reason(end: WireEnd) -> None:
    producer = end.open_producer()
    future = delay(producer, b"x")
    [(sequence, _)] = sent(end)
    end.tell(error_reply(LimitReachedError("any", 1)), sequence=sequence)

    assert isinstance(future.exception(), LimitReachedError)
    assert isinstance(producer.unseen_error(), LimitReachedError)


def test_what_finds_no_connection_in_time_fails(end: WireEnd) -> None:
    producer = end.open_producer()
    end.session.disconnected("test")
    future = delay(producer, b"x")
    end.session.flush()
    end.now_ms += TIMEOUT_MS
    end.session.pulse()
    end.now_ms += TIMEOUT_MS
    end.session.pulse()

    assert isinstance(future.exception(), RequestTimeoutError)
    assert list(producer.pending()) == []


def test_what_is_pending_fails_when_its_producer_is_closed(end: WireEnd) -> None:
    producer = end.open_producer()
    futures = [delay(producer, b"under way")]
    sent(end)
    futures.append(delay(producer, b"open"))
    end.session.close_producer(producer)

    assert all(future.exception() is not None for future in futures)


def test_flush_waits_for_what_is_sent_later_as_well(end: WireEnd) -> None:
    producer = end.open_producer()
    future = delay(producer, b"x")

    assert list(producer.pending()) == [future.batch]


def test_too_much_that_is_pending_is_refused(end: WireEnd) -> None:
    producer = end.open_producer()
    end.session.disconnected("test")
    while producer.pending_bytes < PRODUCER_PENDING_BYTES_MAX:
        delay(producer, bytes(MIB // 2))

    with pytest.raises(ProducerFullError):
        delay(producer, b"x")


def test_a_message_that_no_timeline_has_room_for_is_refused(end: WireEnd) -> None:
    producer = end.open_producer()
    delay(producer, bytes(MIB - 1_024))

    with pytest.raises(MessageTooLargeError):
        delay(producer, bytes(MIB - 1_023))


@pytest.mark.parametrize(
    "extras", [{"key": "ü" * 50}, {"id": "ü" * 50}, {"attributes": {"ü" * 20: "ü" * 27}}]
)
def test_the_size_that_is_refused_is_told_with_what_goes_with_the_payload(
    end: WireEnd, extras: dict[str, Any]
) -> None:
    producer = end.open_producer()
    delay(producer, bytes(MIB - 1_124), **extras)

    with pytest.raises(MessageTooLargeError, match="message of 1048577B exceeds the 1MiB"):
        delay(producer, bytes(MIB - 1_123), **extras)


def test_a_producer_that_is_opened_again_sends_what_waits(end: WireEnd) -> None:
    producer = end.open_producer()
    end.session.disconnected("test")
    delay(producer, b"x")
    end.session.flush()
    end.connect()
    [(sequence, command)] = end.commands()
    before = sent(end)
    end.tell(opened(), sequence=sequence)

    assert isinstance(command, OpenProducer)
    assert before == []
    assert len(sent(end)) == 1
