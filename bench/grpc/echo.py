"""A bare grpcio server with Danube's methods: what the library can do when nobody does anything.

`serve` answers every message at once and hands it to whoever receives; who subscribes to `FLOOD`
gets one and the same message as fast as the stream takes it. Nothing is looked up, checked or
kept, so no broker on the same library can be faster.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as services

from bench.grpc.scenarios import FLOOD
from bench.harness.counters import Counters
from bench.harness.job import Job, Ready

FLOOD_ID = 2


class Producers:
    """Passes messages on."""

    def __init__(self, streams: list[asyncio.Queue[Any]]) -> None:
        self.streams = streams

    async def CreateProducer(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Take anybody."""
        return api.ProducerResponse(request_id=request.request_id, producer_id=1)

    async def SendMessage(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Answer, and pass it on."""
        for stream in self.streams:
            stream.put_nowait(request)
        return api.MessageResponse(request_id=request.request_id)


class Consumers:
    """Streams messages."""

    def __init__(self, streams: list[asyncio.Queue[Any]], url: str, payload: bytes) -> None:
        self.streams = streams
        # With every field that a broker fills, so that the client has as much to read.
        self.message = api.StreamMessage(
            request_id=1_000,
            msg_id=api.MsgID(
                producer_id=2**62, topic_name=FLOOD, broker_addr=url, topic_offset=1_000
            ),
            payload=payload,
            publish_time=time.time_ns() // 1_000_000,
            producer_name="bench",
        )

    async def Subscribe(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Take anybody."""
        number = FLOOD_ID if request.topic_name == FLOOD else 1
        return api.ConsumerResponse(request_id=request.request_id, consumer_id=number)

    async def ReceiveMessages(self, request: Any, context: Any) -> None:  # noqa: N802
        """Send what comes, or the same for ever."""
        if request.consumer_id == FLOOD_ID:
            while True:
                await context.write(self.message)
        stream: asyncio.Queue[Any] = asyncio.Queue()
        self.streams.append(stream)
        while True:
            await context.write(await stream.get())

    async def Ack(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Answer."""
        return api.AckResponse(request_id=request.request_id)

    Nack = Ack


class Discovery:
    """Sends everybody here."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def TopicLookup(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """It is here."""
        return api.TopicLookupResponse(
            request_id=request.request_id,
            response_type=api.TopicLookupResponse.Connect,
            connect_url=self.url,
            broker_url=self.url,
        )

    async def TopicPartitions(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """It has none."""
        return api.TopicPartitionsResponse(
            request_id=request.request_id, partitions=[request.topic]
        )


class Health:
    """All is well."""

    async def HealthCheck(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Say so."""
        return api.HealthCheckResponse()


async def serve(_counters: Counters, job: Job, ready: Ready) -> None:
    """Run the server on `job.address` until cancelled."""
    streams: list[asyncio.Queue[Any]] = []
    server = grpc.aio.server()
    services.add_ProducerServiceServicer_to_server(Producers(streams), server)
    services.add_ConsumerServiceServicer_to_server(
        Consumers(streams, job.address, bytes(job.payload_bytes)), server
    )
    services.add_DiscoveryServicer_to_server(Discovery(job.address), server)
    services.add_HealthCheckServicer_to_server(Health(), server)
    server.add_insecure_port(job.address.removeprefix("http://"))
    await server.start()
    ready()
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(None)
