"""Durable subscriptions: where they start, who gets what, and what acknowledgements mean."""

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench, at_time

from ister.base.errors import (
    BadRequestError,
    LimitReachedError,
    NotFoundError,
    OffsetGoneError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    SubscriptionTakenError,
)
from ister.broker.durable.ack_journal import LAZY_S

LAZY_MS = int(LAZY_S * 1000)


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


# Where they start


def test_a_subscription_at_latest_gets_what_is_published_after_it(bench: StreamBench) -> None:
    bench.publish(b"before")
    member = bench.consume(start="latest")
    bench.publish(b"after")

    assert member.payloads == [b"after"]


def test_what_is_being_committed_counts_as_after_latest(bench: StreamBench) -> None:
    sent = bench.send([b"on its way"], settle=False)
    member = bench.consume(start="latest")

    assert sent.offsets == [0]
    assert member.payloads == [b"on its way"]


@pytest.mark.parametrize(("start", "offsets"), [("earliest", [2, 3]), (2, [2, 3]), (4, [])])
def test_a_subscription_starts_at_the_first_message_kept_or_at_an_offset(
    bench: StreamBench, start: str | int, offsets: list[int]
) -> None:
    bench.publish(b"0", b"1", b"2", b"3")
    bench.broker.purge(TOPIC, 2, lambda _: None)
    bench.settle()

    assert bench.consume(start=start).offsets == offsets


