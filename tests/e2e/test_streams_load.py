"""Streams under load: memory with very many topics, and consumers that are far behind."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import pytest
from tests.e2e.conftest import StartBroker
from tests.e2e.raw import WAIT_S, memory_bounded

import ister
from ister.base.limits import KIB, MIB

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

# Opened at a time, of very many.
AT_ONCE = 100

_T = TypeVar("_T")


async def test_a_thousand_topics_written_at_once_stay_within_the_memory_budget(
    start_broker: StartBroker,
) -> None:
    budget, written = 16 * MIB, 200 * MIB
    count, payload = 1_000, b"x" * (20 * KIB)
    broker = start_broker("--stream-memory", "16MiB")
    async with ister.connect(broker.url) as client:
        topics = [f"/default/many.{n}" for n in range(count)]
        for some in parts(topics):
            await asyncio.gather(*(client.create_topic(topic, kind="stream") for topic in some))
        # Somebody listens and takes nothing: only for such are messages kept in memory.
        async with client.subscribe("/default/many.*", "slow", buffer_count=1):
            producers = [client.producer(topic, name="p") for topic in topics]
            for some_producers in parts(producers):
                await asyncio.gather(*(producer.open() for producer in some_producers))
            # One round first: a topic costs something itself, however little is written to it.
            await write_round(producers, b"first")

            # What is on its way to the disk (64 MiB at most) and in sockets comes on top.
            with memory_bounded(broker.pid, budget + 96 * MIB):
                for _ in range(written // len(payload) // count):
                    await write_round(producers, payload)
            reports = await client.topics("/default/many.*")

    assert len(reports) == count
    assert 0 < sum(r.stream.tail_bytes for r in reports if r.stream) <= budget
    assert sum(r.stream.stored_bytes for r in reports if r.stream) >= 0.9 * written


def parts(some: Sequence[_T]) -> list[Sequence[_T]]:
    return [some[start : start + AT_ONCE] for start in range(0, len(some), AT_ONCE)]


async def write_round(producers: Sequence[ister.Producer], payload: bytes) -> None:
    """Have one message stored in every topic."""
    await asyncio.gather(*(producer.send(payload) for producer in producers))


async def test_consumers_far_behind_do_not_slow_one_at_the_tail(start_broker: StartBroker) -> None:
    topic, backlog, count = "/default/busy", 60_000, 2_000
    # Hardly anything of the backlog is in memory.
    broker = start_broker("--stream-memory", "2MiB", "--segment-size", "8MiB")
    async with ister.connect(broker.url) as client, ister.connect(broker.url) as laggards:
        await client.create_topic(topic, kind="stream")
        async with client.producer(topic, name="p") as producer:
            for _ in range(backlog // 1_000):
                await producer.send_batch([b"o" * 1_000] * 1_000)
            tail = Tail(client.subscribe(topic, "tail"))
            async with tail.sub, asyncio.TaskGroup() as group:
                tailing = group.create_task(tail.run())
                alone = await tail.while_sending(producer, count)
                replays = [Replay() for _ in range(4)]
                replaying = [
                    group.create_task(
                        replay.run(laggards.subscribe(topic, f"l{n}", start="earliest"))
                    )
                    for n, replay in enumerate(replays)
                ]
                async with asyncio.timeout(WAIT_S):
                    while min(replay.count for replay in replays) == 0:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                together = await tail.while_sending(producer, count)
                replayed = [replay.count for replay in replays]
                for task in (tailing, *replaying):
                    task.cancel()

    assert alone > 0.9 * count
    # They were at it all the time.
    assert all(0 < one < backlog for one in replayed), replayed
    assert together > 0.8 * alone


class Tail:
    """A consumer that keeps up."""

    def __init__(self, sub: ister.Subscription) -> None:
        self.sub = sub
        self.count = 0

    async def run(self) -> None:
        """Take and acknowledge what comes."""
        async for msg in self.sub:
            self.count += 1
            await msg.ack()

    async def while_sending(self, producer: ister.Producer, count: int) -> int:
        """Return how many messages came here until the last of `count` was acknowledged."""
        before = self.count
        for _ in range(count // 20):
            for _ in range(19):
                producer.send_nowait(b"n" * 1_000)
            await producer.send(b"n" * 1_000)
            # As fast as the disk, and a little slower: others want to work as well.
            await asyncio.sleep(0.01)
        return self.count - before


class Replay:
    """A consumer that begins far behind, and is no quick one."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self, sub: ister.Subscription) -> None:
        """Take what was stored long ago, bit by bit."""
        async with sub:
            while True:
                messages = await sub.fetch(100)
                self.count += len(messages)
                for msg in messages:
                    await msg.ack()
                await asyncio.sleep(0.01)
