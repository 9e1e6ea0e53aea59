"""Each type of subscription: who gets which message, and what happens when consumers change."""

import pytest
from tests.unit.broker.fakes import Bench, FakeSink, numbered

from ister.base.errors import (
    BadNameError,
    BadRequestError,
    ConsumerNameTakenError,
    LimitReachedError,
    NamespaceNotFoundError,
    SubscriptionMismatchError,
    SubscriptionTakenError,
)
from ister.base.limits import FILTERS_MAX, KEY_GLOBS_MAX
from ister.subscriptions.globs import LOOSE_WEIGHT

KEYS = [f"k{n}" for n in range(200)]


# Exclusive


def test_every_subscription_gets_every_message() -> None:
    bench = Bench()
    one, two = bench.consume(subscription="one"), bench.consume(subscription="two")
    bench.publish(b"a", b"b")

    assert one.payloads == two.payloads == [b"a", b"b"]


def test_a_second_consumer_of_an_exclusive_subscription_is_refused_by_name() -> None:
    bench = Bench()
    bench.consume(consumer="first")

    with pytest.raises(SubscriptionTakenError, match="first"):
        bench.consume(consumer="second")


def test_an_exclusive_subscription_is_free_again_when_its_consumer_left() -> None:
    bench = Bench()
    bench.consume().leave()
    second = bench.consume()
    bench.publish(b"a")

    assert second.payloads == [b"a"]


def test_what_the_last_consumer_was_not_sent_is_dropped_and_counted() -> None:
    bench = Bench()
    consumer = bench.consume(credit=1)
    bench.publish(*numbered(0, 5))
    consumer.leave()

    assert bench.topic_report().messages_dropped == 4


def test_a_subscription_ends_with_its_last_consumer() -> None:
    bench = Bench()
    consumer = bench.consume()
    consumer.leave()

    assert bench.broker.subscriptions("", after="", limit=10) == ([], "")


def test_leaving_twice_does_no_harm() -> None:
    bench = Bench()
    consumer = bench.consume()
    consumer.leave()
    consumer.leave()

    assert bench.broker.report().subscriptions == 0


# Settings


def test_a_newcomer_with_another_type_is_refused() -> None:
    bench = Bench()
    bench.consume(type="shared")

    with pytest.raises(SubscriptionMismatchError, match="type 'shared' and 1 consumer: "):
        bench.consume(type="failover")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"type": "broadcast"}, BadRequestError),
        ({"policy": "fair"}, BadRequestError),
        ({"key_filters": ["*****"]}, BadRequestError),
        ({"subscription": "a b"}, BadNameError),
        ({"consumer": ""}, BadNameError),
        ({"topic": "/default/a.>.b"}, BadNameError),
        ({"topic": "/nowhere/a"}, NamespaceNotFoundError),
        ({"topic": "/nowhere/>"}, NamespaceNotFoundError),
        ({"topic": "/default/a-part-3"}, BadNameError),
    ],
)
def test_a_bad_request_to_subscribe_leaves_nothing_behind(
    options: dict[str, object], error: type[Exception]
) -> None:
    bench = Bench()
    with pytest.raises(error):
        bench.consume(**options)  # type: ignore[arg-type]

    assert (bench.broker.report().subscriptions, bench.broker.report().topics) == (0, 0)


def test_a_subscription_takes_as_many_consumers_as_its_limit() -> None:
    bench = Bench(consumers_per_subscription_max=2)
    bench.consume(type="shared")
    bench.consume(type="shared")

    with pytest.raises(LimitReachedError, match="consumers_per_subscription_max"):
        bench.consume(type="shared")


def test_a_broker_takes_as_many_subscriptions_as_its_limit() -> None:
    bench = Bench(subscriptions_max=2)
    bench.consume(subscription="one")
    bench.consume(subscription="two")

    with pytest.raises(LimitReachedError, match="subscriptions_max"):
        bench.consume(subscription="three")


# Shared


