"""The connection in memory behaves as one over TCP."""

import asyncio
from typing import cast

import pytest

from ister.testing import MemoryTransport, connect_pair, settle
from ister.testing.transport import READ_BYTES_MAX


class Peer(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.data = b""
        self.chunks: list[int] = []
        self.lost: Exception | None = None
        self.fails = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("MemoryTransport", transport)
        self.seen.append("made")

    def data_received(self, data: bytes) -> None:
        """Keep the bytes."""
        if self.fails:
            raise RuntimeError("bug")
        self.data += data
        self.chunks.append(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.seen.append("lost")
        self.lost = exc

    def pause_writing(self) -> None:
        """Note the pause."""
        self.seen.append("paused")

    def resume_writing(self) -> None:
        """Note the end of the pause."""
        self.seen.append("resumed")


class BufferedPeer(asyncio.BufferedProtocol):
    """Reads into three bytes of its own, and stops after the first time."""

    def __init__(self) -> None:
        self.data = b""
        self._space = bytearray(3)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("MemoryTransport", transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the space for the next read."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what was read."""
        if not self.data:
            self.transport.pause_reading()
        self.data += self._space[:nbytes]


@pytest.fixture
async def pair() -> tuple[Peer, Peer]:
    """Two connected protocols."""
    near, far = Peer(), Peer()
    connect_pair(lambda: near, lambda: far)
    return near, far


async def test_bytes_arrive_in_a_later_turn_and_in_order(pair: tuple[Peer, Peer]) -> None:
    near, far = pair
    near.transport.write(b"one ")
    near.transport.writelines([b"two ", memoryview(b"three")])

    assert far.data == b""
    await settle()
    assert far.data == b"one two three"
    assert near.transport.get_write_buffer_size() == 0


async def test_large_writes_arrive_in_pieces(pair: tuple[Peer, Peer]) -> None:
    near, far = pair
    near.transport.write(bytes(2 * READ_BYTES_MAX + 1))
    await settle()

    assert far.chunks == [READ_BYTES_MAX, READ_BYTES_MAX, 1]


async def test_a_peer_that_does_not_read_pauses_the_writer(pair: tuple[Peer, Peer]) -> None:
    near, far = pair
    near.transport.set_write_buffer_limits(high=100, low=10)
    far.transport.pause_reading()
    near.transport.write(bytes(100))
    assert near.seen == ["made"]
    near.transport.write(b"x")
    await settle()

    assert near.seen == ["made", "paused"]
    assert (far.data, near.transport.get_write_buffer_size()) == (b"", 101)
    far.transport.resume_reading()
    await settle()
    assert near.seen == ["made", "paused", "resumed"]
    assert len(far.data) == 101


async def test_close_sends_what_is_buffered_and_then_ends_both(pair: tuple[Peer, Peer]) -> None:
    near, far = pair
    near.transport.write(b"last words")
    near.transport.close()
    near.transport.write(b"too late")

    assert near.transport.is_closing()
    await settle()
    assert far.data == b"last words"
    assert (near.seen, far.seen) == (["made", "lost"], ["made", "lost"])


async def test_abort_drops_what_is_buffered(pair: tuple[Peer, Peer]) -> None:
    near, far = pair
    near.transport.write(b"lost words")
    near.transport.abort()
    near.transport.abort()
    await settle()

    assert far.data == b""
    assert (near.seen, far.seen) == (["made", "lost"], ["made", "lost"])


async def test_closing_towards_a_peer_that_does_not_read_waits_for_it(
    pair: tuple[Peer, Peer],
) -> None:
    near, far = pair
    far.transport.pause_reading()
    near.transport.write(b"x")
    near.transport.close()
    await settle()
    assert near.seen == ["made"]
    far.transport.resume_reading()
    await settle()

    assert far.data == b"x"
    assert near.seen == ["made", "lost"]


async def test_a_protocol_that_fails_loses_its_connection(pair: tuple[Peer, Peer]) -> None:
    near, far = pair
    loop = asyncio.get_running_loop()
    told: list[str] = []
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    far.fails = True
    near.transport.write(b"x")
    await settle()

    assert told == ["protocol failed"]
    assert isinstance(far.lost, RuntimeError)
    assert near.seen == ["made", "lost"]


async def test_a_protocol_with_its_own_buffer_is_read_into() -> None:
    near, far = Peer(), BufferedPeer()
    connect_pair(lambda: near, lambda: far)
    near.transport.write(b"0123456789")
    await settle()

    assert (far.data, near.transport.get_write_buffer_size()) == (b"012", 7)
    far.transport.resume_reading()
    await settle()
    assert (far.data, near.transport.get_write_buffer_size()) == (b"0123456789", 0)
