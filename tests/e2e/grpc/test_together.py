"""Danube's clients beside native ones, and very many of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.danubes import WAIT_S, Danube, code_of, new_topic

import ister
from ister.server.grpc.messages import message

SEGMENTS = "danube.StorageService/ListSegmentDescriptors"
KINDS = pytest.mark.parametrize("reliable", [False, True], ids=["live", "reliable"])


@pytest.fixture
async def native(grpc_broker: BrokerProcess) -> AsyncIterator[ister.Client]:
    async with ister.connect(grpc_broker.url) as client:
        yield client


@KINDS
async def test_a_native_consumer_gets_what_danube_sends(
    danube: Danube, native: ister.Client, *, reliable: bool
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, "danubian", reliable=reliable)
    async with native.subscribe(topic, "native") as sub:
        inbox = await danube.consumer(topic)
        await producer.send(b"plain")
        await producer.send_with_key(b"keyed", {"color": "red"}, "k")

        first, second = [*await sub.fetch(1, timeout=WAIT_S), *await sub.fetch(1, timeout=WAIT_S)]
        theirs = await inbox.take(2, ack=True)

    assert (first.payload, first.key, first.attributes) == (b"plain", None, {})
    assert (second.payload, second.key, second.attributes) == (b"keyed", "k", {"color": "red"})
    assert first.producer == "danubian"
    assert [first.offset, second.offset] == [m.msg_id.topic_offset for m in theirs] == [0, 1]


@KINDS
async def test_a_danube_consumer_gets_what_is_sent_natively(
    danube: Danube, native: ister.Client, *, reliable: bool
) -> None:
    topic = new_topic()
    await native.create_topic(topic, kind="stream" if reliable else "live")
    inbox = await danube.consumer(topic)
    async with native.producer(topic, name="native") as producer:
        await producer.send(b"plain")
        await producer.send_batch([b"%d" % n for n in range(30)])
        await producer.send(b"keyed", key="k", attributes={"color": "red"})

    got = await inbox.take(32, ack=True)

    assert [m.payload for m in got] == [b"plain", *(b"%d" % n for n in range(30)), b"keyed"]
    assert [m.msg_id.topic_offset for m in got] == list(range(32))
    assert {m.producer_name for m in got} == {"native"}
    assert (got[-1].routing_key, dict(got[-1].attributes)) == ("k", {"color": "red"})
    assert not got[0].HasField("routing_key")


async def test_native_and_danube_consumers_share_a_subscription(
    danube: Danube, native: ister.Client
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=True)
    inbox = await danube.consumer(topic, "danubian", type="shared")
    async with native.subscribe(topic, "subscription", type="shared", policy="round_robin") as sub:
        for n in range(10):
            await producer.send(b"%d" % n)
        theirs = await inbox.payloads(5, ack=True)
        ours: list[ister.Message] = []
        while len(ours) < 5:
            ours += await sub.fetch(5, timeout=WAIT_S)

    assert sorted([*(m.payload for m in ours), *theirs]) == [b"%d" % n for n in range(10)]


async def test_a_message_too_large_for_danube_does_not_stop_its_live_consumer(
    danube: Danube, native: ister.Client
) -> None:
    topic = new_topic()
    await native.create_topic(topic)
    inbox = await danube.consumer(topic)
    async with native.producer(topic) as producer:
        await producer.send(bytes(5 * 1024 * 1024))
        await producer.send(b"small")

    assert await inbox.payloads(1) == [b"small"]


async def test_a_message_too_large_for_danube_goes_the_way_of_those_that_go_wrong(
    danube: Danube, native: ister.Client
) -> None:
    topic = new_topic()
    await native.create_topic(topic, kind="stream")
    letters = f"{topic}-large"
    async with native.subscribe(topic, "subscription", max_deliveries=1, dead_letter_topic=letters):
        pass
    inbox = await danube.consumer(topic)
    async with native.producer(topic) as producer:
        await producer.send(bytes(5 * 1024 * 1024))
        await producer.send(b"small")

    assert await inbox.payloads(1, ack=True) == [b"small"]
    async with asyncio.timeout(WAIT_S), native.reader(letters) as reader:
        async for batch in reader:
            assert [len(payload) for payload in batch.payloads] == [5 * 1024 * 1024]
            break


async def test_segments_of_a_stream_are_told(danube: Danube, native: ister.Client) -> None:
    stream, live = new_topic(), new_topic()
    await danube.producer(stream, reliable=True)
    await danube.producer(live)

    answer = await danube.ask(
        SEGMENTS, "danube.ListSegmentDescriptorsRequest", "danube.ListSegmentDescriptorsResponse",
        topic=stream,
    )  # fmt: skip

    # Nothing of it is in a file that is closed.
    assert list(answer.segments) == []
    for topic, code in ((live, "FAILED_PRECONDITION"), (new_topic(), "NOT_FOUND")):
        request = message("danube.ListSegmentDescriptorsRequest")(topic=topic)
        assert (await code_of(danube.call(SEGMENTS, request))).name == code


@KINDS
async def test_a_hundred_producers_at_once(danube: Danube, *, reliable: bool) -> None:
    topic = new_topic()
    await danube.producer(topic, "first", reliable=reliable)
    inbox = await danube.consumer(topic)

    async def produce(number: int) -> None:
        producer = await danube.producer(topic, f"p{number}", reliable=reliable)
        for n in range(5):
            await producer.send(b"%d" % n)

    taking = asyncio.create_task(inbox.take(500, ack=True))
    await asyncio.gather(*map(produce, range(100)))
    got = await taking

    for number in range(100):
        mine = [int(m.payload) for m in got if m.producer_name == f"p{number}"]
        assert mine == list(range(5))
