"""The gRPC doors and peers without a call: few, for a while, and at the cost of no client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import grpc
import pytest
from tests.e2e.grpc.danubes import WAIT_S

from ister.base.limits import Limits
from ister.broker import Broker
from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.admin import Admin
from ister.server.grpc import GrpcDoor, door
from ister.server.grpc.messages import message
from ister.telemetry import SystemClock

pytestmark = pytest.mark.e2e

CONNECTIONS_MAX = 8
IDLE_MS = 300
# The first words of HTTP/2, with settings that are empty.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")

TOPIC = "/default/orders"
Open = Callable[[], Awaitable[str]]


@pytest.fixture
async def open_doors() -> AsyncIterator[Open]:
    """Open both doors for few connections, and return the address of the client API."""
    async with AsyncExitStack() as stack:

        async def open_() -> str:
            loop = asyncio.get_running_loop()
            clock = SystemClock(loop.call_later)
            broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
            registry = await Registry.open(MemoryMetadata(), now_ms=clock.now_ms)
            doors = GrpcDoor(
                broker,
                registry=registry,
                metadata=MemoryMetadata(),
                admin=Admin(broker, registry),
                connections_max=CONNECTIONS_MAX,
            )
            stack.push_async_callback(doors.close, 0.0)
            host, port = await doors.listen("127.0.0.1", 0)
            return f"{host}:{port}"

        yield open_


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "IDLE_MS_MAX", IDLE_MS)


class Stranger:
    """Speaks HTTP/2 as far as a connection goes, and makes no call."""

    def __init__(self) -> None:
        self._closed: asyncio.Task[None] | None = None

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

    async def leave(self) -> None:
        self._writer.close()
        assert self._closed is not None
        await self._closed

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass


def lookup(channel: grpc.aio.Channel) -> Awaitable[bytes]:
    request = message("danube.TopicLookupRequest")(request_id=1, topic=TOPIC)
    call = channel.unary_unary("/danube.Discovery/TopicLookup")
    answer: Awaitable[bytes] = call(request.SerializeToString(), timeout=WAIT_S)
    return answer


async def test_a_door_takes_so_many_connections_and_closes_those_beyond(open_doors: Open) -> None:
    address = await open_doors()
    inside = [await Stranger().connect(address) for _ in range(CONNECTIONS_MAX)]
    beyond = [await Stranger().connect(address) for _ in range(3)]

    assert [await one.is_closed() for one in beyond] == [True] * 3
    assert not any([await one.is_closed(0.05) for one in inside])
    for one in (*inside, *beyond):
        await one.leave()


async def test_strangers_make_room_by_themselves(open_doors: Open, short_patience: None) -> None:
    address = await open_doors()
    strangers = [await Stranger().connect(address) for _ in range(CONNECTIONS_MAX)]

    assert all([await one.is_closed() for one in strangers])
    async with grpc.aio.insecure_channel(address) as channel:
        assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
    for one in strangers:
        await one.leave()


async def test_an_idle_client_connects_again_when_it_asks(
    open_doors: Open, short_patience: None
) -> None:
    address = await open_doors()
    async with grpc.aio.insecure_channel(address) as channel:
        for _ in range(2):
            assert await status(lookup(channel)) is grpc.StatusCode.NOT_FOUND
            async with asyncio.timeout(WAIT_S):
                while (state := channel.get_state()) is not grpc.ChannelConnectivity.IDLE:
                    await channel.wait_for_state_change(state)


async def test_a_client_with_a_stream_is_not_idle(open_doors: Open, short_patience: None) -> None:
    address = await open_doors()
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
