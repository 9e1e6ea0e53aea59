"""A peer of which every frame of HTTP/2 is the test's own, and an honest client beside it.

Nothing of the broker's own HTTP/2 is used: a mistake there would be made here as well. Sockets
block, with a deadline: the broker is another process.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import Struct

import grpc
from hpack import Decoder, Encoder

WAIT_S = 20.0
POLL_S = 0.005
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 7, 8, 11
INITIAL_WINDOW = 4

# Length and type, flags, stream.
_HEADER = Struct(">IBI")
_PREFIX = Struct(">BI")

Fields = Sequence[tuple[str, str]]
# Type, flags, stream, payload.
Frame = tuple[int, int, int, bytes]


def frame(type_: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEADER.pack(len(payload) << 8 | type_, flags, stream) + payload


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame; settings are named by their number, as `s4=0`."""
    pairs = ((int(name[1:]), value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(Struct(">HI").pack(*pair) for pair in pairs))


def window(increment: int, stream: int = 0) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW, 0, stream, increment.to_bytes(4, "big"))


def reset(stream: int, code: int = CANCEL) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RESET, 0, stream, code.to_bytes(4, "big"))


def enveloped(message: bytes, *, flag: int = 0) -> bytes:
    """Return a message as gRPC has it in DATA frames."""
    return _PREFIX.pack(flag, len(message)) + message


def fields(path: str, *extra: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a call."""
    first = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
    return [*first, ("content-type", "application/grpc"), ("te", "trailers"), *extra]


class Peer:
    """A connection to a gRPC door. It reads only when it is told to."""

    def __init__(
        self,
        address: str,
        *,
        receive_bytes: int = 0,
        words: bytes | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`words` are the first of the connection, by default a preface with empty settings."""
        self.socket: socket.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(WAIT_S)
        host, _, port = address.rpartition(":")
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.encoder = Encoder()
        self._decoder = Decoder()
        self._buffer = b""
        # The newest one.
        self.stream = -1
        self.send(PREFACE + settings() if words is None else words)

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(b"".join(parts))

    def send_while_taken(self, data: bytes, *, within_s: float, quiet_s: float = 0.3) -> int:
        """Send until the broker takes no more, or the time is over; return how much it took."""
        self.socket.settimeout(quiet_s)
        end_s, sent, view = time.monotonic() + within_s, 0, memoryview(data)
        with suppress(TimeoutError, ConnectionError):
            while sent < len(data) and time.monotonic() < end_s:
                sent += self.socket.send(view[sent : sent + 64 * 1024])
        self.socket.settimeout(WAIT_S)
        return sent

    def next_stream(self) -> int:
        """Return the number of a stream that was not used yet."""
        self.stream += 2
        return self.stream

    def request(self, path: str, message: bytes | None, *extra: tuple[str, str]) -> bytes:
        """Return the frames of a call on `next_stream`; without a message, only its headers."""
        stream = self.next_stream()
        block = self.encoder.encode(fields(path, *extra))
        head = frame(HEADERS, END_HEADERS, stream, block)
        return head if message is None else head + data(stream, message)

    def frame(self) -> Frame | None:
        """Return the next frame, or `None` when the broker has closed the connection."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        word, flags, stream = _HEADER.unpack(header)
        payload = self._read(word >> 8)
        return None if payload is None else (word & 0xFF, flags, stream, payload)

    def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """Return headers and trailers of a call, and its DATA; other frames are skipped."""
        found: dict[str, str] = {}
        body = b""
        while (got := self.frame()) is not None:
            type_, flags, number, payload = got
            if type_ == HEADERS:
                decoded = {str(name): str(value) for name, value in self._decoder.decode(payload)}
                if number == stream:
                    found.update(decoded)
            elif number == stream and type_ == DATA:
                body += payload
            assert (type_, number) != (RESET, stream), f"reset: {payload!r}"
            if number == stream and type_ in (DATA, HEADERS) and flags & END_STREAM:
                return found, body
        raise ConnectionError("the broker has closed the connection")

    def wait_for(self, type_: int, *, flags: int = 0, stream: int = 0) -> bytes:
        """Skip to a frame, and return its payload."""
        while (got := self.frame()) is not None:
            if got[:3] == (type_, flags, stream):
                return got[3]
        raise ConnectionError("the broker has closed the connection")

    def farewell(self) -> int | None:
        """Read to the end; return the code of the GOAWAY, if one came."""
        code = None
        with suppress(ConnectionError):
            while (got := self.frame()) is not None:
                if got[0] == GOAWAY:
                    code = int.from_bytes(got[3][4:8], "big")
        return code

    def _read(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            part = self.socket.recv(256 * 1024)
            if not part:
                return None
            self._buffer += part
        read, self._buffer = self._buffer[:count], self._buffer[count:]
        return read


def data(stream: int, message: bytes) -> bytes:
    """Return the one frame of a request."""
    return frame(DATA, END_STREAM, stream, enveloped(message))


class Honest:
    """A client of `grpcio` that calls all the time from a thread, on one connection."""

    def __init__(self, address: str, path: str, message: bytes) -> None:
        self._address, self._path, self._message = address, path, message
        self._over = threading.Event()
        self.answers = 0
        self.failures: list[grpc.RpcError] = []

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Call all the time; at the end, check that every call was answered, a newcomer's too."""
        with self._open() as channel:
            self._call(channel)
            thread = threading.Thread(target=self._call_always, args=(channel,), name="honest")
            thread.start()
            try:
                yield
                before = self.answers
                with self._open() as newcomer:
                    self._call(newcomer)
                wait_until(lambda: self.answers > before or bool(self.failures), "an honest answer")
            finally:
                self._over.set()
                thread.join()
        assert not self.failures, self.failures

    def _open(self) -> grpc.Channel:
        # Each with a connection of its own.
        return grpc.insecure_channel(self._address, [("grpc.use_local_subchannel_pool", 1)])

    def _call(self, channel: grpc.Channel) -> None:
        channel.unary_unary(self._path)(self._message, timeout=WAIT_S)
        self.answers += 1

    def _call_always(self, channel: grpc.Channel) -> None:
        while not self._over.wait(POLL_S):
            try:
                self._call(channel)
            except grpc.RpcError as error:
                self.failures.append(error)
                return


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition of another process or thread."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(POLL_S)
