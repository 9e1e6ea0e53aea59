"""What a real broker tells of its timelines: /metrics, the REST API, the log."""

import asyncio
import http.client
import json
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.conftest import BrokerProcess
from tests.e2e.shell import Shell

import ister
from ister.telemetry import SystemClock

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"
WAIT_S = 30.0
AHEAD_MS = 250


class AheadClock(SystemClock):
    """The clock of a machine that is ahead of the broker's."""

    def now_ms(self) -> int:
        return super().now_ms() + AHEAD_MS

    def now_us(self) -> int:
        return super().now_us() + AHEAD_MS * 1000


def get(broker: BrokerProcess, path: str) -> str:
    connection = http.client.HTTPConnection(broker.http, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text
    finally:
        connection.close()


def scrape(broker: BrokerProcess) -> dict[str, float]:
    """Return the figures of the topic."""
    return {
        one.name: one.value
        for family in text_string_to_metric_families(get(broker, "/metrics"))
        for one in family.samples
        if one.labels == {"topic": TOPIC}
    }


async def test_metrics_tell_what_is_due_leased_lost_and_late(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline", max_leases=1)
        timeline = client.timeline(TOPIC)
        await timeline.put_many([(b"x", None, f"m-{n}") for n in range(3)])
        await timeline.put(b"x", after=5.0, id="soon")
        waiting = await asyncio.to_thread(scrape, broker)
        async with timeline.consume("w", credit=2, prefetch=0) as leases:
            one = await leases.receive(timeout=WAIT_S)
            await leases.receive(timeout=WAIT_S)
            leased = await asyncio.to_thread(scrape, broker)
            await one.done()
            done = await asyncio.to_thread(scrape, broker)

    assert (waiting["ister_timeline_due"], waiting["ister_timeline_window"]) == (3, 4)
    assert waiting["ister_timeline_due_seconds"] > 0
    assert (leased["ister_timeline_leases"], leased["ister_timeline_due"]) == (2, 1)
    assert leased["ister_timeline_delivered_total"] == 2
    assert done["ister_timeline_lateness_seconds_count"] == 1
    assert done["ister_timeline_lateness_seconds_sum"] > 0


async def test_a_lost_lease_and_a_dead_letter_are_counted(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline", max_leases=2)
        timeline = client.timeline(TOPIC)
        await timeline.put(b"x", id="m")
        async with timeline.consume("w", lease=0.5, max_renewal=0.0) as leases:
            await leases.receive(timeout=WAIT_S)
            again = await leases.receive(timeout=WAIT_S)
            lost = await asyncio.to_thread(scrape, broker)
            letters = client.timeline(f"{TOPIC}-dlq")
            deadline = time.monotonic() + WAIT_S
            while not await is_there(letters, "m"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            buried = await asyncio.to_thread(scrape, broker)

    assert again.attempt == 2
    assert lost["ister_timeline_leases_lost_total"] == 1
    assert buried["ister_timeline_dead_letters_total"] == 1


async def is_there(timeline: ister.Timeline, id: str) -> bool:
    try:
        await timeline.get(id)
    except ister.NotFoundError:
        return False
    return True


async def test_a_client_whose_clock_is_off_is_in_the_metrics_and_in_the_log(
    broker: BrokerProcess,
) -> None:
    clock = AheadClock(asyncio.get_running_loop().call_later)
    async with ister.connect(broker.url, clock=clock) as client:
        await client.create_topic(TOPIC, kind="timeline")
        async with client.timeline(TOPIC).consume("w"):
            deadline = time.monotonic() + WAIT_S
            while not (found := await asyncio.to_thread(scrape, broker))[
                "ister_timeline_clock_drift_seconds"
            ]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    # As far as the client can know it.
    assert found["ister_timeline_clock_drift_seconds"] == pytest.approx(-AHEAD_MS / 1000, abs=0.1)
    assert broker.log_text().count("clock_drift") == 1


def test_timelines_are_listed_beside_other_topics(broker: BrokerProcess) -> None:
    shell = Shell(broker.url)
    shell.run("topics", "create", TOPIC, "--kind", "timeline")
    shell.run("topics", "create", "/default/orders", "--kind", "stream")
    listed: dict[str, Any] = json.loads(get(broker, "/api/v1/topics"))
    path = "/api/v1/namespaces/default/topics/reminders"
    described: dict[str, Any] = json.loads(get(broker, path))
    seen = shell.run("top", "--once", "--interval", "0.1").stdout.decode()

    rows = [(row["topic"], row["kind"]) for row in listed["rows"]]
    assert rows == [("/default/orders", "stream"), (TOPIC, "timeline")]
    assert described["timeline"]["kind"] == "timeline"
    assert [line.split()[:2] for line in seen.splitlines() if TOPIC in line] == [
        [TOPIC, "timeline"]
    ]
    shell.close()
