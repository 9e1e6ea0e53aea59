"""Producers and subscriptions with a schema: values instead of bytes, in every version."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    BadSchemaError,
    ConnectionLostError,
    SchemaIncompatibleError,
    SchemaNotFoundError,
    SchemaViolationError,
)

TOPIC = "/default/orders"
SUBJECT = "default.orders-value"
WAIT_S = 10.0


@dataclass
class Order:
    """A value as applications have them."""

    id: int
    item: str = ""


class Point(msgspec.Struct):
    """The same with msgspec."""

    x: int
    y: float = 0.0


def message_class() -> Any:
    """A class as protoc generates them: of a message with a text and a number."""
    file = descriptor_pb2.FileDescriptorProto(name="parcel.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Parcel")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="item", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="grams", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Parcel"))


Parcel = message_class()
AVRO_V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
AVRO_V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "note", "type": "string", "default": "none"},
        {"name": "id", "type": "long"},
    ],
}
PROTO = 'syntax = "proto3"; message Order { int32 id = 1; repeated string items = 2; }'


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Order, Order(1, "salmon")),
        (Point, Point(1, 2.5)),
        (str, "größe"),
        (int, -(2**63)),
        (float, 0.5),
        (bytes, b"\x00"),
        (Parcel, Parcel(item="salmon", grams=800)),
        (ister.Schema("json_schema", {"type": "object"}), {"a": [1, None]}),
        (ister.Schema("avro", AVRO_V2), {"id": 2**40, "note": "x"}),
        (ister.Schema("protobuf", PROTO), {"id": 5, "items": ["a", "b"]}),
        (ister.Schema("int16"), -5),
    ],
    ids=lambda given: getattr(given, "__name__", None) or getattr(given, "type", ""),
)
async def test_a_value_arrives_as_it_was_sent(
    client: ister.Client, schema: Any, value: object
) -> None:
    async with (
        client.subscribe(TOPIC, "s", schema=schema) as sub,
        client.producer(TOPIC, schema=schema) as producer,
    ):
        await producer.send(value)
        msg = await sub.receive(timeout=WAIT_S)

        assert msg.value == value
        assert type(msg.value) is type(value)
        assert msg.schema == producer.schema == (1, 1)


async def test_every_way_to_send_encodes(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="stream")
    async with (
        client.subscribe(TOPIC, "s", start="earliest", schema=Order) as sub,
        client.producer(TOPIC, schema=Order) as producer,
    ):
        await producer.send(Order(0))
        futures = [producer.send_nowait(Order(n)) for n in range(1, 101)]
        for future in futures:
            await future
        await producer.send_batch([Order(n) for n in range(101, 104)], keys=["a", "b", "c"])
        await producer.send(Order(104), key="k", attributes={"a": "1"}, id="one")
        await producer.send(Order(105), expected_offset=105)
        messages: list[ister.Message] = []
        while len(messages) < 106:
            messages += await sub.fetch(200, timeout=WAIT_S)

        assert [msg.value.id for msg in messages] == list(range(106))
        assert {msg.schema for msg in messages} == {(1, 1)}
        assert (messages[104].key, messages[104].id) == ("k", "one")


async def test_partitions_carry_the_schema(client: ister.Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    async with (
        client.subscribe(TOPIC, "s", schema=int) as sub,
        client.producer(TOPIC, schema=int) as producer,
    ):
        for number in range(9):
            await producer.send(number)
        await producer.send_batch([9, 10, 11])
        found = [(await sub.receive(timeout=WAIT_S)) for _ in range(12)]

        assert sorted(msg.value for msg in found) == list(range(12))
        assert {msg.schema for msg in found} == {(1, 1)}


async def test_a_producer_registers_its_schema_under_the_subject_of_its_topic(
    client: ister.Client,
) -> None:
    async with client.producer(TOPIC, schema=Order), client.producer(TOPIC, schema=Order):
        pass
    async with client.producer("/default/other", schema=Order, subject="shared"):
        pass
    await client.create_topic("/default/parted", partitions=2)
    async with client.producer("/default/parted-part-1", schema=int):
        pass

    subjects = await client.schemas.list()
    assert [(one.subject, one.versions) for one in subjects] == [
        (SUBJECT, [1]),
        ("default.parted-value", [1]),
        ("shared", [1]),
    ]


async def test_a_producer_may_only_look_its_schema_up(client: ister.Client) -> None:
    with pytest.raises(SchemaNotFoundError):
        await client.producer(TOPIC, schema=Order, register=False).open()
    await client.schemas.register(SUBJECT, Order)
    await client.schemas.set_mode(SUBJECT, "none")
    await client.schemas.register(SUBJECT, Point)

    async with client.producer(TOPIC, schema=Order, register=False) as producer:
        assert producer.schema == (1, 1)
    third = ister.Schema("json_schema", {"type": "string"})
    with pytest.raises(BadRequestError, match="ister schemas register"):
        await client.producer(TOPIC, schema=third, register=False).open()
    assert (await client.schemas.describe(SUBJECT)).versions == [1, 2]


async def test_a_producer_with_an_incompatible_schema_does_not_open(client: ister.Client) -> None:
    await client.schemas.register(SUBJECT, Order)
    producer = client.producer(TOPIC, schema=Point)

    with pytest.raises(SchemaIncompatibleError):
        await producer.open()


async def test_messages_of_all_versions_are_read_as_the_subscription_wants_them(
    client: ister.Client,
) -> None:
    await client.create_topic(TOPIC, kind="stream")
    async with client.producer(TOPIC, schema=ister.Schema("avro", AVRO_V1)) as old:
        await old.send({"id": 1})
    async with client.producer(TOPIC, schema=ister.Schema("avro", AVRO_V2)) as new:
        await new.send({"id": 2, "note": "x"})
    reader = ister.Schema("avro", AVRO_V2)
    async with client.subscribe(TOPIC, "s", start="earliest", schema=reader) as sub:
        found = [await sub.receive(timeout=WAIT_S) for _ in range(2)]

        assert [msg.value for msg in found] == [{"note": "none", "id": 1}, {"note": "x", "id": 2}]
        assert [msg.schema for msg in found] == [(1, 1), (1, 2)]


async def test_a_schema_is_fetched_once(harness: Harness) -> None:
    async with (
        harness.connect() as writer,
        harness.connect() as client,
        client.subscribe(TOPIC, "s", schema=ister.Schema("avro", AVRO_V2)) as sub,
        writer.producer(TOPIC, schema=ister.Schema("avro", AVRO_V1)) as producer,
    ):
        await producer.send({"id": 1})
        first = await sub.receive(timeout=WAIT_S)
        # Whoever asked again would be told that it does not exist.
        await writer.schemas.delete(SUBJECT)
        await producer.send({"id": 2})
        second = await sub.receive(timeout=WAIT_S)

        assert [first.value["id"], second.value["id"]] == [1, 2]


async def test_a_message_whose_schema_is_gone_is_there_without_a_value(harness: Harness) -> None:
    async with harness.connect() as writer, harness.connect() as client:
        await writer.create_topic(TOPIC, kind="stream")
        async with writer.producer(TOPIC, schema=ister.Schema("avro", AVRO_V1)) as producer:
            await producer.send({"id": 1})
        await writer.schemas.delete(SUBJECT)
        async with client.subscribe(TOPIC, "s", start="earliest", schema=Order) as sub:
            msg = await sub.receive(timeout=WAIT_S)

            assert msg.payload
            with pytest.raises(SchemaNotFoundError):
                _ = msg.value
            await msg.ack(confirm=True)


async def test_a_message_without_a_schema_is_read_as_the_subscription_says(
    client: ister.Client,
) -> None:
    async with (
        client.subscribe(TOPIC, "s", schema=Order) as sub,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b'{"id": 7}')
        await producer.send(b'{"id": "seven"}')
        good, bad = [await sub.receive(timeout=WAIT_S) for _ in range(2)]

        assert (good.value, good.schema) == (Order(7), None)
        with pytest.raises(SchemaViolationError) as caught:
            _ = bad.value
        assert (caught.value.topic, caught.value.subject) == (TOPIC, "Order")
        assert "int" in caught.value.reason


@pytest.mark.parametrize("wrong", [5, None, "text", {"id": 1}])
async def test_a_batch_is_a_list_of_values(client: ister.Client, wrong: Any) -> None:
    async with client.producer(TOPIC, schema=str) as producer:
        with pytest.raises(BadRequestError, match="a list of values"):
            await producer.send_batch(wrong)
    async with client.producer(TOPIC) as plain:
        with pytest.raises(BadRequestError, match="a list of bytes"):
            await plain.send_batch(wrong)


async def test_a_payload_that_breaks_a_definition_has_no_value(client: ister.Client) -> None:
    schema = ister.Schema("json_schema", {"type": "object", "required": ["id"]})
    async with (
        client.subscribe(TOPIC, "s", schema=schema) as sub,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b'{"id": 7}')
        await producer.send(b"{}")
        good, bad = [await sub.receive(timeout=WAIT_S) for _ in range(2)]

        assert good.value == {"id": 7}
        with pytest.raises(SchemaViolationError, match="id"):
            _ = bad.value


@pytest.mark.parametrize(
    ("writer", "value", "reader", "read"),
    [
        (int, 1, float, None),
        (int, 1, str, None),
        (str, "12345678", int, None),
        (str, "{}", Order, None),
        (Order, Order(1), str, '{"id":1,"item":""}'),
        (Order, Order(1), bytes, b'{"id":1,"item":""}'),
        (float, 0.5, ister.Schema("number"), 0.5),
    ],
)
async def test_a_message_of_another_type_has_a_value_only_if_it_means_the_same(
    client: ister.Client, writer: Any, value: object, reader: Any, read: object
) -> None:
    async with (
        client.subscribe(TOPIC, "s", schema=reader) as sub,
        client.producer(TOPIC, schema=writer) as producer,
    ):
        await producer.send(value)
        msg = await sub.receive(timeout=WAIT_S)

        if read is None:
            with pytest.raises(SchemaViolationError, match="of type"):
                _ = msg.value
        else:
            assert msg.value == read


async def send_at_last(producer: ister.Producer[Any], value: object) -> None:
    """Send a value over a connection that comes after the one that was cut."""
    for _ in range(100):
        try:
            await producer.send(value)
        except ConnectionLostError:
            continue  # It was under way when the connection was cut.
        return
    raise AssertionError("no connection")


async def test_a_producer_registers_its_schema_again_when_the_broker_has_forgotten_it(
    harness: Harness,
) -> None:
    schema = ister.Schema("avro", AVRO_V1)
    async with harness.connect() as client, client.producer(TOPIC, schema=schema) as producer:
        await producer.send({"id": 1})
        await client.schemas.delete(SUBJECT)
        await client.schemas.register("another", int)
        await harness.disconnect_all()
        async with (
            harness.connect() as reader,
            reader.subscribe(TOPIC, "s", schema=schema) as sub,
        ):
            await send_at_last(producer, {"id": 2})
            msg = await sub.receive(timeout=WAIT_S)

            assert msg.value == {"id": 2}
            assert msg.schema == producer.schema == (3, 1)


async def test_a_producer_whose_schema_is_known_keeps_its_number_after_a_reconnect(
    harness: Harness,
) -> None:
    newer = ister.Schema("avro", AVRO_V2)
    async with (
        harness.connect() as client,
        client.producer(TOPIC, schema=ister.Schema("avro", AVRO_V1)) as producer,
        client.subscribe(TOPIC, "s", schema=newer) as sub,
    ):
        await client.schemas.register(SUBJECT, newer)
        await harness.disconnect_all()
        await send_at_last(producer, {"id": 2})
        msg = await sub.receive(timeout=WAIT_S)

        assert msg.value == {"id": 2, "note": "none"}
        assert msg.schema == producer.schema == (1, 1)


async def test_a_producer_ends_when_its_schema_cannot_be_registered_again(
    harness: Harness,
) -> None:
    async with harness.connect() as client:
        producer = client.producer(TOPIC, schema=ister.Schema("avro", AVRO_V1))
        await producer.open()
        await client.schemas.delete(SUBJECT)
        await client.schemas.register(SUBJECT, int)
        await harness.disconnect_all()
        for _ in range(2):
            with pytest.raises(SchemaIncompatibleError):
                await send_at_last(producer, {"id": 1})


async def test_a_reader_with_a_schema_has_the_values_of_its_batches(harness: Harness) -> None:
    async with harness.connect() as writer, harness.connect() as client:
        await writer.create_topic(TOPIC, kind="stream")
        for schema in (AVRO_V1, AVRO_V2):
            async with writer.producer(TOPIC, schema=ister.Schema("avro", schema)) as producer:
                await producer.send_batch([{"id": 1}, {"id": 2}])
        values = []
        async with client.reader(TOPIC, schema=ister.Schema("avro", AVRO_V2)) as reader:
            while batches := await reader.fetch_batches():
                for batch in batches:
                    values += await reader.values(batch)

        assert values == [{"id": 1, "note": "none"}, {"id": 2, "note": "none"}] * 2


async def test_a_subscription_with_a_schema_has_the_values_of_its_batches(
    client: ister.Client,
) -> None:
    async with (
        client.subscribe(TOPIC, "s", schema=Order) as sub,
        client.subscribe(TOPIC, "plain") as plain,
        client.producer(TOPIC, schema=Order) as producer,
    ):
        await producer.send_batch([Order(1), Order(2)])
        (batch,) = await sub.fetch_batches(timeout=WAIT_S)

        assert await sub.values(batch) == [Order(1), Order(2)]
        with pytest.raises(BadRequestError, match="given no schema"):
            await plain.values(batch)


async def test_a_reader_tells_why_a_batch_has_no_values(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="stream")
    async with client.producer(TOPIC, schema=str) as producer:
        await producer.send("text")
    async with client.reader(TOPIC) as plain, client.reader(TOPIC, schema=int) as other:
        (batch,) = await plain.fetch_batches()
        with pytest.raises(BadRequestError, match="given no schema"):
            await plain.values(batch)
        with pytest.raises(SchemaViolationError, match="of type string"):
            await other.values(batch)
        await client.schemas.delete(SUBJECT)
    async with client.reader(TOPIC, schema=str) as known:
        (batch,) = await known.fetch_batches()

        assert await known.values(batch) == ["text"]


async def test_a_value_is_decoded_once(client: ister.Client) -> None:
    async with (
        client.subscribe(TOPIC, "s", schema=Order) as sub,
        client.producer(TOPIC, schema=Order) as producer,
    ):
        await producer.send_batch([Order(1), Order(2)])
        first, second = [await sub.receive(timeout=WAIT_S) for _ in range(2)]

        assert first.value is first.value
        assert (first.value, second.value) == (Order(1), Order(2))


async def test_a_value_that_does_not_fit_is_refused_before_it_is_sent(
    client: ister.Client,
) -> None:
    wrong: Any = "one"
    values: list[Any] = [Order(wrong), wrong, None, 5]
    async with client.producer(TOPIC, schema=Order) as producer:
        for value in values:
            with pytest.raises(BadRequestError):
                await producer.send(value)
            with pytest.raises(BadRequestError):
                producer.send_nowait(value)
            with pytest.raises(BadRequestError):
                await producer.send_batch([Order(1), value])
        assert (await producer.send(Order(1))).offset == 0


async def test_messages_have_values_only_with_a_schema(client: ister.Client) -> None:
    async with (
        client.subscribe(TOPIC, "s") as sub,
        client.producer(TOPIC, schema=Order) as producer,
    ):
        await producer.send(Order(1))
        msg = await sub.receive(timeout=WAIT_S)

        assert (msg.payload, msg.schema) == (b'{"id":1,"item":""}', (1, 1))
        with pytest.raises(BadRequestError, match="schema="):
            _ = msg.value


async def test_a_bound_topic_takes_the_values_of_its_subject_alone(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="stream")
    await client.schemas.register(SUBJECT, Order)
    await client.schemas.bind(TOPIC, SUBJECT, validate_payload=False)
    async with (
        client.producer(TOPIC, schema=Order) as fits,
        client.producer(TOPIC, schema=Order, subject="other") as other,
        client.producer(TOPIC) as bare,
    ):
        await fits.send(Order(1))
        with pytest.raises(SchemaViolationError):
            await other.send(Order(1))
        with pytest.raises(SchemaViolationError):
            await bare.send(b'{"id":1}')


async def test_a_transaction_carries_schemas_and_keeps_the_order(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="stream")
    await client.schemas.register(SUBJECT, Order)
    await client.schemas.register("numbers", int)
    async with client.transaction() as tx:
        tx.send(TOPIC, b'{"id":1}', schema=(1, 1))
        tx.send(TOPIC, b"x" * 8, schema=(2, 1))
        tx.send(TOPIC, b'{"id":2}', schema=(1, 1))
        tx.send(TOPIC, b"bare")

    async with client.subscribe(TOPIC, "s", start="earliest") as sub:
        found = [await sub.receive(timeout=WAIT_S) for _ in range(4)]
        assert [msg.schema for msg in found] == [(1, 1), (2, 1), (1, 1), None]
        assert [msg.offset for msg in found] == [0, 1, 2, 3]
        assert tx.results == [(TOPIC, n) for n in range(4)]


async def test_a_transaction_sends_what_a_producer_encodes(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="stream")
    async with client.producer(TOPIC, schema=Order) as producer:
        async with client.transaction() as tx:
            tx.send(TOPIC, producer.encode(Order(1)), schema=producer.schema)
        with pytest.raises(BadRequestError):
            producer.encode("no order")  # type: ignore[arg-type]
    async with client.subscribe(TOPIC, "s", start="earliest", schema=Order) as sub:
        assert (await sub.receive(timeout=WAIT_S)).value == Order(1)


async def test_redriven_dead_letters_keep_their_schema(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="stream")
    async with (
        client.producer(TOPIC, schema=Order) as producer,
        client.subscribe(TOPIC, "s", max_deliveries=1, schema=Order) as sub,
    ):
        await producer.send(Order(1))
        await (await sub.receive(timeout=WAIT_S)).nack(delay=0.0)
        letters = f"{TOPIC}-s-dlq"
        async with client.reader(letters, end=None) as reader:
            [batch] = await reader.fetch_batches()
            assert batch.schema == (1, 1)
        assert await client.redrive(TOPIC, "s") == 1
        msg = await sub.receive(timeout=WAIT_S)

        assert (msg.schema, msg.value) == ((1, 1), Order(1))


async def test_a_subscription_with_a_schema_comes_back_after_a_restart(harness: Harness) -> None:
    async with harness.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        async with (
            client.producer(TOPIC, schema=Order) as producer,
            client.subscribe(TOPIC, "s", schema=Order) as sub,
        ):
            await harness.restart()
            await producer.send(Order(1))

            assert (await sub.receive(timeout=WAIT_S)).value == Order(1)


@pytest.mark.parametrize("wrong", ["x", 5, object(), [Order]], ids=lambda w: type(w).__name__)
async def test_what_is_no_schema_is_refused(client: ister.Client, wrong: Any) -> None:
    with pytest.raises(BadRequestError, match=r"ister\.Schema"):
        client.producer(TOPIC, schema=wrong)
    with pytest.raises(BadRequestError, match=r"ister\.Schema"):
        client.subscribe(TOPIC, "s", schema=wrong)


@pytest.mark.parametrize("wrong", [object, ister.Client, Harness])
async def test_a_class_without_a_schema_is_refused(client: ister.Client, wrong: Any) -> None:
    with pytest.raises(BadSchemaError):
        client.producer(TOPIC, schema=wrong)
