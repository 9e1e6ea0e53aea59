"""What producers promise: order, ids, acknowledgements, batches, compression, sizes."""

import asyncio

import pytest
from tests.contract.harness import LIMITS

import ister
from ister.base.limits import KIB
from ister.client import CompressionName


async def test_a_message_arrives_with_everything_it_was_sent_with(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders", "shop") as producer,
    ):
        mid = await producer.send(b"one", key="k", attributes={"a": "1", "ü": "é"}, id="order-1")
        msg = await sub.receive()

        assert mid == ister.MessageId("/default/orders", 0)
        assert mid.partition is None
        assert (msg.payload, msg.key, msg.attributes) == (b"one", "k", {"a": "1", "ü": "é"})
        assert (msg.topic, msg.offset, msg.id) == ("/default/orders", 0, "order-1")
        assert (msg.producer, msg.partition, msg.attempt) == ("shop", None, 1)
        assert msg.publish_time.timestamp() * 1000 == pytest.approx(msg.publish_time_ms)
        await msg.ack()


async def test_messages_without_extras_among_others_have_none(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        producer.send_nowait(b"bare")
        producer.send_nowait(b"key", key="k")
        producer.send_nowait(b"attributes", attributes={"a": "1"})
        producer.send_nowait(b"id", id="i")
        await producer.flush()
        received = [await sub.receive() for _ in range(4)]

        assert [m.payload for m in received] == [b"bare", b"key", b"attributes", b"id"]
        assert [m.key for m in received] == [None, "k", None, None]
        assert [m.attributes for m in received] == [{}, {}, {"a": "1"}, {}]
        assert [m.id for m in received] == [None, None, None, "i"]


async def test_an_empty_payload_is_a_message(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        await producer.send(b"")

        assert (await sub.receive()).payload == b""


async def test_bytes_like_payloads_are_copied_when_sent(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        payload = bytearray(b"before")
        future = producer.send_nowait(payload)  # type: ignore[arg-type]
        payload[:] = b"after!"
        await future

        assert (await sub.receive()).payload == b"before"


async def test_messages_keep_their_order_however_they_are_sent(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        producer.send_nowait(b"0")
        await producer.send(b"1")
        producer.send_nowait(b"2")
        await producer.send_batch([b"3", b"4"])
        producer.send_nowait(b"5")
        await producer.flush()

        received = [await sub.receive() for _ in range(6)]
        assert [m.payload for m in received] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert [m.offset for m in received] == [0, 1, 2, 3, 4, 5]


async def test_send_nowait_gives_futures_of_the_ids(client: ister.Client) -> None:
    async with client.producer("/default/orders") as producer:
        futures = [producer.send_nowait(b"%d" % n) for n in range(100)]
        ids = [await future for future in futures]

        assert [mid.offset for mid in ids] == list(range(100))
        assert all(future.done() for future in futures)
        assert await futures[0] == ids[0]


async def test_a_done_callback_gets_the_future_also_when_it_is_done(client: ister.Client) -> None:
    loop = asyncio.get_running_loop()
    called: asyncio.Queue[bool] = asyncio.Queue()

    def on_done(future: ister.SendFuture) -> None:
        # Callbacks of the blocking client come from its own thread.
        loop.call_soon_threadsafe(called.put_nowait, future.done())

    async with client.producer("/default/orders") as producer:
        future = producer.send_nowait(b"x")
        future.add_done_callback(on_done)
        await future
        future.add_done_callback(on_done)

        assert [await called.get(), await called.get()] == [True, True]


async def test_flush_returns_when_everything_is_acknowledged(client: ister.Client) -> None:
    async with client.producer("/default/orders") as producer:
        futures = [producer.send_nowait(b"x") for _ in range(1000)]
        await producer.flush()

        assert all(future.done() for future in futures)
        assert producer.pending_bytes == 0


async def test_leaving_the_producer_flushes_it(client: ister.Client) -> None:
    async with client.subscribe("/default/orders", "billing") as sub:
        async with client.producer("/default/orders") as producer:
            future = producer.send_nowait(b"x")

        assert future.done()
        assert (await sub.receive()).payload == b"x"


async def test_send_batch_returns_every_id_in_order(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        ids = await producer.send_batch([b"a", b"b", b"c"], keys=["x", None, "y"])
        received = [await sub.receive() for _ in range(3)]

        assert [mid.offset for mid in ids] == [0, 1, 2]
        assert [(m.payload, m.key) for m in received] == [(b"a", "x"), (b"b", None), (b"c", "y")]


async def test_an_empty_batch_is_nothing(client: ister.Client) -> None:
    async with client.producer("/default/orders") as producer:
        assert await producer.send_batch([]) == []


async def test_a_batch_larger_than_one_frame_is_cut(client: ister.Client) -> None:
    count = 30_000
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        future = producer.send_batch_nowait([b"%d" % n for n in range(count)])
        ids = await future
        received = 0
        async for batch in sub.batches():
            assert batch.payloads[0] == b"%d" % received
            received += len(batch)
            if received == count:
                break

        assert [ids[0].offset, ids[-1].offset, len(ids)] == [0, count - 1, count]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_compressed_messages_arrive_as_they_were(
    client: ister.Client, compression: CompressionName
) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders", compression=compression) as producer,
    ):
        await producer.send_batch([b"a" * 10_000, b"b" * 10_000], keys=["k", None])
        first, second = await sub.receive(), await sub.receive()

        assert (first.payload, first.key) == (b"a" * 10_000, "k")
        assert (second.payload, second.key) == (b"b" * 10_000, None)


async def test_a_message_of_the_largest_size_passes(client: ister.Client) -> None:
    payload = bytes(range(256)) * (4 * KIB)
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        await producer.send(payload)

        assert len(payload) == 1024 * KIB
        assert (await sub.receive()).payload == payload


async def test_ready_lets_a_flood_through_without_a_refusal(client: ister.Client) -> None:
    payload = bytes(64 * KIB)
    async with client.producer("/default/orders") as producer:
        for _ in range(200):
            await producer.ready()
            producer.send_nowait(payload)
        await producer.flush()

        [topic] = await client.topics("/default/orders")
        assert topic.messages_in == 200


async def test_producers_of_one_client_share_a_topic(client: ister.Client) -> None:
    async with (
        client.producer("/default/orders") as first,
        client.producer("/default/orders") as second,
    ):
        assert (await first.send(b"a")).offset == 0
        assert (await second.send(b"b")).offset == 1
        assert first.name != second.name


async def test_attributes_are_copied_when_sent(client: ister.Client) -> None:
    attributes: dict[str, str] = {}
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        for number in range(3):
            attributes["n"] = str(number)
            producer.send_nowait(b"", attributes=attributes)
        await producer.flush()

        received = [await sub.receive() for _ in range(3)]
        assert [m.attributes for m in received] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]


async def test_keys_count_for_the_size_of_a_batch(client: ister.Client) -> None:
    count = LIMITS.batch_bytes_max // KIB * 2
    async with client.producer("/default/orders") as producer:
        ids = await producer.send_batch([b""] * count, keys=["k" * KIB] * count)

        assert len(ids) == count
