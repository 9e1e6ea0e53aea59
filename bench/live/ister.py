"""Ister through its public API, as its documentation uses it.

`produce` and `consume` know three ways, chosen by `job.mode`:
- `messages`: one `send_nowait` per message, `async for msg in sub`, every payload read;
- `batches`: `send_batch`, `sub.batches()`, every payload read as a `bytes` object;
- `columns`: the same, but the consumer only counts, as one does who hands batches to Arrow.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import ister
from bench.harness.counters import TALLY_EVERY, Counters
from bench.harness.job import Call, Figures, Job, Pace, Ready, repeat_calls, time_calls

REQUEST_TIMEOUT_S = 5.0
CREATE_CHUNK = 500


async def produce(counters: Counters, job: Job, ready: Ready) -> None:
    """Send as fast as the consumer follows, until the referee stops it."""
    async with ister.connect(job.address) as client, client.producer(job.topic) as producer:
        payloads, send = job.payloads, producer.send_nowait
        pace = Pace(counters, job)
        ready()
        while not counters.stopped:
            if job.mode == "messages":
                for payload in payloads:
                    send(payload)
            else:
                producer.send_batch_nowait(payloads)
            await producer.ready()
            await pace.step(len(payloads))
        await producer.flush()


class Tally:
    """Messages and payload bytes that reached user code, all subscriptions together."""

    def __init__(self, counters: Counters) -> None:
        self.received = self.size_bytes = 0
        self.cells = counters.cells


async def consume(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Count messages through `job.fan` subscriptions on one connection, until cancelled."""
    read = {"messages": read_messages, "batches": read_batches, "columns": count_batches}[job.mode]
    tally = Tally(counters)
    async with ister.connect(job.address) as client, AsyncExitStack() as stack:
        subs = [
            await stack.enter_async_context(
                client.subscribe(job.topic, f"bench-{number}", type="exclusive")
            )
            for number in range(job.fan)
        ]
        ready()
        try:
            async with asyncio.TaskGroup() as group:
                for sub in subs:
                    group.create_task(read(sub, tally))
        except asyncio.CancelledError:
            counters.received = tally.received
    return {"received": tally.received, "size_bytes": tally.size_bytes}


async def read_messages(sub: Any, tally: Tally) -> None:
    """Read one message at a time."""
    cells, every = tally.cells, TALLY_EVERY
    async for msg in sub:
        tally.size_bytes += len(msg.payload)
        tally.received += 1
        if not tally.received % every:
            cells[1] = tally.received


async def read_batches(sub: Any, tally: Tally) -> None:
    """Read batches and touch every payload in them."""
    async for batch in sub.batches():
        tally.size_bytes += sum(map(len, batch.payloads))
        tally.received += len(batch)
        tally.cells[1] = tally.received


async def count_batches(sub: Any, tally: Tally) -> None:
    """Read batches and leave their columns alone."""
    async for batch in sub.batches():
        tally.received += len(batch)
        tally.cells[1] = tally.received


async def roundtrip(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Publish one message and wait for it on the same connection."""
    payload = bytes(job.payload_bytes)
    async with (
        ister.connect(job.address) as client,
        client.subscribe(job.topic, "bench", type="exclusive") as sub,
        client.producer(job.topic) as producer,
    ):
        messages = aiter(sub)

        async def call() -> object:
            producer.send_nowait(payload)
            return (await anext(messages)).payload

        ready()
        return await time_calls(call, seconds=job.seconds)


async def respond(_counters: Counters, job: Job, ready: Ready) -> None:
    """Answer every request with its own payload, until cancelled."""
    async with (
        ister.connect(job.address) as client,
        client.subscribe(job.topic, "bench", type="shared") as sub,
    ):
        ready()
        async for msg in sub:
            await msg.reply(msg.payload)


async def request(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Send requests, one at a time for latency or `job.in_flight` at once for rate."""
    payload = bytes(job.payload_bytes)
    async with ister.connect(job.address) as client:

        async def call() -> None:
            await client.request(job.topic, payload, timeout=REQUEST_TIMEOUT_S)

        ready()
        if job.in_flight == 1:
            return await time_calls(call, seconds=job.seconds)
        await repeat_calls([call] * job.in_flight, counters)
    return {}


async def publish_acked(counters: Counters, job: Job, ready: Ready) -> None:
    """Publish one at a time on many connections, each waiting for its acknowledgement."""
    payload = bytes(job.payload_bytes)
    async with AsyncExitStack() as stack:
        producers = []
        for _ in range(job.connections):
            client = await stack.enter_async_context(ister.connect(job.address))
            producers.append(await stack.enter_async_context(client.producer(job.topic)))

        def call_of(producer: Any) -> Call:
            async def call() -> None:
                await producer.send(payload)

            return call

        ready()
        await repeat_calls([call_of(producer) for producer in producers], counters)


async def crowd(_counters: Counters, job: Job, ready: Ready) -> None:
    """Create many topics and hold many idle connections, until cancelled."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ister.connect(job.address))
        for start in range(0, job.topics, CREATE_CHUNK):
            numbers = range(start, min(start + CREATE_CHUNK, job.topics))
            await asyncio.gather(
                *(first.create_topic(f"{job.topic}.{number}", kind="live") for number in numbers)
            )
        for _ in range(job.connections):
            await stack.enter_async_context(ister.connect(job.address))
        ready()
        await asyncio.Event().wait()
