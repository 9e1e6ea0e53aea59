"""Messages that Danube's consumers give back for ever: what the policy says becomes of them."""

import asyncio
import subprocess
import sys

from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.danubes import Danube, Inbox, new_topic

DEAD_LETTER, BLOCK, DROP = range(3)
SET_POLICY = "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy"
ONE_MORE_TIME = {
    "max_redelivery_count": 1,
    "ack_timeout_ms": 30_000,
    "base_redelivery_delay_ms": 10,
    "max_redelivery_delay_ms": 10,
}


async def set_policy(broker: BrokerProcess, topic: str, poison: int, **fields: str) -> None:
    """Say what becomes of messages of `subscription` that went wrong twice."""
    policy = {**ONE_MORE_TIME, "poison_policy": poison, **fields}
    async with Danube(broker.admin) as admin:
        answer = await admin.ask(
            SET_POLICY,
            "danube_admin.SetSubscriptionFailurePolicyRequest",
            "danube_admin.SubscriptionResponse",
            topic=topic,
            subscription="subscription",
            failure_policy=policy,
        )
    assert answer.success


async def poisoned(danube: Danube, broker: BrokerProcess, poison: int, **fields: str) -> Inbox:
    """Give the first of two messages back until the policy is asked."""
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    first = await danube.consumer(topic)
    await first.close()
    await set_policy(broker, topic, poison, **fields)
    inbox = await danube.consumer(topic)
    await producer.send(b"poison", {"color": "green"})

    for _ in range(2):
        (got,) = await inbox.take()
        assert got.payload == b"poison"
        await inbox.consumer.nack(got, reason="bad")
    await producer.send(b"good")
    return inbox


async def test_a_dropped_message_is_passed_over(danube: Danube, grpc_broker: BrokerProcess) -> None:
    inbox = await poisoned(danube, grpc_broker, DROP)

    assert await inbox.payloads(1, ack=True) == [b"good"]


async def test_a_blocked_subscription_stands_still(
    danube: Danube, grpc_broker: BrokerProcess
) -> None:
    inbox = await poisoned(danube, grpc_broker, BLOCK)

    assert await inbox.is_quiet()


async def test_a_dead_letter_tells_where_it_comes_from(
    danube: Danube, grpc_broker: BrokerProcess
) -> None:
    letters = new_topic("letters")
    await danube.producer(letters, reliable=True)
    dead = await danube.consumer(letters)
    inbox = await poisoned(danube, grpc_broker, DEAD_LETTER, dead_letter_topic=letters)

    (letter,) = await dead.take(ack=True)
    assert await inbox.payloads(1, ack=True) == [b"good"]

    found = dict(letter.attributes)
    assert letter.payload == b"poison"
    assert found["color"] == "green"
    assert found["x-original-subscription"] == "subscription"
    assert found["x-original-topic-offset"] == "0"
    assert found["x-delivery-attempt"] == "2"
    assert found["x-failure-reason"] == "bad"
    assert found["x-poison-policy"] == "dead_letter"
    assert {"x-original-topic", "x-original-producer-id"} <= found.keys()


async def test_danubes_own_delay_is_a_second_at_least(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)
    await producer.send(b"x")
    (got,) = await inbox.take()

    await inbox.consumer.nack(got, delay_ms=0)

    assert await inbox.is_quiet()
    assert await inbox.payloads(1) == [b"x"]


TAKER = """
import asyncio, danube, sys

async def main(url, topic):
    client = await danube.DanubeClientBuilder().service_url(url).build()
    builder = client.new_consumer().with_topic(topic).with_consumer_name("taker")
    consumer = builder.with_subscription("subscription").build()
    await consumer.subscribe()
    queue = await consumer.receive()
    print("ready", flush=True)
    print((await queue.get()).payload.decode(), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_client_had_goes_to_the_next(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TAKER, f"http://{danube.address}", topic, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        await producer.send(b"x")
        assert await process.stdout.readline() == b"x\n"
        second = await danube.consumer(topic, type="shared")
    finally:
        process.kill()
        await process.communicate()

    assert await second.payloads(1, ack=True) == [b"x"]
