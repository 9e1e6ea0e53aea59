"""JetStream through nats-py, every way it offers, tuned for speed where it offers a choice.

Publishing, by `job.mode`:
- `async`: `publish_async`, nats-py's own pipelining, a future per message;
- `concurrent`: many tasks, each awaiting `publish`;
- `by_hand`: core `publish` with one reply subject for all and a callback that counts the answers.
  No future per message, so nobody learns which message an answer is for; it is in no guide, but
  it is the most that nats-py can do.

Consuming with acknowledgements: `pull` (`fetch`, then `ack` one by one) and `push` (a callback).
Replay without them: `ordered` (a callback), `iterator` (`async for`) and `pull`.

JetStream's batch publishing (server 2.12 and later) has no API in nats-py, so it is not here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from bench.harness.counters import TALLY_EVERY, Counters
from bench.harness.job import WAIT_S, Figures, Job, Ready, repeat_calls
from bench.live.nats import open_client

# Fetches of 100, 500, 1,000, 5,000 gave 20, 24, 25, 25 thousand messages a second.
FETCH_COUNT = 1_000
# With the server's default of 1,000 a callback got 95 thousand messages a second, with this 105.
ACK_PENDING_MAX = 20_000
ANSWER_TIMEOUT_S = 30.0


async def open_stream(client: Client, job: Job) -> JetStreamContext:
    """Make the stream, on files as is the default, unless it is there."""
    context = client.jetstream(publish_async_max_pending=max(1, job.distance_max))
    await context.add_stream(
        name=job.topic, subjects=[job.topic], storage=api.StorageType.FILE, num_replicas=1
    )
    return context


async def stored_count(context: JetStreamContext, job: Job) -> int:
    """Return how many messages the stream holds."""
    return int((await context.stream_info(job.topic)).state.messages)


async def publish(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Publish with acknowledgements until the referee stops it."""
    run = {"async": publish_async, "concurrent": publish_concurrent, "by_hand": publish_by_hand}
    async with await open_client(job) as client:
        context = await open_stream(client, job)
        await run[job.mode](context, client, counters, job, ready)
        return {"sent": counters.received, "stored": await stored_count(context, job)}


async def publish_async(
    context: JetStreamContext, _client: Client, counters: Counters, job: Job, ready: Ready
) -> None:
    """Publish with at most `job.distance_max` messages on their way."""
    payloads, subject, send = job.payloads, job.topic, context.publish_async
    sent = 0
    ready()
    while not counters.stopped:
        for payload in payloads:
            await send(subject, payload)
        sent += len(payloads)
        counters.received = sent - context.publish_async_pending()
    await asyncio.wait_for(context.publish_async_completed(), ANSWER_TIMEOUT_S)
    counters.received = sent


async def publish_concurrent(
    context: JetStreamContext, _client: Client, counters: Counters, job: Job, ready: Ready
) -> None:
    """Publish from `job.in_flight` tasks at once."""
    payload = job.payloads[0]

    async def call() -> None:
        await context.publish(job.topic, payload, timeout=ANSWER_TIMEOUT_S)

    ready()
    await repeat_calls([call] * job.in_flight, counters)


async def publish_by_hand(
    _context: JetStreamContext, client: Client, counters: Counters, job: Job, ready: Ready
) -> None:
    """Publish and count answers until the referee stops it."""
    ready()
    await send_by_hand(client, job, counters, until=None)


