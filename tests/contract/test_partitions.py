"""Partitioned topics: where messages go, and in which order they come."""

import pytest

import ister
from ister.base.errors import TopicExistsError


@pytest.fixture
async def partitioned(client: ister.Client) -> ister.Client:
    """A client of a broker that has `/default/orders` with four partitions."""
    await client.create_topic("/default/orders", partitions=4)
    return client


async def test_a_key_stays_in_its_partition_and_in_order(partitioned: ister.Client) -> None:
    client = partitioned
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        for number in range(60):
            producer.send_nowait(b"%03d" % number, key=f"key-{number % 6}")
        await producer.flush()
        received = [await sub.receive(timeout=10.0) for _ in range(60)]

        by_key: dict[str | None, list[ister.Message]] = {}
        for msg in received:
            by_key.setdefault(msg.key, []).append(msg)
        assert len(by_key) == 6
        for messages in by_key.values():
            assert len({m.partition for m in messages}) == 1
            assert [m.payload for m in messages] == sorted(m.payload for m in messages)


async def test_offsets_rise_by_one_in_each_partition(partitioned: ister.Client) -> None:
    client = partitioned
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        for number in range(40):
            await producer.send(b"%d" % number)
        received = [await sub.receive(timeout=10.0) for _ in range(40)]

        for partition in range(4):
            of_one = [m for m in received if m.partition == partition]
            assert [m.offset for m in of_one] == list(range(10))
            assert {m.topic for m in of_one} == {f"/default/orders-part-{partition}"}


async def test_messages_without_a_key_go_around(partitioned: ister.Client) -> None:
    async with partitioned.producer("/default/orders") as producer:
        ids = [await producer.send(b"x") for _ in range(8)]

        assert [mid.partition for mid in ids] == [0, 1, 2, 3, 0, 1, 2, 3]


async def test_a_batch_is_split_by_key(partitioned: ister.Client) -> None:
    client = partitioned
    keys = [f"key-{n}" for n in range(20)]
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        ids = await producer.send_batch([key.encode() for key in keys], keys=keys)
        received = [await sub.receive(timeout=10.0) for _ in range(20)]

        assert len(set(ids)) == 20
        assert len({mid.partition for mid in ids}) > 1
        assert {(m.topic, m.offset) for m in received} == set(ids)
        assert all(m.payload.decode() == m.key for m in received)


async def test_one_partition_can_be_read_by_its_name(partitioned: ister.Client) -> None:
    client = partitioned
    async with (
        client.subscribe("/default/orders-part-1", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        for number in range(4):
            await producer.send(b"%d" % number)

        assert (await sub.receive(timeout=10.0)).payload == b"1"


async def test_the_number_of_partitions_is_fixed(partitioned: ister.Client) -> None:
    await partitioned.create_topic("/default/orders", partitions=4)

    with pytest.raises(TopicExistsError) as caught:
        await partitioned.create_topic("/default/orders", partitions=3)
    assert caught.value.topic == "/default/orders"
