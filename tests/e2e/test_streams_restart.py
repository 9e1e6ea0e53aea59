"""What a user of streams finds again after the broker was stopped, or has died."""

import asyncio
from datetime import timedelta

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import WAIT_S

import ister
from ister.base.errors import LeaseLostError, ProducerFencedError, TransactionError

pytestmark = pytest.mark.e2e

TOPIC = "/default/orders"
LETTERS = "/default/orders-s-dlq"
ENDS = pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])


def end_and_start(broker: BrokerProcess, end: object) -> None:
    assert callable(end)
    end(broker)
    broker.restart()


async def send(client: ister.Client, *payloads: bytes, topic: str = TOPIC) -> list[int]:
    async with client.producer(topic, name="shop") as producer:
        return [(await producer.send(payload)).offset for payload in payloads]


async def take(sub: ister.Subscription, count: int) -> list[ister.Message]:
    return [await sub.receive(WAIT_S) for _ in range(count)]


@ENDS
async def test_a_subscription_goes_on_behind_what_was_acknowledged(
    end: object, broker: BrokerProcess
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        await send(client, *(b"%d" % n for n in range(10)))
        async with client.subscribe(TOPIC, "billing", start="earliest") as sub:
            for msg in await take(sub, 4):
                await msg.ack(confirm=True)
    end_and_start(broker, end)

    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "billing") as sub,
    ):
        messages = await take(sub, 6)

    assert [(msg.offset, msg.payload) for msg in messages] == [(n, b"%d" % n) for n in range(4, 10)]


@ENDS
async def test_acknowledgements_out_of_order_are_kept_one_by_one(
    end: object, broker: BrokerProcess
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        await send(client, *(b"%d" % n for n in range(10)))
        async with client.subscribe(TOPIC, "s", type="shared", start="earliest") as sub:
            for msg in await take(sub, 10):
                if msg.offset % 2:
                    await msg.ack(confirm=True)
    end_and_start(broker, end)

    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", type="shared") as sub,
    ):
        messages = await take(sub, 5)

    assert sorted(msg.offset for msg in messages) == [0, 2, 4, 6, 8]


@ENDS
async def test_everything_about_a_topic_and_its_subscriptions_is_as_it_was(
    end: object, broker: BrokerProcess
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_namespace("shop")
        await client.create_topic(
            "/shop/parts",
            kind="stream",
            partitions=3,
            durability="os",
            retention="limits",
            max_age=timedelta(days=7),
            max_messages=1_000_000,
        )
        async with client.subscribe(
            "/shop/parts",
            "s",
            type="key_shared",
            ordered=True,
            ack_timeout=60.0,
            max_deliveries=7,
            backoff=[1.0, 2.0],
        ) as sub:
            await sub.save_cursor("before")
        await client.pause_subscription("/shop/parts", "s")
        before = await client.topics("/shop/>"), await client.subscriptions()
    end_and_start(broker, end)

    async with ister.connect(broker.url) as client:
        topics, [subscription] = await client.topics("/shop/>"), await client.subscriptions()
        namespaces = await client.namespaces()

    assert [(t.topic, t.stream and t.stream.settings) for t in topics] == [
        (t.topic, t.stream and t.stream.settings) for t in before[0]
    ]
    assert len(topics) >= 3
    assert subscription.cursor is not None
    assert subscription.cursor.settings == before[1][0].cursor.settings  # type: ignore[union-attr]
    assert subscription.cursor.paused
    assert subscription.cursor.snapshots == ["before"]
    assert "shop" in namespaces


@ENDS
async def test_a_message_id_is_known_after_the_restart(end: object, broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC) as producer:
            first = await producer.send(b"once", id="order-1")
    end_and_start(broker, end)

    async with ister.connect(broker.url) as client, client.producer(TOPIC) as producer:
        again = await producer.send(b"once", id="order-1")
        other = await producer.send(b"other", id="order-2")

    assert (again.offset, again.duplicate) == (first.offset, True)
    assert (other.offset, other.duplicate) == (first.offset + 1, False)


@ENDS
async def test_failed_attempts_are_counted_over_the_restart(
    end: object, broker: BrokerProcess
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        await send(client, b"poison", b"fine")
        async with client.subscribe(TOPIC, "s", start="earliest", max_deliveries=2) as sub:
            poison, fine = await take(sub, 2)
            await poison.nack(delay=0)
            # Something that is confirmed has all before it in the journal, too.
            await fine.ack(confirm=True)
    end_and_start(broker, end)

    async with ister.connect(broker.url) as client:
        async with client.subscribe(TOPIC, "s", max_deliveries=2) as sub:
            [msg] = await take(sub, 1)
            assert (msg.payload, msg.attempt) == (b"poison", 2)
            await msg.nack(delay=0)
            dead = client.reader(LETTERS, start=0, end=1)
            async with asyncio.timeout(WAIT_S):
                # The topic is made before the letter is in it.
                while [t.next_offset for t in await client.topics(LETTERS)] != [1]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        async with dead:
            [batch] = await dead.fetch_batches()

    assert batch.payloads == [b"poison"]


async def test_a_producer_of_the_same_name_takes_over_and_the_former_is_fenced(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    async with ister.connect(broker.url) as client, ister.connect(broker.url) as other:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC, name="shop") as former:
            await former.send(b"0")
            async with other.producer(TOPIC, name="shop") as latter:
                await latter.send(b"1")
                with pytest.raises(ProducerFencedError):
                    await former.send(b"2")
                await latter.send(b"3")
        async with client.reader(TOPIC) as reader:
            payloads = [payload async for batch in reader for payload in batch.payloads]

    assert payloads == [b"0", b"1", b"3"]


async def test_a_worker_that_lost_its_lease_cannot_commit_what_another_has_committed(
    broker: BrokerProcess,
) -> None:
    out = "/default/out"
    async with ister.connect(broker.url) as client, ister.connect(broker.url) as other:
        for topic in (TOPIC, out):
            await client.create_topic(topic, kind="stream")
        await send(client, b"order")
        # It renews nothing, as a process that is stopped does not.
        slow = client.subscribe(
            TOPIC, "w", type="shared", start="earliest", ack_timeout=1.0, max_renewal=0
        )
        async with slow:
            [zombie] = await take(slow, 1)
            async with other.subscribe(TOPIC, "w", type="shared", ack_timeout=1.0) as sub:
                [msg] = await take(sub, 1)
                async with other.transaction() as tx:
                    tx.send(out, b"by the second")
                    tx.ack(msg)
                with pytest.raises((LeaseLostError, TransactionError)):
                    await commit(client, out, b"by the zombie", zombie)
        async with client.reader(out) as reader:
            payloads = [payload async for batch in reader for payload in batch.payloads]

    assert payloads == [b"by the second"]


async def commit(client: ister.Client, topic: str, payload: bytes, msg: ister.Message) -> None:
    async with client.transaction() as tx:
        tx.send(topic, payload)
        tx.ack(msg)
