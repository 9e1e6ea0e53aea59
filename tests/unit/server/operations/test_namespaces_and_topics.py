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
from ister.operations import (
    CreateNamespace,
    CreateSubscription,
    CreateTopic,
    DeleteNamespace,
    DeleteTopic,
    DescribeBalance,
    DescribeNamespace,
    DescribeTopic,
    GrowTopic,
    ListBrokers,
    ListNamespaces,
    ListTopics,
    ListTopicsOfNamespace,
    PurgeTopic,
    SchemaUse,
)
from ister.registry import Registry
from ister.server.operations import Dispatcher, topic_exists, topic_identity
from ister.testing import MemoryBroker

TOPIC = "/default/orders"


# Namespaces


async def test_a_namespace_is_made_described_and_deleted(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateNamespace("shop", exist_ok=False))
    await dispatcher.run(CreateTopic("/shop/orders"))

    assert "shop" in (await dispatcher.run(ListNamespaces())).rows
    assert (await dispatcher.run(DescribeNamespace("shop"))).topics == 1
    await dispatcher.run(DeleteTopic("/shop/orders"))
    await dispatcher.run(DeleteNamespace("shop"))
    assert "shop" not in (await dispatcher.run(ListNamespaces())).rows


async def test_a_namespace_that_exists_is_not_made_again(dispatcher: Dispatcher) -> None:
    with pytest.raises(NamespaceExistsError):
        await dispatcher.run(CreateNamespace("default", exist_ok=False))


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 253])
async def test_what_is_no_name_of_a_namespace_is_told_as_it_was_given(
    dispatcher: Dispatcher, name: str
) -> None:
    with pytest.raises(BadNameError, match="a namespace holds") as error:
        await dispatcher.run(CreateNamespace(name, exist_ok=False))
    assert error.value.name == name[:40]
    await dispatcher.run(CreateNamespace("x" * 252, exist_ok=False))


async def test_a_namespace_with_topics_is_not_deleted(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateNamespace("shop", exist_ok=False))
    await dispatcher.run(CreateTopic("/shop/orders"))

    with pytest.raises(NamespaceNotEmptyError):
        await dispatcher.run(DeleteNamespace("shop"))


async def test_policies_of_a_namespace_are_the_limits_of_the_broker(dispatcher: Dispatcher) -> None:
    policies = (await dispatcher.run(DescribeNamespace("default"))).policies

    assert policies.max_message_size == 8 * MIB
    assert policies.max_producers_per_topic == 0


@pytest.mark.parametrize("namespace", ["nowhere", "", "a/b"])
async def test_a_namespace_that_is_not_there_has_no_description(
    dispatcher: Dispatcher, namespace: str
) -> None:
    with pytest.raises(NamespaceNotFoundError):
        await dispatcher.run(DescribeNamespace(namespace))


# Topics


async def test_topics_come_in_pages_by_name(dispatcher: Dispatcher) -> None:
    for number in range(5):
        await dispatcher.run(CreateTopic(f"/default/t{number}"))

    first = await dispatcher.run(ListTopics(limit=3))
    second = await dispatcher.run(ListTopics(limit=3, after=first.next))
    assert [row.topic for row in first.rows] == ["/default/t0", "/default/t1", "/default/t2"]
    assert [row.topic for row in second.rows] == ["/default/t3", "/default/t4"]
    assert second.next == ""


async def test_a_page_that_holds_exactly_the_rest_is_the_last(dispatcher: Dispatcher) -> None:
    for number in range(4):
        await dispatcher.run(CreateTopic(f"/default/t{number}"))

    assert (await dispatcher.run(ListTopics(limit=2, after="/default/t1"))).next == ""


