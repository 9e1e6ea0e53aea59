"""The namespace `/system` is reserved: clients can read it and change nothing, on any port."""

import typing
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.server.http.caller import Caller

import ister
from ister.base import StreamSettings, TimelineSettings, TopicName
from ister.base.errors import IsterError, ReservedNamespaceError
from ister.codec import encode
from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.grpc.admin.policies import FailurePolicy, apply_policy
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.admin.topics import TopicAdmin
from ister.server.grpc.calls.status import Refusal
from ister.server.grpc.consumers import Consumers
from ister.server.grpc.messages import message
from ister.server.grpc.producers import Producers
from ister.server.grpc.roll import Roll
from ister.server.grpc.schemas import SchemaRefs
from ister.server.http import App
from ister.server.http.api import ROUTES
from ister.server.http.routes import PREFIX
from ister.server.native import NativeDoor
from ister.server.operations import Dispatcher
from ister.testing import MemoryBroker
from ister.wire import Command

NEW, OLD, DUE, JOBS = "/system/new", "/system/old", "/system/due", "/system/jobs"
OWN, TIMES = "/default/own", "/default/times"
LATER = datetime(2099, 1, 1, tzinfo=UTC)
RESERVED = 2004

Act = Callable[[ister.Client], Awaitable[object]]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """A broker with topics in `/system`, as if the broker itself had created them."""
    async with MemoryBroker() as broker:
        engine = broker.engine
        made = engine.streams.create([TopicName(OLD)], StreamSettings(), lambda _: None)
        engine.catalog.topics[OLD] = made[0]
        engine.catalog.names.add(OLD)
        for name, kind in ((DUE, "timeline"), (JOBS, "cron")):
            settings = TimelineSettings(kind=kind, max_leases=0)
            engine.timelines.create(name, settings, lambda _: None)
        async with broker.connect() as client:
            await client.create_topic(OWN, kind="stream")
            await client.create_topic(TIMES, kind="timeline")
        yield broker


def state(broker: MemoryBroker) -> object:
    """Return everything in `/system`."""
    engine = broker.engine
    topics, _ = engine.topics("", after="", limit=1_000)
    subscriptions, _ = engine.subscriptions("", after="", limit=1_000)
    return (
        [row for row in topics if row.topic.startswith("/system/")],
        [row for row in subscriptions if row.topic.startswith("/system/")],
        engine.namespaces(),
    )


# The native door. The CLI, connectors and Spark are clients of it.


async def _publish(client: ister.Client, topic: str, **options: Any) -> None:
    async with client.producer(topic) as producer:
        await producer.send(b"x", **options)


async def _transact(client: ister.Client, topic: str) -> None:
    async with client.transaction() as transaction:
        transaction.send(topic, b"x")


async def _stage(client: ister.Client, topic: str) -> None:
    async with client.stage("word") as stage:
        await stage.add(topic, encode([b"x"]))
    await client.publish_stages(["word"], series="q", number=1)


async def _bind(client: ister.Client, topic: str) -> None:
    await client.schemas.register("orders", ister.Schema("json_schema", '{"type": "object"}'))
    await client.schemas.bind(topic, "orders")


async def _consume_timeline(client: ister.Client, topic: str) -> None:
    async with client.timeline(topic).consume("me"):
        pass


