"""Moving durable subscriptions: seeking back and forth, saved cursors, retention under them."""

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench, at_time, saved

from ister.base import Position
from ister.base.errors import (
    BadRequestError,
    LimitReachedError,
    OffsetGoneError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
)
from ister.base.limits import SNAPSHOTS_MAX


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0", b"1", b"2", b"3", b"4")
    return bench


# Seeking


def test_seeking_back_delivers_again_what_was_acknowledged(bench: StreamBench) -> None:
    member = bench.consume()
    member.ack(*member.take())
    assert bench.seek(2) is None

    assert [(m.offset, m.attempt) for m in member.messages] == [(2, 1), (3, 1), (4, 1)]


def test_seeking_forward_leaves_out_what_lies_between(bench: StreamBench) -> None:
    member = bench.consume(credit=1)
    assert bench.seek(3) is None
    member.grant(10)

    assert member.offsets == [0, 3, 4]
    assert bench.lag() == 2


@pytest.mark.parametrize(
    ("place", "offsets"), [("earliest", [0, 1, 2, 3, 4]), ("latest", []), (5, [])]
)
def test_seeking_goes_to_the_ends(bench: StreamBench, place: str | int, offsets: list[int]) -> None:
    member = bench.consume()
    member.take()
    assert bench.seek(place) is None

    assert member.take_offsets() == offsets
    bench.publish(b"5")
    assert member.take_offsets() == [5]


def test_seeking_to_a_time_goes_to_the_first_message_from_then_on(bench: StreamBench) -> None:
    bench.advance(10)
    time_ms = bench.clock.now_ms()
    bench.publish(b"5")
    member = bench.consume()
    member.take()

    assert bench.seek(at_time(time_ms)) is None
    assert member.take_offsets() == [5]


def test_a_place_that_is_not_there_is_refused_and_changes_nothing(bench: StreamBench) -> None:
    bench.broker.purge(TOPIC, 2, lambda _: None)
    bench.settle()
    member = bench.consume()
    (first, *_) = member.take()

    assert isinstance(bench.seek(1), OffsetGoneError)
    assert isinstance(bench.seek(6), BadRequestError)
    with pytest.raises(SubscriptionNotFoundError):
        bench.seek(3, subscription="other")
    with pytest.raises(BadRequestError):
        bench.seek(Position(origin="nowhere"))
    assert member.ack(first) == []


def test_leases_from_before_a_seek_are_void(bench: StreamBench) -> None:
    member = bench.consume()
    before = member.take()
    bench.seek("earliest")
    again = member.take()

    assert member.ack(*before) == [message.run for message in before]
    assert member.ack(*again) == []
    assert bench.lag() == 0


def test_consumers_are_told_of_a_seek_before_they_get_anything_from_the_new_place(
    bench: StreamBench,
) -> None:
    member = bench.consume(type="shared")
    other = bench.consume(type="shared")
    life = member.membership.life
    member.take()
    outcome: list[object] = []

    def done(error: object) -> None:
        outcome.append((error, member.offsets, other.offsets))

    bench.broker.durables.seek(TOPIC, "s", Position(origin="earliest"), done)
    assert len(member.sink.lives) == len(other.sink.lives) == 1
    bench.settle()

    # The answer comes first as well.
    assert outcome == [(None, [], [])]
    assert sorted(member.offsets + other.offsets) == [0, 1, 2, 3, 4]
    assert member.membership.life == member.sink.lives[0] != life


def test_a_consumer_that_was_away_during_a_seek_finds_another_life(bench: StreamBench) -> None:
    member = bench.consume(consumer="c")
    life = member.membership.life
    member.lose()
    assert bench.consume(consumer="c").membership.life == life

    bench.seek("earliest")
    assert bench.consume(consumer="c").membership.life != life


def test_a_seek_is_there_after_a_restart(bench: StreamBench) -> None:
    member = bench.consume()
    member.ack(*member.messages)
    assert bench.confirm() is None
    bench.seek(3)
    bench.restart("none")

    assert bench.consume().offsets == [3, 4]


def test_acknowledgements_from_before_a_seek_do_not_come_after_it(bench: StreamBench) -> None:
    member = bench.consume()
    # In the cursor, but not in the journal yet.
    member.membership.ack([message.run for message in member.messages])
    bench.seek("earliest")
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.consume().offsets == [0, 1, 2, 3, 4]


def test_acknowledgements_after_a_seek_are_kept(bench: StreamBench) -> None:
    member = bench.consume()
    member.take()
    bench.seek(3)
    member.ack(member.messages[0])
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.consume().offsets == [4]


