"""Deliveries that go wrong: nacks, deadlines, delays, extensions."""

import pytest
from tests.unit.broker.streambench import TOPIC, Member, StreamBench


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def attempts(member: Member) -> list[tuple[int, int]]:
    """Take what was delivered, as offsets and attempts."""
    return [(message.offset, message.attempt) for message in member.take()]


# Deadlines


def test_an_unacked_message_comes_again_when_its_ack_timeout_ends(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume(acks={"ack_timeout_ms": 7_000})
    assert attempts(member) == [(0, 1)]

    bench.advance(6_999)
    assert attempts(member) == []
    bench.advance(1)
    assert attempts(member) == [(0, 2)]


def test_a_consumer_that_has_used_up_its_credit_still_has_a_deadline(bench: StreamBench) -> None:
    bench.publish(b"0")
    idle = bench.consume(type="shared", credit=1)
    assert idle.offsets == [0]

    bench.advance(29_999)
    other = bench.consume(type="shared")
    assert other.offsets == []
    bench.advance(1)
    assert attempts(other) == [(0, 2)]


def test_a_message_acknowledged_in_its_last_millisecond_does_not_come_again(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume()
    bench.advance(29_999)
    member.ack(*member.take())

    bench.advance(60_000)
    assert member.offsets == []


def test_an_acknowledgement_after_the_deadline_is_refused(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    (message,) = member.take()
    bench.advance(30_000)

    assert member.ack(message) == [message.run]
    assert bench.lag() == 1


def test_after_a_deadline_a_message_waits_as_long_as_the_backoff_says(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume(
        acks={"ack_timeout_ms": 1_000, "backoff_ms": (200, 700), "max_deliveries": 0}
    )
    assert attempts(member) == [(0, 1)]
    for attempt, delay_ms in ((2, 200), (3, 700), (4, 700)):
        bench.advance(1_000 + delay_ms - 1)
        assert attempts(member) == []
        bench.advance(1)
        assert attempts(member) == [(0, attempt)]


def test_what_times_out_while_nobody_is_there_waits_for_somebody(bench: StreamBench) -> None:
    bench.publish(b"0")
    bench.consume(owner="one").lose()
    bench.advance(60_000)

    assert attempts(bench.consume(owner="other")) == [(0, 2)]


def test_leases_of_many_batches_end_each_at_its_own_time(bench: StreamBench) -> None:
    member = bench.consume()
    for _ in range(5):
        bench.publish(b"x")
        bench.advance(10)
    member.take()

    bench.advance(30_000 - 50)
    assert attempts(member) == [(0, 2)]
    for offset in range(1, 5):
        bench.advance(10)
        assert attempts(member) == [(offset, 2)]


def test_hundreds_of_leases_that_end_together_all_come_again(bench: StreamBench) -> None:
    member = bench.consume()
    for _ in range(700):
        bench.publish(b"x")
    member.take()
    bench.advance(30_000)

    assert sorted(attempts(member)) == [(offset, 2) for offset in range(700)]


# Giving back


def test_a_nack_without_delay_brings_a_message_back_at_once(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    first, _ = member.take()
    assert member.nack(first) == []

    assert attempts(member) == [(0, 2)]


def test_a_nack_with_delay_brings_it_back_after_that(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume(acks={"backoff_ms": (10_000,)})
    member.nack(*member.take(), delay_ms=500)

    bench.advance(499)
    assert attempts(member) == []
    bench.advance(1)
    assert attempts(member) == [(0, 2)]


def test_a_nack_without_a_delay_of_its_own_waits_as_the_backoff_says(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume(acks={"backoff_ms": (100, 400)})
    member.nack(*member.take())
    bench.advance(99)
    assert attempts(member) == []
    bench.advance(1)
    member.nack(*member.take())

    bench.advance(399)
    assert attempts(member) == []
    bench.advance(1)
    assert attempts(member) == [(0, 3)]


def test_a_nack_that_comes_late_is_refused_and_counts_nothing(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    (message,) = member.take()
    bench.advance(30_000)
    assert attempts(member) == [(0, 2)]

    assert member.nack(message) == [message.run]
    assert attempts(member) == []


def test_a_delayed_message_comes_although_the_consumer_had_no_credit_meanwhile(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume(credit=1)
    member.nack(*member.take(), delay_ms=100)
    bench.advance(200)
    assert attempts(member) == []

    member.grant(1)
    assert attempts(member) == [(0, 2)]


def test_a_delayed_message_comes_when_credit_was_granted_before_it_is_due(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume(credit=1)
    member.nack(*member.take(), delay_ms=100)
    member.grant(1)

    bench.advance(99)
    assert attempts(member) == []
    bench.advance(1)
    assert attempts(member) == [(0, 2)]


def test_redeliveries_go_before_new_messages(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2")
    member = bench.consume(credit=2)
    member.nack(*member.take(), delay_ms=0)

    member.grant(3)
    assert attempts(member) == [(0, 2), (1, 2), (2, 1)]


def test_redeliveries_that_are_read_from_the_log_go_before_new_messages() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    bench.publish_many(10)
    member = bench.consume(credit=5)
    member.nack(*member.take(), delay_ms=0)

    member.grant(100)
    assert [offset for offset, _ in attempts(member)] == list(range(10))


def test_going_back_further_than_what_was_read_last_loses_nothing() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    bench.publish_many(30)
    member = bench.consume()
    messages = member.take()
    for message in (messages[20], messages[3], messages[11], messages[0]):
        member.nack(message, delay_ms=0)
        assert attempts(member) == [(message.offset, 2)]


def test_failures_are_remembered_over_a_restart(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    first, _ = member.take()
    member.nack(first)
    assert bench.confirm() is None
    bench.restart("none")

    assert attempts(bench.consume()) == [(0, 2), (1, 1)]


def test_a_delay_is_forgotten_by_a_restart_but_not_the_failure(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    member.nack(*member.take(), delay_ms=60_000)
    assert bench.confirm() is None
    bench.restart()

    assert attempts(bench.consume()) == [(0, 2)]


def test_messages_that_failed_differently_are_delivered_with_their_own_attempts(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1", b"2", b"3")
    member = bench.consume()
    messages = member.take()
    member.nack(messages[1], messages[2], delay_ms=0)
    member.nack(member.take()[1], delay_ms=0)
    member.leave()

    assert attempts(bench.consume()) == [(0, 1), (3, 1), (1, 2), (2, 3)]


# Extending


def test_an_extended_lease_ends_when_it_was_extended_to(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    first, _ = member.take()
    bench.advance(29_000)
    assert member.extend(first, extension_ms=5_000) == []

    bench.advance(1_000)
    assert attempts(member) == [(1, 2)]
    bench.advance(3_999)
    assert attempts(member) == []
    bench.advance(1)
    assert attempts(member) == [(0, 2)]


def test_a_lease_can_be_shortened(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    assert member.extend(*member.take(), extension_ms=10) == []

    bench.advance(9)
    assert attempts(member) == []
    bench.advance(1)
    assert attempts(member) == [(0, 2)]


def test_a_lease_that_has_ended_cannot_be_extended(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    (message,) = member.take()
    bench.advance(30_000)

    assert member.extend(message, extension_ms=1_000) == [message.run]


# Age


def test_a_message_that_has_outlived_its_topics_limit_is_not_delivered() -> None:
    bench = StreamBench()
    bench.create(ttl_ms=500)
    bench.publish(b"0")
    bench.advance(499)
    assert bench.consume(subscription="in-time").offsets == [0]
    bench.advance(1)
    late = bench.consume(subscription="late")

    assert late.offsets == []
    assert bench.lag(subscription="late") == 0


def test_a_message_that_has_outlived_its_own_limit_is_not_delivered(bench: StreamBench) -> None:
    bench.publish(
        b"0", b"1", b"2", attributes=[{"ister-ttl-ms": "500"}, {"ister-ttl-ms": "no"}, None]
    )
    bench.advance(500)
    member = bench.consume()

    assert member.offsets == [1, 2]
    assert bench.lag() == 2


def test_a_message_that_grows_too_old_after_a_nack_does_not_come_again(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", attributes=[{"ister-ttl-ms": "500"}, None])
    member = bench.consume()
    member.nack(*member.take(), delay_ms=500)
    bench.advance(500)

    assert attempts(member) == [(1, 2)]
    assert bench.lag() == 1


def test_what_is_too_old_is_settled_over_a_restart(bench: StreamBench) -> None:
    bench.publish(b"0", attributes=[{"ister-ttl-ms": "5"}])
    bench.advance(5)
    bench.consume().leave()
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.report(TOPIC).cursor.floors == {TOPIC: 1}
