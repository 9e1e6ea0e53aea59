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
from tests.e2e.worker import ACK_TIMEOUT_S, AUDIT, READY, RESULTS, SUBSCRIPTION, TASKS, TURNS

import ister
from ister.base.errors import LeaseLostError, TransactionError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

WORKERS = 3
ROUNDS = 6
COUNT = 1_500
DRAIN_TIMEOUT_S = 40.0
# Each of these costs a process, and each of those a worker.
MORTALS = 10
CANCELLED = 40


class Crew:
    """Worker processes."""

    def __init__(self, url: str, *args: str) -> None:
        self._url = url
        self._args = args
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
            [
                sys.executable,
                str(Path(worker.__file__)),
                self._url,
                f"worker-{self._count}",
                *self._args,
            ],
            env=plain_environment(),
        )


@contextmanager
def crew_of(broker: BrokerProcess, *args: str) -> Iterator[Crew]:
    crew = Crew(broker.url, *args)
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


async def test_a_worker_that_dies_once_its_commit_has_left_has_done_its_task_once(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        for topic in (TASKS, RESULTS):
            await client.create_topic(topic, kind="stream")
        async with client.producer(TASKS) as producer:
            for number in range(MORTALS):
                await producer.send(b"task %d" % number)
        with crew_of(broker, "mortal") as crew:
            while (await lag(client)) != 0:
                for slot, process in enumerate(crew.processes):
                    # The next one is promoted as soon as the broker finds out.
                    if process.poll() is not None:
                        crew.replace(slot)
                await asyncio.sleep(0.02)
        tasks, results = await read(client, TASKS), await read(client, RESULTS)
        [report] = await client.subscriptions(TASKS)

    results = [result for result in results if result.value != READY.decode()]
    assert check_derived(tasks, results, RESULTS) == []
    assert report.subscription == SUBSCRIPTION


async def lag(client: ister.Client) -> int:
    """Return what the workers have left to do."""
    reports = [r.cursor for r in await client.subscriptions(TASKS)]
    return reports[0].lag if reports and reports[0] is not None else MORTALS


async def test_a_task_is_done_once_when_its_worker_is_cancelled_while_it_commits(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client, ister.connect(broker.url) as other:
        for topic in (TASKS, RESULTS):
            await client.create_topic(topic, kind="stream")
        async with client.producer(TASKS) as producer:
            await producer.send_batch([b"task %d" % n for n in range(CANCELLED)])
        patient = asyncio.create_task(work_patiently(other))
        while await lag(client):
            # One at a time, so that the other one has something to do as well.
            async with client.subscribe(
                TASKS,
                SUBSCRIPTION,
                type="shared",
                start="earliest",
                buffer_count=1,
                # Each commit that is cancelled before it has left is a failed attempt.
                max_deliveries=1_000,
            ) as sub:
                commit = await begin_commit(client, sub)
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                commit.cancel()
        patient.cancel()
        tasks, results = await read(client, TASKS), await read(client, RESULTS)

    assert check_derived(tasks, results, RESULTS) == []


async def begin_commit(client: ister.Client, sub: ister.Subscription) -> "asyncio.Future[None]":
    """Work on a message, if there is one, as far as sending the commit."""
    tx = client.transaction()
    try:
        msg = await sub.receive(timeout=0.2)
    except TimeoutError:
        return asyncio.get_running_loop().create_future()
    tx.send(RESULTS, msg.payload)
    tx.ack(msg)
    return asyncio.ensure_future(tx.commit())


async def work_patiently(client: ister.Client) -> None:
    """Work, slowly, and see every commit through."""
    async with client.subscribe(
        TASKS,
        SUBSCRIPTION,
        type="shared",
        start="earliest",
        buffer_count=1,
        max_deliveries=1_000,
    ) as sub:
        async for msg in sub:
            try:
                async with client.transaction() as tx:
                    tx.send(RESULTS, msg.payload)
                    tx.ack(msg)
            except (LeaseLostError, TransactionError):
                continue
