"""The HTTP door against peers that are slow, silent or many."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ister.base.limits import Limits
from ister.broker import Broker
from ister.server.http import App, HttpDoor
from ister.server.http import door as door_module
from ister.server.native import NativeDoor
from ister.telemetry import SystemClock

pytestmark = pytest.mark.e2e

WAIT_S = 20.0

Address = tuple[str, int]
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    loop = asyncio.get_running_loop()
    broker = Broker(
        name="b",
        limits=Limits(),
        clock=SystemClock(loop.call_later),
        random_slot=lambda count: 0,
    )
    native = NativeDoor(broker)
    door = HttpDoor(App(broker, native))
    yield await door.listen("127.0.0.1", 0)
    await door.close()
    await native.close(0)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "REQUEST_S", 0.05)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo", REQUEST + b"GET /"])
async def test_a_peer_that_sends_no_whole_request_is_closed(
    sent: bytes, address: Address, short_patience: None
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)

    await read_to_end(reader)
    writer.close()


async def test_connections_beyond_the_limit_are_closed(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "CONNECTIONS_MAX", 1)
    first_reader, first = await asyncio.open_connection(*address)
    first.write(REQUEST)
    assert await first_reader.readline() == b"HTTP/1.1 200 OK\r\n"

    reader, second = await asyncio.open_connection(*address)
    try:
        assert await read_to_end(reader) == b""
    except ConnectionResetError:
        pass
    first.close()
    second.close()


async def test_several_requests_use_one_connection(address: Address) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(3):
        writer.write(REQUEST)
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(3) == b"ok\n"

        assert head.startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_scrapes_at_once_all_get_an_answer(address: Address) -> None:
    async def scrape() -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        text = await read_to_end(reader)
        writer.close()
        return text

    for text in await asyncio.gather(*(scrape() for _ in range(5))):
        assert b"ister_uptime_seconds" in text