async def test_topics_are_chosen_by_pattern_namespace_and_kind(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateNamespace("shop", exist_ok=False))
    await dispatcher.run(CreateTopic("/default/orders.eu"))
    await dispatcher.run(CreateTopic("/default/orders.us", kind="stream"))
    await dispatcher.run(CreateTopic("/shop/orders.eu"))

    async def names(asked: ListTopics | ListTopicsOfNamespace) -> list[str]:
        return [row.topic for row in (await dispatcher.run(asked)).rows]

    orders = "/default/orders.*"
    assert await names(ListTopics(kind="stream")) == ["/default/orders.us"]
    assert await names(ListTopics(pattern=orders)) == ["/default/orders.eu", "/default/orders.us"]
    assert await names(ListTopicsOfNamespace(namespace="shop")) == ["/shop/orders.eu"]
    assert await names(ListTopicsOfNamespace(namespace="shop", pattern=orders)) == []


async def test_a_page_of_one_kind_is_full_and_tells_whether_there_is_another(
    dispatcher: Dispatcher,
) -> None:
    for number in range(12):
        kind = "stream" if number % 4 == 0 else "live"
        await dispatcher.run(CreateTopic(f"/default/t{number:02}", kind=kind))

    first = await dispatcher.run(ListTopics(kind="stream", limit=2))
    second = await dispatcher.run(ListTopics(kind="stream", limit=2, after=first.next))
    exact = await dispatcher.run(ListTopics(kind="stream", limit=1, after="/default/t04"))
    assert [row.topic for row in first.rows] == ["/default/t00", "/default/t04"]
    assert [row.topic for row in (*second.rows, *exact.rows)] == ["/default/t08"] * 2
    assert (first.next, second.next, exact.next) == ("/default/t04", "", "")


async def test_a_partitioned_topic_is_described_with_its_partitions(dispatcher: Dispatcher) -> None:
    settings = StreamSettings(max_messages=10)
    await dispatcher.run(CreateTopic(TOPIC, kind="stream", partitions=2, stream=settings))

    found = await dispatcher.run(DescribeTopic(TOPIC))
    assert (found.kind, found.partitions, found.settings) == ("stream", 2, settings)
    assert [row.topic for row in found.reports] == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]


async def test_a_description_names_subscriptions_on_topic_partition_and_pattern(
    dispatcher: Dispatcher,
) -> None:
    await dispatcher.run(CreateTopic(TOPIC, kind="stream", partitions=2))
    await dispatcher.run(CreateSubscription(TOPIC, "whole"))
    await dispatcher.run(CreateSubscription(f"{TOPIC}-part-1", "part"))
    await dispatcher.run(CreateSubscription("/default/*", "pattern"))

    assert (await dispatcher.run(DescribeTopic(TOPIC))).subscriptions == [
        "part",
        "pattern",
        "whole",
    ]
    assert (await dispatcher.run(DescribeTopic(f"{TOPIC}-part-0"))).subscriptions == [
        "pattern",
        "whole",
    ]


@pytest.mark.parametrize("name", ["/default/nothing", "/default/nothing-part-0", "/x/y"])
async def test_a_topic_that_is_not_there_has_no_description(
    dispatcher: Dispatcher, name: str
) -> None:
    with pytest.raises(TopicNotFoundError):
        await dispatcher.run(DescribeTopic(name))


async def test_a_name_that_is_none_is_refused(dispatcher: Dispatcher) -> None:
    with pytest.raises(BadNameError):
        await dispatcher.run(DescribeTopic("orders"))


async def test_a_topic_that_exists_is_only_made_again_if_that_is_fine(
    dispatcher: Dispatcher,
) -> None:
    await dispatcher.run(CreateTopic(TOPIC))

    await dispatcher.run(CreateTopic(TOPIC))
    with pytest.raises(TopicExistsError, match="exists already as a live topic"):
        await dispatcher.run(CreateTopic(TOPIC, exist_ok=False))


async def test_a_partitioned_topic_grows_and_does_not_shrink(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic(TOPIC, kind="stream", partitions=1))
    await dispatcher.run(GrowTopic(TOPIC, 3))
    await dispatcher.run(GrowTopic(TOPIC, 2))

    assert (await dispatcher.run(DescribeTopic(TOPIC))).partitions == 3
    with pytest.raises(TopicExistsError):
        await dispatcher.run(GrowTopic(TOPIC, 4, kind="live"))


