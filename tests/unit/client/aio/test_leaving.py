"""What becomes of messages when a subscription is closed before they are acknowledged."""

import pytest

import ister
from ister.testing import MemoryBroker

TOPIC = "/default/jobs"


class HandlerError(Exception):
    """What a handler raises."""


async def publish(client: ister.Client, *payloads: bytes) -> None:
    """Publish messages to a stream in one batch."""
    await client.create_topic(TOPIC, kind="stream")
    async with client.producer(TOPIC) as producer:
        await producer.send_batch(payloads)


async def attempts(client: ister.Client, count: int) -> list[tuple[bytes, int]]:
    """Receive messages with another consumer, and acknowledge them."""
    async with client.subscribe(TOPIC, "workers", type="shared", start="earliest") as sub:
        found = await sub.fetch(count, timeout=1.0)
        while len(found) < count:
            found += await sub.fetch(count - len(found), timeout=1.0)
        for message in found:
            await message.ack()
        return sorted((message.payload, message.attempt) for message in found)


async def work(client: ister.Client) -> None:
    """Acknowledge messages until one is poison."""
    async with client.subscribe(TOPIC, "workers", type="shared", start="earliest") as sub:
        async for message in sub:
            if message.payload == b"poison":
                raise HandlerError(message.attempt)
            await message.ack()


async def test_a_message_whose_handler_raises_counts_as_an_attempt() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await publish(client, b"a", b"poison", b"c", b"d")

        with pytest.raises(HandlerError):
            await work(client)

        assert await attempts(client, 3) == [(b"c", 1), (b"d", 1), (b"poison", 2)]


async def test_a_poison_message_becomes_a_dead_letter_though_the_worker_is_restarted() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await publish(client, b"poison", b"fine")
        for attempt in range(1, 6):
            with pytest.raises(HandlerError, match=f"{attempt}"):
                await work(client)

        dead = client.subscribe(f"{TOPIC}-workers-dlq", "letters", start="earliest")
        async with dead as letters:
            assert (await letters.receive(timeout=5.0)).payload == b"poison"
        # The other message was worked on meanwhile.
        assert [row.cursor and row.cursor.lag for row in await client.subscriptions(TOPIC)] == [0]


async def test_what_was_fetched_in_batches_counts_as_an_attempt() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await publish(client, b"a", b"b")
        workers = client.subscribe(
            TOPIC, "workers", type="shared", start="earliest", buffer_count=2
        )
        async with workers as sub:
            assert [len(batch) for batch in await sub.fetch_batches()] == [2]

        assert await attempts(client, 2) == [(b"a", 2), (b"b", 2)]


async def test_what_nobody_took_costs_no_attempt() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await publish(client, b"a", b"b")
        for _ in range(10):
            async with client.subscribe(TOPIC, "workers", type="shared", start="earliest"):
                pass

        assert await attempts(client, 2) == [(b"a", 1), (b"b", 1)]


async def test_an_acknowledgement_right_before_the_end_counts() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await publish(client, b"a", b"b")
        async with client.subscribe(TOPIC, "workers", type="shared", start="earliest") as sub:
            await (await sub.receive(timeout=1.0)).ack()

        assert await attempts(client, 1) == [(b"b", 1)]


async def test_a_message_counts_as_an_attempt_when_only_the_client_is_closed() -> None:
    async with MemoryBroker() as broker:
        async with broker.connect() as client:
            await publish(client, b"poison", b"fine")
            sub = await client.subscribe(TOPIC, "workers", type="shared", start="earliest")
            assert (await sub.receive(timeout=1.0)).payload == b"poison"

        async with broker.connect() as client:
            assert await attempts(client, 2) == [(b"fine", 1), (b"poison", 2)]


async def test_a_subscription_that_is_closed_with_release_counts_no_attempt() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await publish(client, b"a", b"b")
        for _ in range(6):
            sub = await client.subscribe(TOPIC, "workers", type="shared", start="earliest")
            assert [(await sub.receive(timeout=1.0)).payload for _ in range(2)] == [b"a", b"b"]
            await sub.close(release=True)

        assert await attempts(client, 2) == [(b"a", 1), (b"b", 1)]
