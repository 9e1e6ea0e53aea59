"""What is made of a topic that does not exist when a client uses it."""

import logging

import pytest

import ister
from ister.base.errors import TopicExistsError, TopicNotFoundError
from ister.client.aio.connection.repeatable import is_repeatable
from ister.testing import MemoryBroker, VirtualClock, settle
from ister.wire import CreateTopic

CREATED = "topic_created"


async def kinds(client: ister.Client) -> dict[str, str]:
    return {row.topic: row.kind for row in await client.topics()}


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if CREATED in one.getMessage()]


async def test_with_off_a_wrong_name_is_refused_and_nothing_is_made() -> None:
    async with MemoryBroker(auto_create="off") as broker, broker.connect() as client:
        with pytest.raises(TopicNotFoundError, match="'/default/ordres'"):
            await client.publish("ordres", b"x")
        with pytest.raises(TopicNotFoundError):
            await client.producer("ordres")
        with pytest.raises(TopicNotFoundError):
            await client.subscribe("ordres", "s")
        with pytest.raises(TopicNotFoundError):
            await client.request("ordres", b"?")
        assert await kinds(client) == {}

        await client.create_topic("orders")
        await client.publish("orders", b"x")
        async with client.subscribe("orders.>", "wildcards"):
            assert await kinds(client) == {"/default/orders": "live"}


async def test_with_stream_a_topic_is_made_as_a_stream_by_producer_and_consumer() -> None:
    async with MemoryBroker(auto_create="stream") as broker, broker.connect() as client:
        assert (await client.publish("orders", b"kept")).offset == 0
        async with client.subscribe("orders", "s", start="earliest") as sub:
            assert (await sub.receive()).payload == b"kept"
        async with client.subscribe("others", "s") as sub:
            await client.publish("others", b"later")
            assert (await sub.receive()).payload == b"later"
            assert await kinds(client) == {"/default/orders": "stream", "/default/others": "stream"}


async def test_a_namespace_has_its_own_word() -> None:
    words = "stream,prod=off,play=live"
    async with MemoryBroker(auto_create=words) as broker, broker.connect() as client:
        for namespace in ("prod", "play", "rest"):
            await client.create_namespace(namespace)
        with pytest.raises(TopicNotFoundError):
            await client.publish("/prod/a", b"x")
        await client.publish("/play/a", b"x")
        await client.publish("/rest/a", b"x")
        assert await kinds(client) == {"/play/a": "live", "/rest/a": "stream"}


async def test_a_live_topic_in_use_is_made_again_after_a_restart_also_with_off() -> None:
    clock = VirtualClock()
    async with (
        MemoryBroker(clock=clock, auto_create="off") as broker,
        broker.connect() as client,
    ):
        await client.create_topic("plain")
        await client.create_topic("parts", partitions=2)
        async with (
            client.producer("plain") as producer,
            client.subscribe("plain", "s") as sub,
            client.subscribe("parts", "s"),
        ):
            await broker.restart()
            await clock.elapse(10.0)
            await producer.send(b"x")

            assert (await sub.receive()).payload == b"x"
            assert len(await kinds(client)) == 3


async def test_a_stream_that_was_deleted_does_not_come_back_as_a_live_topic() -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream")
        producer = await client.producer("orders")
        await producer.send(b"x")
        broker.disconnect_all()
        broker.engine.delete_topic("/default/orders")
        await clock.elapse(10.0)

        assert producer.closed
        assert await kinds(client) == {}


async def test_a_send_that_made_its_topic_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with MemoryBroker() as broker, broker.connect() as client:
            for _ in range(2):
                await client.publish("ordres", b"x")
                async with client.producer("ordres") as producer:
                    await producer.send(b"x")

    [line] = warned(caplog)
    assert "topic='/default/ordres' kind='live'" in line
    assert "--auto-create off" in line


async def test_nothing_is_told_of_topics_that_exist_or_have_subscriptions_already(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    with caplog.at_level(logging.WARNING):
        async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
            await client.create_topic("orders")
            producer = await client.producer("orders")
            async with client.subscribe("sensors.>", "s"), client.subscribe("direct", "s"):
                await client.publish("sensors.kitchen", b"x")
                await client.publish("direct", b"x")
            # Back after a restart, which has forgotten the topic.
            await broker.restart()
            await clock.elapse(10.0)
            await producer.send(b"x")
            await settle()

    assert warned(caplog) == []


async def test_a_topic_that_exists_with_other_settings_is_an_error_that_names_them() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("orders", kind="stream", max_age=60, retention="workqueue")
        await client.create_topic("orders", kind="stream", max_age=60, retention="workqueue")

        with pytest.raises(TopicExistsError) as caught:
            await client.create_topic("orders", kind="stream", max_age=30)
        text = str(caught.value)
        assert "retention 'workqueue', not 'limits'; max_age 1m, not 30s" in text
        assert "durability" not in text
        with pytest.raises(TopicExistsError, match="as a stream topic, not live"):
            await client.create_topic("orders")
        with pytest.raises(TopicExistsError, match="with 0 partitions, not 2"):
            await client.create_topic("orders", kind="stream", partitions=2)


async def test_a_timeline_with_other_settings_names_them_too() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("jobs", kind="timeline", max_leases=3)

        with pytest.raises(TopicExistsError, match=r"max_leases 3, not 5: "):
            await client.create_topic("jobs", kind="timeline")


async def test_without_exist_ok_every_topic_that_exists_is_an_error() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        for name, kind in (("a", "live"), ("b", "stream"), ("c", "timeline")):
            await client.create_topic(name, kind=kind, exist_ok=False)
            with pytest.raises(TopicExistsError, match=f"as a {kind} topic"):
                await client.create_topic(name, kind=kind, exist_ok=False)
            await client.create_topic(name, kind=kind, exist_ok=True)


def test_a_topic_that_has_to_be_new_is_not_made_again_after_a_lost_connection() -> None:
    assert is_repeatable(CreateTopic(topic="/default/a"))
    assert not is_repeatable(CreateTopic(topic="/default/a", exist_ok=False))


async def test_a_topic_of_dead_letters_is_made_as_a_stream_by_its_use() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("tasks", kind="stream")
        await client.subscribe("tasks", "workers", dead_letter_topic="broken")

        for name in ("jobs-workers-dlq", "broken", "jobs-dlq.eu", "whole"):
            await client.subscribe(name, "watch")
        found = await kinds(client)
        assert {name for name, kind in found.items() if kind == "live"} == {
            "/default/jobs-dlq.eu",
            "/default/whole",
        }


async def test_who_watches_for_dead_letters_before_there_is_one_gets_it() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic("jobs", kind="stream")
        async with (
            client.subscribe("jobs-workers-dlq", "watch") as letters,
            client.subscribe("jobs", "workers", max_deliveries=1) as sub,
        ):
            await client.publish("jobs", b"poison")
            await (await sub.receive(1.0)).nack(reason="bad")
            letter = await letters.receive(1.0)
        assert (letter.payload, letter.attributes["x-failure-reason"]) == (b"poison", "bad")
