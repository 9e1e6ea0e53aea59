"""A topic without a namespace is in the default one, wherever a topic is named."""

import asyncio

import ister
from ister.testing import MemoryBroker, settle

FULL = "/default/orders"


async def test_producers_subscriptions_readers_and_views_take_bare_names() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        async with client.producer("orders") as producer, client.subscribe("orders", "s") as sub:
            assert producer.topic == sub.topic == FULL
            assert (await producer.send(b"x", key="k")).topic == FULL
            assert (await sub.receive()).topic == FULL
        async with client.reader("orders") as reader:
            assert [batch.topic async for batch in reader] == [FULL]
        assert (await client.view("orders")).entry("k").topic == FULL


async def test_wildcards_take_bare_names() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_namespace("other")
        for name in ("a.one", "a.two", "b", "/other/a.one"):
            await client.create_topic(name)
        async with client.subscribe("a.>", "s") as sub:
            assert sub.topic == "/default/a.>"
            await client.publish("a.two", b"x")
            assert (await sub.receive()).topic == "/default/a.two"

        assert [row.topic for row in await client.topics("a.*")] == [
            "/default/a.one",
            "/default/a.two",
        ]
        assert len(await client.topics(">")) == 3
        assert len(await client.topics()) == 4


async def test_what_manages_topics_and_subscriptions_takes_bare_names() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream", retention="limits")
        async with client.subscribe("orders", "s", dead_letter_topic="bad") as sub:
            assert sub.name == "s"
        await client.publish("orders", b"x")
        [row] = await client.subscriptions("orders")
        assert row.cursor is not None
        assert row.cursor.settings.dead_letter_topic == "/default/bad"
        await client.pause_subscription("orders", "s")
        await client.resume_subscription("orders", "s")
        await client.seek("orders", "s", "earliest")
        await client.save_cursor("orders", "s", "here")
        await client.drop_cursor("orders", "s", "here")
        [head] = await client.heads(["orders"], {"orders": 0})
        assert head.topic == FULL
        assert await client.redrive("orders", "s") == 0
        assert await client.purge("orders") == 1
        await client.delete_subscription("orders", "s")
        await client.delete_topic("orders")
        assert await client.topics() == []


async def test_transactions_requests_and_schemas_take_bare_names() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        async with client.transaction() as tx:
            tx.send("orders", b"x")
        assert [one.topic for one in tx.results] == [FULL]
        await client.schemas.register("o", ister.Schema("json_schema", {"type": "object"}))
        assert (await client.schemas.bind("orders", "o")).topic == FULL
        assert (await client.schemas.binding("orders")).subject == "o"
        await client.schemas.unbind("orders")
        async with client.subscribe("price", "responder") as sub:
            await settle()
            receiving = sub.receive()
            asking = client.request("price", b"?")

            async def answer() -> None:
                await (await receiving).reply(b"!")

            found, _ = await asyncio.gather(asking, answer())
            assert found.payload == b"!"


async def test_timelines_take_bare_names() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("jobs", kind="timeline", dead_letter_topic="lost")
        timeline = client.timeline("jobs")
        assert timeline.topic == "/default/jobs"
        [row] = await client.topics("jobs")
        assert row.timeline is not None
        assert row.timeline.settings.dead_letters == "/default/lost"