NATIVE: dict[str, Act] = {
    "create live": lambda c: c.create_topic(NEW),
    "create stream": lambda c: c.create_topic(NEW, kind="stream"),
    "create partitions": lambda c: c.create_topic(NEW, kind="stream", partitions=3),
    "create timeline": lambda c: c.create_topic(NEW, kind="timeline"),
    "create cron": lambda c: c.create_topic(NEW, kind="cron"),
    "create what is there": lambda c: c.create_topic(OLD, kind="stream"),
    "update": lambda c: c.update_topic(OLD, ttl=1),
    "delete": lambda c: c.delete_topic(OLD),
    "delete timeline": lambda c: c.delete_topic(DUE),
    "purge": lambda c: c.purge(OLD),
    "publish": lambda c: _publish(c, NEW),
    "publish to partition": lambda c: _publish(c, f"{NEW}-part-0"),
    "publish to what is there": lambda c: _publish(c, OLD),
    "deliver_at": lambda c: _publish(c, OLD, deliver_at=LATER),
    "request": lambda c: c.request(NEW, b"x", timeout=1.0),
    "subscribe": lambda c: c.subscribe(NEW, "s").open(),
    "subscribe to stream": lambda c: c.subscribe(OLD, "s", start="earliest").open(),
    "subscribe by pattern": lambda c: c.subscribe("/system/>", "s", type="shared").open(),
    "dead letters of a stream": lambda c: c.subscribe(OWN, "s", dead_letter_topic=NEW).open(),
    "dead letters to what is there": lambda c: c.subscribe(OWN, "s", dead_letter_topic=OLD).open(),
    "dead letters of a timeline": lambda c: c.create_topic(
        "/default/due", kind="timeline", dead_letter_topic=NEW
    ),
    "transaction": lambda c: _transact(c, OLD),
    "stage": lambda c: _stage(c, OLD),
    "timeline put": lambda c: c.timeline(DUE).put(b"x", at=LATER, id="a"),
    "timeline move": lambda c: c.timeline(DUE).move("a", LATER),
    "timeline delete": lambda c: c.timeline(DUE).delete("a"),
    "timeline consume": lambda c: _consume_timeline(c, DUE),
    "timeline redrive": lambda c: c.timeline(DUE).redrive(),
    "cron put": lambda c: c.timeline(JOBS).put(b"x", cron="@daily", id="a"),
    "cron pause": lambda c: c.timeline(JOBS).pause("a"),
    "schema": lambda c: _bind(c, OLD),
}


@pytest.mark.parametrize("act", NATIVE.values(), ids=list(NATIVE))
async def test_a_client_cannot_change_anything_in_system(broker: MemoryBroker, act: Act) -> None:
    before = state(broker)

    async with broker.connect() as client:
        with pytest.raises(ReservedNamespaceError):
            await act(client)

    assert state(broker) == before


async def test_a_client_can_list_and_read_topics_in_system(broker: MemoryBroker) -> None:
    async with broker.connect() as client:
        names = [row.topic for row in await client.topics("/system/>")]
        async with client.reader(OLD) as reader:
            read = [batch async for batch in reader]
        counted = await client.timeline(DUE).count()

    assert names == sorted([OLD, DUE, JOBS])
    assert (read, counted) == ([], 0)


# Commands that name a topic. A new one belongs to one of these lists, and into `NATIVE` or not.
CHANGING = {
    "BindSchema", "ChangeCron", "ChangeTimeline", "CloseStage", "CommitTransaction",
    "ConsumeTimeline", "CreateTopic", "DeleteTopic", "OpenProducer", "PurgeTopic",
    "RedriveTimeline", "Subscribe", "UpdateTopic",
}  # fmt: skip
# Of subscriptions and bindings: none can be made in `/system`, so there are none to change.
OF_WHAT_CANNOT_BE = {
    "DeleteSubscription", "DropCursor", "PauseSubscription", "RedriveSubscription", "SaveCursor",
    "Seek", "UnbindSchema", "UpdateSubscription",
}  # fmt: skip
READING = {
    "CountTimeline", "GetFromTimeline", "GetSchemaBinding", "ListCron", "ListSubscriptions",
    "ListTimeline", "LocateStream", "OpenReader", "PreviewCron", "WatchStreams",
}  # fmt: skip
ANSWERS = {"ProducerOpened", "TopicNumber"}


def test_every_command_that_names_a_topic_is_tested() -> None:
    naming = {
        one.__name__
        for one in typing.get_args(Command)
        if {"topic", "topics"} & set(one.__struct_fields__)
    }

    known = CHANGING | OF_WHAT_CANNOT_BE | READING | ANSWERS
    assert naming - {"Topics"} == known


