"""NATS's scheduled messages through nats-py: `Nats-Schedule: @at …`, server 2.12 and later.

A schedule is a message with a subject of its own, which the server publishes to the target
when it is due. Consumers are a queue group with a callback, the quickest that acknowledges.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from datetime import UTC, datetime

from nats.aio.msg import Msg
from nats.js import api

from bench.harness.counters import Counters
from bench.harness.job import WAIT_S, Figures, Job, Ready
from bench.live.nats import open_client
from bench.timeline.ister import PER_MS, begin
from bench.timeline.samples import HEAD, Samples

ACK_PENDING_MAX = 20_000
# Schedules that the server has not answered for.
UNANSWERED_MAX = 4_096


async def create(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Make the stream, on files, with room for schedules and for what becomes of them."""
    async with await open_client(job) as client:
        await client.jetstream().add_stream(
            name=job.topic,
            subjects=[f"{job.topic}.*", job.topic],
            storage=api.StorageType.FILE,
            allow_msg_schedules=True,
        )
        ready()
    return {}


async def fill(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Schedule `job.count` messages, spread from `job.seconds` from now on."""
    filler = os.urandom(job.payload_bytes - HEAD.size)
    answered = 0
    refused: list[bytes] = []

    async def on_answer(msg: Msg) -> None:
        nonlocal answered
        answered += 1
        if b'"error"' in msg.data:
            refused.append(msg.data)

    async with await open_client(job) as client:
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=on_answer)
        ready()
        start_ms = time.time_ns() // 1_000_000 + int(job.seconds * 1000)
        for number in range(job.count):
            due_ms = start_ms + number // PER_MS
            headers = {
                api.Header.SCHEDULE.value: f"@at {rfc3339(due_ms)}",
                api.Header.SCHEDULE_TARGET.value: job.topic,
            }
            payload = HEAD.pack(number, due_ms) + filler
            await client.publish(f"{job.topic}.{number}", payload, reply=inbox, headers=headers)
            while number - answered > UNANSWERED_MAX and not refused:
                await asyncio.sleep(WAIT_S)
        while answered < job.count and not refused:
            await asyncio.sleep(WAIT_S)
        if refused:
            raise RuntimeError(f"a schedule was refused: {refused[0]!r}")
    return {"start_ms": start_ms, "spare_s": start_ms / 1000 - time.time()}


async def consume(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Take and acknowledge messages with `job.connections` consumers, until cancelled."""
    samples = Samples(counters)

    async def on_message(msg: Msg) -> None:
        samples.handed_over(msg.data)
        await msg.ack()

    async with await open_client(job) as client:
        context = client.jetstream()
        config = api.ConsumerConfig(max_ack_pending=ACK_PENDING_MAX)
        for _ in range(job.connections):
            await context.subscribe(
                job.topic, queue="bench", cb=on_message, manual_ack=True, config=config
            )
        ready()
        await begin(counters)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await client.flush()
    samples.save()
    return {"ended_ns": time.time_ns()}


def rfc3339(time_ms: int) -> str:
    """Return a time as NATS reads it."""
    whole = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
