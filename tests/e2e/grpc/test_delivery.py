"""Danube's client against a real broker: who gets which messages, on every kind of topic."""

import asyncio

import pytest
from grpc import StatusCode
from tests.e2e.grpc.danubes import Danube, Inbox, code_of, new_topic

KINDS = pytest.mark.parametrize("reliable", [False, True], ids=["live", "reliable"])


@KINDS
@pytest.mark.parametrize("type", ["exclusive", "shared", "failover", "key_shared"])
async def test_what_is_sent_is_received(danube: Danube, *, type: str, reliable: bool) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    inbox = await danube.consumer(topic, type=type)

    assert await producer.send(b"hello", {"color": "red", "empty": ""}) > 0
    (got,) = await inbox.take(ack=True)

    assert got.payload == b"hello"
    assert dict(got.attributes) == {"color": "red", "empty": ""}
    assert got.producer_name == "producer"
    assert got.msg_id.topic_name == topic
    assert got.msg_id.topic_offset == 0
    assert got.msg_id.broker_addr == f"http://{danube.address}"
    assert got.publish_time > 1_700_000_000_000
    assert not got.HasField("routing_key")
    assert not got.HasField("schema_id")


@KINDS
async def test_every_subscription_gets_everything(danube: Danube, *, reliable: bool) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    inboxes = [await danube.consumer(topic, subscription=f"s{n}") for n in range(3)]

    sent = [b"%d" % n for n in range(10)]
    for payload in sent:
        await producer.send(payload)

    for inbox in inboxes:
        assert await inbox.payloads(10, ack=True) == sent


@KINDS
async def test_shared_consumers_get_equal_shares(danube: Danube, *, reliable: bool) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    inboxes = [await danube.consumer(topic, f"c{n}", type="shared") for n in range(3)]

    sent = [b"%d" % n for n in range(9)]
    for payload in sent:
        await producer.send(payload)
    shares = [await inbox.payloads(3, ack=True) for inbox in inboxes]

    assert sorted(p for share in shares for p in share) == sent


@KINDS
async def test_a_consumer_of_a_partitioned_topic_gets_every_partition(
    danube: Danube, *, reliable: bool
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, partitions=3, reliable=reliable)
    inbox = await danube.consumer(topic)

    for n in range(6):
        await producer.send(b"%d" % n)
    got = await inbox.take(6, ack=True)

    assert {m.msg_id.topic_name for m in got} == {f"{topic}-part-{n}" for n in range(3)}
    assert sorted(m.payload for m in got) == [b"%d" % n for n in range(6)]
    assert {m.producer_name for m in got} == {f"producer-{n}" for n in range(3)}


async def test_one_key_is_on_one_partition(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, partitions=3, reliable=True)
    inbox = await danube.consumer(topic)

    for key in ("a", "b", "c", "a", "b", "c"):
        await producer.send_with_key(key.encode(), None, key)
    got = await inbox.take(6, ack=True)

    for key in ("a", "b", "c"):
        assert len({m.msg_id.topic_name for m in got if m.routing_key == key}) == 1


async def test_reliable_messages_come_in_order_and_completely(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)

    # More than ten times the window of messages that are not acknowledged.
    sent = [b"%d" % n for n in range(120)]
    for payload in sent:
        await producer.send(payload)
    got = await inbox.take(120, ack=True)

    assert [m.payload for m in got] == sent
    assert [m.msg_id.topic_offset for m in got] == list(range(120))


async def test_no_more_than_the_window_is_unacknowledged(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic)
    for n in range(15):
        await producer.send(b"%d" % n)

    first = await inbox.take(10)
    assert await inbox.is_quiet()
    await inbox.consumer.ack(first[0])

    assert await inbox.payloads(1) == [b"10"]


@pytest.mark.parametrize("type", ["exclusive", "shared"])
async def test_a_message_given_back_comes_again(danube: Danube, type: str) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic, type=type)
    await producer.send(b"once more")

    (first,) = await inbox.take()
    await inbox.consumer.nack(first, delay_ms=0, reason="not today")
    (again,) = await inbox.take(ack=True)

    assert again.payload == b"once more"
    assert again.msg_id.topic_offset == first.msg_id.topic_offset
    assert again.request_id == first.request_id


async def test_acknowledgements_of_live_messages_and_of_nothing_are_taken(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic)
    inbox = await danube.consumer(topic)
    await producer.send(b"x")
    (got,) = await inbox.take()

    await inbox.consumer.ack(got)
    await inbox.consumer.ack(got)
    await inbox.consumer.nack(got)
    for fields in ({"topic_name": "/default/never"}, {"topic_name": topic, "topic_offset": 99}):
        answer = await danube.ask(
            "danube.ConsumerService/Ack", "danube.AckRequest", "danube.AckResponse",
            request_id=7, msg_id=fields, subscription_name="subscription",
        )  # fmt: skip
        assert answer.request_id == 7


