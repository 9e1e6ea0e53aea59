"""What an operator sets for a subscription, as Danube's own client then sees it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from grpc import StatusCode
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.admin_port import Port
from tests.e2e.grpc.danubes import Danube, Inbox, new_topic
from tests.e2e.raw import wait_until

pytestmark = pytest.mark.e2e

RELIABLE = 1
DEAD_LETTER, BLOCK, DROP = 0, 1, 2
SUBSCRIPTION = "subscription"

# Two deliveries, the second at once.
TWICE = {
    "max_redelivery_count": 1,
    "ack_timeout_ms": 30_000,
    "base_redelivery_delay_ms": 0,
    "max_redelivery_delay_ms": 60_000,
    "backoff_strategy": 0,
}


@pytest.fixture(scope="module")
def port(grpc_broker: BrokerProcess) -> Iterator[Port]:
    """The admin port."""
    made = Port(grpc_broker.admin)
    yield made
    made.close()


@pytest.fixture
def topic(port: Port) -> str:
    """A reliable topic."""
    name = new_topic("poison")
    port.call("TopicAdmin/CreateTopic", name=name, dispatch_strategy=RELIABLE)
    return name


def set_policy(port: Port, topic: str, poison: int, **more: Any) -> None:
    port.call(
        "TopicAdmin/SetSubscriptionFailurePolicy",
        topic=topic,
        subscription=SUBSCRIPTION,
        failure_policy={**TWICE, "poison_policy": poison, **more},
    )


async def fail_twice(inbox: Inbox, payload: bytes) -> None:
    """Give the next message back until it is poison."""
    for _ in range(2):
        (got,) = await inbox.take()
        assert got.payload == payload
        await inbox.consumer.nack(got)


async def test_a_policy_set_before_the_first_consumer_comes_is_for_it(
    danube: Danube, port: Port, topic: str
) -> None:
    letters = f"{topic}-letters"
    port.call("TopicAdmin/CreateTopic", name=letters, dispatch_strategy=RELIABLE)
    set_policy(port, topic, DEAD_LETTER, dead_letter_topic=letters)
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)
    dead = await danube.consumer(letters)

    await producer.send(b"bad")
    await fail_twice(inbox, b"bad")
    assert await dead.payloads(1, ack=True) == [b"bad"]
    await producer.send(b"good")
    assert await inbox.payloads(1, ack=True) == [b"good"]


async def test_a_poisoned_message_blocks_until_the_policy_changes(
    danube: Danube, port: Port, topic: str
) -> None:
    set_policy(port, topic, BLOCK)
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)

    await producer.send(b"bad")
    await fail_twice(inbox, b"bad")
    await producer.send(b"good")
    assert await inbox.is_quiet()
    set_policy(port, topic, DROP)
    assert await inbox.payloads(1, ack=True) == [b"good"]


async def test_a_limit_holds_messages_back_until_one_is_acknowledged(
    danube: Danube, port: Port, topic: str
) -> None:
    fields = {"topic": topic, "subscription": SUBSCRIPTION}
    limit = {"max_unacked_messages": 2}
    port.call("TopicAdmin/SetSubscriptionDispatchConfig", dispatch_config=limit, **fields)
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)

    for number in range(3):
        await producer.send(b"%d" % number)
    first, _ = await inbox.take(2)
    assert await inbox.is_quiet()
    await inbox.consumer.ack(first)
    assert await inbox.payloads(1) == [b"2"]


async def test_a_subscription_with_danubes_defaults_says_so(
    danube: Danube, port: Port, topic: str
) -> None:
    await danube.consumer(topic, type="key_shared")

    found = port.call(
        "TopicAdmin/GetSubscriptionFailurePolicy", topic=topic, subscription=SUBSCRIPTION
    )
    policy = found.failure_policy
    assert found.subscription_type == 3
    assert (policy.max_redelivery_count, policy.ack_timeout_ms) == (5, 30_000)
    assert (policy.base_redelivery_delay_ms, policy.max_redelivery_delay_ms) == (1_000, 60_000)
    assert (policy.backoff_strategy, policy.poison_policy) == (1, BLOCK)
    assert not policy.HasField("dead_letter_topic")
    limit = port.call(
        "TopicAdmin/GetSubscriptionDispatchConfig", topic=topic, subscription=SUBSCRIPTION
    )
    assert limit.dispatch_config.max_unacked_messages == 10


async def test_a_subscription_ends_once_its_consumer_has_gone(
    danube: Danube, port: Port, topic: str
) -> None:
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)
    await producer.send(b"0")
    assert await inbox.payloads(1, ack=True) == [b"0"]
    fields = {"topic": topic, "subscription": SUBSCRIPTION}
    assert port.code("TopicAdmin/Unsubscribe", **fields) is StatusCode.NOT_FOUND
    assert port.call("TopicAdmin/ListSubscriptions", name=topic).subscriptions == [SUBSCRIPTION]
    await inbox.close()

    def is_removed() -> bool:
        return port.code("TopicAdmin/Unsubscribe", **fields) is StatusCode.OK

    # The broker may hear of it a moment later.
    await asyncio.to_thread(wait_until, is_removed, "the subscription is removed")

    assert port.call("TopicAdmin/ListSubscriptions", name=topic).subscriptions == []