def test_going_back_and_forth_leaves_the_last_place(bench: StreamBench) -> None:
    member = bench.consume()
    for place in (0, 4, 1, 5, 2):
        bench.seek(place)
    member.take()
    bench.restart("none")

    assert bench.consume().offsets == [2, 3, 4]


def test_two_seeks_at_once_leave_the_second_place(bench: StreamBench) -> None:
    member = bench.consume()
    member.take()
    told: list[object] = []
    bench.broker.durables.seek(TOPIC, "s", Position(origin="offset", at=1), told.append)
    bench.broker.durables.seek(TOPIC, "s", Position(origin="offset", at=3), told.append)
    bench.settle()

    assert told == [None, None]
    assert member.offsets == [3, 4]


def test_failures_are_forgotten_by_a_seek(bench: StreamBench) -> None:
    member = bench.consume()
    first = member.take()[0]
    member.nack(first, delay_ms=60_000)
    bench.seek("earliest")

    assert {(m.offset, m.attempt) for m in member.messages if m.offset == 0} == {(0, 1)}


def test_a_delayed_message_does_not_come_a_second_time_after_a_seek(bench: StreamBench) -> None:
    member = bench.consume()
    member.nack(*member.take(), delay_ms=100)
    bench.seek("earliest")
    member.ack(*member.take())
    bench.advance(60_000)

    assert member.offsets == []


def test_a_seek_while_stored_messages_are_read_goes_to_the_new_place() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    bench.publish_many(100)
    member = bench.consume(credit=0)
    member.membership.consumer.grant(1_000, 1 << 30)  # The read is under way.
    bench.seek(90)

    assert member.offsets == list(range(90, 100))


# Saved cursors


def test_a_saved_cursor_brings_back_single_acknowledgements(bench: StreamBench) -> None:
    member = bench.consume()
    messages = member.take()
    member.ack(messages[0], messages[2])
    assert bench.change("save_cursor", TOPIC, "s", "then") is None
    member.ack(messages[1], messages[3], messages[4])
    assert bench.lag() == 0
    assert bench.seek(saved("then")) is None

    assert member.take_offsets() == [1, 3, 4]
    assert bench.report().cursor.snapshots == ["then"]


def test_a_restored_cursor_is_whole_after_a_restart(bench: StreamBench) -> None:
    member = bench.consume()
    messages = member.take()
    member.ack(messages[0], messages[2])
    bench.change("save_cursor", TOPIC, "s", "then")
    member.ack(messages[1], messages[3], messages[4])
    assert bench.seek(saved("then")) is None
    bench.restart("none")

    assert bench.consume().offsets == [1, 3, 4]


def test_a_saved_cursor_is_there_after_a_restart(bench: StreamBench) -> None:
    member = bench.consume()
    member.ack(member.messages[0])
    bench.change("save_cursor", TOPIC, "s", "then")
    member.ack(*member.messages[1:])
    bench.restart("none")
    member = bench.consume()
    member.ack(*member.take())
    assert bench.seek(saved("then")) is None

    assert member.take_offsets() == [1, 2, 3, 4]


def test_messages_that_failed_start_anew_with_a_restored_cursor(bench: StreamBench) -> None:
    member = bench.consume()
    member.nack(member.take()[0], delay_ms=60_000)
    bench.change("save_cursor", TOPIC, "s", "then")
    bench.seek(saved("then"))

    assert {m.attempt for m in member.messages} == {1}


def test_what_retention_dropped_since_does_not_come_back(bench: StreamBench) -> None:
    member = bench.consume()
    bench.change("save_cursor", TOPIC, "s", "then")
    member.ack(*member.take())
    bench.broker.purge(TOPIC, 3, lambda _: None)
    bench.settle()
    assert bench.seek(saved("then")) is None

    assert member.take_offsets() == [3, 4]


def test_a_dropped_cursor_is_not_found(bench: StreamBench) -> None:
    bench.consume()
    bench.change("save_cursor", TOPIC, "s", "then")
    assert bench.change("drop_cursor", TOPIC, "s", "then") is None

    with pytest.raises(SnapshotNotFoundError):
        bench.seek(saved("then"))
    with pytest.raises(SnapshotNotFoundError):
        bench.change("drop_cursor", TOPIC, "s", "then")
    bench.restart("none")
    assert bench.report().cursor.snapshots == []


def test_there_are_so_many_saved_cursors_and_no_more(bench: StreamBench) -> None:
    member = bench.consume()
    for number in range(SNAPSHOTS_MAX):
        member.durable.record.saved[str(number)] = b""

    assert isinstance(bench.change("save_cursor", TOPIC, "s", "more"), LimitReachedError)
    assert bench.change("save_cursor", TOPIC, "s", "7") is None