def test_round_robin_gives_single_messages_in_turn() -> None:
    bench = Bench()
    three = [bench.consume(type="shared", policy="round_robin") for _ in range(3)]
    for payload in numbered(0, 6):
        bench.publish(payload)

    assert [c.payloads for c in three] == [
        [b"000", b"003"],
        [b"001", b"004"],
        [b"002", b"005"],
    ]


def test_round_robin_goes_on_where_a_batch_ended() -> None:
    bench = Bench()
    three = [bench.consume(type="shared", policy="round_robin") for _ in range(3)]
    bench.publish(*numbered(0, 4))
    bench.publish(b"next")

    assert three[1].payloads[-1] == b"next"


def test_random_asks_for_a_slot_among_the_consumers() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return 2

    bench = Bench(random_slot=draw)
    three = [bench.consume(type="shared", policy="random") for _ in range(3)]
    bench.publish(b"a")

    assert (asked, three[2].payloads) == ([3], [b"a"])


def test_least_loaded_gives_to_the_one_that_keeps_up() -> None:
    bench = Bench()
    stuck = bench.consume(type="shared", credit=10)
    quick = bench.consume(type="shared", credit=10)
    for payload in numbered(0, 10):
        bench.publish(payload)
        if quick.payloads[-1:] == [payload]:
            quick.consumer.grant(1, 100)

    assert (len(stuck.payloads), len(quick.payloads)) == (1, 9)


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "random"])
def test_each_message_of_a_shared_subscription_goes_to_exactly_one(policy: str) -> None:
    bench = Bench()
    three = [bench.consume(type="shared", policy=policy) for _ in range(3)]
    for start in range(0, 70, 7):
        bench.publish(*numbered(start, start + 7))

    assert sorted(p for c in three for p in c.payloads) == numbered(0, 70)


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "random"])
def test_a_consumer_of_a_shared_subscription_sees_rising_offsets(policy: str) -> None:
    bench = Bench()
    three = [bench.consume(type="shared", policy=policy) for _ in range(3)]
    for start in range(0, 70, 7):
        bench.publish(*numbered(start, start + 7))

    assert all(c.sink.offsets == sorted(c.sink.offsets) for c in three)


def test_what_a_leaving_consumer_was_not_sent_goes_to_the_others_in_order() -> None:
    bench = Bench()
    stuck = bench.consume(type="shared", policy="round_robin", credit=0)
    other = bench.consume(type="shared", policy="round_robin")
    for payload in numbered(0, 10):
        bench.publish(payload)
    before = list(other.payloads)
    stuck.leave()

    assert other.payloads[len(before) :] == numbered(0, 10)[::2]


def test_a_share_whose_consumer_left_half_way_reaches_the_others_from_there_on() -> None:
    bench = Bench()
    stuck = bench.consume(type="shared", credit=2)
    bench.publish(*numbered(0, 5))
    other = bench.consume(type="shared")
    stuck.leave()

    assert (stuck.payloads, other.payloads) == (numbered(0, 2), numbered(2, 5))


# Failover


def test_only_the_first_consumer_of_a_failover_subscription_is_active() -> None:
    bench = Bench()
    two = [bench.consume(type="failover") for _ in range(2)]
    bench.publish(b"a")

    assert [(c.active, c.payloads) for c in two] == [(True, [b"a"]), (False, [])]


def test_the_next_in_line_is_promoted_and_told() -> None:
    bench = Bench()
    first, second, third = (bench.consume(type="failover") for _ in range(3))
    first.leave()

    assert (second.sink.active, third.sink.active) == ([(second.consumer.channel, True)], [])


def test_promotion_goes_in_the_order_of_arrival() -> None:
    bench = Bench()
    consumers = [bench.consume(type="failover") for _ in range(4)]
    for number, consumer in enumerate(consumers):
        bench.publish(b"%d" % number)
        consumer.leave()

    assert [c.payloads for c in consumers] == [[b"0"], [b"1"], [b"2"], [b"3"]]


