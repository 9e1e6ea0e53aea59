"""nats-py as its documentation uses it, tuned for speed where it offers a choice.

- Pending limits are lifted, so that the client drops nothing; the distance bound keeps it short.
- Publishing in chunks with one turn of the event loop in between lets the client's own flusher
  write many PUB commands with one system call.
- A callback avoids the task per message that `async for` costs; both are measured where the
  difference matters and the better one is taken.
- `skip_subject_validation` stays off: nats-py's documentation advises against it and calls the
  gain minimal.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.harness.counters import TALLY_EVERY, Counters
from bench.harness.job import Call, Figures, Job, Pace, Ready, repeat_calls, time_calls

REQUEST_TIMEOUT_S = 5.0
SUBSCRIBE_CHUNK = 500


async def open_client(job: Job) -> Client:
    """Connect with the defaults; reconnecting would hide a broken run, so it is off."""
    return await nats.connect(job.address, allow_reconnect=False, connect_timeout=10)


async def produce(counters: Counters, job: Job, ready: Ready) -> None:
    """Publish as fast as the consumer follows, until the referee stops it."""
    async with await open_client(job) as client:
        payloads, subject, publish = job.payloads, job.topic, client.publish
        pace = Pace(counters, job)
        ready()
        while not counters.stopped:
            for payload in payloads:
                await publish(subject, payload)
            await pace.step(len(payloads))
        await client.flush()


async def consume(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Count messages through `job.fan` subscriptions on one connection, until cancelled."""
    received = size_bytes = 0
    cells, every = counters.cells, TALLY_EVERY

    async def on_message(msg: Msg) -> None:
        nonlocal received, size_bytes
        size_bytes += len(msg.data)
        received += 1
        if not received % every:
            cells[1] = received

    async with await open_client(job) as client:
        try:
            if job.mode == "callback":
                for _ in range(job.fan):
                    await client.subscribe(
                        job.topic, cb=on_message, pending_msgs_limit=0, pending_bytes_limit=0
                    )
                await client.flush()
                ready()
                await asyncio.Event().wait()
            sub = await client.subscribe(job.topic, pending_msgs_limit=0, pending_bytes_limit=0)
            await client.flush()
            ready()
            async for msg in sub.messages:
                size_bytes += len(msg.data)
                received += 1
                if not received % every:
                    cells[1] = received
        except asyncio.CancelledError:
            counters.received = received
    return {"received": received, "size_bytes": size_bytes}


async def roundtrip(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Publish one message and wait for it on the same connection."""
    payload = bytes(job.payload_bytes)
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()

    async def on_message(msg: Msg) -> None:
        arrived.set_result(msg.data)

    async def through_callback() -> object:
        nonlocal arrived
        arrived = loop.create_future()
        await client.publish(job.topic, payload)
        return await arrived

    async def through_iterator() -> object:
        await client.publish(job.topic, payload)
        return (await anext(messages)).data

    async with await open_client(job) as client:
        if job.mode == "callback":
            await client.subscribe(job.topic, cb=on_message)
            call = through_callback
        else:
            messages = (await client.subscribe(job.topic)).messages
            call = through_iterator
        await client.flush()
        ready()
        return await time_calls(call, seconds=job.seconds)


async def respond(_counters: Counters, job: Job, ready: Ready) -> None:
    """Answer every request with its own payload, until cancelled."""

    async def on_request(msg: Msg) -> None:
        await msg.respond(msg.data)

    async with await open_client(job) as client:
        await client.subscribe(
            job.topic, cb=on_request, pending_msgs_limit=0, pending_bytes_limit=0
        )
        await client.flush()
        ready()
        await asyncio.Event().wait()


async def request(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Send requests, one at a time for latency or `job.in_flight` at once for rate."""
    payload = bytes(job.payload_bytes)
    async with await open_client(job) as client:

        async def call() -> None:
            await client.request(job.topic, payload, timeout=REQUEST_TIMEOUT_S)

        ready()
        if job.in_flight == 1:
            return await time_calls(call, seconds=job.seconds)
        await repeat_calls([call] * job.in_flight, counters)
    return {}


async def publish_acked(counters: Counters, job: Job, ready: Ready) -> None:
    """Publish one at a time on many connections; PING/PONG is core NATS's acknowledgement."""
    payload = bytes(job.payload_bytes)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await open_client(job)) for _ in range(job.connections)
        ]

        def call_of(client: Client) -> Call:
            async def call() -> None:
                await client.publish(job.topic, payload)
                await client.flush()

            return call

        ready()
        await repeat_calls([call_of(client) for client in clients], counters)


async def crowd(_counters: Counters, job: Job, ready: Ready) -> None:
    """Hold many subscribed subjects and many idle connections, until cancelled.

    A NATS subject exists only while somebody subscribes to it, so a subscription stands for a
    topic here.
    """
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(await open_client(job))
        for number in range(job.topics):
            await first.subscribe(f"{job.topic}.{number}", cb=ignore)
            if number % SUBSCRIBE_CHUNK == 0:
                await first.flush()
        await first.flush()
        for _ in range(job.connections):
            await stack.enter_async_context(await open_client(job))
        ready()
        await asyncio.Event().wait()


async def ignore(_msg: Msg) -> None:
    """Take a message and do nothing."""
