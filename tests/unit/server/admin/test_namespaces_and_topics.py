"""Namespaces and topics, as an operator sees them."""

import pytest

import ister
from ister.base import StreamSettings
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    NamespaceExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import MIB
from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.admin import Admin, SchemaUse
from ister.testing import MemoryBroker

TOPIC = "/default/orders"


# Namespaces


async def test_a_namespace_is_made_described_and_deleted(admin: Admin) -> None:
    await admin.namespaces.create("shop")
    await admin.topics.create("/shop/orders")

    assert "shop" in admin.namespaces.names()
    assert admin.namespaces.describe("shop").topics == 1
    await admin.topics.delete("/shop/orders")
    await admin.namespaces.delete("shop")
    assert "shop" not in admin.namespaces.names()


async def test_a_namespace_that_exists_is_not_made_again(admin: Admin) -> None:
    with pytest.raises(NamespaceExistsError):
        await admin.namespaces.create("default")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 253])
async def test_what_is_no_name_of_a_namespace_is_told_as_it_was_given(
    admin: Admin, name: str
) -> None:
    with pytest.raises(BadNameError, match="a namespace holds") as error:
        await admin.namespaces.create(name)
    assert error.value.name == name[:40]
    await admin.namespaces.create("x" * 252)


async def test_a_namespace_with_topics_is_not_deleted(admin: Admin) -> None:
    await admin.namespaces.create("shop")
    await admin.topics.create("/shop/orders")

    with pytest.raises(NamespaceNotEmptyError):
        await admin.namespaces.delete("shop")


async def test_policies_of_a_namespace_are_the_limits_of_the_broker(admin: Admin) -> None:
    policies = admin.namespaces.policies("default")

    assert policies.max_message_size == 8 * MIB
    assert policies.max_producers_per_topic == 0


@pytest.mark.parametrize("namespace", ["nowhere", "", "a/b"])
async def test_a_namespace_that_is_not_there_has_no_description(
    admin: Admin, namespace: str
) -> None:
    with pytest.raises(NamespaceNotFoundError):
        admin.namespaces.describe(namespace)


# Topics


async def test_topics_come_in_pages_by_name(admin: Admin) -> None:
    for number in range(5):
        await admin.topics.create(f"/default/t{number}")

    first = admin.topics.page(limit=3)
    second = admin.topics.page(limit=3, after=first.next)
    assert [row.topic for row in first.rows] == ["/default/t0", "/default/t1", "/default/t2"]
    assert [row.topic for row in second.rows] == ["/default/t3", "/default/t4"]
    assert second.next == ""


async def test_a_page_that_holds_exactly_the_rest_is_the_last(admin: Admin) -> None:
    for number in range(4):
        await admin.topics.create(f"/default/t{number}")

    assert admin.topics.page(limit=2, after="/default/t1").next == ""


async def test_topics_are_chosen_by_pattern_namespace_and_kind(admin: Admin) -> None:
    await admin.namespaces.create("shop")
    await admin.topics.create("/default/orders.eu")
    await admin.topics.create("/default/orders.us", kind="stream")
    await admin.topics.create("/shop/orders.eu")

    def names(**choice: str) -> list[str]:
        return [row.topic for row in admin.topics.page(**choice).rows]  # type: ignore[arg-type]

    assert names(kind="stream") == ["/default/orders.us"]
    assert names(namespace="shop") == ["/shop/orders.eu"]
    assert names(pattern="/default/orders.*") == ["/default/orders.eu", "/default/orders.us"]
    assert names(pattern="/default/orders.*", namespace="shop") == []


async def test_a_partitioned_topic_is_described_with_its_partitions(admin: Admin) -> None:
    settings = StreamSettings(max_messages=10)
    await admin.topics.create(TOPIC, kind="stream", partitions=2, stream=settings)

    found = admin.topics.describe(TOPIC)
    assert (found.kind, found.partitions, found.settings) == ("stream", 2, settings)
    assert [row.topic for row in found.reports] == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]


async def test_a_description_names_subscriptions_on_topic_partition_and_pattern(
    admin: Admin,
) -> None:
    await admin.topics.create(TOPIC, kind="stream", partitions=2)
    await admin.subscriptions.create(TOPIC, "whole")
    await admin.subscriptions.create(f"{TOPIC}-part-1", "part")
    await admin.subscriptions.create("/default/*", "pattern")

    assert admin.topics.describe(TOPIC).subscriptions == ["part", "pattern", "whole"]
    assert admin.topics.describe(f"{TOPIC}-part-0").subscriptions == ["pattern", "whole"]


@pytest.mark.parametrize("name", ["/default/nothing", "/default/nothing-part-0", "/x/y"])
async def test_a_topic_that_is_not_there_has_no_description(admin: Admin, name: str) -> None:
    with pytest.raises(TopicNotFoundError):
        admin.topics.describe(name)


async def test_a_name_that_is_none_is_refused(admin: Admin) -> None:
    with pytest.raises(BadNameError):
        admin.topics.describe("orders")