async def fill(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Store `job.count` messages the quickest way there is."""
    async with await open_client(job) as client:
        context = await open_stream(client, job)
        ready()
        await send_by_hand(client, job, counters, until=job.count)
        return {"stored": await stored_count(context, job)}


async def send_by_hand(client: Client, job: Job, counters: Counters, *, until: int | None) -> None:
    """Publish `until` that many or the stop flag, all with one reply subject.

    Returns when all are stored; raises as soon as an answer is an error.
    """
    payloads, subject, inbox = job.payloads, job.topic, client.new_inbox()
    cells = counters.cells
    sent = answered = 0
    refused: list[bytes] = []

    async def on_answer(msg: Msg) -> None:
        nonlocal answered
        answered += 1
        cells[1] = answered
        if b'"error"' in msg.data or b'"seq"' not in msg.data:
            refused.append(msg.data)

    async def wait_for_answers(count: int) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while answered < count:
            if refused or time.monotonic() > deadline:
                raise RuntimeError(f"{answered} of {sent} messages stored, refused: {refused[:1]}")
            await asyncio.sleep(WAIT_S)

    await client.subscribe(inbox, cb=on_answer, pending_msgs_limit=0, pending_bytes_limit=0)
    while (sent < until) if until is not None else not counters.stopped:
        chunk = payloads if until is None else payloads[: until - sent]
        for payload in chunk:
            await client.publish(subject, payload, reply=inbox)
        sent += len(chunk)
        await asyncio.sleep(0)
        await wait_for_answers(sent - job.distance_max)
    await wait_for_answers(sent)


async def acks(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Consume `job.count` stored messages and acknowledge each; the last one is confirmed."""
    config = api.ConsumerConfig(max_ack_pending=ACK_PENDING_MAX)
    async with await open_client(job) as client:
        context = client.jetstream()
        ready()
        began = time.perf_counter()
        if job.mode == "pull":
            sub = await context.pull_subscribe(job.topic, job.subscription, config=config)
            await ack_pulled(sub, counters, job)
        else:
            await ack_pushed(context, config, counters, job)
        elapsed = time.perf_counter() - began
        info = await context.consumer_info(job.topic, job.subscription)
        # Acknowledgements travel without an answer; the confirmed one came after all others.
        left = int(info.num_pending or 0) + int(info.num_ack_pending or 0)
    return {"msg_s": job.count / elapsed, "seconds": elapsed, "left": left}


async def ack_pulled(sub: Any, counters: Counters, job: Job) -> None:
    """Fetch many, acknowledge one by one."""
    received = 0
    while received < job.count:
        for msg in await sub.fetch(FETCH_COUNT, timeout=ANSWER_TIMEOUT_S):
            received += 1
            await (msg.ack() if received < job.count else msg.ack_sync(ANSWER_TIMEOUT_S))
        counters.received = received


async def ack_pushed(
    context: JetStreamContext, config: api.ConsumerConfig, counters: Counters, job: Job
) -> None:
    """Acknowledge each message in the callback that gets it."""
    received = 0
    done = asyncio.Event()

    async def on_message(msg: Msg) -> None:
        nonlocal received
        received += 1
        if received == job.count:
            await msg.ack_sync(ANSWER_TIMEOUT_S)
            done.set()
            return
        await msg.ack()
        if not received % TALLY_EVERY:
            counters.received = received

    await context.subscribe(
        job.topic, durable=job.subscription, cb=on_message, manual_ack=True, config=config
    )
    await done.wait()


async def replay(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Read `job.count` stored messages from the first on, without acknowledging them."""
    ways: dict[str, Callable[[JetStreamContext, Counters, Job], Awaitable[int]]] = {
        "ordered": replay_ordered,
        "iterator": replay_iterator,
        "pull": replay_pulled,
    }
    async with await open_client(job) as client:
        context = client.jetstream()
        ready()
        began = time.perf_counter()
        size_bytes = await ways[job.mode](context, counters, job)
        elapsed = time.perf_counter() - began
    return {"msg_s": job.count / elapsed, "seconds": elapsed, "size_bytes": size_bytes}


async def replay_ordered(context: JetStreamContext, counters: Counters, job: Job) -> int:
    """Read through the callback of an ordered consumer."""
    received = size_bytes = 0
    done = asyncio.Event()

    async def on_message(msg: Msg) -> None:
        nonlocal received, size_bytes
        received += 1
        size_bytes += len(msg.data)
        if received == job.count:
            done.set()
        if not received % TALLY_EVERY:
            counters.received = received

    await context.subscribe(job.topic, cb=on_message, ordered_consumer=True)
    await done.wait()
    return size_bytes


async def replay_iterator(context: JetStreamContext, counters: Counters, job: Job) -> int:
    """Read with `async for` from an ordered consumer."""
    received = size_bytes = 0
    sub = await context.subscribe(job.topic, ordered_consumer=True)
    async for msg in sub.messages:
        received += 1
        size_bytes += len(msg.data)
        if not received % TALLY_EVERY:
            counters.received = received
        if received == job.count:
            break
    return size_bytes


async def replay_pulled(context: JetStreamContext, counters: Counters, job: Job) -> int:
    """Fetch from a pull consumer that needs no acknowledgements."""
    received = size_bytes = 0
    config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
    sub = await context.pull_subscribe(job.topic, job.subscription, config=config)
    while received < job.count:
        for msg in await sub.fetch(FETCH_COUNT, timeout=ANSWER_TIMEOUT_S):
            received += 1
            size_bytes += len(msg.data)
        counters.received = received
    return size_bytes
