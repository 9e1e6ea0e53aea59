"""Workers that are killed, or stopped until they have lost their leases, do nothing twice."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e import worker
from tests.e2e.checker import Stored, check_derived
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.worker import ACK_TIMEOUT_S, AUDIT, RESULTS, SUBSCRIPTION, TASKS

import ister

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

WORKERS = 3
ROUNDS = 6
COUNT = 1_500
DRAIN_TIMEOUT_S = 40.0


class Crew:
    """Worker processes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._count = 0
        self.processes = [self._start() for _ in range(WORKERS)]

    def replace(self, slot: int) -> None:
        """Kill one and start another in its place."""
        self.processes[slot].kill()
        self.processes[slot].wait()
        self.processes[slot] = self._start()

    async def stop(self, slot: int, seconds: float) -> None:
        """Let one stand still for a while, in the middle of whatever it does."""
        os.kill(self.processes[slot].pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(self.processes[slot].pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill them all."""
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._count += 1
        return subprocess.Popen(
            [sys.executable, str(Path(worker.__file__)), self._url, f"worker-{self._count}"],
            env=plain_environment(),
        )


@contextmanager
def crew_of(broker: BrokerProcess) -> Iterator[Crew]:
    crew = Crew(broker.url)
    try:
        yield crew
    finally:
        crew.end()


async def read(client: ister.Client, topic: str) -> list[Stored]:
    found: list[Stored] = []
    async with client.reader(topic) as reader:
        async for batch in reader:
            payloads = [payload.decode() for payload in batch.payloads]
            found += map(Stored, batch.offsets, payloads)
    return found


async def drained(client: ister.Client) -> None:
    async with asyncio.timeout(DRAIN_TIMEOUT_S):
        while True:
            reports = await client.subscriptions(TASKS)
            if [report.cursor.lag for report in reports if report.cursor] == [0]:
                return
            await asyncio.sleep(0.1)


async def test_every_task_has_one_result_however_workers_die_or_stand_still(
    broker: BrokerProcess,
) -> None:
    seed = int(os.environ.get("STORM_SEED", "0")) or random.randrange(1, 2**32)
    chance = random.Random(seed)
    async with ister.connect(broker.url) as client:
        for topic in (TASKS, RESULTS, AUDIT):
            await client.create_topic(topic, kind="stream")
        with crew_of(broker) as crew:
            async with client.producer(TASKS, name="asker") as producer:
                for number in range(COUNT):
                    await producer.send(b"task %d" % number)
            for _ in range(ROUNDS):
                slots = chance.sample(range(WORKERS), 2)
                await asyncio.sleep(chance.uniform(0.3, 0.8))
                crew.replace(slots[0])
                # Long enough for its leases to end, and for others to have what it holds.
                await crew.stop(slots[1], ACK_TIMEOUT_S * chance.uniform(0.5, 2.0))
            await drained(client)
        tasks, results, audit = [await read(client, topic) for topic in (TASKS, RESULTS, AUDIT)]
        [report] = await client.subscriptions(TASKS)

    assert report.subscription == SUBSCRIPTION
    assert report.cursor is not None
    assert report.cursor.redelivered > 0, "no worker had anything when it died or stood still"
    anomalies = check_derived(tasks, results, RESULTS) + check_derived(tasks, audit, AUDIT)
    assert anomalies == [], f"STORM_SEED={seed}"
