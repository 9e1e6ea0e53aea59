"""Readers and views: ranges of a stream as columns, and the last value of every key."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    ClosedError,
    OffsetGoneError,
    OffsetMismatchError,
    WrongKindError,
)

TOPIC = "/default/ledger"


@pytest.fixture(autouse=True)
async def stream(client: ister.Client) -> None:
    """A stream to read."""
    await client.create_topic(TOPIC, kind="stream")


async def publish(client: ister.Client, count: int, *, batch: int = 3) -> None:
    """Send messages in batches: their payloads are their offsets."""
    async with client.producer(TOPIC) as producer:
        for start in range(0, count, batch):
            numbers = range(start, min(start + batch, count))
            await producer.send_batch([b"%d" % n for n in numbers])


async def read(reader: ister.Reader) -> list[tuple[int, bytes]]:
    """Return offset and payload of everything a reader has."""
    found: list[tuple[int, bytes]] = []
    async with reader:
        async for batch in reader:
            assert batch.topic == TOPIC
            found += zip(batch.offsets, batch.payloads, strict=True)
    return found


def numbered(start: int, end: int) -> list[tuple[int, bytes]]:
    """Return what `publish` sends, as `read` returns it."""
    return [(n, b"%d" % n) for n in range(start, end)]


async def test_a_reader_reads_everything_there_is(client: ister.Client) -> None:
    await publish(client, 10)

    assert await read(client.reader(TOPIC)) == numbered(0, 10)


@pytest.mark.parametrize(("start", "end"), [(0, 10), (4, 5), (1, 8), (3, 3), (9, 10)])
async def test_a_reader_reads_its_range_to_the_message(
    client: ister.Client, start: int, end: int
) -> None:
    await publish(client, 10)

    assert await read(client.reader(TOPIC, start=start, end=end)) == numbered(start, end)


async def test_a_reader_of_an_empty_stream_ends(client: ister.Client) -> None:
    assert await read(client.reader(TOPIC, start=0, end="latest")) == []


async def test_the_latest_end_is_where_the_stream_ends_when_it_is_opened(
    client: ister.Client,
) -> None:
    await publish(client, 3)
    async with client.reader(TOPIC, end="latest") as reader:
        await publish(client, 3)
        batches = [batch async for batch in reader]

    assert [offset for batch in batches for offset in batch.offsets] == [0, 1, 2]


async def test_a_reader_reads_from_a_time_on(client: ister.Client) -> None:
    await publish(client, 3)
    await asyncio.sleep(0.002)
    now = datetime.now(UTC)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"3")

    assert await read(client.reader(TOPIC, start=now)) == numbered(3, 4)
    assert await read(client.reader(TOPIC, end=now)) == numbered(0, 3)


async def test_a_reader_without_an_end_follows(client: ister.Client) -> None:
    await publish(client, 2)
    async with client.reader(TOPIC, end=None) as reader:
        batches = aiter(reader)
        first = await anext(batches)
        waiting = asyncio.ensure_future(anext(batches))
        async with client.producer(TOPIC) as producer:
            await producer.send(b"new")

        assert first.payloads == [b"0", b"1"]
        assert (await waiting).payloads == [b"new"]


async def test_a_reader_goes_on_after_a_cut_connection(
    harness: Harness, client: ister.Client
) -> None:
    await publish(client, 6)
    async with client.reader(TOPIC, start=1, end=None) as reader:
        batches = aiter(reader)
        found: list[bytes] = []
        while len(found) < 5:
            found += (await anext(batches)).payloads
        await harness.disconnect_all()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"new")
        found += (await anext(batches)).payloads

        assert found == [b"1", b"2", b"3", b"4", b"5", b"new"]


async def test_a_reader_survives_a_restart(harness: Harness, client: ister.Client) -> None:
    await publish(client, 6)
    async with client.reader(TOPIC, start=0, end=None) as reader:
        batches = aiter(reader)
        found: list[bytes] = []
        while len(found) < 6:
            found += (await anext(batches)).payloads
        await harness.restart()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"6")
        found += (await anext(batches)).payloads

        assert found == [b"%d" % n for n in range(7)]


async def test_an_offset_that_is_gone_is_told(client: ister.Client) -> None:
    await publish(client, 6)
    await client.purge(TOPIC, before=3)

    with pytest.raises(OffsetGoneError) as caught:
        await read(client.reader(TOPIC, start=0))
    assert (caught.value.offset, caught.value.first_offset) == (0, 3)
    assert await read(client.reader(TOPIC, start="earliest")) == numbered(3, 6)


async def test_a_closed_client_does_not_look_like_the_end(harness: Harness) -> None:
    async with harness.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        reader = client.reader(TOPIC, end=None)
        await reader.open()
        reading = asyncio.ensure_future(reader.fetch_batches())
        await client.broker()

    with pytest.raises(ClosedError):
        await reading


async def test_a_live_topic_cannot_be_read(client: ister.Client) -> None:
    await client.create_topic("/default/live")

    with pytest.raises(WrongKindError):
        await client.reader("/default/live").open()


async def test_a_reader_of_partitions_reads_all_of_them(client: ister.Client) -> None:
    await client.create_topic("/default/parts", kind="stream", partitions=3)
    async with client.producer("/default/parts") as producer:
        await producer.send_batch([b"%d" % n for n in range(30)], keys=[str(n) for n in range(30)])
    found: dict[str, list[int]] = {}
    payloads: list[bytes] = []
    async with client.reader("/default/parts") as reader:
        async for batch in reader:
            found.setdefault(batch.topic, []).extend(batch.offsets)
            payloads += batch.payloads

    assert sorted(payloads) == sorted(b"%d" % n for n in range(30))
    assert sorted(found) == [f"/default/parts-part-{n}" for n in range(3)]
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())


async def test_an_offset_is_of_one_partition(client: ister.Client) -> None:
    await client.create_topic("/default/parts", kind="stream", partitions=3)

    with pytest.raises(BadRequestError):
        await client.reader("/default/parts", start=5).open()
    await client.reader("/default/parts-part-1", start=0, end=0).open()


async def test_a_range_is_a_table(client: ister.Client) -> None:
    await publish(client, 10)
    async with client.reader(TOPIC, start=2, end=9) as reader:
        table = await reader.to_arrow()

    assert table.column("offset").to_pylist() == list(range(2, 9))
    assert table.column("payload").to_pylist() == [b"%d" % n for n in range(2, 9)]


async def test_an_empty_range_is_an_empty_table(client: ister.Client) -> None:
    async with client.reader(TOPIC) as reader:
        table = await reader.to_arrow()

    assert (table.num_rows, table.column_names[0]) == (0, "offset")


async def test_a_reader_without_an_end_is_no_table(client: ister.Client) -> None:
    async with client.reader(TOPIC, end=None) as reader:
        with pytest.raises(BadRequestError):
            await reader.to_arrow()


# Views


async def publish_keys(client: ister.Client, *pairs: tuple[str | None, bytes]) -> None:
    """Send messages with keys, one after the other."""
    async with client.producer(TOPIC) as producer:
        for key, payload in pairs:
            await producer.send(payload, key=key, attributes={"from": "shop"})


async def test_a_view_has_the_last_value_of_every_key(client: ister.Client) -> None:
    await publish_keys(
        client, ("a", b"1"), ("b", b"2"), (None, b"no key"), ("a", b"3"), ("b", b""), ("c", b"4")
    )
    view = await client.view(TOPIC)

    assert dict(view) == {"a": b"3", "c": b"4"}
    entry = view.entry("a")
    assert (entry.payload, entry.offset, entry.attributes) == (b"3", 3, {"from": "shop"})
    assert entry.topic == TOPIC


async def test_a_view_is_as_of_an_offset(client: ister.Client) -> None:
    await publish_keys(client, ("a", b"1"), ("a", b"2"), ("a", b""), ("a", b"3"))
    views = [await client.view(TOPIC, at=offset) for offset in range(4)]

    assert [dict(view) for view in views] == [{"a": b"1"}, {"a": b"2"}, {}, {"a": b"3"}]


async def test_a_view_knows_the_offset_behind_it(client: ister.Client) -> None:
    empty = await client.view(TOPIC)
    await client.publish(TOPIC, b"1", key="a", expected_offset=empty.next_offset)
    await client.publish(TOPIC, b"no key")
    view = await client.view(TOPIC)
    past = await client.view(TOPIC, at=0)
    await client.create_topic("/default/parts", kind="stream", partitions=2)
    parts = await client.view("/default/parts")

    assert (empty.next_offset, past.next_offset, view.next_offset) == (0, 1, 2)
    with pytest.raises(OffsetMismatchError):
        await client.publish(TOPIC, b"2", key="a", expected_offset=past.next_offset)
    with pytest.raises(BadRequestError, match="each partition has a next offset"):
        _ = parts.next_offset


async def test_a_view_is_as_of_a_time(client: ister.Client) -> None:
    await publish_keys(client, ("a", b"1"))
    now = datetime.now(UTC)
    await asyncio.sleep(0.002)
    await publish_keys(client, ("a", b"2"))

    assert dict(await client.view(TOPIC, at=now)) == {"a": b"1"}


async def test_a_view_of_partitions_has_all_of_their_keys(client: ister.Client) -> None:
    await client.create_topic("/default/parts", kind="stream", partitions=3)
    async with client.producer("/default/parts") as producer:
        for n in range(20):
            await producer.send(b"%d" % n, key=str(n % 10))
    view = await client.view("/default/parts")

    assert dict(view) == {str(n): b"%d" % (n + 10) for n in range(10)}
