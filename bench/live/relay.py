"""A dumb TCP relay and its two clients: what the machine can move when nobody looks at the bytes.

`serve` forwards whatever later connections send to the first connection. There is no framing, no
copy in Python and no wake-up per message, so no broker written on the same event loop can be
faster; the ratio to it says how much of the machine Ister leaves unused.
"""

from __future__ import annotations

import asyncio
from typing import cast

from bench.harness.counters import Counters
from bench.harness.job import Figures, Job, Ready


class Flow(asyncio.Protocol):
    """A connection whose writer can wait for room."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport.

        Its write buffer keeps asyncio's default of 64 KiB: up to 1 MiB made no difference, 4 MiB
        and more made the relay slower.
        """
        # uvloop's transports do not inherit from asyncio's, so only a cast can say what this is.
        self.transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """The socket is full: the writer must wait."""
        self.room.clear()

    def resume_writing(self) -> None:
        """The socket took what was buffered."""
        self.room.set()


class Forward(Flow):
    """One connection of the relay: the first is the consumer, the others feed it."""

    def __init__(self, ends: list[Forward]) -> None:
        super().__init__()
        self.ends = ends

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the ends in order of arrival."""
        super().connection_made(transport)
        self.ends.append(self)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on as they are."""
        self.ends[0].transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading from the producers while the consumer's socket is full."""
        for end in self.ends[1:]:
            end.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        for end in self.ends[1:]:
            end.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """A relay serves one measurement, so an end that leaves takes the others with it."""
        for end in self.ends:
            end.transport.close()


class Counter(asyncio.Protocol):
    """The consumer: counts bytes."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.received = 0

    def data_received(self, data: bytes) -> None:
        """Add to the total."""
        self.received += len(data)
        self.counters.received = self.received


async def serve(_counters: Counters, job: Job, ready: Ready) -> None:
    """Run the relay on `job.address` until cancelled."""
    ends: list[Forward] = []
    host, port = job.address.split(":")
    server = await asyncio.get_running_loop().create_server(lambda: Forward(ends), host, int(port))
    async with server:
        ready()
        await asyncio.Event().wait()


async def consume(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Count bytes until cancelled."""
    host, port = job.address.split(":")
    loop = asyncio.get_running_loop()
    transport, counter = await loop.create_connection(lambda: Counter(counters), host, int(port))
    ready()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        transport.close()
    return {"received": counter.received}


async def produce(counters: Counters, job: Job, ready: Ready) -> None:
    """Write one prepared chunk again and again, as fast as the socket takes it."""
    host, port = job.address.split(":")
    chunk = b"".join(job.payloads)
    loop = asyncio.get_running_loop()
    transport, flow = await loop.create_connection(Flow, host, int(port))
    sent = 0
    ready()
    while not counters.stopped:
        transport.write(chunk)
        sent += len(chunk)
        counters.sent = sent
        await asyncio.sleep(0)
        await flow.room.wait()
    transport.close()
