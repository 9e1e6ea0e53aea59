"""What producers of streams promise: stored once, where it was said, and found again."""

import asyncio

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    OffsetMismatchError,
    ProducerFencedError,
    WrongKindError,
)

TOPIC = "/default/orders"
PARTITIONED = "/default/parts"


@pytest.fixture
async def stream(client: ister.Client) -> ister.Client:
    """A client of a broker that has a stream, and one with three partitions."""
    await client.create_topic(TOPIC, kind="stream")
    await client.create_topic(PARTITIONED, kind="stream", partitions=3)
    return client


async def stored(client: ister.Client, topic: str = TOPIC) -> list[bytes]:
    """Return what a topic holds."""
    [row] = await client.topics(topic)
    async with client.subscribe(topic, "check", start="earliest") as sub:
        return [(await sub.receive(timeout=10.0)).payload for _ in range(row.next_offset)]


async def test_messages_are_stored_in_the_order_they_were_sent(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer:
        first = await producer.send(b"0")
        futures = [producer.send_nowait(b"%d" % n) for n in range(1, 50)]
        rest = [await future for future in futures]

    assert [mid.offset for mid in (first, *rest)] == list(range(50))
    assert await stored(stream) == [b"%d" % n for n in range(50)]


async def test_what_was_in_flight_when_the_connection_was_lost_is_stored_once(
    harness: Harness, stream: ister.Client
) -> None:
    count = 2_000
    async with stream.producer(TOPIC) as producer:
        futures = []
        for number in range(count):
            futures.append(producer.send_nowait(b"%d" % number))
            if number % 400 == 200:
                await asyncio.sleep(0)
                await harness.disconnect_all()
        offsets = [(await future).offset for future in futures]

    assert offsets == list(range(count))
    assert await stored(stream) == [b"%d" % n for n in range(count)]


async def test_what_was_in_flight_when_the_broker_crashed_is_stored_once(
    harness: Harness, stream: ister.Client
) -> None:
    count = 500
    async with stream.producer(TOPIC) as producer:
        futures = []
        for number in range(count):
            futures.append(producer.send_nowait(b"%d" % number))
            if number % 10 == 0:
                await asyncio.sleep(0)
            if number % 100 == 50:
                await harness.restart()
        offsets = [(await future).offset for future in futures]

    assert offsets == list(range(count))
    assert await stored(stream) == [b"%d" % n for n in range(count)]


async def test_a_producer_that_starts_anew_under_its_name_goes_on(
    harness: Harness, stream: ister.Client
) -> None:
    async with stream.producer(TOPIC, "shop") as producer:
        await producer.send_batch([b"0", b"1"])
    async with harness.connect() as other, other.producer(TOPIC, "shop") as producer:
        mid = await producer.send(b"2")

    assert mid.offset == 2
    assert await stored(stream) == [b"0", b"1", b"2"]


async def test_the_last_to_open_a_producer_of_a_name_is_the_one(
    harness: Harness, stream: ister.Client
) -> None:
    former = stream.producer(TOPIC, "shop")
    await former.open()
    await former.send(b"0")
    async with harness.connect() as other, other.producer(TOPIC, "shop") as latter:
        await latter.send(b"1")
        with pytest.raises(ProducerFencedError) as caught:
            await former.send(b"lost")
        await harness.disconnect_all()
        await latter.send(b"2")
        with pytest.raises(ProducerFencedError):
            await former.send(b"lost, too")
    await former.close(flush=False)

    assert (caught.value.topic, caught.value.producer) == (TOPIC, "shop")
    assert await stored(stream) == [b"0", b"1", b"2"]


async def test_an_expected_offset_is_met_or_nothing_is_stored(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer:
        first = await producer.send(b"0", expected_offset=0)
        with pytest.raises(OffsetMismatchError) as caught:
            await producer.send(b"no", expected_offset=0)
        second = await producer.send(b"1", key="k", expected_offset=caught.value.next_offset)
        third = await producer.send(b"2")

    assert [mid.offset for mid in (first, second, third)] == [0, 1, 2]
    assert (caught.value.expected_offset, caught.value.next_offset) == (0, 1)
    assert await stored(stream) == [b"0", b"1", b"2"]


async def test_of_many_who_expect_the_same_offset_one_gets_it(
    harness: Harness, stream: ister.Client
) -> None:
    async with harness.connect() as other:
        producers = [stream.producer(TOPIC), other.producer(TOPIC)]
        for producer in producers:
            await producer.open()
        sends = [p.send(b"%d" % n, expected_offset=0) for n, p in enumerate(producers)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        for producer in producers:
            await producer.close(flush=False)

    assert sorted(type(result).__name__ for result in results) == [
        "MessageId",
        "OffsetMismatchError",
    ]
    assert len(await stored(stream)) == 1


async def test_an_offset_is_expected_of_a_stream_without_partitions(
    stream: ister.Client,
) -> None:
    async with stream.producer(PARTITIONED) as producer:
        with pytest.raises(BadRequestError):
            await producer.send(b"x", expected_offset=0)
    async with stream.producer(f"{PARTITIONED}-part-1") as producer:
        assert (await producer.send(b"x", expected_offset=0)).partition == 1
    async with stream.producer("/default/live") as producer:
        with pytest.raises(WrongKindError):
            await producer.send(b"x", expected_offset=0)


@pytest.mark.parametrize("offset", [-1, 2**63, "0", 1.5], ids=str)
async def test_what_is_no_offset_is_not_expected(stream: ister.Client, offset: object) -> None:
    async with stream.producer(TOPIC) as producer:
        with pytest.raises(BadRequestError):
            await producer.send(b"x", expected_offset=offset)  # type: ignore[arg-type]


async def test_a_message_with_a_known_id_is_not_stored_again(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer, stream.producer(TOPIC) as other:
        first = await producer.send(b"first", id="order-1")
        again = await other.send(b"again", id="order-1")
        another = await producer.send(b"another", id="order-2")

    assert (first.offset, again.offset, another.offset) == (0, 0, 1)
    assert [mid.duplicate for mid in (first, again, another)] == [False, True, False]
    assert again == first
    assert await stored(stream) == [b"first", b"another"]


async def test_a_batch_tells_of_each_of_its_messages(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer:
        await producer.send_batch([b"a", b"b"], ids=["a", "b"])
        ids = await producer.send_batch(
            [b"b", b"c", b"a", b"d", b"d"], ids=["b", "c", "a", None, None]
        )
        after = await producer.send(b"e")

    assert [mid.offset for mid in ids] == [1, 2, 0, 3, 4]
    assert [mid.duplicate for mid in ids] == [True, False, True, False, False]
    assert after.offset == 5
    assert await stored(stream) == [b"a", b"b", b"c", b"d", b"d", b"e"]


async def test_a_batch_is_sent_with_keys_attributes_and_ids(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer:
        await producer.send_batch(
            [b"a", b"b"], keys=["k", None], attributes=[{"n": "1"}, None], ids=[None, "i"]
        )
    async with stream.subscribe(TOPIC, "check", start="earliest") as sub:
        received = [await sub.receive() for _ in range(2)]

        assert [m.key for m in received] == ["k", None]
        assert [m.attributes for m in received] == [{"n": "1"}, {}]
        assert [m.id for m in received] == [None, "i"]


@pytest.mark.parametrize("column", ["keys", "attributes", "ids"])
async def test_a_batch_has_one_of_each_for_every_message(stream: ister.Client, column: str) -> None:
    columns: dict[str, list[None]] = {column: [None]}
    async with stream.producer(TOPIC) as producer:
        with pytest.raises(BadRequestError):
            await producer.send_batch([b"a", b"b"], **columns)


async def test_a_batch_over_partitions_tells_its_ids_in_the_order_of_its_messages(
    stream: ister.Client,
) -> None:
    keys = [f"key-{n % 7}" for n in range(30)]
    async with stream.producer(PARTITIONED) as producer:
        ids = await producer.send_batch([b"%d" % n for n in range(30)], keys=keys)
    async with stream.subscribe(PARTITIONED, "check", start="earliest") as sub:
        received = [await sub.receive(timeout=10.0) for _ in range(30)]

        found = {(m.topic, m.offset): m.payload for m in received}
        assert [found[mid] for mid in ids] == [b"%d" % n for n in range(30)]


async def test_a_done_batch_tells_what_became_of_each_message(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer:
        future = producer.send_batch_nowait([b"a", b"b"], ids=["1", "1"])
        await future

        results = future.results()
        assert results == [ister.MessageId(TOPIC, 0), ister.MessageId(TOPIC, 0)]


async def test_a_message_with_a_time_to_live_says_so(stream: ister.Client) -> None:
    async with stream.producer(TOPIC) as producer:
        await producer.send(b"a", ttl=60.0)
        await producer.send_nowait(b"b", attributes={"n": "1"}, ttl=0.0001 * 600_001)
    async with stream.subscribe(TOPIC, "check", start="earliest") as sub:
        received = [await sub.receive() for _ in range(2)]

        assert [m.attributes for m in received] == [
            {"ister-ttl-ms": "60000"},
            {"n": "1", "ister-ttl-ms": "60001"},
        ]


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_live_topic_takes_no_time_to_live(client: ister.Client, partitions: int) -> None:
    await client.create_topic(TOPIC, partitions=partitions)
    async with client.producer(TOPIC) as producer:
        with pytest.raises(WrongKindError, match="takes a ttl"):
            await producer.send(b"x", ttl=60.0)
        with pytest.raises(WrongKindError, match="takes a ttl"):
            producer.send_nowait(b"x", ttl=60.0)
    with pytest.raises(WrongKindError, match="takes a ttl"):
        await client.publish(TOPIC, b"x", ttl=60.0)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "1"], ids=str)
async def test_a_time_to_live_is_above_zero_and_ends(stream: ister.Client, ttl: object) -> None:
    async with stream.producer(TOPIC) as producer:
        with pytest.raises(BadRequestError):
            await producer.send(b"x", ttl=ttl)  # type: ignore[arg-type]
        with pytest.raises(BadRequestError):
            producer.send_nowait(b"x", ttl=ttl)  # type: ignore[arg-type]