# HTTP


BODIES: dict[str, Any] = {
    "create_topic": {"kind": "stream"},
    "update_topic": {"ttl_ms": 1},
    "grow_topic": {"partitions": 4},
    "publish_message": {"payload": "x"},
    "create_subscription": {"type": "shared"},
    "bind_topic": {"subject": "orders"},
}
HTTP = [
    one.operation.spec
    for one in ROUTES.table
    if one.operation.spec.method != "GET" and "topics/{topic}" in one.operation.spec.path
]


def test_every_body_is_that_of_a_route() -> None:
    assert set(BODIES) <= {one.name for one in HTTP}


@pytest.mark.parametrize("topic", ["new", "old"])
@pytest.mark.parametrize("route", HTTP, ids=lambda one: f"{one.method} {one.path}")
async def test_http_cannot_change_anything_in_system(
    broker: MemoryBroker, route: Any, topic: str
) -> None:
    registry = await Registry.open(MemoryMetadata(), now_ms=broker.clock.now_ms)
    call = Caller(
        App(broker.engine, NativeDoor(broker.engine), Dispatcher(broker.engine, registry))
    )
    before = state(broker)
    path = route.path.replace("{namespace}", "system").replace("{topic}", topic)
    for name in ("subscription", "name", "partition", "snapshot"):
        path = path.replace(f"{{{name}}}", "1")

    answer = await call(route.method, PREFIX + path, BODIES.get(route.name, {}))

    assert state(broker) == before
    assert 400 <= answer.status < 500 or answer.json == {"messages": 0}, answer
    if route.name in BODIES and topic == "old":
        assert answer.error[:2] == (403, RESERVED)


# Danube's door


@pytest.fixture
async def danube(broker: MemoryBroker) -> dict[str, Any]:
    """The methods of Danube's port that create or change something, by name."""
    engine = broker.engine
    registry = await Registry.open(MemoryMetadata(), now_ms=broker.clock.now_ms)
    metadata = MemoryMetadata()
    settings = SubscriptionSettings(metadata)
    roll = Roll(metadata, broker.clock.now_ms)
    producers = Producers(engine, roll, SchemaRefs(registry), waiting_bytes_max=1_000)
    consumers = Consumers(engine, roll, settings.acks)
    topics = TopicAdmin(Dispatcher(engine, registry), settings)
    return {"create": producers.create, "subscribe": consumers.subscribe, **topics.handlers()}


@pytest.mark.parametrize("topic", [NEW, OLD])
@pytest.mark.parametrize("method", ["create", "CreateTopic", "CreatePartitionedTopic"])
async def test_danube_cannot_create_anything_in_system(
    broker: MemoryBroker, danube: dict[str, Any], method: str, topic: str
) -> None:
    before = state(broker)
    requests = {
        "create": message("danube.ProducerRequest")(
            topic_name=topic, producer_name="p", dispatch_strategy=1
        ),
        "CreateTopic": message("danube_admin.NewTopicRequest")(name=topic, dispatch_strategy=1),
        "CreatePartitionedTopic": message("danube_admin.PartitionedTopicRequest")(
            base_name=topic, partitions=2, dispatch_strategy=1
        ),
    }

    with pytest.raises((IsterError, Refusal)) as caught:
        await danube[method](requests[method], None)

    assert state(broker) == before
    if topic == NEW:
        assert getattr(caught.value, "code", None) == RESERVED


def test_danube_cannot_use_a_dead_letter_topic_in_system() -> None:
    policy = FailurePolicy(
        max_redelivery_count=1, ack_timeout_ms=1_000, dead_letter_topic=NEW, poison_policy=1
    )
    with pytest.raises(ReservedNamespaceError):
        apply_policy(policy, ister.base.AckSettings())
