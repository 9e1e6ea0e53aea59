"""What becomes of messages that were delivered too often, beside dead letters."""

import pytest
from tests.unit.broker.streambench import TOPIC, Member, StreamBench

from ister.base import AckSettings
from ister.base.errors import BadRequestError, SubscriptionNotFoundError, WrongKindError
from ister.testing import Fault

BLOCK = {"max_deliveries": 2, "poison": "block"}
DROP = {"max_deliveries": 2, "poison": "drop"}
OTHER = "/default/others"
LETTERS = f"{TOPIC}-s-dlq"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def fail_for_good(member: Member, offset: int) -> None:
    """Give a message back as often as it takes."""
    for _ in range(2):
        (bad,) = [m for m in member.take() if m.offset == offset]
        member.nack(bad, delay_ms=0)


def set_acks(bench: StreamBench, **settings: object) -> None:
    acks = AckSettings(**settings)  # type: ignore[arg-type]
    assert bench.change("set_acks", TOPIC, "s", acks) is None


# Dropping


def test_a_dropped_message_counts_as_acknowledged_and_as_dropped(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=DROP)
    bad, good = member.take()
    member.ack(good)
    member.nack(bad, delay_ms=0)
    member.nack(*member.take(), delay_ms=0)

    assert member.offsets == []
    assert bench.lag() == 0
    report = bench.report()
    assert (report.messages_dropped, report.cursor.dead_lettered) == (1, 0)
    assert list(bench.broker.streams.by_name) == [TOPIC]


def test_a_dropped_message_stays_dropped_after_a_restart(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=DROP)
    fail_for_good(member, 0)
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.consume().offsets == [1]


def test_a_message_found_dead_at_the_start_is_dropped(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks={"max_deliveries": 0})
    fail_for_good(member, 0)
    assert bench.confirm() is None
    member.leave()
    bench.consume(acks=DROP, credit=0).leave()
    bench.restart("none")
    bench.advance(1)

    assert bench.consume().offsets == [1]
    assert bench.report().messages_dropped == 1


def test_with_ordering_the_next_of_its_key_goes_when_a_message_is_dropped(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1", keys=["k", "k"])
    member = bench.consume(type="key_shared", acks=DROP | {"ordered": True})
    fail_for_good(member, 0)

    assert member.take_offsets() == [1]


# Rejected by a consumer


@pytest.mark.parametrize("max_deliveries", [2, 0])
def test_a_rejected_message_is_dropped_at_once(bench: StreamBench, max_deliveries: int) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=DROP | {"max_deliveries": max_deliveries})
    bad, good = member.take()
    member.ack(good)
    member.nack(bad, reject=True)

    assert (bench.lag(), bench.report().messages_dropped) == (0, 1)
    assert member.take() == []


def test_a_rejected_message_blocks_until_the_settings_are_changed(bench: StreamBench) -> None:
    bench.publish(b"bad")
    member = bench.consume(acks=BLOCK)
    member.nack(*member.take(), reject=True)
    bench.publish(b"good")
    blocked = member.take()
    set_acks(bench, max_deliveries=3)
    bench.settle()

    assert blocked == []
    assert [(m.offset, m.attempt) for m in member.take()] == [(0, 2), (1, 1)]


def test_a_message_is_not_rejected_under_a_lease_that_is_over(bench: StreamBench) -> None:
    bench.publish(b"bad")
    member = bench.consume(acks=DROP)
    (late,) = member.take()
    member.nack(late, delay_ms=0)

    assert member.nack(late, reject=True) == [late.run]
    assert [m.attempt for m in member.take()] == [2]


# Blocking


@pytest.mark.parametrize("type_", ["exclusive", "shared", "failover"])
def test_a_message_that_blocks_stops_all_topics_of_a_subscription(
    bench: StreamBench, type_: str
) -> None:
    bench.create(OTHER)
    bench.publish(b"bad", b"good")
    member = bench.consume("/default/*", type=type_, acks=BLOCK)
    fail_for_good(member, 0)
    bench.publish(b"2")
    bench.publish(b"other", topic=OTHER)

    assert member.take() == []
    assert bench.report("/default/*").cursor.blocked


def test_what_is_in_flight_while_another_message_blocks_can_be_acknowledged(
    bench: StreamBench,
) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=BLOCK)
    bad, good = member.take()
    member.nack(bad, delay_ms=0)
    member.nack(*member.take(), delay_ms=0)

    assert member.ack(good) == []
    assert bench.lag() == 1