@KINDS
async def test_messages_of_one_key_go_to_one_consumer(danube: Danube, *, reliable: bool) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    inboxes = [await danube.consumer(topic, f"c{n}", type="key_shared") for n in range(2)]
    total = asyncio.Queue[tuple[int, str, bytes]]()

    async def collect(number: int, inbox: Inbox) -> None:
        while True:
            (got,) = await inbox.take(ack=True)
            total.put_nowait((number, got.routing_key, got.payload))

    tasks = [asyncio.create_task(collect(n, inbox)) for n, inbox in enumerate(inboxes)]
    for n in range(40):
        await producer.send_with_key(b"%d" % n, None, f"key-{n % 8}")
    got = [await asyncio.wait_for(total.get(), 15) for _ in range(40)]
    for task in tasks:
        task.cancel()

    for key in range(8):
        mine = [(number, payload) for number, k, payload in got if k == f"key-{key}"]
        assert len({number for number, _ in mine}) == 1
        assert [int(payload) for _, payload in mine] == list(range(key, 40, 8))
    assert {number for number, _, _ in got} == {0, 1}


@KINDS
async def test_key_filters_choose_the_consumer(danube: Danube, *, reliable: bool) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    payments = await danube.consumer(topic, "a", type="key_shared", filters=("payment",))
    others = await danube.consumer(topic, "b", type="key_shared", filters=("ship*", "invoice"))

    for key in ("payment", "shipping", "nobody", "payment", "invoice", "payment"):
        await producer.send_with_key(key.encode(), None, key)

    assert await payments.payloads(3, ack=True) == [b"payment"] * 3
    # What nobody wants is passed over.
    assert await others.payloads(2, ack=True) == [b"shipping", b"invoice"]


@KINDS
async def test_the_next_in_line_takes_over_when_the_active_consumer_leaves(
    danube: Danube, *, reliable: bool
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable)
    first = await danube.consumer(topic, "a", type="failover")
    second = await danube.consumer(topic, "b", type="failover")
    await producer.send(b"1")
    assert await first.payloads(1, ack=True) == [b"1"]
    assert await second.is_quiet()

    await first.close()
    await producer.send(b"2")

    assert await second.payloads(1, ack=True) == [b"2"]


async def test_an_exclusive_subscription_has_one_consumer_until_that_leaves(
    danube: Danube,
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    first = await danube.consumer(topic, "a")
    await producer.send(b"1")
    await first.take()

    assert await code_of(danube.consumer(topic, "b")) is StatusCode.PERMISSION_DENIED

    await first.close()
    second = await danube.consumer(topic, "b")
    assert await second.payloads(1, ack=True) == [b"1"]


async def test_a_consumer_that_comes_back_gets_again_what_it_did_not_acknowledge(
    danube: Danube,
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    first = await danube.consumer(topic)
    for n in range(3):
        await producer.send(b"%d" % n)
    got = await first.take(3)
    await first.consumer.ack(got[1])
    await first.close()

    again = await danube.consumer(topic)

    assert sorted(await again.payloads(2, ack=True)) == [b"0", b"2"]


async def test_another_shared_consumer_gets_what_one_that_left_did_not_acknowledge(
    danube: Danube,
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    first = await danube.consumer(topic, "a", type="shared")
    for n in range(4):
        await producer.send(b"%d" % n)
    await first.take(4)
    second = await danube.consumer(topic, "b", type="shared")

    await first.close()

    assert sorted(await second.payloads(4, ack=True)) == [b"0", b"1", b"2", b"3"]


async def test_the_same_consumer_elsewhere_takes_over(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    first = await danube.consumer(topic)
    await producer.send(b"1")
    await first.take()

    async with Danube(danube.address) as other:
        second = await other.consumer(topic)

        assert await second.payloads(1, ack=True) == [b"1"]


async def test_a_new_subscription_begins_with_the_next_message(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    await producer.send(b"before")

    inbox = await danube.consumer(topic)
    await producer.send(b"after")

    assert await inbox.payloads(1, ack=True) == [b"after"]


async def test_another_type_joins_the_subscription_as_it_is(danube: Danube) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    await danube.consumer(topic, "a", type="failover")
    second = await danube.consumer(topic, "b", type="shared")

    await producer.send(b"x")

    assert await second.is_quiet()
