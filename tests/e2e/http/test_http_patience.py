"""How long the HTTP door waits for a body."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from ister.server.http import App, HttpDoor, bodies
from ister.server.http import door as door_module
from ister.server.native import NativeDoor
from ister.testing import MemoryBroker

pytestmark = pytest.mark.e2e

WAIT_S = 20.0
HEAD = (
    b"PUT /api/v1/namespaces/default/topics/a HTTP/1.1\r\nHost: a\r\n"
    b"Content-Type: application/json\r\nContent-Length: 16\r\n\r\n"
)

DOCUMENT = b"GET /api/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"

Address = tuple[str, int]


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    async with MemoryBroker() as broker:
        native = NativeDoor(broker.engine)
        door = HttpDoor(App(broker.engine, native))
        yield await door.listen("127.0.0.1", 0)
        await door.close()
        await native.close(0)


async def send_for_ever(line: socket.socket) -> None:
    """Ask for answers of some 100 KiB, more than any buffer takes."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await asyncio.get_running_loop().sock_sendall(line, DOCUMENT * 100)


async def test_a_body_that_does_not_come_costs_its_connection(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD + b'{"kind":')

    async with asyncio.timeout(WAIT_S):
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 408")
    writer.close()


async def test_a_body_that_comes_in_pieces_is_put_together(address: Address) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for byte in HEAD + b'{"kind": "live"}':
        writer.write(bytes([byte]))
        await writer.drain()

    async with asyncio.timeout(WAIT_S):
        assert await reader.readline() == b"HTTP/1.1 201 Created\r\n"
    writer.close()


async def test_who_does_not_take_its_answers_is_cut_off(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "REQUEST_S", 0.05)
    with socket.socket() as line:
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.get_running_loop().sock_connect(line, address)

        with pytest.raises(ConnectionError):
            await send_for_ever(line)


async def test_who_takes_its_answers_slowly_gets_them_all(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "REQUEST_S", 0.2)
    reader, writer = await asyncio.open_connection(*address, limit=4_096)
    writer.write(DOCUMENT * 20)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")

    found = b""
    async with asyncio.timeout(WAIT_S):
        while data := await reader.read(4_096):
            found += data

    assert found.count(b"HTTP/1.1 200 OK") == 21
    assert found.endswith(b"ok\n")
    writer.close()


async def test_who_goes_on_sending_what_was_refused_is_cut_off(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "REQUEST_S", 0.05)
    _, writer = await asyncio.open_connection(*address)
    writer.write(HEAD.replace(b"16", b"9999999999"))

    async def send_zeros() -> None:
        while True:
            writer.write(bytes(65_536))
            await writer.drain()

    sending = asyncio.ensure_future(send_zeros())
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait([sending])

    assert isinstance(sending.exception(), ConnectionError)
    writer.close()