def test_the_promoted_gets_what_the_former_was_not_sent_before_anything_new() -> None:
    bench = Bench()
    first = bench.consume(type="failover", credit=3)
    second = bench.consume(type="failover")
    bench.publish(*numbered(0, 5))
    bench.publish(*numbered(5, 8))
    first.leave()
    bench.publish(*numbered(8, 10))

    assert (first.payloads, second.payloads) == (numbered(0, 3), numbered(3, 10))


def test_a_standby_that_leaves_changes_nothing() -> None:
    bench = Bench()
    first, second, third = (bench.consume(type="failover") for _ in range(3))
    second.leave()
    bench.publish(b"a")

    assert (first.payloads, third.sink.active) == ([b"a"], [])


# Key-shared


def by_key(consumer: FakeSink) -> set[str | None]:
    return {key for _, _, batch in consumer.batches for key in batch.keys or ()}


def test_messages_of_one_key_go_to_one_consumer() -> None:
    bench = Bench()
    three = [bench.consume(type="key_shared") for _ in range(3)]
    for _ in range(2):
        bench.publish(*[b""] * len(KEYS), keys=KEYS)
    owned = [by_key(c.sink) for c in three]

    assert sum(len(keys) for keys in owned) == len(KEYS)


def test_messages_of_one_key_stay_in_order() -> None:
    bench = Bench()
    two = [bench.consume(type="key_shared") for _ in range(2)]
    for start in range(0, 60, 6):
        bench.publish(*numbered(start, start + 6), keys=["a", "b", "c"] * 2)

    assert all(c.payloads == sorted(c.payloads) for c in two)


def test_a_joining_consumer_takes_only_its_share_of_keys() -> None:
    bench = Bench()
    two = [bench.consume(type="key_shared") for _ in range(2)]
    bench.publish(*[b""] * len(KEYS), keys=KEYS)
    before = [by_key(c.sink) for c in two]
    third = bench.consume(type="key_shared")
    for c in two:
        c.sink.batches.clear()
    bench.publish(*[b""] * len(KEYS), keys=KEYS)
    after = [by_key(c.sink) for c in two]

    assert all(late <= early for early, late in zip(before, after, strict=True))
    assert 0 < len(by_key(third.sink)) < len(KEYS) * 2 / 3


def test_a_leaving_consumer_gives_up_only_its_own_keys() -> None:
    bench = Bench()
    three = [bench.consume(type="key_shared") for _ in range(3)]
    bench.publish(*[b""] * len(KEYS), keys=KEYS)
    before = [by_key(c.sink) for c in three]
    three[2].leave()
    bench.publish(*[b""] * len(KEYS), keys=KEYS)
    after = [by_key(c.sink) for c in three[:2]]

    assert [early <= late for early, late in zip(before, after, strict=False)] == [True, True]


def test_messages_without_a_key_of_one_producer_go_to_one_consumer() -> None:
    bench = Bench()
    three = [bench.consume(type="key_shared") for _ in range(3)]
    bench.publish(b"a", b"b")
    bench.publish(b"c", b"d", keys=[None, None])

    assert sorted(len(c.payloads) for c in three) == [0, 0, 4]


def test_a_key_goes_only_to_consumers_whose_key_filter_takes_it() -> None:
    bench = Bench()
    eu = bench.consume(type="key_shared", key_filters=["eu.*"])
    us = bench.consume(type="key_shared", key_filters=["us.*"])
    bench.publish(b"1", b"2", b"3", keys=["us.1", "eu.1", "asia.1"])

    assert (eu.payloads, us.payloads) == ([b"2"], [b"1"])


def test_a_key_nobody_takes_is_dropped_and_counted() -> None:
    bench = Bench()
    bench.consume(type="key_shared", key_filters=["eu.*"])
    bench.publish(b"1", b"2", keys=["us.1", "eu.1"])

    assert bench.topic_report().messages_dropped == 1


def test_keys_queued_for_a_leaving_consumer_that_nobody_else_takes_are_counted() -> None:
    bench = Bench()
    eu = bench.consume(type="key_shared", key_filters=["eu.*"], credit=0)
    bench.consume(type="key_shared", key_filters=["us.*"])
    bench.publish(b"1", keys=["eu.1"])
    eu.leave()

    assert bench.topic_report().messages_dropped == 1


