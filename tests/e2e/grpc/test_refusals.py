"""What Danube's clients are told when something is wrong: the code decides what they do."""

import asyncio
import os
import random
from typing import Any

import pytest
from grpc import StatusCode
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.danubes import WAIT_S, Danube, code_of, new_topic

import ister
from ister.server.grpc.messages import message

SEND = "danube.ProducerService/SendMessage"
CREATE = "danube.ProducerService/CreateProducer"
SUBSCRIBE = "danube.ConsumerService/Subscribe"
ACK = "danube.ConsumerService/Ack"
HEALTH = "danube.HealthCheck/HealthCheck"
PARTITIONS = "danube.Discovery/TopicPartitions"
LOOKUP = "danube.Discovery/TopicLookup"
METHODS = (SEND, CREATE, SUBSCRIBE, ACK, "danube.ConsumerService/Nack", HEALTH, PARTITIONS, LOOKUP)


def producer_request(topic: str, name: str = "p", *, strategy: int = 0) -> Any:
    return message("danube.ProducerRequest")(
        request_id=1, producer_name=name, topic_name=topic, dispatch_strategy=strategy
    )


def stream_message(topic: str, producer_id: int = 1, name: str = "p", **fields: Any) -> Any:
    return message("danube.StreamMessage")(
        msg_id={"producer_id": producer_id, "topic_name": topic}, producer_name=name, **fields
    )


# Producers


async def test_a_producer_made_twice_is_one_producer(danube: Danube) -> None:
    topic = new_topic()
    inbox_before = await danube.producer(topic, reliable=True)
    second = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)

    await inbox_before.send(b"1")
    await second.send(b"2")
    await inbox_before.send(b"3")

    got = await inbox.take(3, ack=True)
    assert [m.payload for m in got] == [b"1", b"2", b"3"]
    assert len({m.msg_id.producer_id for m in got}) == 1


@pytest.mark.parametrize("reliable", [False, True])
async def test_the_other_dispatch_strategy_is_refused(danube: Danube, *, reliable: bool) -> None:
    topic = new_topic()
    await danube.producer(topic, reliable=reliable)

    found = await code_of(danube.producer(topic, "other", reliable=not reliable))

    assert found is StatusCode.FAILED_PRECONDITION


async def test_a_topic_and_its_partitions_exclude_each_other(danube: Danube) -> None:
    plain, parted = new_topic(), new_topic()
    await danube.producer(plain)
    await danube.producer(parted, partitions=2)

    assert await code_of(danube.producer(plain, partitions=1)) is StatusCode.ALREADY_EXISTS
    assert await code_of(danube.producer(parted)) is StatusCode.ALREADY_EXISTS


async def test_a_name_that_begins_like_another_is_a_name_of_its_own(danube: Danube) -> None:
    topic = new_topic()
    await danube.producer(f"{topic}bar")
    await danube.producer(topic)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("no-slash", StatusCode.INVALID_ARGUMENT),
        ("/default/", StatusCode.INVALID_ARGUMENT),
        ("/default/a/b", StatusCode.INVALID_ARGUMENT),
        ("/default/a b", StatusCode.INVALID_ARGUMENT),
        ("", StatusCode.INVALID_ARGUMENT),
        ("/default/huge-part-99999", StatusCode.INVALID_ARGUMENT),
        ("/nowhere/a", StatusCode.NOT_FOUND),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    danube: Danube, topic: str, code: StatusCode
) -> None:
    assert await code_of(danube.call(CREATE, producer_request(topic))) is code


async def test_a_message_that_nobody_could_receive_is_refused(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic)
    inbox = await danube.consumer(topic)

    for size in (4 * 1024 * 1024, 20 * 1024 * 1024):
        assert await code_of(producer.send(bytes(size))) is StatusCode.INVALID_ARGUMENT
    await producer.send(b"still here")

    assert await inbox.payloads(1) == [b"still here"]


