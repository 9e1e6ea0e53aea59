"""`ister bench`: what a broker and one Python process do together, in messages and microseconds.

Producer and consumer are two connections of this one process, so the figures are below what the
broker can do with more clients. `bench/` in the repository compares with others, in processes.
"""

import asyncio
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from ister.base.limits import PRODUCER_BATCH_COUNT
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.terminal import JsonOption, run, say, write_json, write_table
from ister.client import Client, Producer, Subscription

# Live messages may be dropped: nothing for this long means that no more will come.
IDLE_S = 2.0
# Sends between two looks at the broker's progress: enough for a full batch.
SENDS_AT_ONCE = 1_000
WARM_UP_COUNT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Messages from producer to consumer."""

    name: str
    messages: int
    received: int
    seconds: float
    messages_per_second: float
    megabytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One thing after the other, timed one by one, in microseconds."""

    name: str
    count: int
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


@dataclass(slots=True)
class _Tally:
    received: int = 0
    last_s: float = 0.0


def bench(
    url: UrlOption = URL,
    messages: Annotated[int, typer.Option(min=1, help="Messages for throughput.")] = 200_000,
    size: Annotated[int, typer.Option(min=0, metavar="BYTES", help="Payload size.")] = 100,
    round_trips: Annotated[int, typer.Option(min=2, help="Round trips for latency.")] = 2_000,
    namespace: Annotated[str, typer.Option(help="Where to put the topic of the run.")] = "default",
    as_json: JsonOption = False,
) -> None:
    """Measure throughput and latency against a running broker, with a topic of its own.

    \b
    Examples:
      ister bench
      ister bench --messages 1000000 --size 1024 --json
    """
    topic = f"/{namespace}/bench-{secrets.token_hex(4)}"
    throughputs, latencies = run(_measure(url, topic, messages, bytes(size), round_trips))
    if as_json:
        write_json({"size": size, "throughput": throughputs, "latency": latencies})
        return
    write_table(
        ("THROUGHPUT", "MESSAGES", "RECEIVED", "MSG/S", "MB/S"),
        [
            (
                one.name,
                one.messages,
                one.received,
                f"{one.messages_per_second:,.0f}",
                f"{one.megabytes_per_second:,.1f}",
            )
            for one in throughputs
        ],
    )
    write_table(
        ("LATENCY (µs)", "COUNT", "P50", "P90", "P99", "MAX"),
        [
            (
                one.name,
                one.count,
                *(f"{value:,.0f}" for value in (one.p50_us, one.p90_us, one.p99_us, one.max_us)),
            )
            for one in latencies
        ],
    )


async def _measure(
    url: str, topic: str, messages: int, payload: bytes, round_trips: int
) -> tuple[list[Throughput], list[Latency]]:
    async with connect(url, name="bench-out") as sender, connect(url, name="bench-in") as receiver:
        try:
            throughputs = []
            for name, send, receive in (
                ("send_nowait / async for", _send_single, _receive_single),
                ("send_batch / batches", _send_batches, _receive_batches),
            ):
                _tell(f"throughput, {name}: {messages:,} messages of {len(payload)} B")
                throughputs.append(
                    await _throughput(
                        sender,
                        receiver,
                        name=name,
                        topic=topic,
                        messages=messages,
                        payload=payload,
                        send=send,
                        receive=receive,
                    )
                )
            _tell(f"latency: {round_trips:,} round trips")
            latencies = [
                await _round_trips(sender, receiver, topic, round_trips, payload),
                await _requests(sender, receiver, topic, round_trips, payload),
            ]
        finally:
            await sender.delete_topic(topic)
    return throughputs, latencies


async def _throughput(
    sender: Client,
    receiver: Client,
    *,
    name: str,
    topic: str,
    messages: int,
    payload: bytes,
    send: Callable[[Producer, bytes, int], Awaitable[None]],
    receive: Callable[[Subscription, int, _Tally], Awaitable[None]],
) -> Throughput:
    tally = _Tally()
    async with receiver.subscribe(topic, "bench") as sub, sender.producer(topic) as producer:
        task = asyncio.ensure_future(receive(sub, messages, tally))
        start = time.perf_counter()
        await send(producer, payload, messages)
        await producer.flush()
        await _wait_idle(task, tally)
    seconds = max(tally.last_s - start, 1e-9)
    return Throughput(
        name=name,
        messages=messages,
        received=tally.received,
        seconds=round(seconds, 6),
        messages_per_second=round(tally.received / seconds, 1),
        megabytes_per_second=round(tally.received * len(payload) / seconds / 1e6, 3),
    )


async def _wait_idle(task: "asyncio.Future[None]", tally: _Tally) -> None:
    """Wait for the receiver, but not for messages that will never come."""
    seen = -1
    while tally.received != seen:
        seen = tally.received
        await asyncio.wait({task}, timeout=IDLE_S)
        if task.done():
            break
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _send_single(producer: Producer, payload: bytes, messages: int) -> None:
    for start in range(0, messages, SENDS_AT_ONCE):
        for _ in range(min(SENDS_AT_ONCE, messages - start)):
            producer.send_nowait(payload)
        await producer.ready()
        await asyncio.sleep(0)


async def _receive_single(sub: Subscription, messages: int, tally: _Tally) -> None:
    # A clock read per message would cost more than the message.
    try:
        async for _ in sub:
            tally.received += 1
            if tally.received == messages:
                break
    finally:
        tally.last_s = time.perf_counter()


async def _send_batches(producer: Producer, payload: bytes, messages: int) -> None:
    for start in range(0, messages, PRODUCER_BATCH_COUNT):
        await producer.ready()
        producer.send_batch_nowait([payload] * min(PRODUCER_BATCH_COUNT, messages - start))
        await asyncio.sleep(0)


async def _receive_batches(sub: Subscription, messages: int, tally: _Tally) -> None:
    async for batch in sub.batches():
        tally.received += len(batch)
        tally.last_s = time.perf_counter()
        if tally.received >= messages:
            return


async def _round_trips(
    sender: Client, receiver: Client, topic: str, count: int, payload: bytes
) -> Latency:
    async with receiver.subscribe(topic, "bench") as sub, sender.producer(topic) as producer:

        async def once() -> None:
            producer.send_nowait(payload)
            await sub.receive(timeout=IDLE_S)

        return await _time("publish to receive", count, once)


async def _requests(
    sender: Client, receiver: Client, topic: str, count: int, payload: bytes
) -> Latency:
    async with receiver.subscribe(topic, "bench") as sub:

        async def answer() -> None:
            async for message in sub:
                await message.reply(message.payload)

        async def once() -> None:
            await sender.request(topic, payload)

        task = asyncio.ensure_future(answer())
        try:
            return await _time("request to reply", count, once)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _time(name: str, count: int, once: Callable[[], Awaitable[None]]) -> Latency:
    for _ in range(WARM_UP_COUNT):
        await once()
    spans_us = []
    for _ in range(count):
        start = time.perf_counter()
        await once()
        spans_us.append((time.perf_counter() - start) * 1e6)
    cuts = statistics.quantiles(spans_us, n=100, method="inclusive")
    return Latency(
        name=name,
        count=count,
        p50_us=round(cuts[49], 1),
        p90_us=round(cuts[89], 1),
        p99_us=round(cuts[98], 1),
        max_us=round(max(spans_us), 1),
    )


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        say(text)
