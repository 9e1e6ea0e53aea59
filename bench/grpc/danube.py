"""Danube's own client from PyPI, as its documentation uses it, against whoever speaks its API.

`job.mode` `reliable` asks for topics that are stored; else messages go to whoever listens.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from danube import DanubeClientBuilder, DispatchStrategy, SubType

from bench.harness.counters import TALLY_EVERY, Counters
from bench.harness.job import Call, Figures, Job, Ready, repeat_calls, time_calls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def producing(job: Job) -> AsyncIterator[Any]:
    """Yield a producer."""
    client = await DanubeClientBuilder().service_url(job.address).build()
    reliable = job.mode == "reliable"
    builder = client.new_producer().with_topic(job.topic).with_name("bench")
    builder = builder.with_dispatch_strategy(
        DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    )
    producer = builder.build()
    await producer.create()
    try:
        yield producer
    finally:
        await producer.close()


async def send(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Send one message at a time."""
    payload = os.urandom(job.payload_bytes)
    async with producing(job) as producer:
        ready()
        return await time_calls(lambda: producer.send(payload), seconds=job.seconds)


async def send_many(counters: Counters, job: Job, ready: Ready) -> None:
    """Keep `job.in_flight` messages under way."""
    payload = os.urandom(job.payload_bytes)
    async with producing(job) as producer:
        calls: list[Call] = [lambda: producer.send(payload)] * job.in_flight
        ready()
        await repeat_calls(calls, counters)


@asynccontextmanager
async def receiving(job: Job) -> AsyncIterator[Any]:
    """Yield a consumer and the queue of what it receives."""
    client = await DanubeClientBuilder().service_url(job.address).build()
    builder = client.new_consumer().with_topic(job.topic).with_consumer_name("bench")
    builder = builder.with_subscription("bench").with_subscription_type(SubType.EXCLUSIVE)
    consumer = builder.build()
    await consumer.subscribe()
    queue = await consumer.receive()
    # The stream is opened behind our back.
    await asyncio.sleep(0.3)
    try:
        yield consumer, queue
    finally:
        await consumer.close()


async def roundtrip(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Send a message and wait until it is received, one at a time."""
    payload = os.urandom(job.payload_bytes)
    async with producing(job) as producer, receiving(job) as (consumer, queue):

        async def call() -> None:
            await producer.send(payload)
            message = await queue.get()
            if job.mode == "reliable":
                await consumer.ack(message)

        ready()
        return await time_calls(call, seconds=job.seconds)


async def receive(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Count what comes, until cancelled."""
    received = size_bytes = 0
    async with receiving(job) as (_, queue):
        ready()
        with suppress(asyncio.CancelledError):
            while True:
                message = await queue.get()
                size_bytes += len(message.payload)
                received += 1
                if not received % TALLY_EVERY:
                    counters.received = received
    return {"received": received, "size_bytes": size_bytes}
