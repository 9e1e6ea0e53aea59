"""Danube's producers make their topic, and say of which kind; whether they may, the broker says."""

from typing import Any

import pytest

from ister.base.errors import TopicNotFoundError
from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.grpc.messages import message
from ister.server.grpc.producers import Producers
from ister.server.grpc.roll import Roll
from ister.server.grpc.schemas import SchemaRefs
from ister.testing import MemoryBroker

TOPIC = "/default/orders"


async def create(broker: MemoryBroker, topic: str, dispatch_strategy: int) -> Any:
    registry = await Registry.open(MemoryMetadata(), now_ms=broker.clock.now_ms)
    roll = Roll(MemoryMetadata(), broker.clock.now_ms)
    producers = Producers(broker.engine, roll, SchemaRefs(registry), waiting_bytes_max=1_000)
    request = message("danube.ProducerRequest")(
        topic_name=topic, producer_name="p", dispatch_strategy=dispatch_strategy
    )
    return await producers.create(request, None)


@pytest.mark.parametrize("topic", [TOPIC, f"{TOPIC}-part-0"])
async def test_with_off_a_producer_makes_no_topic_and_finds_one_that_is_there(topic: str) -> None:
    async with MemoryBroker(auto_create="off") as broker:
        with pytest.raises(TopicNotFoundError):
            await create(broker, topic, 1)
        assert broker.engine.catalog.find_kind(TOPIC) is None

        broker.engine.create_topic(TOPIC, partitions=int(topic != TOPIC))
        await create(broker, topic, 0)


@pytest.mark.parametrize(("dispatch_strategy", "kind"), [(0, "live"), (1, "stream")])
async def test_otherwise_a_producer_says_of_which_kind_it_is(
    dispatch_strategy: int, kind: str
) -> None:
    async with MemoryBroker(auto_create="stream") as broker:
        await create(broker, TOPIC, dispatch_strategy)

        assert broker.engine.catalog.find_kind(TOPIC) == kind
