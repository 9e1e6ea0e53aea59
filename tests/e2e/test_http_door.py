"""The HTTP door against peers that are slow, silent or many."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

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


async def asked(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and have one answer."""
    reader, writer = await asyncio.open_connection(*address)
    await ask(reader, writer)
    return reader, writer


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(REQUEST)
    async with asyncio.timeout(WAIT_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await reader.readexactly(3) == b"ok\n"


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await read_to_end(reader) == b""
    except ConnectionResetError:
        return True


async def test_beyond_the_limit_the_connection_that_was_idle_for_longest_makes_room(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "CONNECTIONS_MAX", 3)
    first, second, third = [await asked(address) for _ in range(3)]
    # No longer the one that was idle for longest.
    await ask(*first)

    with capture_logs() as lines:
        late = [await asked(address) for _ in range(2)]

    assert await is_closed(second[0])
    assert await is_closed(third[0])
    for reader, writer in (first, *late):
        await ask(reader, writer)
    # At most one in a second.
    assert [(line["event"], line["error"], line["times"]) for line in lines] == [
        ("client_refused", "over 3 connections", 1)
    ]
    for _, writer in (first, second, third, *late):
        writer.close()


async def test_many_that_come_at_once_stay_within_the_limit(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "CONNECTIONS_MAX", 3)
    opened = await asyncio.gather(*(asyncio.open_connection(*address) for _ in range(30)))
    ended = [asyncio.create_task(is_closed(reader)) for reader, _ in opened]
    async with asyncio.timeout(WAIT_S):
        while sum(task.done() for task in ended) < 27:
            await asyncio.wait([t for t in ended if not t.done()], return_when="FIRST_COMPLETED")

    assert sum(task.done() for task in ended) == 27
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*ended)


async def test_a_connection_that_waits_for_its_answer_makes_no_room(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "CONNECTIONS_MAX", 1)
    reader, writer = await asyncio.open_connection(*address)
    # The body that is promised does not come.
    writer.write(
        b"PUT /api/v1/namespaces/default/topics/a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"
    )
    writer.write(b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(WAIT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
    other, second = await asyncio.open_connection(*address)

    assert await is_closed(other)
    assert not reader.at_eof()
    writer.close()
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


async def test_bad_requests_do_not_fill_the_log(address: Address) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    with capture_logs() as lines:
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"no request\r\n\r\n")
            await read_to_end(reader)
            writer.close()
    seconds = loop.time() - start

    events = [line["event"] for line in lines]
    assert events[:1] == ["client_refused"]
    assert len(events) <= 1 + seconds