def test_a_start_before_the_first_message_kept_is_refused(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    bench.broker.purge(TOPIC, 1, lambda _: None)
    bench.settle()

    with pytest.raises(OffsetGoneError):
        bench.consume(start=0)


def test_a_start_beyond_the_end_is_refused(bench: StreamBench) -> None:
    bench.publish(b"0")

    with pytest.raises(BadRequestError):
        bench.consume(start=2)
    with pytest.raises(SubscriptionNotFoundError):
        bench.seek("earliest")


def test_a_start_at_a_time_is_the_first_message_from_then_on(bench: StreamBench) -> None:
    bench.publish(b"0")
    bench.advance(10)
    time_ms = bench.clock.now_ms()
    bench.publish(b"1")
    bench.advance(10)
    bench.publish(b"2")

    assert bench.consume(subscription="before", start=at_time(time_ms - 9)).offsets == [1, 2]
    assert bench.consume(subscription="at", start=at_time(time_ms)).offsets == [1, 2]
    assert bench.consume(subscription="behind", start=at_time(time_ms + 1)).offsets == [2]
    assert bench.consume(subscription="end", start=at_time(time_ms + 11)).offsets == []


def test_two_that_look_up_a_time_together_share_one_subscription(bench: StreamBench) -> None:
    bench.publish(b"0")
    time = at_time(bench.clock.now_ms())
    _, first = bench.subscribe(start=time, type="shared")
    _, second = bench.subscribe(start=time, type="shared")
    bench.settle()

    assert first.result.durables[0] is second.result.durables[0]
    assert len(bench.broker.durables) == 1


def test_the_second_of_two_that_look_up_a_time_is_refused_if_only_one_may(
    bench: StreamBench,
) -> None:
    time = at_time(bench.clock.now_ms())
    _, first = bench.subscribe(start=time)
    _, second = bench.subscribe(start=time)
    bench.settle()

    assert first.result.active
    assert isinstance(second.result, SubscriptionTakenError)


def test_a_topic_deleted_while_a_time_is_looked_up_is_not_found(bench: StreamBench) -> None:
    bench.broker.delete_topic(TOPIC)
    _, outcome = bench.subscribe(start=at_time(0))
    bench.settle()

    assert isinstance(outcome.result, NotFoundError)
    assert len(bench.broker.durables) == 0


def test_where_a_subscription_stands_counts_more_than_where_a_consumer_would_start(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    member.ack(member.messages[0])
    member.leave()

    assert bench.consume(start="latest").offsets == [1]


# Delivery


def test_a_batch_that_a_consumer_has_credit_for_is_sent_in_one_piece(bench: StreamBench) -> None:
    member = bench.consume()
    bench.publish(*[b"x"] * 1_000)

    assert member.offsets == list(range(1_000))
    assert member.sink.batches == 1


def test_no_more_is_sent_than_there_is_credit_for(bench: StreamBench) -> None:
    member = bench.consume(credit=3)
    bench.publish(b"0", b"1", b"2", b"3", b"4", b"5")

    assert member.take_offsets() == [0, 1, 2]
    member.grant(2)
    assert member.take_offsets() == [3, 4]


def test_a_consumer_whose_connection_is_full_gets_the_rest_when_it_is_not(
    bench: StreamBench,
) -> None:
    member = bench.consume()
    member.sink.writable = False
    bench.publish(b"0")
    assert member.offsets == []

    member.sink.writable = True
    member.membership.consumer.resume()
    bench.settle()

    assert member.offsets == [0]


def test_what_is_not_in_memory_is_read_from_the_log() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    member = bench.consume(credit=0)
    bench.publish_many(200)
    member.grant(1_000)

    assert member.offsets == list(range(200))


def test_a_subscription_goes_on_where_it_was_after_a_restart(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2", b"3")
    member = bench.consume()
    assert member.ack_confirmed(member.messages[0], member.messages[2]) is None
    bench.restart("none")

    assert bench.consume(start="latest").offsets == [1, 3]


def test_of_two_subscriptions_each_gets_everything(bench: StreamBench) -> None:
    one, other = bench.consume(subscription="one"), bench.consume(subscription="other")
    bench.publish(b"0", b"1")
    one.ack(*one.messages)

    assert one.offsets == other.offsets == [0, 1]
    assert bench.lag(subscription="other") == 2


# Acknowledgements


def test_an_acknowledgement_that_nobody_confirmed_is_in_the_journal_soon(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    member.ack(member.messages[0])
    bench.advance(LAZY_MS)
    bench.restart()

    assert bench.consume().offsets == [1]


def test_an_acknowledgement_may_be_forgotten_by_a_crash_before_that(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    member.ack(member.messages[0])
    bench.advance(LAZY_MS - 1)
    bench.restart()

    assert bench.consume().offsets == [0]


def test_a_confirmation_covers_what_went_to_the_journal_without_a_sync(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    member.ack(member.messages[0])
    bench.advance(LAZY_MS)
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.consume().offsets == []


def test_what_was_acknowledged_before_can_be_acknowledged_again(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    member.ack(member.messages[0])

    assert member.ack(member.messages[0]) == []
    assert bench.report().cursor.refused == 0


def test_an_acknowledgement_under_another_lease_is_refused(bench: StreamBench) -> None:
    bench.publish(b"0")
    bench.publish(b"1")
    member = bench.consume()
    first, second = member.messages
    wrong = (first.lease, second.offset, second.offset + 1)

    assert member.membership.ack([wrong]) == [wrong]
    assert bench.lag() == 2


@pytest.mark.parametrize("lease", [0, 1, 2**17 - 1, 2**17, 2**63, 2**64 - 1])
def test_an_acknowledgement_of_a_lease_that_never_was_is_refused(
    bench: StreamBench, lease: int
) -> None:
    bench.publish(b"0")
    member = bench.consume()

    assert member.membership.ack([(lease, 0, 1)]) == [(lease, 0, 1)]
    assert member.membership.nack([(lease, 0, 1, 0)], -1) == [(lease, 0, 1)]
    assert member.membership.extend([(lease, 0, 1, 5)]) == [(lease, 0, 1)]
    assert member.membership.ack_through([(lease, 0, 1)]) == [(lease, 0, 1)]


def test_of_a_run_that_is_partly_leased_the_rest_is_refused(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2")
    member = bench.consume(credit=2)
    lease = member.messages[0].lease

    assert member.membership.ack([(lease, 0, 3)]) == [(lease, 2, 3)]
    assert bench.lag() == 1


def test_everything_up_to_a_message_can_be_acknowledged_at_once(bench: StreamBench) -> None:
    bench.publish(b"0")
    bench.publish(b"1", b"2", b"3")
    member = bench.consume()
    assert member.ack_through(member.messages[2]) == []

    assert bench.lag() == 1
    assert bench.confirm() is None
    bench.restart("none")
    assert bench.consume().offsets == [3]


def test_types_that_share_messages_refuse_to_acknowledge_everything_up_to_one(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(type="shared")

    assert member.ack_through(member.messages[1]) == [member.messages[1].run]
    assert bench.lag() == 2


# Types


def test_a_second_consumer_of_an_exclusive_subscription_is_refused(bench: StreamBench) -> None:
    bench.consume()

    with pytest.raises(SubscriptionTakenError):
        bench.consume()


def test_a_standby_goes_on_where_the_active_one_left(bench: StreamBench) -> None:
    active, standby = bench.consume(type="failover"), bench.consume(type="failover")
    bench.publish(b"0", b"1", b"2")
    assert (active.offsets, standby.offsets) == ([0, 1, 2], [])
    active.ack(active.messages[0])
    active.leave()

    assert standby.sink.active == [True]
    assert [(m.offset, m.attempt) for m in standby.messages] == [(1, 1), (2, 1)]


def test_a_standby_takes_over_from_a_lost_one_at_once_and_in_order(bench: StreamBench) -> None:
    active, standby = bench.consume(type="failover"), bench.consume(type="failover")
    bench.publish(b"0", b"1")
    active.lose()
    bench.publish(b"2")

    assert [(m.offset, m.attempt) for m in standby.messages] == [(0, 2), (1, 2), (2, 1)]


def test_the_messages_of_a_shared_subscription_are_divided(bench: StreamBench) -> None:
    one, other = bench.consume(type="shared"), bench.consume(type="shared")
    bench.publish(*[b"x"] * 10)

    assert len(one.offsets) == len(other.offsets) == 5
    assert sorted(one.offsets + other.offsets) == list(range(10))


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "random"])
def test_a_shared_subscription_gives_to_whoever_has_credit(bench: StreamBench, policy: str) -> None:
    one = bench.consume(type="shared", policy=policy, credit=2)
    other = bench.consume(type="shared", policy=policy)
    bench.publish(*[b"x"] * 10)

    assert len(one.offsets) <= 2
    assert sorted(one.offsets + other.offsets) == list(range(10))


def test_a_consumer_that_asks_for_another_type_is_refused(bench: StreamBench) -> None:
    bench.consume(type="shared")

    with pytest.raises(SubscriptionMismatchError, match="type 'shared' and 1 consumer: subscribe"):
        bench.consume(type="failover", given=["type"])


def test_ack_settings_can_be_changed(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(acks={"max_deliveries": 9})
    member.ack(member.messages[0])
    member.leave()

    again = bench.consume(acks={"max_deliveries": 7})
    assert again.offsets == [1]
    bench.restart("none")
    assert bench.report().cursor.settings.max_deliveries == 7


def test_a_lost_consumer_has_no_lease_any_more_under_other_ack_settings(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume(consumer="c", acks={"max_deliveries": 9})
    (message,) = member.take()
    member.lose()

    again = bench.consume(consumer="c", acks={"max_deliveries": 7})
    assert again.offsets == [0]
    assert again.ack(message) == [message.run]


# Leaving


def test_a_message_given_back_in_good_order_costs_no_attempt(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    member.ack(member.messages[0])
    member.leave()

    again = bench.consume()
    assert [(m.offset, m.attempt) for m in again.messages] == [(1, 1)]
    assert bench.report().cursor.redelivered == 0


def test_the_messages_of_a_lost_consumer_go_to_others_when_its_grace_ends(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    lost = bench.consume(type="shared")
    other = bench.consume(type="shared")
    assert lost.offsets == [0]
    lost.lose()

    bench.advance(4_999)
    assert other.offsets == []
    bench.advance(1)
    assert [(m.offset, m.attempt) for m in other.messages] == [(0, 2)]


def test_a_consumer_that_comes_back_in_time_keeps_what_it_holds(bench: StreamBench) -> None:
    bench.publish(b"0")
    lost = bench.consume(type="shared", consumer="c")
    other = bench.consume(type="shared")
    (message,) = lost.take()
    lost.lose()
    bench.advance(4_999)

    back = bench.consume(type="shared", consumer="c")
    bench.advance(29_999)
    assert (back.offsets, other.offsets) == ([], [])
    assert back.ack(message) == []
    assert bench.lag() == 0


def test_a_consumer_that_comes_back_has_its_full_time_from_then_on(bench: StreamBench) -> None:
    bench.publish(b"0")
    lost = bench.consume(consumer="c")
    bench.advance(20_000)
    lost.lose()
    bench.advance(1_000)
    back = bench.consume(consumer="c")

    bench.advance(29_999)
    assert back.offsets == []
    bench.advance(1)
    assert [(m.offset, m.attempt) for m in back.messages] == [(0, 2)]


def test_the_same_name_of_another_client_does_not_get_the_leases(bench: StreamBench) -> None:
    bench.publish(b"0")
    lost = bench.consume(consumer="c", owner="one")
    (message,) = lost.take()
    lost.lose()

    other = bench.consume(consumer="c", owner="other")
    assert [(m.offset, m.attempt) for m in other.messages] == [(0, 2)]
    assert other.ack(message) == [message.run]


def test_a_consumer_that_connects_again_takes_the_place_of_its_former_self(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    former = bench.consume(consumer="c")
    (message,) = former.take()
    back = bench.consume(consumer="c")
    bench.publish(b"1")
    # The old connection breaks after the new one is there.
    former.lose()

    assert former.sink.closed == ["the same consumer connected again"]
    assert back.offsets == [1]
    assert back.ack(message) == []


def test_an_exclusive_subscription_is_given_to_another_in_order(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    lost = bench.consume(credit=1, owner="one")
    assert lost.offsets == [0]
    lost.lose()

    other = bench.consume(owner="other")
    assert [(m.offset, m.attempt) for m in other.messages] == [(0, 2), (1, 1)]


# Resting, and the end


def test_a_paused_subscription_rests_until_it_is_resumed(bench: StreamBench) -> None:
    member = bench.consume()
    assert bench.change("pause", TOPIC, "s", paused=True) is None
    bench.publish(b"0")
    assert member.offsets == []
    assert bench.report().cursor.paused

    assert bench.change("pause", TOPIC, "s", paused=False) is None
    assert member.offsets == [0]


def test_a_subscription_stays_paused_over_a_restart(bench: StreamBench) -> None:
    bench.consume()
    bench.change("pause", TOPIC, "s", paused=True)
    bench.restart("none")
    bench.publish(b"0")
    member = bench.consume()
    assert member.offsets == []

    bench.change("pause", TOPIC, "s", paused=False)
    assert member.offsets == [0]


def test_what_is_leased_when_a_subscription_is_paused_still_counts(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    bench.change("pause", TOPIC, "s", paused=True)

    assert member.ack(member.messages[0]) == []
    bench.advance(30_000)
    assert member.ack(member.messages[1]) == [member.messages[1].run]


def test_a_deleted_subscription_starts_anew(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    member.ack(member.messages[0])
    assert bench.change("delete", TOPIC, "s") is None

    assert member.sink.closed == ["the subscription was deleted"]
    assert member.ack(member.messages[0]) == [member.messages[0].run]
    bench.restart("none")
    with pytest.raises(SubscriptionNotFoundError):
        bench.seek(0)
    assert bench.consume().offsets == [0]


def test_a_consumer_that_was_about_to_attach_to_a_deleted_subscription_is_refused(
    bench: StreamBench,
) -> None:
    _, outcome = bench.subscribe()
    bench.change("delete", TOPIC, "s")

    assert isinstance(outcome.result, SubscriptionNotFoundError) or outcome.result.left


def test_there_are_as_many_subscriptions_as_the_limit_says() -> None:
    bench = StreamBench(subscriptions_max=1)
    bench.create()
    bench.consume(subscription="one")

    with pytest.raises(LimitReachedError):
        bench.consume(subscription="other")


# Reports


def test_a_report_tells_how_far_a_subscription_is(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2")
    bench.advance(250)
    member = bench.consume(credit=2)
    member.ack(member.messages[0])
    report = bench.report()

    assert report.cursor.lag == 2
    assert report.cursor.in_flight == 1
    assert report.cursor.in_flight_bytes > 0
    assert report.cursor.oldest_unacked_ms == 250
    assert report.cursor.floors == {TOPIC: 1}
    assert report.messages_out == 2


def test_counts_of_refused_and_redelivered_messages_rise(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    (first,) = member.take()
    member.nack(first, delay_ms=0)
    member.ack(first)
    report = bench.report()

    assert report.cursor.redelivered == 1
    assert report.cursor.refused == 1
