"""What one client process is asked to do, and the loops that are the same for every contender.

What several contenders need is here once, so that a difference between two figures can only
come from the client library and the broker.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.harness.counters import Counters

Figures = dict[str, float]
# A measuring process calls this once it is connected and subscribed.
Ready = Callable[[], None]
# One operation of a client, from start to answer.
Call = Callable[[], Awaitable[object]]

# libuv timers tick in milliseconds; asking for less returns at once and burns the core.
WAIT_S = 0.001
# 100 ms without a single arrival: two orders of magnitude above any pause of a healthy consumer.
LOST_NAPS = 100
# Calls before a latency is recorded: connection buffers, caches and the code path are then warm.
WARMUP_CALLS = 500


@dataclass(frozen=True, slots=True)
class Job:
    """One client process's task. Fields that a role does not use keep their defaults."""

    address: str
    topic: str = "bench"
    mode: str = ""
    payload_bytes: int = 100
    # Messages that a producer sends per turn of its event loop.
    chunk: int = 0
    # Deliveries, all subscriptions together, that a producer may be ahead of its consumer. Live
    # topics and core NATS both drop for a consumer that lags too far, so a user bounds it.
    distance_max: int = 0
    fan: int = 1
    in_flight: int = 1
    connections: int = 1
    topics: int = 0
    # Messages to write or read in all, for roles that end by themselves.
    count: int = 0
    subscription: str = "bench"
    seconds: float = 1.0

    @property
    def payloads(self) -> list[bytes]:
        """One chunk of different payloads, made before the clock starts."""
        return [os.urandom(self.payload_bytes) for _ in range(self.chunk)]


class Pace:
    """Keeps a producer within its distance of the consumer, and its count on the counters.

    Without `drops` nothing is ever given up as lost: a stream loses nothing, however long its
    disk takes.
    """

    def __init__(self, counters: Counters, job: Job, *, drops: bool = True) -> None:
        self.counters = counters
        self.fan = job.fan
        self.distance_max = job.distance_max
        self.drops = drops
        self.sent = 0
        self.lost = 0

    async def step(self, count: int) -> None:
        """Count `count` more messages sent; return when the consumer is close enough behind.

        Always gives the event loop one turn, so that the client library can write what it has.
        """
        self.sent += count
        self.counters.sent = self.sent
        await asyncio.sleep(0)
        naps = 0
        while self.ahead() > self.distance_max and not self.counters.stopped:
            seen = self.counters.received
            await asyncio.sleep(WAIT_S)
            naps = naps + 1 if seen == self.counters.received else 0
            if self.drops and naps == LOST_NAPS:
                # What has not come by now was dropped; waiting on would stop the flow for good.
                self.lost += self.ahead()

    def ahead(self) -> int:
        """Return the deliveries that are still expected."""
        return self.sent * self.fan - self.lost - self.counters.received


async def time_calls(call: Call, *, seconds: float) -> Figures:
    """Run `call` one at a time for `seconds` and return its latency in microseconds."""
    for _ in range(WARMUP_CALLS):
        await call()
    clock = time.perf_counter_ns
    latencies: list[int] = []
    end = clock() + int(seconds * 1e9)
    now = clock()
    while now < end:
        await call()
        after = clock()
        latencies.append(after - now)
        now = after
    return {**percentiles(latencies), "calls": len(latencies)}


async def repeat_calls(calls: Sequence[Call], counters: Counters) -> None:
    """Run every one of `calls` again and again, all at once, counting answers on the counters."""
    done = 0

    async def repeat_one(call: Call) -> None:
        nonlocal done
        while not counters.stopped:
            await call()
            done += 1
            counters.received = done

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(repeat_one(call))


def percentiles(latencies_ns: list[int]) -> Figures:
    """Return the median and the 99th percentile in microseconds."""
    ordered = sorted(latencies_ns)
    last = len(ordered) - 1
    return {
        "p50_us": ordered[last // 2] / 1000,
        "p99_us": ordered[(last * 99) // 100] / 1000,
    }