def test_a_message_blocks_its_subscription_after_a_restart_too(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    fail_for_good(bench.consume(acks=BLOCK), 0)
    assert bench.confirm() is None
    bench.restart("none")
    member = bench.consume()
    bench.advance(60_000)

    assert member.offsets == []
    assert bench.report().cursor.blocked


def test_a_seek_past_it_ends_a_block(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=BLOCK)
    fail_for_good(member, 0)
    member.take()

    assert bench.seek(1) is None
    assert member.take_offsets() == [1]
    assert not bench.report().cursor.blocked


def test_a_purge_ends_a_block(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=BLOCK)
    fail_for_good(member, 0)
    told: list[object] = []
    bench.broker.purge(TOPIC, 1, told.append)
    bench.publish(b"2")
    bench.settle()

    assert told == [1]
    assert member.take_offsets() == [2]


def test_a_deleted_topic_blocks_the_others_no_more(bench: StreamBench) -> None:
    bench.create(OTHER)
    bench.publish(b"bad")
    member = bench.consume("/default/*", acks=BLOCK)
    fail_for_good(member, 0)
    bench.publish(b"other", topic=OTHER)
    assert member.take() == []
    bench.broker.delete_topic(TOPIC)
    bench.settle()

    assert [m.payload for m in member.take()] == [b"other"]


def test_a_transaction_that_acknowledges_what_blocks_ends_the_block(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks={"max_deliveries": 1, "poison": "block"}, credit=1)
    (bad,) = member.take()
    outcome = bench.commit(bench.begin(), acked=[(member, bad)], settle=False)
    member.membership.nack([(*bad.run, 0)], -1)
    member.grant(10)
    bench.settle()

    assert outcome.result == []
    assert member.take_offsets() == [1]


def test_where_keys_are_shared_only_the_key_of_a_message_that_blocks_waits(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1", b"2", keys=["bad", "bad", "good"])
    member = bench.consume(type="key_shared", acks=BLOCK)
    fail_for_good(member, 0)
    bench.publish(b"3", b"4", keys=["bad", "new"])

    assert member.take_offsets() == [4]
    assert bench.report().cursor.blocked


def test_a_key_is_blocked_after_a_restart_too(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2", keys=["bad", "bad", "good"])
    fail_for_good(bench.consume(type="key_shared", acks=BLOCK), 0)
    assert bench.confirm() is None
    bench.restart("none")
    member = bench.consume(type="key_shared")
    bench.advance(1)
    assert member.take_offsets() == [2]
    told: list[object] = []
    bench.broker.purge(TOPIC, 1, told.append)
    bench.settle()

    assert member.take_offsets() == [1]


def test_a_blocked_key_leaves_room_in_flight_for_the_others(bench: StreamBench) -> None:
    acks = BLOCK | {"in_flight_max": 2}
    member = bench.consume(type="key_shared", acks=acks)
    for key in ("bad", "worse", "worst"):
        bench.publish(*[b"x"] * 5, keys=[key] * 5)
        for _ in range(2):
            member.nack(*member.take(), delay_ms=0)
    bench.publish(b"1", b"2", b"3", keys=["a", "b", "c"])

    assert member.take_offsets() == [15, 16]


# Other settings


def test_letting_messages_fail_more_often_ends_a_block(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=BLOCK)
    fail_for_good(member, 0)
    member.take()
    set_acks(bench, max_deliveries=3, poison="block")

    assert [(m.offset, m.attempt) for m in member.messages] == [(0, 3)]
    member.nack(*member.take(), delay_ms=0)
    assert bench.report().cursor.blocked


@pytest.mark.parametrize("poison", ["drop", "dead_letter"])
def test_another_end_for_bad_messages_ends_a_block(bench: StreamBench, poison: str) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks=BLOCK)
    fail_for_good(member, 0)
    bench.publish(b"2")

    set_acks(bench, max_deliveries=2, poison=poison)
    bench.advance(1)

    assert member.offsets[-1] == 2
    report = bench.report()
    assert report.messages_dropped + report.cursor.dead_lettered == 1


def test_consumers_keep_their_leases_under_other_settings(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(acks={"in_flight_max": 1})
    (first,) = member.take()
    set_acks(bench, in_flight_max=10, max_deliveries=1)

    assert member.take_offsets() == [1]
    assert member.ack(first) == []
    assert member.sink.lives == []


def test_keeping_keys_in_order_begins_with_void_leases(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", keys=["k", "k"])
    member = bench.consume(type="key_shared", acks={})
    assert member.take_offsets() == [0, 1]
    set_acks(bench, ordered=True)

    assert len(member.sink.lives) == 1
    assert member.take_offsets() == [0]


def test_settings_are_the_same_after_a_restart(bench: StreamBench) -> None:
    bench.consume(acks={"max_deliveries": 9})
    set_acks(bench, max_deliveries=7, poison="drop")
    bench.restart("none")

    assert bench.report().cursor.settings == AckSettings(max_deliveries=7, poison="drop")


def test_settings_that_the_journal_does_not_take_are_taken_back(bench: StreamBench) -> None:
    member = bench.consume(acks={"max_deliveries": 9})
    bench.disk.fail(Fault())
    told: list[object] = []
    for max_deliveries in (8, 7):
        acks = AckSettings(max_deliveries=max_deliveries)
        bench.broker.durables.set_acks(TOPIC, "s", acks, told.append)
    assert member.durable.acks.max_deliveries == 7
    bench.settle()

    assert len(told) == 2
    assert None not in told
    assert member.durable.acks.max_deliveries == 9


def test_settings_of_no_subscription_cannot_be_changed(bench: StreamBench) -> None:
    with pytest.raises(SubscriptionNotFoundError):
        bench.broker.durables.set_acks(TOPIC, "s", AckSettings(), print)


def test_a_word_that_is_no_end_for_bad_messages_is_refused(bench: StreamBench) -> None:
    with pytest.raises(BadRequestError, match="poison"):
        bench.consume(acks={"poison": "forget"})


@pytest.mark.parametrize("kind", ["live", "stream"])
def test_dead_letters_need_a_plain_stream_from_the_beginning(bench: StreamBench, kind: str) -> None:
    letters = f"{TOPIC}-s-dlq"
    bench.broker.create_topic(letters, kind=kind, partitions=2 if kind == "stream" else 0)
    bench.settle()

    with pytest.raises(WrongKindError, match="plain stream"):
        bench.consume(acks={})
    with pytest.raises(WrongKindError, match="plain stream"):
        bench.consume(subscription="t", acks={"dead_letter_topic": letters})
    bench.consume(acks={"poison": "drop"})


# Other settings while something is on its way to the journal


def test_a_letter_on_its_way_when_its_message_comes_to_block_ends_the_block(
    bench: StreamBench,
) -> None:
    bench.create(LETTERS)
    # Somebody listens, so that nothing has to be read from the log.
    bench.consume(subscription="other")
    bench.publish(b"bad", b"good")
    member = bench.consume(acks={"max_deliveries": 1}, credit=1)
    (bad,) = member.take()
    member.membership.nack([(*bad.run, 0)], -1)
    bench.broker.subscribers.unsubscribe(member.membership)
    bench.broker.durables.set_acks(
        TOPIC, "s", AckSettings(max_deliveries=1, poison="block"), lambda _: None
    )
    bench.clock.advance(0.001)
    bench.advance(100)

    assert [m.payload for m in bench.stored(LETTERS)] == [b"bad"]
    assert not bench.report().cursor.blocked
    assert bench.consume().take_offsets() == [1]


@pytest.mark.parametrize("there", [True, False])
def test_a_letter_on_its_way_is_not_written_again_under_other_settings(
    bench: StreamBench, *, there: bool
) -> None:
    if there:
        bench.create(LETTERS)
    # Somebody listens, so that nothing has to be read from the log.
    bench.consume(subscription="other")
    bench.publish(b"bad", b"good")
    member = bench.consume(acks={"max_deliveries": 1}, credit=1)
    (bad,) = member.take()
    # The journal is to do: the letter, or its topic; other settings; then what follows from them.
    member.membership.nack([(*bad.run, 0)], -1)
    bench.broker.subscribers.unsubscribe(member.membership)
    bench.broker.durables.set_acks(
        TOPIC, "s", AckSettings(max_deliveries=1, ack_timeout_ms=1_000), lambda _: None
    )
    bench.clock.advance(0.001)
    bench.advance(100)

    assert [m.payload for m in bench.stored(LETTERS)] == [b"bad"]
    assert bench.consume().take_offsets() == [1]


def test_a_letter_on_its_way_is_not_written_again_after_a_short_block(bench: StreamBench) -> None:
    bench.create(LETTERS)
    member = bench.consume(acks={"max_deliveries": 1}, credit=1)
    bench.publish(b"bad", b"good")
    (bad,) = member.take()
    member.membership.nack([(*bad.run, 0)], -1)
    for poison in ("block", "dead_letter"):
        acks = AckSettings(max_deliveries=1, poison=poison)
        bench.broker.durables.set_acks(TOPIC, "s", acks, lambda _: None)
    bench.settle()

    assert [m.payload for m in bench.stored(LETTERS)] == [b"bad"]


def test_dead_messages_that_come_to_block_leave_room_in_flight(bench: StreamBench) -> None:
    acks: dict[str, object] = {"max_deliveries": 1, "in_flight_max": 1, "ordered": True}
    member = bench.consume(type="key_shared", acks=acks)
    # Nothing that takes letters.
    bench.broker.create_topic(LETTERS)
    bench.publish(b"bad", b"good", keys=["bad", "good"])
    member.nack(*member.take(), delay_ms=0)
    assert member.take() == []
    set_acks(bench, **acks, poison="block")

    assert member.take_offsets() == [1]
