"""`client.update_topic`: settings of a stream that exists."""

import pytest

import ister
from ister.base import StreamSettings
from ister.base.errors import BadRequestError, WrongKindError
from ister.testing import MemoryBroker, ThreadedBroker


async def settings(client: ister.Client, topic: str) -> StreamSettings:
    stream = (await client.topics(topic))[0].stream
    assert stream is not None
    return stream.settings


async def test_what_is_given_changes_and_the_rest_stays() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream", max_bytes=7, ttl=9, partitions=2)

        await client.update_topic("orders", max_age=60.0, ttl=0, durability="os")

        wanted = StreamSettings(durability="os", max_age_ms=60_000, max_bytes=7)
        assert await settings(client, "orders") == wanted
        assert await settings(client, "orders-part-1") == wanted


async def test_changes_outlive_a_restart() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        await client.update_topic("orders", max_messages=3)
        await broker.restart()

        assert (await settings(client, "orders")).max_messages == 3


async def test_the_compaction_lag_of_a_compacted_topic_changes() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("last", kind="stream", retention="compact")
        await client.update_topic("last", min_compaction_lag=7 * 86_400)
        assert (await settings(client, "last")).compaction_lag_ms == 604_800_000
        await client.update_topic("last", min_compaction_lag=0)

        assert await settings(client, "last") == StreamSettings(retention="compact")


async def test_what_cannot_be_is_refused() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        await client.create_topic("live")
        with pytest.raises(BadRequestError, match="no setting is given"):
            await client.update_topic("orders")
        with pytest.raises(BadRequestError, match="max_messages is a whole number"):
            await client.update_topic("orders", max_messages=-1)
        with pytest.raises(BadRequestError, match="'fsync' cannot become 'object'"):
            await client.update_topic("orders", durability="object")
        with pytest.raises(WrongKindError):
            await client.update_topic("live", ttl=1)


def test_the_blocking_client_changes_topics_too() -> None:
    with ThreadedBroker() as broker, ister.sync.connect(broker.url) as client:
        client.create_topic("orders", kind="stream")
        client.update_topic("orders", max_age=60)

        [row] = client.topics("orders")
        assert row.stream is not None
        assert row.stream.settings.max_age_ms == 60_000
