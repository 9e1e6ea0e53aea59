"""Topics that get more partitions, and namespaces that come and go."""

from typing import Any

import pytest
from tests.unit.broker.fakes import Bench
from tests.unit.broker.streambench import Outcome, StreamBench

from ister.base import StreamSettings
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    NamespaceExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    StorageFailedError,
    TopicExistsError,
)
from ister.testing import Fault

PARTS = "/default/parts"


def grow(bench: StreamBench, partitions: int, *, topic: str = PARTS) -> IsterError | None:
    outcome = Outcome()
    bench.broker.grow_topic(topic, partitions, outcome, kind="stream")
    bench.settle()
    return outcome.error


def part(number: int) -> str:
    return f"{PARTS}-part-{number}"


# Growing


def test_a_topic_that_is_not_there_is_made_when_it_is_to_grow() -> None:
    bench = StreamBench()
    assert grow(bench, 2) is None

    assert bench.broker.partition_count(PARTS) == 2
    assert sorted(bench.broker.streams.by_name) == [part(0), part(1)]


def test_a_topic_keeps_the_partitions_it_has_and_gets_more() -> None:
    bench = StreamBench()
    bench.create(PARTS, partitions=1, max_messages=10)
    bench.publish(b"0", topic=part(0))
    assert grow(bench, 3) is None
    bench.publish(b"2", topic=part(2))

    assert bench.topic(part(0)).next_offset == 1
    assert bench.topic(part(2)).record.settings == StreamSettings(max_messages=10)


def test_a_topic_that_has_as_many_partitions_does_not_shrink() -> None:
    bench = StreamBench()
    grow(bench, 3)
    assert grow(bench, 1) is None

    assert bench.broker.partition_count(PARTS) == 3


def test_partitions_that_were_added_are_there_after_a_restart() -> None:
    bench = StreamBench()
    grow(bench, 1)
    grow(bench, 3)
    bench.publish(b"2", topic=part(2))
    bench.restart("none")

    assert bench.broker.partition_count(PARTS) == 3
    assert [m.payload for m in bench.stored(part(2))] == [b"2"]


def test_a_durable_subscription_gets_new_partitions_from_their_first_message_on() -> None:
    bench = StreamBench()
    grow(bench, 1)
    member = bench.consume(PARTS, start="latest")
    only_first = bench.consume(part(0), "other")
    grow(bench, 2)
    bench.publish(b"1", topic=part(1))

    assert member.payloads == [b"1"]
    assert only_first.payloads == []
    bench.restart("none")
    assert bench.consume(PARTS).payloads == [b"1"]


def test_a_subscription_by_pattern_gets_a_new_partition_once() -> None:
    bench = StreamBench()
    grow(bench, 1)
    member = bench.consume("/default/*")
    grow(bench, 2)
    bench.publish(b"1", topic=part(1))

    assert member.payloads == [b"1"]


def test_partitions_that_the_journal_does_not_take_are_taken_back() -> None:
    bench = StreamBench()
    grow(bench, 1)
    member = bench.consume(PARTS)
    bench.disk.fail(Fault())
    told: list[Any] = []
    bench.broker.grow_topic(PARTS, 2, told.append, kind="stream")
    bench.broker.grow_topic(PARTS, 3, told.append, kind="stream")
    bench.settle()
    assert [type(error) for error in told] == [StorageFailedError] * 2
    assert bench.broker.partition_count(PARTS) == 1
    assert sorted(bench.broker.streams.by_name) == [part(0)]
    bench.advance(5_000)

    assert grow(bench, 2) is None
    bench.publish(b"1", topic=part(1))
    assert member.payloads == [b"1"]


def test_a_topic_that_is_being_deleted_grows_anew() -> None:
    bench = StreamBench()
    grow(bench, 2)
    bench.publish(b"old", topic=part(0))
    told: list[Any] = []
    bench.broker.delete_topic(PARTS, told.append)
    bench.broker.grow_topic(PARTS, 1, told.append, kind="stream")
    bench.settle()

    assert told == [None, None]
    assert bench.broker.partition_count(PARTS) == 1
    assert bench.stored(part(0)) == []
    bench.restart("none")
    assert sorted(bench.broker.streams.by_name) == [part(0)]


def test_partitions_that_are_just_being_added_are_deleted_with_the_others() -> None:
    bench = StreamBench()
    grow(bench, 1)
    told: list[Any] = []
    bench.broker.grow_topic(PARTS, 2, told.append, kind="stream")
    bench.broker.delete_topic(PARTS, told.append)
    bench.settle()

    assert told == [None, None]
    assert bench.broker.streams.by_name == {}
    bench.restart("none")
    assert bench.broker.streams.by_name == {}


def test_a_live_topic_grows_and_its_subscriptions_with_it() -> None:
    bench = Bench()
    bench.broker.grow_topic(PARTS, 1)
    whole, one = bench.consume(PARTS), bench.consume(part(0), "one")
    by_pattern = bench.consume("/default/*", "all")
    bench.broker.grow_topic(PARTS, 2)
    bench.publish(b"1", topic=part(1))

    assert whole.payloads == [b"1"]
    assert by_pattern.payloads == [b"1"]
    assert one.payloads == []