def refused(bench: StreamBench, name: str, subscription: str = "s") -> str:
    error = bench.change("save_cursor", TOPIC, subscription, name)
    return error.limit if isinstance(error, LimitReachedError) else str(error)


def test_the_saved_cursors_of_a_subscription_have_a_limit_in_bytes(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.consume()
    bench.change("save_cursor", TOPIC, "s", "one")
    size_bytes = bench.storage.state.saved_bytes
    monkeypatch.setattr(
        "ister.broker.subscriptions.saved_cursors.SAVED_CURSORS_BYTES_MAX", 2 * size_bytes
    )

    # Those on their way to the journal count.
    told: list[object] = []
    for name in ("two", "three"):
        bench.broker.durables.save_cursor(TOPIC, "s", name, told.append)
    bench.settle()

    assert sorted(str(type(error).__name__) for error in told) == ["LimitReachedError", "NoneType"]
    assert refused(bench, "two") == "None"
    assert refused(bench, "three") == "saved_cursors_bytes_max"
    bench.restart()
    assert bench.storage.state.saved_bytes == 2 * size_bytes
    assert refused(bench, "three") == "saved_cursors_bytes_max"
    bench.change("drop_cursor", TOPIC, "s", "one")
    assert refused(bench, "three") == "None"


def test_the_saved_cursors_of_all_subscriptions_have_a_limit_in_bytes(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.consume()
    bench.consume(subscription="other")
    bench.change("save_cursor", TOPIC, "s", "one")
    size_bytes = bench.storage.state.saved_bytes
    monkeypatch.setattr(
        "ister.broker.subscriptions.saved_cursors.ALL_SAVED_CURSORS_BYTES_MAX", 2 * size_bytes
    )

    assert refused(bench, "one", "other") == "None"
    assert refused(bench, "two", "other") == "all_saved_cursors_bytes_max"
    bench.change("delete", TOPIC, "s")
    assert refused(bench, "two", "other") == "None"


# Retention


def test_what_retention_drops_counts_as_done(bench: StreamBench) -> None:
    member = bench.consume(credit=2)
    member.take()
    bench.broker.purge(TOPIC, 4, lambda _: None)
    bench.settle()

    assert bench.lag() == 1
    member.grant(10)
    assert member.offsets == [4]


def test_what_retention_drops_counts_as_done_without_a_consumer(bench: StreamBench) -> None:
    bench.consume(credit=0).leave()
    bench.broker.purge(TOPIC, 4, lambda _: None)
    bench.settle()

    assert bench.lag() == 1
    assert bench.report().cursor.floors == {TOPIC: 4}
    bench.restart()
    assert bench.lag() == 1


def test_a_lease_of_a_message_that_retention_dropped_is_gone(bench: StreamBench) -> None:
    member = bench.consume(acks={"in_flight_max": 3})
    messages = member.take()
    assert len(messages) == 3
    bench.broker.purge(TOPIC, 2, lambda _: None)
    bench.settle()

    # There is room for two more in flight.
    assert member.take_offsets() == [3, 4]
    assert member.ack(messages[0], messages[2]) == []


def test_a_message_dropped_while_it_waits_does_not_come_again(bench: StreamBench) -> None:
    member = bench.consume()
    member.nack(*member.take(), delay_ms=100)
    bench.broker.purge(TOPIC, 3, lambda _: None)
    bench.settle()
    bench.advance(100)

    assert member.offsets == [3, 4]


def test_a_slow_subscription_goes_on_with_what_limits_have_left() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create(max_messages=10)
    member = bench.consume(credit=3)
    bench.publish_many(50)
    bench.advance(2_000)
    assert bench.topic().first_offset == 40
    member.take()
    member.grant(100)

    assert member.offsets == list(range(40, 50))


def test_a_work_queue_keeps_what_is_not_acknowledged() -> None:
    bench = StreamBench()
    bench.create(retention="workqueue")
    bench.publish(b"0", b"1", b"2")
    member = bench.consume()
    member.ack(member.messages[0], member.messages[2])
    bench.advance(2_000)

    assert bench.topic().first_offset == 1
    member.ack(member.messages[1])
    bench.advance(2_000)
    assert bench.topic().first_offset == 3


def test_interest_keeps_what_one_of_the_subscriptions_has_not_acknowledged() -> None:
    bench = StreamBench()
    bench.create(retention="interest")
    bench.publish(b"0", b"1")
    one, other = bench.consume(subscription="one"), bench.consume(subscription="other")
    one.ack(*one.messages)
    other.ack(other.messages[0])
    bench.advance(2_000)

    assert bench.topic().first_offset == 1
