"""Timelines over real sockets and a real disk: restarts, kills, and clocks of their own."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from tests.e2e.conftest import BrokerProcess

import ister
from ister.base.errors import IsterError, MessageNotFoundError, TopicNotFoundError
from ister.timeline import FILE_NAME, SqliteStore

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"
COUNT = 500


async def test_nothing_is_handed_over_early_and_everything_once(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        # Scattered over a second, so that some are prefetched and some are not.
        start = time.time()
        puts = [
            ister.TimelinePut(
                b"x", datetime.fromtimestamp(start + 0.2 + n % 10 / 10, UTC), f"m-{n}"
            )
            for n in range(COUNT)
        ]
        results = await timeline.put_many(puts)
        assert not any(isinstance(result, IsterError) for result in results)
        early: list[str] = []
        seen: list[str] = []

        async def work(name: str) -> None:
            async with timeline.consume(name, credit=50) as leases:
                async for lease in leases:
                    if time.time_ns() < lease.due_ms * 1_000_000:
                        early.append(lease.id)
                    await lease.done()
                    seen.append(lease.id)
                    if len(seen) == COUNT:
                        everything.set()

        everything = asyncio.Event()
        workers = [asyncio.create_task(work(f"w-{n}")) for n in range(3)]
        await everything.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

        assert early == []
        assert sorted(seen) == sorted(f"m-{n}" for n in range(COUNT))
        assert await timeline.count() == 0


async def test_what_was_acknowledged_outlives_a_kill(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline", max_lease=90.0)
        timeline = client.timeline(TOPIC, group="shop")
        await timeline.put(b"kept", after=3600.0, id="kept")
        await timeline.put(b"gone", after=3600.0, id="gone")
        await timeline.delete("gone")
        async with timeline.transaction() as tx:
            tx.put(b"one", after=3600.0, id="one")
            tx.move("kept", after=7200.0)
        moved = await timeline.get("kept")

        broker.kill()
        broker.restart()

        assert await timeline.get("kept") == moved
        assert (await timeline.get("one")).payload == b"one"
        with pytest.raises(MessageNotFoundError):
            await timeline.get("gone")
        [report] = [one for one in await client.topics() if one.topic == TOPIC]
        assert report.timeline is not None
        assert report.timeline.settings.lease_ms_max == 90_000


async def test_a_handler_goes_on_under_its_lease_after_a_kill_of_the_broker(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        await timeline.put(b"x", id="a")
        async with timeline.consume("w", lease=60.0) as leases:
            lease = await leases.receive(timeout=30.0)
            broker.kill()
            done = lease.done()
            broker.restart()

            await done
            await timeline.put(b"x", id="b")
            assert (await leases.receive(timeout=30.0)).id == "b"
        with pytest.raises(MessageNotFoundError):
            await timeline.get("a")


async def test_a_broker_that_is_stopped_gives_back_what_was_prefetched(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        await timeline.put(b"x", after=600.0, id="far")
        async with timeline.consume("w", prefetch=5.0) as leases:
            await timeline.put(b"x", after=5.0, id="a")
            while not leases.waiting_count:  # noqa: ASYNC110 - the application is not told of it
                await asyncio.sleep(0.01)
            await asyncio.to_thread(broker.stop)

    store = SqliteStore(broker.folder / "data" / FILE_NAME)
    [topic] = store.topics()
    row = store.get(topic.number, "a")
    store.close()
    assert row is not None
    assert (row.holder, row.leases) == ("", 0)


async def test_a_consumer_that_could_not_be_opened_can_be_tried_again(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        timeline = client.timeline("/default/later")
        leases = timeline.consume("w")
        with pytest.raises(TopicNotFoundError):
            await leases.open()
        await client.create_topic("/default/later", kind="timeline")
        await timeline.put(b"here", id="a")

        async with leases:
            assert (await leases.receive(timeout=20.0)).payload == b"here"