@pytest.mark.parametrize("reliable", [False, True])
async def test_messages_from_one_byte_to_three_mebibytes_pass(
    danube: Danube, *, reliable: bool
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    inbox = await danube.consumer(topic)

    for size in (0, 1, 1_000, 65_536, 1_000_000, 3 * 1024 * 1024, 4 * 1024 * 1024 - 1_000):
        payload = os.urandom(size)
        await producer.send(payload)
        assert await inbox.payloads(1, ack=True) == [payload]


async def test_an_unknown_producer_of_a_topic_that_is_here_is_let_in(danube: Danube) -> None:
    topic = new_topic()
    await danube.producer(topic)
    inbox = await danube.consumer(topic)

    await danube.call(SEND, stream_message(topic, 42, "stranger", payload=b"hi"))

    (got,) = await inbox.take()
    assert (got.payload, got.producer_name, got.msg_id.producer_id) == (b"hi", "stranger", 42)


async def test_an_unknown_producer_of_an_unknown_topic_is_to_come_again(danube: Danube) -> None:
    # That is what makes a client create its producer anew.
    found = await code_of(danube.call(SEND, stream_message(new_topic())))

    assert found is StatusCode.UNAVAILABLE


async def test_a_message_for_another_topic_than_its_producers_is_refused(danube: Danube) -> None:
    topic = new_topic()
    made = await danube.ask(
        CREATE, "danube.ProducerRequest", "danube.ProducerResponse", topic_name=topic,
        producer_name="p",
    )  # fmt: skip
    other = stream_message(new_topic(), made.producer_id)

    assert await code_of(danube.call(SEND, other)) is StatusCode.INVALID_ARGUMENT


async def test_a_deleted_topic_is_not_made_again_by_its_producers(
    danube: Danube, grpc_broker: BrokerProcess
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    async with ister.connect(grpc_broker.url) as native:
        await native.delete_topic(topic)

    assert await code_of(producer.send(b"x")) is StatusCode.NOT_FOUND
    await danube.producer(topic, reliable=True)
    assert await producer.send(b"x")


# Consumers


async def test_a_topic_that_is_not_there_has_no_partitions(danube: Danube) -> None:
    answer = await danube.ask(
        PARTITIONS, "danube.TopicLookupRequest", "danube.TopicPartitionsResponse",
        topic=new_topic(), request_id=3,
    )  # fmt: skip
    assert (answer.request_id, list(answer.partitions)) == (3, [])

    lookup = message("danube.TopicLookupRequest")(topic=new_topic())
    assert await code_of(danube.call(LOOKUP, lookup)) is StatusCode.NOT_FOUND


async def test_a_lookup_names_this_broker(danube: Danube) -> None:
    topic = new_topic()
    await danube.producer(topic)

    answer = await danube.ask(
        LOOKUP, "danube.TopicLookupRequest", "danube.TopicLookupResponse", topic=topic
    )

    assert answer.response_type == 1
    assert answer.connect_url == answer.broker_url == f"http://{danube.address}"
    assert not answer.proxy


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic_name": "/default/never-made"}, StatusCode.NOT_FOUND),
        ({"topic_name": "bad"}, StatusCode.INVALID_ARGUMENT),
        ({"consumer_name": ""}, StatusCode.INVALID_ARGUMENT),
        ({"subscription": "a b"}, StatusCode.INVALID_ARGUMENT),
        ({"subscription_type": 9}, StatusCode.INVALID_ARGUMENT),
        ({"subscription_type": 3, "key_filters": ["x"] * 1_000}, StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_subscription_that_cannot_be_is_refused(
    danube: Danube, fields: dict[str, Any], code: StatusCode
) -> None:
    topic = new_topic()
    await danube.producer(topic)
    wanted = {"topic_name": topic, "consumer_name": "c", "subscription": "s"}
    request = message("danube.ConsumerRequest")(**wanted | fields)

    assert await code_of(danube.call(SUBSCRIBE, request)) is code


async def test_a_stream_of_nobody_ends_so_that_clients_subscribe_again(danube: Danube) -> None:
    assert await code_of(danube.stream(12345).read()) is StatusCode.UNAVAILABLE


async def test_the_stream_ends_when_its_topic_is_deleted(
    danube: Danube, grpc_broker: BrokerProcess
) -> None:
    topic = new_topic()
    await danube.producer(topic)
    made = await danube.ask(
        SUBSCRIBE, "danube.ConsumerRequest", "danube.ConsumerResponse",
        topic_name=topic, consumer_name="c", subscription="s",
    )  # fmt: skip
    stream = danube.stream(made.consumer_id)
    reading = asyncio.ensure_future(code_of(stream.read()))
    async with ister.connect(grpc_broker.url) as native:
        await native.delete_topic(topic)

    assert await asyncio.wait_for(reading, WAIT_S) is StatusCode.UNAVAILABLE
    assert await health(danube, 1, made.consumer_id) == 1


async def test_the_loser_of_a_take_over_is_told_so(danube: Danube) -> None:
    topic = new_topic()
    await danube.producer(topic)
    made = await danube.ask(
        SUBSCRIBE, "danube.ConsumerRequest", "danube.ConsumerResponse",
        topic_name=topic, consumer_name="c", subscription="s",
    )  # fmt: skip
    first = danube.stream(made.consumer_id)
    reading = asyncio.ensure_future(code_of(first.read()))
    await danube.call(SEND, stream_message(topic, name="p"))
    # The first message has come: the stream is open.
    with pytest.raises(AssertionError, match="ended well"):
        await asyncio.wait_for(reading, WAIT_S)

    reading = asyncio.ensure_future(code_of(first.read()))
    danube.stream(made.consumer_id)

    assert await asyncio.wait_for(reading, WAIT_S) is StatusCode.ABORTED


# Health


async def health(danube: Danube, client: int, id: int) -> int:
    answer = await danube.ask(
        HEALTH, "danube.HealthCheckRequest", "danube.HealthCheckResponse", client=client, id=id
    )
    status: int = answer.status
    return status


async def test_whoever_is_known_is_well(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic)
    inbox = await danube.consumer(topic)

    assert await health(danube, 0, producer._producers[0].producer_id) == 0
    assert await health(danube, 1, inbox.consumer._consumers[topic].consumer_id) == 0


async def test_an_unknown_id_is_told_to_close_once(danube: Danube) -> None:
    number = int.from_bytes(os.urandom(7), "big")

    assert await health(danube, 1, number) == 1
    assert await code_of(health(danube, 1, number)) is StatusCode.NOT_FOUND
    assert await code_of(health(danube, 5, number)) is StatusCode.INVALID_ARGUMENT


# Whatever comes


BROKEN = {
    "ones": b"\xff\xff\xff\xff",
    "noise": random.Random(1).randbytes(1_000),
    "group without end": b"\x0b" * 200,
    "length beyond the end": b"\x1a\xff\xff\xff\x7f",
}
NO_TEXT = b"\x12\x02\xff\xfe\x1a\x02\xff\xfe\x2a\x02\xff\xfe"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
async def test_bytes_that_are_no_message_are_refused(
    danube: Danube, method: str, broken: bytes
) -> None:
    assert await code_of(danube.call(method, broken)) is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", [m for m in METHODS if m != HEALTH])
async def test_text_that_is_none_is_refused(danube: Danube, method: str) -> None:
    assert await code_of(danube.call(method, NO_TEXT)) is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", [SEND, ACK, "danube.ConsumerService/Nack"])
async def test_a_message_without_its_id_is_refused(danube: Danube, method: str) -> None:
    assert await code_of(danube.call(method, b"")) is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": {str(n): "" for n in range(100_000)}},
        {"attributes": {"x": "y" * 100_000}},
        {"routing_key": "k" * 100_000},
        {"publish_time": 2**64 - 1},
        {"schema_id": 2**64 - 1},
    ],
    ids=["attributes", "attribute", "key", "time", "schema"],
)
async def test_a_message_beyond_its_limits_is_refused(
    danube: Danube, fields: dict[str, Any]
) -> None:
    topic = new_topic()
    await danube.producer(topic)
    sent = stream_message(topic, **fields)

    assert await code_of(danube.call(SEND, sent)) is StatusCode.INVALID_ARGUMENT


async def test_numbers_at_their_ends_are_taken(danube: Danube) -> None:
    topic = new_topic()
    await danube.producer(topic)
    inbox = await danube.consumer(topic)

    sent = stream_message(topic, 2**64 - 1, request_id=2**64 - 1, publish_time=2**63 - 1)
    await danube.call(SEND, sent)

    (got,) = await inbox.take()
    assert got.request_id == got.msg_id.producer_id == 2**64 - 1
    assert got.publish_time == 2**63 - 1


async def test_a_method_that_is_not_there_is_unimplemented(danube: Danube) -> None:
    found = await code_of(danube.call("danube.ProducerService/Nothing", b""))

    assert found is StatusCode.UNIMPLEMENTED
