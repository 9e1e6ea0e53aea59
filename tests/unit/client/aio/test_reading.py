"""How a subscription with a schema gets to know what its messages were written with."""

import asyncio
from dataclasses import dataclass

import pytest

import ister
from ister.base.errors import BadRequestError, RequestTimeoutError
from ister.client.aio.schemas import PARSE_BYTES
from ister.testing import MemoryBroker, VirtualClock, settle

TOPIC = "/default/orders"
WAIT_S = 10.0
AVRO = ister.Schema(
    "avro", {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}
)


@dataclass
class Order:
    id: int


async def test_a_schema_that_is_not_to_be_had_now_is_asked_for_again_later() -> None:
    async with (
        MemoryBroker() as broker,
        broker.connect() as writer,
        broker.connect() as client,
        client.subscribe(TOPIC, "s", schema=AVRO) as sub,
        writer.producer(TOPIC, schema=AVRO) as producer,
    ):
        node = broker._running().door.dispatcher.node
        registry, node.known_registry = node.known_registry, None
        await producer.send({"a": 1})
        first = await sub.receive(timeout=WAIT_S)
        with pytest.raises(BadRequestError, match="keeps no schemas"):
            _ = first.value
        node.known_registry = registry
        await asyncio.gather(sub.receive(timeout=WAIT_S), producer.send({"a": 2}))
        await producer.send({"a": 3})

        assert (await sub.receive(timeout=WAIT_S)).value == {"a": 3}


async def test_messages_wait_for_their_schema_and_stay_in_order() -> None:
    other = ister.Schema(
        "avro",
        {
            "type": "record",
            "name": "A",
            "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}],
        },
    )
    async with (
        MemoryBroker() as broker,
        broker.connect() as writer,
        broker.connect() as client,
        client.subscribe(TOPIC, "s", schema=AVRO) as sub,
        writer.producer(TOPIC, schema=AVRO) as first,
        writer.producer(TOPIC, schema=other) as second,
    ):
        for number in range(10):
            await first.send({"a": number})
            await second.send({"a": number, "b": 1})
        values = [(await sub.receive(timeout=WAIT_S)).value["a"] for _ in range(20)]

        assert values == [number for number in range(10) for _ in range(2)]


async def test_whoever_waits_for_a_message_waits_no_longer_for_its_schema() -> None:
    clock = VirtualClock()
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.subscribe(TOPIC, "s", schema=AVRO) as sub,
        broker.connect() as writer,
        writer.producer(TOPIC, schema=AVRO) as producer,
    ):
        await producer.send({"a": 1})
        await settle()
        # The message is there, and nobody to ask for its schema.
        await broker.stop()
        receiving = asyncio.ensure_future(sub.receive(timeout=2.0))
        await clock.elapse(3.0)

        with pytest.raises(RequestTimeoutError):
            await receiving
        await broker.start()
        receiving = asyncio.ensure_future(sub.receive(timeout=30.0))
        await clock.elapse(10.0)
        assert (await receiving).value == {"a": 1}


async def test_a_large_definition_is_parsed_beside_the_event_loop() -> None:
    large = ister.Schema("json_schema", {"type": "object", "description": "x" * PARSE_BYTES})
    async with (
        MemoryBroker() as broker,
        broker.connect() as writer,
        broker.connect() as client,
        client.subscribe(TOPIC, "s", schema=Order) as sub,
        writer.producer(TOPIC, schema=large) as producer,
    ):
        await producer.send({"id": 1})

        assert (await sub.receive(timeout=WAIT_S)).value == Order(1)


async def test_a_subscription_that_waits_for_a_schema_ends_with_its_client() -> None:
    async with (
        MemoryBroker() as broker,
        broker.connect() as writer,
        writer.producer(TOPIC, schema=AVRO) as producer,
    ):
        client = await broker.connect()
        sub = client.subscribe(TOPIC, "s", schema=AVRO)
        await sub.open()
        await producer.send({"a": 1})
        await settle()
        await broker.stop()
        waiting = asyncio.ensure_future(sub.receive())
        await settle()
        await client.close()
        outcome = await asyncio.gather(waiting, return_exceptions=True)

        # The message had come before the end: it is handed out without a value, or not at all.
        assert isinstance(outcome[0], ister.Message | ister.errors.ClosedError)
        with pytest.raises(ister.errors.ClosedError):
            await sub.receive(timeout=WAIT_S)
