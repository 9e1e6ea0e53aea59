"""Ister's timelines through the public API, as the guide uses it, with its defaults.

A role that others must begin together with waits until the referee has put a number on its
counters's `sent`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import ister
from bench.harness.counters import Counters
from bench.harness.job import WAIT_S, Figures, Job, Ready, time_calls
from bench.timeline.samples import HEAD, Samples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Due messages a millisecond: 5,000 a second.
PER_MS = 5
FILL_CHUNK = 10_000
# What is put for its own sake is due within an hour, which begins in an hour: nothing of it
# comes due while other things are measured.
AHEAD_S = 3_600.0
SPAN_S = 3_600.0
# On average, and 0 to twice as much: were it always the same, chance would decide at the start
# whether two publishers are in each other's way at every message or at none.
PUBLISH_EVERY_S = 1 / 200


async def create(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Make the timeline, and the stream beside it."""
    async with ister.connect(job.address) as client:
        await client.create_topic(job.topic, kind="timeline")
        await client.create_topic(f"{job.topic}-stream", kind="stream")
        ready()
    return {}


async def fill(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Put `job.count` messages that are due in `job.seconds`: at once, or `spread` from then on."""
    filler = os.urandom(job.payload_bytes - HEAD.size)
    async with ister.connect(job.address) as client:
        timeline = client.timeline(job.topic)
        await timeline.learn_time()
        ready()
        start_ms = time.time_ns() // 1_000_000 + int(job.seconds * 1000)
        for first in range(0, job.count, FILL_CHUNK):
            puts = []
            for number in range(first, min(first + FILL_CHUNK, job.count)):
                due_ms = start_ms + (number // PER_MS if job.mode == "spread" else 0)
                at = EPOCH + timedelta(milliseconds=due_ms)
                puts.append((HEAD.pack(number, due_ms) + filler, at))
            check(await timeline.put_many(puts))
    return {"start_ms": start_ms, "spare_s": start_ms / 1000 - time.time()}


async def consume(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Lease and finish messages with `job.connections` consumers, until cancelled."""
    samples = Samples(counters)

    async def work(leases: Any) -> None:
        async for lease in leases:
            samples.handed_over(lease.payload)
            lease.done()

    async with ister.connect(job.address) as client, AsyncExitStack() as stack:
        timeline = client.timeline(job.topic)
        await timeline.learn_time()
        ready()
        await begin(counters)
        began_cpu = time.process_time()
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                for number in range(job.connections):
                    consumer = timeline.consume(f"{os.getpid()}-{number}")
                    group.create_task(work(await stack.enter_async_context(consumer)))
        # Closing them waits until all that is done is on the disk.
        await stack.aclose()
        ended_ns, used_cpu = time.time_ns(), time.process_time() - began_cpu
    samples.save()
    return {"ended_ns": ended_ns, "cpu_s": used_cpu}


async def left(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Count what stands in the timeline before what was put for its own sake."""
    async with ister.connect(job.address) as client:
        ready()
        return {"left": await client.timeline(job.topic).count(end=timedelta(seconds=AHEAD_S / 2))}


async def put(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Put lists of `job.chunk` messages, `job.in_flight` at a time, for `job.seconds`.

    `natural`: with ids that the application made, in no order; else the client makes them.
    """
    payloads = job.payloads
    times = [timedelta(seconds=AHEAD_S + random.random() * SPAN_S) for _ in payloads]
    count = 0
    async with ister.connect(job.address) as client:
        timeline = client.timeline(job.topic)
        await timeline.learn_time()
        ready()
        await begin(counters)
        began, began_cpu = time.perf_counter(), time.process_time()

        async def repeat() -> None:
            nonlocal count
            while time.perf_counter() - began < job.seconds:
                puts: list[tuple[object, ...]]
                if job.mode == "natural":
                    ids = [f"order-{random.getrandbits(64):016x}" for _ in payloads]
                    puts = list(zip(payloads, times, ids, strict=True))
                else:
                    puts = list(zip(payloads, times, strict=True))
                check(await timeline.put_many(puts))
                count += len(puts)

        await asyncio.gather(*(repeat() for _ in range(job.in_flight)))
        elapsed = time.perf_counter() - began
        cpu = (time.process_time() - began_cpu) / elapsed
    return {"msg_s": count / elapsed, "cpu": cpu}


async def put_one(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Put one message at a time, each after the former is on the disk."""
    payload = os.urandom(job.payload_bytes)
    async with ister.connect(job.address) as client:
        timeline = client.timeline(job.topic)

        async def call() -> None:
            await timeline.put(payload, after=AHEAD_S + random.random() * SPAN_S)

        ready()
        return await time_calls(call, seconds=job.seconds)


async def publish(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Publish to a topic, whatever the answers take, until cancelled."""
    samples = Samples(counters)
    payload = os.urandom(job.payload_bytes)

    async def send(producer: Any, number: int) -> None:
        sent_ns = time.time_ns()
        await producer.send(payload)
        samples.values.extend((number, sent_ns, time.time_ns()))

    async with ister.connect(job.address) as client, client.producer(job.topic) as producer:
        await producer.send(payload)
        ready()
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                due, number = time.perf_counter(), 0
                while True:
                    group.create_task(send(producer, number))
                    number += 1
                    due += random.random() * 2 * PUBLISH_EVERY_S
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    samples.save()
    return {"sent": number}


async def begin(counters: Counters) -> None:
    """Return when the referee wants it to start."""
    while not counters.sent:
        await asyncio.sleep(WAIT_S)


def check(results: Sequence[object]) -> None:
    """Raise what a message was refused for."""
    for result in results:
        if isinstance(result, ister.IsterError):
            raise result
