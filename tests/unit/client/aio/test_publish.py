"""`client.publish`: a message in one call, with a producer kept behind it for each topic."""

import asyncio

import pytest

import ister
from ister.base.errors import BadRequestError, OffsetMismatchError
from ister.client.aio import pool
from ister.testing import MemoryBroker, ThreadedBroker


async def producers(client: ister.Client) -> dict[str, int]:
    return {row.topic: row.producers for row in await client.topics() if row.producers}


async def test_publish_sends_in_one_call_and_keeps_its_producer() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")

        sent = [await client.publish("orders", b"%d" % n, key="k") for n in range(3)]

        assert [one.offset for one in sent] == [0, 1, 2]
        assert await producers(client) == {"/default/orders": 1}


async def test_publish_takes_the_options_of_send() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        await client.publish("orders", b"a", id="one", attributes={"a": "1"}, ttl=60.0)

        assert (await client.publish("orders", b"a", id="one")).duplicate
        with pytest.raises(OffsetMismatchError):
            await client.publish("orders", b"b", expected_offset=7)
        assert (await client.publish("orders", b"c", deliver_after=60.0)).delayed
        with pytest.raises(BadRequestError, match="a payload is bytes"):
            await client.publish("orders", "text")  # type: ignore[arg-type]


async def test_publishing_at_once_to_one_topic_opens_one_producer() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await asyncio.gather(*(client.publish("a", b"x") for _ in range(20)))

        assert await producers(client) == {"/default/a": 1}


async def test_the_longest_unused_producer_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POOLED_PRODUCERS_MAX", 2)
    async with MemoryBroker() as broker, broker.connect() as client:
        for topic in ("a", "b", "a", "c"):
            await client.publish(topic, b"x")

        assert await producers(client) == {"/default/a": 1, "/default/c": 1}


async def test_a_producer_in_use_is_not_closed_for_another_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "POOLED_PRODUCERS_MAX", 1)
    async with MemoryBroker() as broker, broker.connect() as client:
        sent = await asyncio.gather(*(client.publish(f"t{n}", b"x") for n in range(5)))

        assert [one.offset for one in sent] == [0] * 5
        await client.publish("last", b"x")
        assert len(await producers(client)) < 6


async def test_publish_goes_on_after_its_topic_was_deleted() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        await client.publish("orders", b"a")
        await client.delete_topic("orders")
        await client.create_topic("orders", kind="stream")

        assert (await client.publish("orders", b"b")).offset == 0


def test_the_blocking_client_publishes_in_one_call() -> None:
    with ThreadedBroker() as broker, ister.sync.connect(broker.url) as client:
        client.create_topic("orders", kind="stream")

        assert client.publish("orders", b"a", key="k").offset == 0
        assert client.publish("orders", b"b").topic == "/default/orders"
