"""Cron rules over real sockets, a real disk and real minutes, with a broker that is killed."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from tests.e2e.conftest import BrokerProcess

import ister
from ister import sync
from ister.base.errors import MessageExistsError, MessageNotFoundError
from ister.timeline import firing_id

pytestmark = pytest.mark.e2e

TOPIC = "/default/jobs"
RULES = 20
MINUTE_S = 60
# Messages are made so long before they are due, and the broker is killed from then on.
AHEAD_S = 10


@pytest.mark.timeout(240)
async def test_each_rule_fires_once_in_a_minute_in_which_the_broker_is_killed_again_and_again(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="cron")
        jobs = client.timeline(TOPIC, group="shop")
        start = await asyncio.to_thread(wait_for_room)
        names = [f"r-{number}" for number in range(RULES)]
        for name in names:
            await jobs.put(b"go", cron="* * * * *", overlap="allow", id=name)
    slot_s = (int(start) // MINUTE_S + 1) * MINUTE_S
    await asyncio.sleep(slot_s - AHEAD_S - 0.5 - time.time())

    kills = 0
    while time.time() < slot_s + 1:
        broker.kill()
        broker.restart()
        kills += 1

    async with ister.connect(broker.url) as client:
        jobs = client.timeline(TOPIC, group="shop")
        paused = [await jobs.pause(name) for name in names]
        # None of the next slot: nobody was told of one by the time its rule was paused.
        expected = {firing_id(name, slot_s * 1000) for name in names}
        seen = Counter([message.id async for message in jobs.list()])
        assert kills > 1
        assert seen == dict.fromkeys(expected, 1)
        rules = [message async for message in jobs.rules()]
        assert {rule.version for rule in rules} == {one.version for one in paused}
        assert {rule.cron.fired for rule in rules if rule.cron} == {1}
        async with jobs.consume("worker-1") as leases:
            for _ in names:
                lease = await leases.receive(timeout=10.0)
                assert lease.due == datetime.fromtimestamp(slot_s, UTC)
                await lease.done()
        assert await jobs.count() == 0


@pytest.mark.timeout(180)
async def test_a_message_comes_in_its_minute_and_not_before(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="cron")
        jobs = client.timeline(TOPIC)
        await jobs.put(b"go", cron="* * * * *", id="tick")
        async with jobs.consume("worker-1") as leases:
            lease = await leases.receive(timeout=90.0)
            now_ms = time.time_ns() // 1_000_000
            await lease.done()

        assert lease.due_ms % 60_000 == 0
        assert now_ms >= lease.due_ms
        rule = (await jobs.get("tick")).cron
        assert rule is not None
        assert (rule.fired, rule.last) == (1, lease.due)


async def test_rules_outlive_a_kill(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="cron")
        jobs = client.timeline(TOPIC, group="shop")
        await jobs.put(b"kept", cron="0 3 * * *", tz="Europe/Vienna", id="kept")
        await jobs.pause("kept")
        await jobs.put(b"gone", cron="@daily", id="gone")
        await jobs.delete("gone")
        kept = await jobs.get("kept")

        broker.kill()
        broker.restart()

        assert await jobs.get("kept") == kept
        assert [rule.id async for rule in jobs.rules()] == ["kept"]
        assert [row.topic for row in await client.topics()] == [TOPIC]


def test_rules_are_used_from_a_thread(ister_url: str) -> None:
    with sync.connect(ister_url) as client:
        client.create_topic(TOPIC, kind="cron")
        jobs = client.timeline(TOPIC, group="shop")
        jobs.put(b"x", cron="30 2 * * *", tz="Europe/Vienna", id="nightly")
        with pytest.raises(MessageExistsError):
            jobs.put(b"x", cron="@daily", id="nightly")
        updated = jobs.update("nightly", b"y", cron="@hourly")
        paused = jobs.pause("nightly", version=updated.version)
        jobs.resume("nightly", version=paused.version)

        [rule] = jobs.rules()
        assert rule == jobs.get("nightly")
        assert rule.cron is not None
        assert (rule.payload, rule.cron.expression, rule.cron.tz) == (b"y", "@hourly", "UTC")
        assert len(jobs.preview("nightly", 3)) == len(jobs.preview(cron="@daily", count=3)) == 3
        jobs.delete("nightly")
        with pytest.raises(MessageNotFoundError):
            jobs.get("nightly")


def wait_for_room() -> float:
    """Return when there is time enough in this minute to make rules; the time then."""
    while time.time() % MINUTE_S > MINUTE_S - AHEAD_S - 5:
        time.sleep(0.1)
    return time.time()
