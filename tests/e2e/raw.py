"""A client that says exactly what a test wants, well-behaved or not, and what a process costs.

Blocking sockets with a deadline: the broker is another process, so nothing here waits for itself.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.e2e.conftest import BrokerProcess

from ister.base.errors import IsterError
from ister.base.limits import MIB
from ister.codec import encode
from ister.wire import (
    Command,
    ErrorReply,
    Frame,
    Hello,
    Opcode,
    OpenProducer,
    ProducerOpened,
    Subscribe,
    Subscribed,
    Welcome,
    control_frame,
    decode_command,
    error_of,
    publish_frame,
)
from ister.wire.frames import HEADER, MAGIC, FrameReader, body_limits

WAIT_S = 20.0
POLL_S = 0.005

_C = TypeVar("_C", bound=Command)


class RawClient:
    """A connection of which every byte is the test's own."""

    def __init__(self, broker: BrokerProcess, *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            # Before connecting: the window is agreed upon then. The kernel doubles it.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(WAIT_S)
        self.socket.connect((broker.host, broker.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader(body_limits(64 * MIB + 4_096))
        self._frames: list[Frame] = []
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, politely as far as TCP goes."""
        self.socket.close()

    def reset(self) -> None:
        """End the connection as a crash does: unread bytes are lost on both sides."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(b"".join(parts))

    def send_while_taken(self, data: bytes, *, quiet_s: float = 0.5) -> int:
        """Send until the broker takes no more for a while; return how much it took."""
        self.socket.settimeout(quiet_s)
        sent = 0
        view = memoryview(data)
        with suppress(TimeoutError, ConnectionError):
            while sent < len(data):
                sent += self.socket.send(view[sent : sent + 256 * 1024])
        self.socket.settimeout(WAIT_S)
        return sent

    def greet(self, client_id: str = "") -> Welcome:
        """Shake hands; who has the same id is the same client."""
        client_id = client_id or f"raw-{id(self)}"
        self.send(control_frame(Hello(client_id=client_id, secret=f"secret of {client_id}")))
        return self.expect(Welcome)

    def call(self, command: Command, expect: type[_C]) -> _C:
        """Ask, and return the answer, which must be of the kind expected."""
        self._sequence += 1
        self.send(control_frame(command, sequence=self._sequence))
        return self.expect(expect)

    def refusal(self, command: Command) -> IsterError:
        """Ask for what must be refused, and return the error."""
        return error_of(self.call(command, ErrorReply))

    def open_producer(self, topic: str, channel: int = 1) -> None:
        """Open a producer called `p`."""
        self.call(OpenProducer(topic=topic, name="p", channel=channel), ProducerOpened)

    def subscribe(self, topic: str, subscription: str, channel: int = 2) -> None:
        """Attach an exclusive consumer called `c`, without credit."""
        command = Subscribe(topic=topic, subscription=subscription, consumer="c", channel=channel)
        self.call(command, Subscribed)

    def expect(self, kind: type[_C]) -> _C:
        """Return the next command of a kind, skipping other frames."""
        while True:
            frame = self.frame()
            assert frame is not None, f"the broker closed the connection before {kind.__name__}"
            if frame[0] == Opcode.CONTROL:
                command = decode_command(frame[3])
                if isinstance(command, kind):
                    return command
                assert not isinstance(command, ErrorReply), command

    def frame(self) -> Frame | None:
        """Return the next frame, or `None` when the broker has closed the connection."""
        while not self._frames:
            try:
                data = self.socket.recv(256 * 1024)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames = self._reader.receive(data)
        return self._frames.pop(0)

    def farewell(self) -> IsterError | None:
        """Read to the end of the connection; return the last error told, if any."""
        error = None
        while (frame := self.frame()) is not None:
            if frame[0] == Opcode.CONTROL:
                command = decode_command(frame[3])
                if isinstance(command, ErrorReply):
                    error = error_of(command)
        return error


def header(size: int, opcode: int, *, channel: int = 0, sequence: int = 0) -> bytes:
    """Return a frame header that claims `size` bytes of body."""
    return HEADER.pack(size, opcode, 0, MAGIC, channel, sequence)


def publish(*payloads: bytes, channel: int = 1, sequence: int = 1) -> bytes:
    """Return a PUBLISH frame for the producer that `open_producer` opens."""
    head, body = encode(payloads, producer=b"p")
    return b"".join(publish_frame(channel, sequence, head, body))


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(POLL_S)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for a condition of this process that nothing tells of."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(POLL_S)


def memory_bytes(pid: int, field: str = "VmRSS") -> int:
    """Return the resident memory of a process; `VmHWM` for the highest it has been."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} of process {pid}")


@contextmanager
def memory_bounded(pid: int, growth_bytes_max: int) -> Iterator[None]:
    """Assert that a process never needs so much more memory than now while the block runs."""
    before = memory_bytes(pid)
    # 5 sets the high-water mark back to what is in use.
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    yield
    growth = memory_bytes(pid, "VmHWM") - before
    assert growth <= growth_bytes_max, f"{growth / MIB:.0f} MiB more at the worst"
