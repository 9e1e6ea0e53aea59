"""What the client port does beyond single calls: places that are given up, windows, limits."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.broker.fakes import FakeSink
from tests.unit.server.grpc.inside import TOPIC, FakeContext, Inside, turns

from ister.base import EARLIEST
from ister.base.errors import (
    BadRequestError,
    GoingAwayError,
    LimitReachedError,
    MessageTooLargeError,
    ProducerFencedError,
    SubscriptionTakenError,
)
from ister.broker import Membership, SubscribeOptions
from ister.codec import Batch, encode
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.consumers import TYPES
from ister.server.grpc.receiver import CREDIT_COUNT, WRITE_BYTES
from ister.server.grpc.roll import id_of
from ister.server.grpc.translation import DELIVERED_BYTES_MAX, DELIVERY_BYTES, StreamMessage

SHARED, KEY_SHARED = TYPES.index("shared"), TYPES.index("key_shared")


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    one = await Inside.open()
    yield one
    await one.close()


# Places


async def test_a_consumer_without_a_stream_loses_its_place_when_it_is_silent(
    inside: Inside,
) -> None:
    await inside.produce()
    await inside.subscribe("a")

    inside.clock.advance(15)
    inside.consumers.sweep()
    with pytest.raises(SubscriptionTakenError):
        await inside.subscribe("b")

    inside.clock.advance(0.001)
    inside.consumers.sweep()
    await inside.subscribe("b")


async def test_a_consumer_that_asks_for_its_health_keeps_its_place(inside: Inside) -> None:
    await inside.produce()
    number = await inside.subscribe("a")

    for _ in range(5):
        inside.clock.advance(5)
        assert inside.consumers.is_known(number)
        inside.consumers.sweep()

    with pytest.raises(SubscriptionTakenError):
        await inside.subscribe("b")


async def test_a_silent_consumer_with_a_stream_keeps_its_place(inside: Inside) -> None:
    await inside.produce()
    context = FakeContext()
    inside.receive(await inside.subscribe(), context)
    await turns()

    inside.clock.advance(3_600)
    inside.consumers.sweep()
    await inside.send(b"x")

    assert await context.take() == [b"x"]


async def test_what_came_before_the_stream_was_opened_is_not_lost(inside: Inside) -> None:
    await inside.produce()
    number = await inside.subscribe()
    await inside.send(b"early")
    context = FakeContext()

    inside.receive(number, context)

    assert await context.take() == [b"early"]


async def test_a_stream_that_is_cancelled_gives_its_place_back(inside: Inside) -> None:
    await inside.produce(reliable=True)
    context = FakeContext()
    stream = inside.receive(await inside.subscribe("a"), context)
    await inside.send(b"x")
    await context.take()

    stream.cancel()
    await turns()
    other = FakeContext()
    inside.receive(await inside.subscribe("b"), other)

    assert await other.take() == [b"x"]


async def test_a_consumer_that_is_gone_comes_back_by_its_id_alone(inside: Inside) -> None:
    await inside.produce(reliable=True)
    number = await inside.subscribe()
    inside.clock.advance(60)
    inside.consumers.sweep()
    await inside.send(b"x")
    context = FakeContext()

    inside.receive(number, context)

    assert await context.take() == [b"x"]


async def test_a_new_stream_of_a_consumer_gets_what_the_former_did_not_acknowledge(
    inside: Inside,
) -> None:
    await inside.produce(reliable=True)
    number = await inside.subscribe()
    # A client that hangs: nothing leaves its connection any more.
    former, context = FakeContext(), FakeContext()
    former.reads.clear()
    inside.receive(number, former)
    for payload in (b"0", b"1", b"2"):
        await inside.send(payload)
    await former.take()

    inside.receive(number, context)
    assert await context.take(3) == [b"0", b"1", b"2"]
    former.reads.set()
    await turns()
    for offset in range(3):
        await inside.ack(offset)
    await inside.send(b"3")

    assert await context.take() == [b"3"]
    # What the former stream went on with when it could was nothing.
    assert former.written.empty()
    durable = inside.broker.durables.get(TOPIC, "s")[0]
    assert durable.record.cursors[1].floor == 3


async def test_what_waited_longer_than_its_lease_is_not_sent(inside: Inside) -> None:
    await inside.produce(reliable=True)
    context = FakeContext()
    context.reads.clear()
    inside.receive(await inside.subscribe(), context)
    for payload in (b"0", b"1"):
        await inside.send(payload)
    assert await context.take() == [b"0"]

    # Both leases end, and both messages are handed out again; the second has waited here.
    inside.clock.advance(32)
    context.reads.set()
    assert await context.take(2) == [b"0", b"1"]
    await turns()
    for offset in range(2):
        await inside.ack(offset)

    assert context.written.empty()
    assert inside.broker.durables.get(TOPIC, "s")[0].record.cursors[1].floor == 2


async def test_a_voided_window_is_given_back(inside: Inside) -> None:
    await inside.produce(reliable=True)
    context = FakeContext()
    context.reads.clear()
    inside.receive(await inside.subscribe(), context)
    for number in range(3):
        await inside.send(b"%d" % number)
    assert await context.take() == [b"0"]

    # An operator starts over, while two messages are on their way to the client.
    inside.broker.durables.seek(TOPIC, "s", EARLIEST, lambda _: None)
    await turns()
    context.reads.set()
    assert await context.take(3) == [b"0", b"1", b"2"]
    await turns()

    (consumer,) = inside.broker.durables.get(TOPIC, "s")[0].consumers
    assert consumer.credit_count == CREDIT_COUNT


# What is held, and by whom


async def test_a_subscribe_that_is_refused_takes_nothing_from_the_consumer(inside: Inside) -> None:
    await inside.produce(reliable=True)
    number = await inside.subscribe(type=KEY_SHARED)
    context = FakeContext()
    inside.receive(number, context)
    await turns()

    with pytest.raises(BadRequestError):
        await inside.subscribe(type=KEY_SHARED, key_filters=["*" * 5])
    await inside.send(b"x")

    assert await context.take() == [b"x"]


async def test_a_place_that_cannot_be_taken_over_is_given_up_and_found_again(
    inside: Inside,
) -> None:
    await inside.produce(reliable=True)
    made: list[Membership] = []
    native = SubscribeOptions(
        topic=TOPIC,
        subscription="s",
        consumer="n",
        type="key_shared",
        filters={f"a{number}": "*" for number in range(40)},
    )
    inside.broker.subscribers.subscribe(
        native,
        made.append,  # type: ignore[arg-type]
        owner="native",
        sink=FakeSink(),
        channel=1,
    )
    await turns()
    inside.broker.subscribers.unsubscribe(made[0])
    number = await inside.subscribe(type=KEY_SHARED)
    inside.receive(number, FakeContext())
    await turns()

    # Too many together with those of the subscription.
    with pytest.raises(BadRequestError):
        await inside.subscribe(type=KEY_SHARED, key_filters=[f"k{number}" for number in range(40)])
    assert not inside.broker.durables.get(TOPIC, "s")[0].consumers
    context = FakeContext()
    inside.receive(number, context)
    await inside.send(b"x", attributes={f"a{number}": "v" for number in range(40)})

    assert await context.take() == [b"x"]


@pytest.mark.parametrize("turn", range(4))
async def test_a_place_that_is_deleted_as_it_is_given_is_none(inside: Inside, turn: int) -> None:
    await inside.produce(reliable=True)
    first = asyncio.create_task(inside.subscribe())
    await turns(turn)
    inside.broker.delete_topic(TOPIC)
    await asyncio.gather(first, return_exceptions=True)
    await turns()

    await inside.produce(reliable=True)
    context = FakeContext()
    inside.receive(await inside.subscribe(), context)
    await inside.send(b"x")

    assert await context.take() == [b"x"]


@pytest.mark.parametrize("turn", range(1, 4))
async def test_a_place_is_given_back_though_a_former_stream_ends_while_it_is_given(
    inside: Inside, turn: int
) -> None:
    await inside.produce(reliable=True)
    # A client that hangs, whose subscription is deleted.
    context = FakeContext()
    context.reads.clear()
    stream = inside.receive(await inside.subscribe("a"), context)
    await inside.send(b"x")
    await context.take()
    inside.broker.durables.delete(TOPIC, "s", lambda _: None)
    await turns()

    again = asyncio.create_task(inside.subscribe("a"))
    await turns(turn)
    stream.cancel()
    await again
    inside.clock.advance(60)
    inside.consumers.sweep()

    await inside.subscribe("b")


@pytest.mark.parametrize("voided", [False, True])
async def test_the_rest_of_a_batch_is_not_sent_when_its_lease_is_over(
    inside: Inside, *, voided: bool
) -> None:
    await inside.produce(reliable=True)
    context = FakeContext()
    context.reads.clear()
    inside.receive(await inside.subscribe(), context)
    # Danube's clients send one message at a time, others do not.
    native = inside.broker.open_producer(TOPIC, "native")
    payloads = [digit * WRITE_BYTES for digit in (b"0", b"1", b"2")]
    head, body = encode(payloads, producer=b"native", producer_id=native.id)
    inside.broker.store(native, Batch(head + body), lambda *_: None)
    assert await context.take() == payloads[:1]

    if voided:
        inside.broker.durables.seek(TOPIC, "s", EARLIEST, lambda _: None)
    else:
        inside.clock.advance(32)
    await turns()
    context.reads.set()

    # Else they would be acknowledged under the former lease, which does not count.
    assert await context.take(3) == payloads
    await turns()
    assert context.written.empty()


async def test_one_window_is_ahead_of_a_consumer_however_often_it_comes(inside: Inside) -> None:
    await inside.produce()
    number = await inside.subscribe()
    contexts = [FakeContext() for _ in range(4)]

    for context in contexts:
        context.reads.clear()
        inside.receive(number, context)
        await turns()
        for _ in range(CREDIT_COUNT):
            await inside.send(b"x")
        await turns()
    (row,) = inside.broker.subscriptions(TOPIC, after="", limit=10)[0]

    # Beside one that each of the streams has.
    assert row.consumers[0].queued == 3 * CREDIT_COUNT - 3
    contexts[-1].reads.set()
    await contexts[-1].take(4 * CREDIT_COUNT - 3)


async def test_filters_that_are_no_use_are_not_kept(inside: Inside) -> None:
    await inside.produce()

    number = await inside.subscribe(key_filters=["x" * 1_000] * 1_000)

    assert inside.roll.consumers[number].key_filters == []


# Windows


async def test_a_client_that_does_not_read_is_sent_no_more_than_its_window(
    inside: Inside,
) -> None:
    await inside.produce()
    context = FakeContext()
    context.reads.clear()
    inside.receive(await inside.subscribe(), context)
    await turns()

    for number in range(CREDIT_COUNT + 100):
        await inside.send(b"%d" % number)
    await turns()
    (row,) = inside.broker.subscriptions(TOPIC, after="", limit=10)[0]

    assert context.written.qsize() == 1
    assert row.consumers[0].queued == 100

    context.reads.set()
    assert len(await context.take(CREDIT_COUNT + 100)) == CREDIT_COUNT + 100


async def test_what_waits_for_the_disk_is_bounded(inside: Inside) -> None:
    await inside.produce(reliable=True)

    results = await asyncio.gather(
        *(inside.send(bytes(300)) for _ in range(4)), return_exceptions=True
    )

    assert [type(one) for one in results] == [type(None)] * 2 + [LimitReachedError] * 2
    await inside.send(bytes(300))


# Producers


async def test_a_silent_producer_is_given_back_and_found_again(inside: Inside) -> None:
    number = await inside.produce()
    topic = inside.broker.catalog.topics[TOPIC]
    assert topic.producers == 1

    inside.clock.advance(60)
    inside.producers.sweep()
    assert topic.producers == 1
    inside.clock.advance(0.001)
    inside.producers.sweep()
    assert topic.producers == 0

    await inside.send(b"x")
    assert topic.producers == 1
    assert inside.producers.is_known(number)


async def test_many_producers_of_one_name_are_one(inside: Inside) -> None:
    for _ in range(3):
        assert await inside.produce() == id_of(TOPIC, "p")

    assert inside.broker.catalog.topics[TOPIC].producers == 1


async def test_a_native_producer_of_the_same_name_is_told_apart_once(inside: Inside) -> None:
    await inside.produce(reliable=True)
    native = inside.broker.open_producer(TOPIC, "p")

    with pytest.raises(ProducerFencedError):
        await inside.send(b"x")

    inside.broker.close_producer(native)
    await inside.send(b"x")


async def test_a_producer_by_a_foreign_id_is_told_apart_once_as_well(inside: Inside) -> None:
    await inside.produce(reliable=True)
    await inside.send(b"x", producer_id=42)
    topic = inside.broker.catalog.topics[TOPIC]
    native = inside.broker.open_producer(TOPIC, "p")

    with pytest.raises(ProducerFencedError):
        await inside.send(b"x", producer_id=42)
    inside.broker.close_producer(native)
    await inside.send(b"x", producer_id=42)

    assert topic.producers == 1


@pytest.mark.parametrize("room", [0, 300])
async def test_a_message_is_measured_as_it_is_delivered(inside: Inside, room: int) -> None:
    topic, name = "/default/large", "p" * 250
    await inside.produce(topic=topic, name=name)
    # Only the id of the producer is sent, not its name.
    sent = StreamMessage(msg_id={"producer_id": id_of(topic, name), "topic_name": topic})
    sent.payload = bytes(DELIVERED_BYTES_MAX - DELIVERY_BYTES - room - sent.ByteSize() - 5)
    data = sent.SerializeToString()
    assert len(data) + DELIVERY_BYTES <= DELIVERED_BYTES_MAX

    if room:
        await inside.send_bytes(data)
    else:
        with pytest.raises(MessageTooLargeError):
            await inside.send_bytes(data)


# The end


async def test_a_closing_door_takes_nobody_and_ends_streams(inside: Inside) -> None:
    await inside.produce()
    number = await inside.subscribe()
    stream = inside.receive(number, FakeContext())
    await turns()

    inside.consumers.close()
    inside.producers.close()

    with pytest.raises(Refusal) as ended:
        await stream
    assert ended.value.code is StatusCode.UNAVAILABLE
    with pytest.raises(GoingAwayError):
        await inside.subscribe("b")
    with pytest.raises(GoingAwayError):
        await inside.produce(name="b")
    with pytest.raises(GoingAwayError):
        await inside.send(b"x", name="b")


async def test_whoever_gives_up_while_it_gets_its_place_does_not_keep_it(inside: Inside) -> None:
    await inside.produce(reliable=True)
    number = await inside.subscribe("a")
    inside.clock.advance(60)
    inside.consumers.sweep()

    for turn in range(12):
        stream = inside.receive(number, FakeContext())
        await turns(turn)
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        await turns()

        (durable,) = inside.broker.durables.get(TOPIC, "s")
        assert not durable.consumers