def test_only_what_was_asked_for_grows() -> None:
    bench = StreamBench()
    bench.create("/default/plain")
    grow(bench, 1)
    bench.broker.create_topic("/default/live", partitions=1)

    with pytest.raises(TopicExistsError, match="0 partitions"):
        grow(bench, 2, topic="/default/plain")
    with pytest.raises(TopicExistsError, match="as a live topic"):
        grow(bench, 2, topic="/default/live")
    with pytest.raises(TopicExistsError, match="as a stream topic"):
        bench.broker.grow_topic(PARTS, 2)
    other = StreamSettings(max_messages=1)
    with pytest.raises(TopicExistsError, match="use it as it is"):
        bench.broker.grow_topic(PARTS, 2, kind="stream", stream=other)
    with pytest.raises(BadRequestError, match="1 or more"):
        grow(bench, 0)
    with pytest.raises(NamespaceNotFoundError):
        grow(bench, 1, topic="/nowhere/parts")


def test_a_topic_grows_within_the_limits() -> None:
    bench = StreamBench(topics_max=3)
    grow(bench, 2)

    with pytest.raises(LimitReachedError, match="topics_max"):
        grow(bench, 4)
    with pytest.raises(BadRequestError, match="1024"):
        grow(bench, 1_025)
    assert bench.broker.partition_count(PARTS) == 2


# Namespaces


def delete_namespace(bench: StreamBench, namespace: str) -> IsterError | None:
    outcome = Outcome()
    bench.broker.delete_namespace(namespace, outcome)
    bench.settle()
    return outcome.error


@pytest.mark.parametrize("namespace", ["default", "system"])
def test_some_namespaces_are_always_there(namespace: str) -> None:
    broker = Bench().broker

    with pytest.raises(NamespaceExistsError):
        broker.create_namespace(namespace)
    with pytest.raises(NamespaceNotEmptyError, match="always"):
        broker.delete_namespace(namespace)


def test_a_deleted_namespace_is_gone_and_stays_so() -> None:
    bench = StreamBench()
    bench.broker.create_namespace("shop")
    bench.create("/shop/orders")
    bench.broker.delete_topic("/shop/orders")
    bench.settle()
    assert delete_namespace(bench, "shop") is None
    assert bench.broker.namespaces() == ["default", "system"]
    with pytest.raises(NamespaceNotFoundError):
        bench.broker.create_topic("/shop/orders")
    bench.restart("none")

    assert bench.broker.namespaces() == ["default", "system"]


def test_a_namespace_without_any_storage_can_be_deleted() -> None:
    broker = Bench().broker
    broker.create_namespace("shop")
    broker.delete_namespace("shop")

    assert broker.namespaces() == ["default", "system"]


def test_a_namespace_of_two_journals_is_gone_from_both() -> None:
    bench = StreamBench(objects=True)
    bench.create("/default/here")
    bench.broker.create_namespace("shop")
    bench.create("/shop/there", durability="object")
    bench.create("/shop/here")
    bench.broker.delete_topic("/shop/there")
    bench.broker.delete_topic("/shop/here")
    bench.settle()
    assert delete_namespace(bench, "shop") is None
    bench.restart()

    assert bench.broker.namespaces() == ["default", "system"]


@pytest.mark.parametrize("kind", ["live", "stream"])
def test_a_namespace_with_topics_is_not_deleted(kind: str) -> None:
    bench = StreamBench()
    bench.broker.create_namespace("shop")
    bench.broker.create_topic("/shop/orders", kind=kind, partitions=2)

    with pytest.raises(NamespaceNotEmptyError, match="2 topics"):
        bench.broker.delete_namespace("shop")


def test_a_namespace_that_a_subscription_covers_is_not_deleted() -> None:
    bench = StreamBench()
    bench.broker.create_namespace("shop")
    bench.create("/shop/orders")
    bench.consume("/shop/*", "all").leave()
    bench.broker.delete_topic("/shop/orders")
    bench.settle()

    with pytest.raises(NamespaceNotEmptyError, match=r"'/shop/\*'"):
        bench.broker.delete_namespace("shop")
    assert bench.change("delete", "/shop/*", "all") is None
    assert delete_namespace(bench, "shop") is None


def test_a_namespace_that_is_not_there_is_not_deleted() -> None:
    with pytest.raises(NamespaceNotFoundError):
        Bench().broker.delete_namespace("shop")


def test_two_may_ask_for_the_end_of_a_namespace_which_takes_no_topics_meanwhile() -> None:
    bench = StreamBench()
    bench.create("/default/any")
    bench.broker.create_namespace("shop")
    told: list[Any] = []
    bench.broker.delete_namespace("shop", told.append)
    bench.broker.delete_namespace("shop", told.append)
    with pytest.raises(NamespaceNotFoundError):
        bench.broker.create_topic("/shop/orders")
    with pytest.raises(NamespaceExistsError):
        bench.broker.create_namespace("shop")
    bench.settle()

    assert told == [None, None]


def test_a_namespace_stays_when_the_journal_does_not_take_its_end() -> None:
    bench = StreamBench()
    bench.create("/default/any")
    bench.broker.create_namespace("shop")
    bench.settle()
    bench.disk.fail(Fault())

    assert isinstance(delete_namespace(bench, "shop"), StorageFailedError)
    assert "shop" in bench.broker.namespaces()
    bench.advance(5_000)
    bench.create("/shop/orders")
