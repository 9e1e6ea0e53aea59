"""What the asyncio client does when its broker goes away, comes back changed, or refuses."""

import asyncio
from collections.abc import Callable

import pytest

import ister
from ister.base.errors import LimitReachedError, TopicExistsError
from ister.base.limits import Limits
from ister.metadata import MemoryMetadata
from ister.objects import MemoryDisk
from ister.registry import Registry
from ister.telemetry import SystemClock
from ister.testing import MemoryBroker, MemoryTransport, VirtualClock, connect_pair, settle
from ister.testing.engine import Engine


async def test_a_producer_ends_when_its_topic_comes_back_with_partitions() -> None:
    clock = VirtualClock()
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.producer("/default/orders") as producer,
    ):
        await broker.restart()
        broker.engine.create_topic("/default/orders", partitions=2)
        sending = asyncio.ensure_future(producer.send(b"x"))
        await clock.elapse(1.0)

        assert sending.done()
        with pytest.raises(TopicExistsError):
            await sending
        assert producer.closed


async def test_an_answer_still_leaves_for_a_broker_that_goes_away() -> None:
    clock = SystemClock(asyncio.get_running_loop().call_later)
    engine = Engine(
        name="b",
        limits=Limits(),
        clock=clock,
        seed=0,
        disk=MemoryDisk(),
        registry=await Registry.open(MemoryMetadata(), now_ms=clock.now_ms),
    )

    async def connector(
        protocol: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> MemoryTransport:
        return connect_pair(protocol, engine.session)

    async with (
        ister.connect("ister://b", connector=connector, busy_poll=0.0) as client,
        client.subscribe("/default/price", "responder") as sub,
    ):
        asking = asyncio.ensure_future(client.request("/default/price", b"x"))
        msg = await sub.receive()
        leaving = asyncio.ensure_future(engine.door.close(deadline_s=1.0))
        await settle()
        assert not client.connected
        await msg.reply(b"y")

        assert await asking == b"y"
        await leaving


async def test_a_producer_that_gets_too_few_partitions_lets_go_of_them() -> None:
    async with (
        MemoryBroker(limits=Limits(producers_per_connection_max=2)) as broker,
        broker.connect() as client,
    ):
        await client.create_topic("/default/orders", partitions=3)
        producer = client.producer("/default/orders")
        with pytest.raises(LimitReachedError):
            await producer.open()
        await settle()

        assert [topic.producers for topic in await client.topics()] == [0, 0, 0]
        assert producer.closed


async def test_of_no_topics_there_is_nothing_to_wait_for() -> None:
    async with (
        MemoryBroker(clock=VirtualClock()) as broker,
        broker.connect() as client,
        asyncio.timeout(5.0),
    ):
        assert await client.heads([], timeout=60.0) == []
