"""The gRPC doors and peers without a call: few, for a while, and at the cost of no client."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import grpc
import pytest
from tests.e2e.grpc.danubes import WAIT_S
from tests.e2e.raw import eventually

from ister.base.limits import Limits
from ister.broker import Broker
from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.grpc import GrpcDoor
from ister.server.grpc.calls import server
from ister.server.grpc.messages import message
from ister.server.http2 import ErrorCode
from ister.server.operations import Dispatcher
from ister.telemetry import SystemClock

pytestmark = pytest.mark.e2e

CONNECTIONS_MAX = 8
IDLE_MS = 300
GOODBYE_MS = 100
SWEEP_S = 0.05
# The first words of HTTP/2, with settings that are empty.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")

PING = bytes.fromhex("000008060000000000") + bytes(8)
# Channels of one process share connections, unless they are told not to.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]

TOPIC = "/default/orders"
Open = Callable[[], Awaitable[tuple[str, GrpcDoor]]]


@pytest.fixture
async def open_doors() -> AsyncIterator[Open]:
    """Open the client API for few connections, and return its address."""
    async with AsyncExitStack() as stack:

        async def open_() -> tuple[str, GrpcDoor]:
            loop = asyncio.get_running_loop()
            clock = SystemClock(loop.call_later)
            broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
            registry = await Registry.open(MemoryMetadata(), now_ms=clock.now_ms)
            doors = GrpcDoor(
                broker,
                registry=registry,
                metadata=MemoryMetadata(),
                dispatcher=Dispatcher(broker, registry),
                connections_max=CONNECTIONS_MAX,
            )
            stack.push_async_callback(doors.close, 0.0)
            host, port = await doors.listen("127.0.0.1", 0)
            return f"{host}:{port}", doors

        yield open_


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_MS_MAX", IDLE_MS)
    monkeypatch.setattr(server, "SWEEP_S", SWEEP_S)


class Stranger:
    """Speaks HTTP/2 as far as a connection goes, and makes no call."""

    def __init__(self) -> None:
        self._closed: asyncio.Task[None] | None = None
        self._said = b""

    async def connect(self, address: str) -> "Stranger":
        host, _, port = address.rpartition(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(PREFACE)
        self._closed = asyncio.create_task(self._read(reader))
        return self

    async def is_closed(self, within_s: float = WAIT_S) -> bool:
        """Whether the door ends the connection in time."""
        assert self._closed is not None
        done, _ = await asyncio.wait({self._closed}, timeout=within_s)
        return bool(done)

    def hears(self, reason: bytes) -> bool:
        """Whether the door has said why it ends the connection."""
        return reason in self._said

    async def leave(self) -> None:
        self._writer.close()
        assert self._closed is not None
        await self._closed

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while part := await reader.read(65_536):
                self._said += part


def lookup(channel: grpc.aio.Channel) -> Awaitable[bytes]:
    request = message("danube.TopicLookupRequest")(request_id=1, topic=TOPIC)
    call = channel.unary_unary("/danube.Discovery/TopicLookup")
    answer: Awaitable[bytes] = call(request.SerializeToString(), timeout=WAIT_S)
    return answer


async def test_the_oldest_stranger_makes_room_for_the_newest(open_doors: Open) -> None:
    address, _ = await open_doors()
    strangers = [await Stranger().connect(address) for _ in range(CONNECTIONS_MAX + 3)]
    oldest, newest = strangers[:3], strangers[3:]

    assert [await one.is_closed() for one in oldest] == [True] * 3
    assert all(one.hears(b"no call has come on this one") for one in oldest)
    assert not any([await one.is_closed(0.05) for one in newest])
    for one in strangers:
        await one.leave()


async def test_a_client_gets_in_while_strangers_fill_the_port(open_doors: Open) -> None:
    address, _ = await open_doors()
    strangers = [await Stranger().connect(address) for _ in range(CONNECTIONS_MAX)]
    async with grpc.aio.insecure_channel(address) as channel:
        assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
        # More than there is room for, and none of it is the client's.
        strangers += [await Stranger().connect(address) for _ in range(2 * CONNECTIONS_MAX)]
        assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND

        assert channel.get_state() is grpc.ChannelConnectivity.READY
    for one in strangers:
        await one.leave()


async def test_clients_are_not_thrown_out_for_strangers(open_doors: Open) -> None:
    address, doors = await open_doors()
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, OWN_CONNECTION))
            for _ in range(CONNECTIONS_MAX)
        ]
        for channel in channels:
            assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
        beyond = [await Stranger().connect(address) for _ in range(3)]

        assert [await one.is_closed() for one in beyond] == [True] * 3
        assert all(one.hears(b"more than 8 connections") for one in beyond)
        assert doors.servers[0].counts.accepted == CONNECTIONS_MAX + 3
        for channel in channels:
            assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
        assert doors.servers[0].counts.accepted == CONNECTIONS_MAX + 3
        for one in beyond:
            await one.leave()


async def test_a_peer_that_has_failed_and_does_not_read_is_cut_off(
    open_doors: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SWEEP_S", SWEEP_S)
    monkeypatch.setattr(server, "GOODBYE_MS_MAX", GOODBYE_MS)
    address, doors = await open_doors()
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.setblocking(False)
        await loop.sock_connect(peer, (host, int(port)))
        await loop.sock_sendall(peer, PREFACE)
        await eventually(lambda: bool(doors.servers[0].sessions))
        [session] = doors.servers[0].sessions
        assert session._transport is not None
        # Until the kernel takes no more of the answers.
        while not session._transport.get_write_buffer_size():
            await loop.sock_sendall(peer, PING * 1_000)
            await asyncio.sleep(0)
        session.fail(ErrorCode.ENHANCE_YOUR_CALM, "too many others")

        await eventually(lambda: not doors.servers[0].sessions)


async def test_strangers_make_room_by_themselves(open_doors: Open, short_patience: None) -> None:
    address, _ = await open_doors()
    strangers = [await Stranger().connect(address) for _ in range(CONNECTIONS_MAX)]

    assert all([await one.is_closed() for one in strangers])
    async with grpc.aio.insecure_channel(address) as channel:
        assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
    for one in strangers:
        await one.leave()


async def test_an_idle_client_connects_again_when_it_asks(
    open_doors: Open, short_patience: None
) -> None:
    address, _ = await open_doors()
    async with grpc.aio.insecure_channel(address) as channel:
        for _ in range(2):
            assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
            async with asyncio.timeout(WAIT_S):
                while (state := channel.get_state()) is not grpc.ChannelConnectivity.IDLE:
                    await channel.wait_for_state_change(state)


async def test_a_client_with_a_stream_is_not_idle(open_doors: Open, short_patience: None) -> None:
    address, _ = await open_doors()
    async with grpc.aio.insecure_channel(address) as channel:
        await call(channel, "ProducerService/CreateProducer", topic_name=TOPIC, producer_name="p")
        subscribed = message("danube.ConsumerResponse").FromString(
            await call(
                channel,
                "ConsumerService/Subscribe",
                topic_name=TOPIC,
                consumer_name="c",
                subscription="s",
            )
        )
        request = message("danube.ReceiveRequest")(consumer_id=subscribed.consumer_id)
        stream = channel.unary_stream("/danube.ConsumerService/ReceiveMessages")(
            request.SerializeToString()
        )
        # Strangers beside it are closed: so the time is over for whoever is idle.
        for _ in range(2):
            stranger = await Stranger().connect(address)
            assert await stranger.is_closed()
            await stranger.leave()

        assert channel.get_state() is grpc.ChannelConnectivity.READY
        assert not stream.done()
        stream.cancel()


REQUESTS = {
    "ProducerService/CreateProducer": "danube.ProducerRequest",
    "ConsumerService/Subscribe": "danube.ConsumerRequest",
}


async def call(channel: grpc.aio.Channel, method: str, **fields: object) -> bytes:
    request = message(REQUESTS[method])(request_id=1, **fields)
    made = channel.unary_unary(f"/danube.{method}")
    answer: bytes = await made(request.SerializeToString(), timeout=WAIT_S)
    return answer


async def status(answer: Awaitable[bytes]) -> grpc.StatusCode:
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK
