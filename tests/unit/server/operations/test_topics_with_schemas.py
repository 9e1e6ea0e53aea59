"""Topics made with a schema through Danube's admin API: both are there afterwards, or neither."""

import asyncio
from functools import partial
from typing import Any

import pytest

from ister.base.errors import LimitReachedError, NamespaceNotFoundError, SchemaNotFoundError
from ister.metadata import MemoryMetadata
from ister.operations import DeleteTopic
from ister.registry import Registry, RegistryLimits
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.admin.topics import TopicAdmin
from ister.server.grpc.messages import message
from ister.server.grpc.schemas import SchemaRefs
from ister.server.operations import Dispatcher, topic_exists, topic_identity
from ister.testing import MemoryBroker, settle

TOPIC = "/default/orders"


class Bench:
    """The topics of the admin API, over a registry with some limits."""

    def __init__(self, memory: MemoryBroker, registry: Registry) -> None:
        self.registry = registry
        self.dispatcher = Dispatcher(memory.engine, registry)
        self.metadata = MemoryMetadata()
        self.settings = SubscriptionSettings(
            self.metadata, identity_of=partial(topic_identity, self.dispatcher.node)
        )
        self._handlers = TopicAdmin(self.dispatcher, self.settings).handlers()

    async def create(self, name: str, **fields: Any) -> None:
        request = message("danube_admin.NewTopicRequest")(name=name, **fields)
        await self._handlers["CreateTopic"](request, None)

    async def delete(self, name: str) -> None:
        request = message("danube_admin.TopicRequest")(name=name)
        await self._handlers["DeleteTopic"](request, None)

    async def create_partitioned(self, name: str, **fields: Any) -> None:
        request = message("danube_admin.PartitionedTopicRequest")(base_name=name, **fields)
        await self._handlers["CreatePartitionedTopic"](request, None)


async def bench_of(memory: MemoryBroker, limits: RegistryLimits | None = None) -> Bench:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0, limits=limits)
    await registry.register("orders", "string", b"")
    return Bench(memory, registry)


@pytest.mark.parametrize("name", [TOPIC, f"{TOPIC}-part-0"])
async def test_a_topic_that_cannot_be_bound_is_not_left_behind(
    memory: MemoryBroker, name: str
) -> None:
    bench = await bench_of(memory, RegistryLimits(bindings_max=0))

    with pytest.raises(LimitReachedError):
        await bench.create(name, schema_subject="orders")
    with pytest.raises(LimitReachedError):
        await bench.create_partitioned(TOPIC, partitions=2, schema_subject="orders")
    assert not topic_exists(bench.dispatcher.node, TOPIC)
    assert not topic_exists(bench.dispatcher.node, name)


async def test_a_topic_that_cannot_be_made_is_not_left_bound(memory: MemoryBroker) -> None:
    bench = await bench_of(memory)

    with pytest.raises(NamespaceNotFoundError):
        await bench.create("/nowhere/orders", schema_subject="orders")
    assert bench.registry.bindings() == []


async def test_of_two_who_make_a_topic_at_once_one_does_and_it_is_bound(
    memory: MemoryBroker,
) -> None:
    bench = await bench_of(memory)
    made = await asyncio.gather(
        *(bench.create(TOPIC, dispatch_strategy=1, schema_subject="orders") for _ in range(3)),
        return_exceptions=True,
    )

    assert [one is None for one in made].count(True) == 1
    assert bench.registry.binding(TOPIC).subject == "orders"


async def test_a_topic_that_is_bound_before_it_is_made_stays_as_it_is(memory: MemoryBroker) -> None:
    bench = await bench_of(memory)
    binding = await bench.registry.bind(TOPIC, "orders", policy="enforce")
    await bench.create(TOPIC, schema_subject="orders")

    assert bench.registry.binding(TOPIC) == binding


async def test_a_schema_that_is_missing_is_told_before_anything_is_made(
    memory: MemoryBroker,
) -> None:
    bench = await bench_of(memory)

    with pytest.raises(SchemaNotFoundError):
        await bench.create(TOPIC, schema_subject="nothing")
    assert not topic_exists(bench.dispatcher.node, TOPIC)


# Deletions


async def test_a_deletion_that_nobody_waits_for_any_more_unbinds_as_well(
    memory: MemoryBroker,
) -> None:
    bench = await bench_of(memory)
    await bench.create(TOPIC, dispatch_strategy=1, schema_subject="orders")
    deleting = asyncio.create_task(bench.dispatcher.run(DeleteTopic(TOPIC)))
    await asyncio.sleep(0)
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    await settle()

    assert not topic_exists(bench.dispatcher.node, TOPIC)
    assert bench.registry.bindings() == []


async def test_a_creation_that_nobody_waits_for_any_more_makes_all_of_it(
    memory: MemoryBroker,
) -> None:
    bench = await bench_of(memory)
    creating = asyncio.create_task(
        bench.create(TOPIC, dispatch_strategy=1, schema_subject="orders")
    )
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await settle()

    assert topic_exists(bench.dispatcher.node, TOPIC)
    assert bench.registry.binding(TOPIC).subject == "orders"


async def test_a_topic_whose_settings_cannot_be_removed_is_deleted_all_the_same(
    memory: MemoryBroker,
) -> None:
    bench = await bench_of(memory)
    await bench.create(TOPIC, dispatch_strategy=1)
    await bench.settings.keep_unacked_max(TOPIC, "billing", 3)
    await bench.metadata.close()
    await bench.delete(TOPIC)

    assert not topic_exists(bench.dispatcher.node, TOPIC)
    await bench.create(TOPIC, dispatch_strategy=1)
    assert bench.settings.unacked_max(TOPIC, "billing", None) is None


# Producers


async def test_a_first_producer_does_not_undo_what_an_operator_binds_at_once(
    memory: MemoryBroker,
) -> None:
    bench = await bench_of(memory)
    reference = message("danube.SchemaReference")(subject="orders")
    await asyncio.gather(
        bench.registry.bind(TOPIC, "orders", policy="enforce"),
        SchemaRefs(bench.registry).bind(TOPIC, reference),
    )

    assert bench.registry.binding(TOPIC).policy == "enforce"