async def test_a_topic_that_exists_is_only_made_again_if_that_is_fine(admin: Admin) -> None:
    await admin.topics.create(TOPIC)

    await admin.topics.create(TOPIC)
    with pytest.raises(TopicExistsError, match="exists already as a live topic"):
        await admin.topics.create(TOPIC, exist_ok=False)


async def test_the_next_partition_is_added_and_no_other(admin: Admin) -> None:
    await admin.topics.add_partition(TOPIC, 0, kind="stream")
    await admin.topics.add_partition(TOPIC, 1, kind="stream")

    assert admin.topics.describe(TOPIC).partitions == 2
    with pytest.raises(TopicExistsError):
        await admin.topics.add_partition(TOPIC, 1, kind="stream")
    with pytest.raises(BadRequestError):
        await admin.topics.add_partition(TOPIC, 3, kind="stream")


async def test_a_partition_is_not_deleted_alone(admin: Admin) -> None:
    await admin.topics.create(TOPIC, partitions=2)

    with pytest.raises(BadRequestError, match="partition"):
        await admin.topics.delete(f"{TOPIC}-part-0")
    await admin.topics.delete(TOPIC)
    assert not admin.topics.exists(TOPIC)


async def test_purging_drops_what_lies_before_an_offset_or_all(
    admin: Admin, client: ister.Client
) -> None:
    await admin.topics.create(TOPIC, kind="stream")
    async with client.producer(TOPIC) as producer:
        for number in range(5):
            await producer.send(b"%d" % number)

    assert await admin.topics.purge(TOPIC, before=2) == 2
    assert await admin.topics.purge(TOPIC) == 3


async def test_a_live_topic_has_nothing_to_purge(admin: Admin) -> None:
    await admin.topics.create(TOPIC)

    with pytest.raises(WrongKindError):
        await admin.topics.purge(TOPIC)


async def test_what_was_made_survives_a_restart(admin: Admin, memory: MemoryBroker) -> None:
    await admin.topics.create(TOPIC, kind="stream")
    await admin.namespaces.create("shop")

    await memory.restart()
    again = Admin(memory.engine)
    assert again.topics.exists(TOPIC)
    assert "shop" in again.namespaces.names()


async def test_a_stream_is_told_from_an_earlier_one_of_its_name(
    admin: Admin, memory: MemoryBroker
) -> None:
    assert admin.topics.identity(TOPIC) == ""
    await admin.topics.create(TOPIC, kind="stream")
    first = admin.topics.identity(TOPIC)
    await memory.restart()
    admin = Admin(memory.engine)
    assert first == admin.topics.identity(TOPIC) != ""

    await admin.topics.delete(TOPIC)
    await memory.restart()
    admin = Admin(memory.engine)
    await admin.topics.create(TOPIC, kind="stream")
    assert admin.topics.identity(TOPIC) not in ("", first)


async def test_a_topic_without_partitions_gets_none(admin: Admin) -> None:
    await admin.topics.create(TOPIC, kind="stream")

    with pytest.raises(TopicExistsError, match="as a stream topic"):
        await admin.topics.add_partition(TOPIC, 0, kind="stream")


# Schemas


async def test_a_bound_topic_is_described_with_its_schema(memory: MemoryBroker) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0)
    admin = Admin(memory.engine, registry)
    await admin.topics.create(TOPIC, partitions=2)
    await registry.register("orders", "string", b"")
    binding = await registry.bind(TOPIC, "orders", policy="warn", min_version=1)

    found = admin.topics.describe(f"{TOPIC}-part-1").schema
    assert found == SchemaUse(
        subject="orders",
        schema_id=binding.schema_id,
        policy="warn",
        validate_payload=True,
        min_version=1,
        latest_version=1,
        type="string",
        mode="backward",
    )
    assert admin.topics.describe(TOPIC).schema == found


async def test_a_new_topic_of_an_old_name_is_bound_to_nothing(memory: MemoryBroker) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0)
    admin = Admin(memory.engine, registry)
    await admin.topics.create(TOPIC)
    await registry.register("orders", "string", b"")
    await registry.bind(TOPIC, "orders")
    await admin.topics.delete(TOPIC)
    await admin.topics.create(TOPIC)

    assert admin.topics.describe(TOPIC).schema is None


async def test_a_topic_that_is_not_bound_has_no_schema(memory: MemoryBroker) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0)
    admin = Admin(memory.engine, registry)
    await admin.topics.create(TOPIC)

    assert admin.topics.describe(TOPIC).schema is None


# Brokers


async def test_the_one_broker_is_listed_with_its_doors(admin: Admin) -> None:
    admin.doors["native"] = "127.0.0.1:6655"

    (row,) = admin.brokers()
    assert (row.id, row.native, row.grpc) == (1, "127.0.0.1:6655", "")


async def test_one_broker_is_in_balance(admin: Admin) -> None:
    await admin.topics.create(TOPIC, partitions=3)

    balance = admin.balance()
    assert (balance.topics, balance.mean, balance.deviation) == ({1: 3}, 3.0, 0.0)