# Filters


def test_a_subscription_gets_only_what_its_filter_takes() -> None:
    bench = Bench()
    consumer = bench.consume(filters={"region": "eu*"})
    bench.publish(
        *numbered(0, 4), attributes=[{"region": "eu-1"}, {"region": "us"}, None, {"region": "eu"}]
    )

    assert (consumer.payloads, consumer.sink.offsets) == ([b"000", b"003"], [0, 3])


def test_key_filters_belong_to_the_whole_of_a_shared_subscription() -> None:
    bench = Bench()
    two = [bench.consume(type="shared", key_filters=["a*"]) for _ in range(2)]
    bench.publish(*numbered(0, 4), keys=["a1", "b1", "a2", None])

    assert sorted(p for c in two for p in c.payloads) == [b"000", b"002"]


def test_messages_that_two_filters_divide_between_them_are_not_dropped() -> None:
    bench = Bench()
    bench.consume(subscription="a", key_filters=["a"])
    bench.consume(subscription="b", key_filters=["b"])
    bench.publish(*numbered(0, 3), keys=["a", "b", "c"])

    assert bench.topic_report().messages_dropped == 1


# The same client coming back


def test_the_same_client_takes_the_place_of_its_former_consumer() -> None:
    bench = Bench()
    former = bench.consume(consumer="c", owner="me")
    again = bench.consume(consumer="c", owner="me")
    bench.publish(b"a")

    assert (former.payloads, again.payloads) == ([], [b"a"])


def test_the_former_consumer_is_told_that_it_was_closed() -> None:
    bench = Bench()
    former = bench.consume(consumer="c", owner="me")
    bench.consume(consumer="c", owner="me")

    assert former.sink.closed == [(former.consumer.channel, "the same consumer connected again")]


def test_a_consumer_that_comes_back_gets_what_its_former_self_was_not_sent() -> None:
    bench = Bench()
    bench.consume(consumer="c", owner="me", credit=2)
    bench.publish(*numbered(0, 5))
    again = bench.consume(consumer="c", owner="me")

    assert again.payloads == numbered(2, 5)


def test_a_consumer_that_comes_back_keeps_its_place_in_line() -> None:
    bench = Bench()
    bench.consume(type="failover", consumer="first", owner="me")
    bench.consume(type="failover", consumer="second")
    again = bench.consume(type="failover", consumer="first", owner="me")

    assert again.active


def test_the_late_end_of_a_former_connection_does_not_touch_the_new_one() -> None:
    bench = Bench()
    former = bench.consume(consumer="c", owner="me")
    again = bench.consume(consumer="c", owner="me")
    former.leave()
    bench.publish(b"a")

    assert again.payloads == [b"a"]


def test_a_name_in_use_by_another_client_is_refused() -> None:
    bench = Bench()
    bench.consume(type="shared", consumer="c", owner="me")

    with pytest.raises(ConsumerNameTakenError):
        bench.consume(type="shared", consumer="c", owner="somebody else")


def test_counts_of_a_former_consumer_stay_with_the_subscription() -> None:
    bench = Bench()
    bench.consume(consumer="c", owner="me")
    bench.publish(b"a")
    bench.consume(consumer="c", owner="me")
    [report], _ = bench.broker.subscriptions("", after="", limit=10)

    assert report.messages_out == 1


def loose_globs(consumer: int) -> list[str]:
    return [f"*a?{consumer:02}{n:02}*" for n in range(FILTERS_MAX)]


def test_globs_that_are_slow_to_match_are_fewer_in_a_key_shared_subscription() -> None:
    bench = Bench()
    most = KEY_GLOBS_MAX // LOOSE_WEIGHT // FILTERS_MAX
    for number in range(most):
        bench.consume(type="key_shared", key_filters=loose_globs(number))
    bench.consume(type="key_shared", key_filters=loose_globs(0))

    with pytest.raises(LimitReachedError, match="key_globs_max"):
        bench.consume(type="key_shared", key_filters=["plain*"])
