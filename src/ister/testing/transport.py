"""A connection in memory: two asyncio transports, each the other's peer.

Always true:
- bytes arrive in order, in a later turn of the event loop, and never after the connection ended;
- what was written and not yet taken by the peer counts as buffered: above the high-water mark
  the writer is paused, at the low-water mark resumed, as with a socket;
- `connection_lost` is called once on each end, in a later turn.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

Bytes = bytes | bytearray | memoryview
StreamProtocol = asyncio.Protocol | asyncio.BufferedProtocol

# asyncio's own defaults.
HIGH_WATER_BYTES = 64 * 1024
# What one read of a socket returns at most; larger writes arrive in pieces, as on a network.
READ_BYTES_MAX = 256 * 1024


class MemoryTransport(asyncio.Transport):
    """One end. Make both with `connect_pair`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = cast("StreamProtocol", protocol)
        self._peer: MemoryTransport | None = None
        self._outgoing = bytearray()
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._reading = True
        self._moving = False
        self._closing = False
        self._lost = False

    def attach(self, peer: "MemoryTransport") -> None:
        """Name the other end."""
        self._peer = peer

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `default`: there is no socket to tell anything about."""
        return default

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether bytes are handed to the protocol."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Leave what comes with the peer."""
        self._reading = False

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._reading = True
        if self._peer is not None:
            self._peer.move_soon()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand bytes to another protocol from now on."""
        self._protocol = cast("StreamProtocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which the protocol is paused and resumed."""
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high-water mark {high} is below low-water mark {low}")
        self._high, self._low = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high mark."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the peer has not taken yet."""
        return len(self._outgoing)

    def write(self, data: Bytes) -> None:
        """Send bytes; after `close` or `abort` they are dropped, as with a socket."""
        if self._closing:
            return
        self._outgoing += data
        if len(self._outgoing) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        self.move_soon()

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return false: neither end of our protocol closes by halves."""
        return False

    def close(self) -> None:
        """Send what is buffered, then end the connection for both."""
        if not self._closing:
            self._closing = True
            self.move_soon()

    def abort(self) -> None:
        """End the connection for both at once; what is buffered is lost."""
        self._closing = True
        self._outgoing.clear()
        self._end(None)

    # Between the two ends

    def move_soon(self) -> None:
        """Bring bytes to the peer in the next turn of the loop."""
        if not self._moving and not self._lost:
            self._moving = True
            self._loop.call_soon(self._move)

    def start(self) -> None:
        """Introduce the protocol to its transport."""
        self._protocol.connection_made(self)

    def _move(self) -> None:
        self._moving = False
        peer = self._peer
        if self._lost or peer is None:
            return
        if self._outgoing and peer.is_reading():
            taken = peer.hand_over(bytes(self._outgoing[:READ_BYTES_MAX]))
            del self._outgoing[:taken]
            if self._outgoing:
                self.move_soon()
        if self._writing_paused and len(self._outgoing) <= self._low and not self._lost:
            self._writing_paused = False
            self._protocol.resume_writing()
        if self._closing and (not self._outgoing or peer.is_closing()):
            self._end(None)

    def hand_over(self, data: bytes) -> int:
        """Give bytes to the protocol and return how many it took.

        A protocol that fails on them loses its connection, as with TCP.
        """
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                return self._fill(self._protocol, data)
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - asyncio's transports do the same
            self._loop.call_exception_handler(
                {"message": "protocol failed", "exception": error, "protocol": self._protocol}
            )
            self._closing = True
            self._end(error)
        return len(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: bytes) -> int:
        taken = 0
        # As with a socket, a protocol that stops reading in between leaves the rest behind.
        while taken < len(data) and self.is_reading():
            # Released after the call, as asyncio's do: a protocol may grow its buffer in between.
            with memoryview(protocol.get_buffer(len(data) - taken)) as space:
                count = min(len(space), len(data) - taken)
                space[:count] = data[taken : taken + count]
                protocol.buffer_updated(count)
            taken += count
        return taken

    def _end(self, error: Exception | None) -> None:
        for end in (self, self._peer):
            if end is not None:
                end.lose(error if end is self else None)

    def lose(self, error: Exception | None) -> None:
        """Tell the protocol, in the next turn, that the connection is gone."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._outgoing.clear()
        # A client that was closed together with its event loop has nobody left to tell.
        if not self._loop.is_closed():
            self._loop.call_soon(self._protocol.connection_lost, error)


def connect_pair(
    client: Callable[[], asyncio.BaseProtocol], server: Callable[[], asyncio.BaseProtocol]
) -> MemoryTransport:
    """Connect two new protocols and return the client's transport."""
    loop = asyncio.get_running_loop()
    near, far = MemoryTransport(loop, client()), MemoryTransport(loop, server())
    near.attach(far)
    far.attach(near)
    far.start()
    near.start()
    return near
