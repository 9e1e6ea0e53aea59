"""Very many cron rules whose time comes at the same moment."""

import asyncio
import os
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from tests.e2e.conftest import BrokerProcess

import ister
from ister.timeline import (
    FILE_NAME,
    Place,
    SqliteStore,
    Work,
    find_rules,
    firing_id,
    first_row,
    parse_rule,
)

pytestmark = pytest.mark.e2e

TOPIC, LIVE = "/default/jobs", "/default/live"
GROUP = "shop"
# A topic may have 10,000.
RULES = int(os.environ.get("CRON_MANY_RULES", "2000"))
MINUTE_MS = 60_000
WAIT_S = 60.0


@pytest.mark.timeout(240)
async def test_rules_that_are_due_at_once_fire_once_each_while_others_publish(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="cron")
    await asyncio.to_thread(broker.stop)
    # So that nobody has to wait for it, all of them were due when the broker was down.
    slot_ms = time.time_ns() // 1_000_000 // MINUTE_MS * MINUTE_MS
    names = [f"r-{number}" for number in range(RULES)]
    put_rules(broker, names, slot_ms)
    await asyncio.to_thread(broker.restart)

    async with ister.connect(broker.url) as client, ister.connect(broker.url) as other:
        jobs = client.timeline(TOPIC, group=GROUP)
        stop = asyncio.Event()
        publishing = asyncio.create_task(publish(other, stop))
        seen: Counter[str] = Counter()
        dues: set[int] = set()
        async with jobs.consume("worker-1") as leases:
            while len(seen) < RULES:
                lease = await leases.receive(timeout=WAIT_S)
                seen[lease.id] += 1
                dues.add(lease.due_ms)
                lease.done()
        stop.set()
        published = await publishing
        rules = [rule.cron async for rule in jobs.rules()]
        left = await jobs.count()

    assert seen == dict.fromkeys((firing_id(name, slot_ms) for name in names), 1)
    assert dues == {slot_ms}
    assert left == 0
    assert [(rule.fired, rule.missed) for rule in rules if rule] == [(1, 0)] * RULES
    assert published > 0


def put_rules(broker: BrokerProcess, names: list[str], slot_ms: int) -> None:
    """Put rules that fire at one time of the day where the broker would have, just before it."""
    slot = datetime.fromtimestamp(slot_ms // 1000, UTC)
    rule = parse_rule(f"{slot.minute} {slot.hour} * * *")
    store = SqliteStore(broker.folder / "data" / FILE_NAME)
    [(messages, rules)] = find_rules(store.topics())[0].items()
    place = Place(rules, messages)
    puts = [first_row(place, name, GROUP, rule, b"go", b"", slot_ms - 1) for name in names]
    store.apply(slot_ms - 1, [Work([*puts])])
    store.close()


async def publish(client: ister.Client, stop: asyncio.Event) -> int:
    """Publish one message after the other to a live topic; return how many came back."""
    count = 0
    async with client.subscribe(LIVE, "s") as live, client.producer(LIVE) as producer:
        while not stop.is_set():
            await producer.send(b"%d" % count)
            message = await live.receive(timeout=WAIT_S)
            assert message.payload == b"%d" % count
            count += 1
            await asyncio.sleep(0.005)
    return count