async def test_a_partition_is_not_deleted_alone(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic(TOPIC, partitions=2))

    with pytest.raises(BadRequestError, match="partition"):
        await dispatcher.run(DeleteTopic(f"{TOPIC}-part-0"))
    await dispatcher.run(DeleteTopic(TOPIC))
    assert not topic_exists(dispatcher.node, TOPIC)


async def test_purging_drops_what_lies_before_an_offset_or_all(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))
    async with client.producer(TOPIC) as producer:
        for number in range(5):
            await producer.send(b"%d" % number)

    assert (await dispatcher.run(PurgeTopic(TOPIC, before=2))).messages == 2
    assert (await dispatcher.run(PurgeTopic(TOPIC))).messages == 3


async def test_a_live_topic_has_nothing_to_purge(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic(TOPIC))

    with pytest.raises(WrongKindError):
        await dispatcher.run(PurgeTopic(TOPIC))


async def test_what_was_made_survives_a_restart(
    dispatcher: Dispatcher, memory: MemoryBroker
) -> None:
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))
    await dispatcher.run(CreateNamespace("shop", exist_ok=False))

    await memory.restart()
    again = Dispatcher(memory.engine)
    assert topic_exists(again.node, TOPIC)
    assert "shop" in (await again.run(ListNamespaces())).rows


async def test_a_stream_is_told_from_an_earlier_one_of_its_name(
    dispatcher: Dispatcher, memory: MemoryBroker
) -> None:
    assert topic_identity(dispatcher.node, TOPIC) == ""
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))
    first = topic_identity(dispatcher.node, TOPIC)
    await memory.restart()
    dispatcher = Dispatcher(memory.engine)
    assert first == topic_identity(dispatcher.node, TOPIC) != ""

    await dispatcher.run(DeleteTopic(TOPIC))
    await memory.restart()
    dispatcher = Dispatcher(memory.engine)
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))
    assert topic_identity(dispatcher.node, TOPIC) not in ("", first)


async def test_a_topic_without_partitions_gets_none(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))

    with pytest.raises(TopicExistsError, match="with 0 partitions"):
        await dispatcher.run(GrowTopic(TOPIC, 1))


# Schemas


async def test_a_bound_topic_is_described_with_its_schema(memory: MemoryBroker) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0)
    dispatcher = Dispatcher(memory.engine, registry)
    await dispatcher.run(CreateTopic(TOPIC, partitions=2))
    await registry.register("orders", "string", b"")
    binding = await registry.bind(TOPIC, "orders", policy="warn", min_version=1)

    found = (await dispatcher.run(DescribeTopic(f"{TOPIC}-part-1"))).schema
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
    assert (await dispatcher.run(DescribeTopic(TOPIC))).schema == found


async def test_a_new_topic_of_an_old_name_is_bound_to_nothing(memory: MemoryBroker) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0)
    dispatcher = Dispatcher(memory.engine, registry)
    await dispatcher.run(CreateTopic(TOPIC))
    await registry.register("orders", "string", b"")
    await registry.bind(TOPIC, "orders")
    await dispatcher.run(DeleteTopic(TOPIC))
    await dispatcher.run(CreateTopic(TOPIC))

    assert (await dispatcher.run(DescribeTopic(TOPIC))).schema is None


async def test_a_topic_that_is_not_bound_has_no_schema(memory: MemoryBroker) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=lambda: 0)
    dispatcher = Dispatcher(memory.engine, registry)
    await dispatcher.run(CreateTopic(TOPIC))

    assert (await dispatcher.run(DescribeTopic(TOPIC))).schema is None


# Brokers


async def test_the_one_broker_is_listed_with_its_doors(dispatcher: Dispatcher) -> None:
    dispatcher.node.doors["native"] = "127.0.0.1:6655"

    (row,) = (await dispatcher.run(ListBrokers())).rows
    assert (row.id, row.native, row.grpc) == (1, "127.0.0.1:6655", "")


async def test_one_broker_is_in_balance(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic(TOPIC, partitions=3))

    balance = await dispatcher.run(DescribeBalance())
    assert (balance.topics, balance.mean, balance.deviation) == ({1: 3}, 3.0, 0.0)
