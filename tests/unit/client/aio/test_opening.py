"""Subscriptions, producers, readers and consumers say how to open them, and can be awaited."""

from collections.abc import Awaitable, Callable

import pytest

import ister
from ister.base.errors import BadRequestError, ClosedError
from ister.testing import MemoryBroker

ORDERS = "/default/orders"
REMINDERS = "/default/reminders"

UNOPENED: dict[str, Callable[[ister.Client], Awaitable[object]]] = {
    "subscription, async for": lambda client: anext(aiter(client.subscribe(ORDERS, "s"))),
    "subscription, batches": lambda client: anext(client.subscribe(ORDERS, "s").batches()),
    "subscription, receive": lambda client: client.subscribe(ORDERS, "s").receive(),
    "subscription, fetch": lambda client: client.subscribe(ORDERS, "s").fetch(1, timeout=1.0),
    "producer, send": lambda client: client.producer(ORDERS).send(b"x"),
    "producer, flush": lambda client: client.producer(ORDERS).flush(),
    "reader, async for": lambda client: anext(aiter(client.reader(ORDERS))),
    "consumer, receive": lambda client: (
        client.timeline(REMINDERS, group="g").consume("worker").receive()
    ),
}


@pytest.mark.parametrize("use", UNOPENED.values(), ids=UNOPENED)
async def test_using_something_unopened_says_how_to_open_it(
    use: Callable[[ister.Client], Awaitable[object]],
) -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(ORDERS, kind="stream")
        await client.create_topic(REMINDERS, kind="timeline")

        with pytest.raises(BadRequestError, match=r"`async with .*\(\.\.\.\)`, or .*, `with "):
            await use(client)


async def test_they_may_be_awaited_instead_of_entered() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(ORDERS, kind="stream")
        producer = await client.producer(ORDERS)
        subscription = await client.subscribe(ORDERS, "s", start="earliest")
        reader = await client.reader(ORDERS, end="latest")
        await producer.send(b"x")

        assert (await subscription.receive(timeout=1.0)).payload == b"x"
        assert await reader.fetch_batches() == []
        for one in (producer, subscription, reader):
            await one.close()


async def test_what_was_awaited_may_be_entered_as_well() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(ORDERS, kind="stream")
        async with await client.producer(ORDERS) as producer:
            await producer.send(b"x")
        async with await client.subscribe(ORDERS, "s", start="earliest") as subscription:
            received = await subscription.receive(timeout=1.0)
        async with await client.reader(ORDERS, end="latest") as reader:
            read = [batch.payloads async for batch in reader]

        assert (received.payload, read) == (b"x", [[b"x"]])


async def test_a_closed_subscription_cannot_be_opened() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(ORDERS, kind="stream")
        subscription = await client.subscribe(ORDERS, "s")
        await subscription.close()

        with pytest.raises(ClosedError, match="subscription 's' is closed"):
            await subscription
        assert (await client.subscriptions(ORDERS))[0].consumers == []
