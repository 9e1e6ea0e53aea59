"""Ister's stream topics through the public API, as the guide uses it.

Topics have the default durability: an acknowledgement says that the message is on the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

import ister
from bench.harness.counters import TALLY_EVERY, Counters
from bench.harness.job import Figures, Job, Pace, Ready, time_calls

CREATE_CHUNK = 100
# A replay needs no acknowledgement of each message, only the broker's leave to go on. The window
# of a subscription holds 64 of these.
ACK_THROUGH_EVERY = 4_096


async def publish(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Publish until the referee stops it, with at most `job.distance_max` messages on their way.

    `messages`: one `send_nowait` each; `batches`: `send_batch_nowait`. What is counted is on the
    disk.
    """
    async with ister.connect(job.address) as client:
        await client.create_topic(job.topic, kind="stream")
        async with client.producer(job.topic) as producer:
            ready()
            sent = await send_chunks(producer, job, counters, until=None)
            last = await producer.send(job.payloads[-1])
    return {"sent": sent + 1, "stored": last.offset + 1}


async def fill(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Store `job.count` messages in `job.topics` topics, one after the other."""
    stored = 0
    async with ister.connect(job.address) as client:
        ready()
        names = stream_names(job) if job.topics else [job.topic]
        for name in names:
            await client.create_topic(name, kind="stream")
            async with client.producer(name) as producer:
                until = job.count // len(names)
                stored += await send_chunks(producer, job, counters, until=until)
    return {"stored": stored}


async def send_chunks(producer: Any, job: Job, counters: Counters, *, until: int | None) -> int:
    """Send chunk after chunk, `until` that many or the stop flag; return how many are stored."""
    payloads, send = job.payloads, producer.send_nowait
    pending: deque[Any] = deque()
    # One more than needed for the distance: while the oldest is awaited, the others are there.
    pending_max = max(1, job.distance_max // len(payloads))
    sent = acknowledged = 0
    while (sent < until) if until is not None else not counters.stopped:
        chunk = payloads if until is None else payloads[: until - sent]
        if job.mode == "messages":
            for payload in chunk:
                last = send(payload)
            pending.append((len(chunk), last))
        else:
            pending.append((len(chunk), producer.send_batch_nowait(chunk)))
        sent += len(chunk)
        await asyncio.sleep(0)
        while len(pending) > pending_max:
            # Acknowledged in order, so the last of a chunk speaks for all of it.
            count, future = pending.popleft()
            await future
            acknowledged += count
            counters.received = acknowledged
    await producer.flush()
    counters.received = sent
    return sent


async def publish_one(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Publish one message at a time, each after the former is on the disk."""
    payload = job.payloads[0]
    async with ister.connect(job.address) as client:
        await client.create_topic(job.topic, kind="stream")
        async with client.producer(job.topic) as producer:

            async def call() -> None:
                await producer.send(payload)

            ready()
            return await time_calls(call, seconds=job.seconds)


async def publish_many(counters: Counters, job: Job, ready: Ready) -> None:
    """Publish batches of one chunk to `job.topics` topics in turn, `job.in_flight` on their way.

    One topic gets the same batches, as many at once, so only the number of topics differs.
    """
    payloads = job.payloads
    async with ister.connect(job.address) as client, AsyncExitStack() as stack:
        names = stream_names(job)
        for start in range(0, len(names), CREATE_CHUNK):
            chunk = names[start : start + CREATE_CHUNK]
            await asyncio.gather(*(client.create_topic(name, kind="stream") for name in chunk))
        producers = [await stack.enter_async_context(client.producer(name)) for name in names]
        pending: deque[Any] = deque()
        acknowledged = 0
        ready()
        while not counters.stopped:
            for producer in producers:
                pending.append(producer.send_batch_nowait(payloads))
                if len(pending) < job.in_flight:
                    continue
                await pending.popleft()
                acknowledged += len(payloads)
                counters.received = acknowledged
        for future in pending:
            await future


async def acks(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Consume `job.count` stored messages and acknowledge each; the last one is confirmed."""
    received = 0
    async with ister.connect(job.address) as client:
        ready()
        began = time.perf_counter()
        async with client.subscribe(job.topic, job.subscription, start="earliest") as sub:
            async for msg in sub:
                received += 1
                if received == job.count:
                    await msg.ack(confirm=True)
                    break
                await msg.ack()
                if not received % TALLY_EVERY:
                    counters.received = received
            elapsed = time.perf_counter() - began
        # Acknowledgements travel without an answer; the confirmed one came after all others.
        left = await unacknowledged(client, job)
    return {"msg_s": job.count / elapsed, "seconds": elapsed, "left": left}


async def unacknowledged(client: Any, job: Job) -> int:
    """Return how many messages the subscription has not acknowledged."""
    reports = await client.subscriptions(job.topic)
    return next(int(r.cursor.lag) for r in reports if r.subscription == job.subscription)


async def replay(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Read `job.count` stored messages from the first on with `async for`."""
    received = size_bytes = 0
    cells, every = counters.cells, TALLY_EVERY
    async with ister.connect(job.address) as client:
        ready()
        began = time.perf_counter()
        async with client.subscribe(job.topic, job.subscription, start="earliest") as sub:
            async for msg in sub:
                size_bytes += len(msg.payload)
                received += 1
                if not received % every:
                    cells[1] = received
                    if not received % ACK_THROUGH_EVERY:
                        await sub.ack_through(msg)
                if received == job.count:
                    break
            elapsed = time.perf_counter() - began
    return {"msg_s": job.count / elapsed, "seconds": elapsed, "size_bytes": size_bytes}


async def read(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Read a whole topic through a reader; `payloads`: every payload as a `bytes` object."""
    received = size_bytes = 0
    async with ister.connect(job.address) as client:
        ready()
        began = time.perf_counter()
        async with client.reader(job.topic, start=0, end="latest") as reader:
            async for batch in reader:
                received += len(batch)
                if job.mode == "payloads":
                    size_bytes += sum(map(len, batch.payloads))
                counters.received = received
        elapsed = time.perf_counter() - began
    mb_s = received * job.payload_bytes / 1e6 / elapsed
    return {"mb_s": mb_s, "gb_s": mb_s / 1e3, "received": received, "size_bytes": size_bytes}


async def produce(counters: Counters, job: Job, ready: Ready) -> None:
    """Send as fast as the consumer follows, until the referee stops it."""
    async with ister.connect(job.address) as client:
        await client.create_topic(job.topic, kind="stream")
        async with client.producer(job.topic) as producer:
            payloads, send = job.payloads, producer.send_nowait
            pace = Pace(counters, job, drops=False)
            ready()
            while not counters.stopped:
                for payload in payloads:
                    send(payload)
                await producer.ready()
                await pace.step(len(payloads))
            await producer.flush()


async def consume(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Read new messages one at a time and acknowledge each, until cancelled."""
    received = size_bytes = 0
    cells, every = counters.cells, TALLY_EVERY
    async with ister.connect(job.address) as client:
        await client.create_topic(job.topic, kind="stream")
        async with client.subscribe(job.topic, job.subscription, start="latest") as sub:
            ready()
            try:
                async for msg in sub:
                    size_bytes += len(msg.payload)
                    await msg.ack()
                    received += 1
                    if not received % every:
                        cells[1] = received
            except asyncio.CancelledError:
                counters.received = received
    return {"received": received, "size_bytes": size_bytes}


def stream_names(job: Job) -> list[str]:
    """Return the topics of a job with many."""
    return [f"{job.topic}.{number}" for number in range(job.topics)]
