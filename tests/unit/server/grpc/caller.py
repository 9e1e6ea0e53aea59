"""A gRPC client that makes its frames by hand, at a server without a port, in moved time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any
from urllib.parse import unquote

from hpack import Decoder
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import DATA, END_HEADERS, END_STREAM, GRPC, HEADERS, Frame

from ister.base.limits import Limits
from ister.server.grpc.calls.calls import Call, Method, Reply
from ister.server.grpc.calls.server import GrpcServer
from ister.server.grpc.calls.session import GrpcSession
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.security import Authenticator
from ister.testing import VirtualClock
from ister.testing.clock import settle

PREFIX = Struct(">BI")


def message(data: bytes = b"", *, flag: int = 0) -> bytes:
    """Return a message as gRPC frames it."""
    return PREFIX.pack(flag, len(data)) + data


class FakeTransport(asyncio.Transport):
    """A socket that takes everything, and forgets what a turn has not sent when it is aborted."""

    def __init__(self, protocol: GrpcSession) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.reading = True
        self.closed = self.aborted = False
        # Whether the peer leaves everything in the socket's buffer.
        self.stuck = False
        # Whether the peer keeps its half of the connection when we have ended ours.
        self.stubborn = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "bytes were written to a closed connection"
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End our half; an honest peer ends its own at once."""
        if not self.stubborn:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self.stuck:
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        if not self.aborted and (self.stuck or not self.closed):
            self.closed = self.aborted = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


@dataclass
class Answer:
    """What came for one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None
    ended: bool = False

    @property
    def messages(self) -> list[bytes]:
        """The messages that are there as a whole."""
        found, position = [], 0
        while position + PREFIX.size <= len(self.body):
            flag, size_bytes = PREFIX.unpack_from(self.body, position)
            assert not flag
            start = position + PREFIX.size
            position = start + size_bytes
            if position <= len(self.body):
                found.append(bytes(self.body[start:position]))
        return found

    @property
    def status(self) -> int | None:
        """The status of gRPC, if there is one yet."""
        text = self.trailers.get("grpc-status")
        return None if text is None else int(text)

    @property
    def text(self) -> str:
        """What the status says."""
        return unquote(self.trailers.get("grpc-message", ""))


class Caller:
    """A client, which has said hello, and the server's end of its connection."""

    def __init__(self, server: GrpcServer, *, hello: bool = True) -> None:
        self.session = GrpcSession(server)
        self.transport = FakeTransport(self.session)
        self.session.connection_made(self.transport)
        self.answers: dict[int, Answer] = {}
        self.frames: list[Frame] = []
        self._decoder = Decoder()
        self._next_id = 1
        if hello:
            self.send(http2.PREFACE, http2.settings())

    def send(self, *frames: bytes) -> None:
        """Send frames in one piece."""
        self.session.data_received(b"".join(frames))

    def headers(
        self,
        path: str = "/t/Echo",
        *extra: tuple[bytes, bytes],
        method: bytes = b"POST",
        ended: bool = False,
    ) -> tuple[int, bytes]:
        """Return a new stream and the frame that opens it."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        fields = [*http2.replace(GRPC, path=path.encode(), method=method), *extra]
        flags = END_HEADERS | (END_STREAM if ended else 0)
        return stream_id, http2.headers(stream_id, http2.encode(fields), flags)

    def call(
        self,
        path: str = "/t/Echo",
        *extra: tuple[bytes, bytes],
        method: bytes = b"POST",
        body: bytes | None = None,
        ended: bool = True,
    ) -> int:
        """Send a request, by default with one empty message, and return its stream."""
        stream_id, head = self.headers(path, *extra, method=method)
        data = message() if body is None else body
        self.send(head, http2.data(stream_id, data, END_STREAM if ended else 0))
        return stream_id

    def read(self) -> list[Frame]:
        """Take what the server has sent, and return its frames."""
        frames = http2.parse_frames(bytes(self.transport.written))
        self.transport.written.clear()
        for one in frames:
            if one.stream_id:
                self._read(one, self.answers.setdefault(one.stream_id, Answer()))
        self.frames += frames
        return frames

    def _read(self, one: Frame, answer: Answer) -> None:
        if one.type == HEADERS:
            block = self._decoder.decode(one.payload, raw=True)
            fields = {name.decode(): value.decode("latin-1") for name, value in block}
            if ":status" in fields:
                answer.headers |= fields
            if one.flags & END_STREAM:
                assert not answer.ended, "a stream was ended twice"
                answer.trailers |= fields
        elif one.type == DATA:
            answer.body += one.payload
        elif one.type == http2.RST_STREAM:
            answer.reset = one.code
        answer.ended = answer.ended or bool(one.type in (DATA, HEADERS) and one.flags & END_STREAM)

    def answer(self, stream_id: int) -> Answer:
        """Return what came for a stream."""
        self.read()
        return self.answers.get(stream_id, Answer())

    def gone_away(self) -> Frame | None:
        """Return the last GOAWAY, if there was one."""
        self.read()
        return next((one for one in reversed(self.frames) if one.type == http2.GOAWAY), None)


class Table:
    """Handlers that do what a test wants, and say what became of them."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.replies: list[Reply] = []
        self.cancelled: list[str] = []
        self.written = 0
        self.error: Exception = ValueError("a bug")

    def methods(self) -> dict[str, Method]:
        """Return all methods by path."""
        return {
            "/t/Echo": Method("t/Echo", direct=self._echo),
            "/t/Later": Method("t/Later", direct=self._later),
            "/t/Large": Method("t/Large", direct=lambda data, reply: reply(bytes(int(data)))),
            "/t/DirectBug": Method("t/DirectBug", direct=self._fail),
            "/t/Slow": Method("t/Slow", run=self._slow),
            "/t/Raise": Method("t/Raise", run=self._raise),
            "/t/Count": Method("t/Count", run=self._count),
            "/t/Endless": Method("t/Endless", run=self._endless),
        }

    def _echo(self, data: bytes, reply: Reply) -> None:
        self.requests.append(data)
        reply(data)

    def _later(self, data: bytes, reply: Reply) -> None:
        self.requests.append(data)
        self.replies.append(reply)

    def _fail(self, _: bytes, __: Reply) -> None:
        raise self.error

    async def _slow(self, data: bytes, _: Call) -> bytes:
        self.requests.append(data)
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.cancelled.append("slow")
            raise

    async def _raise(self, _: bytes, __: Call) -> bytes:
        raise self.error

    async def _count(self, data: bytes, call: Call) -> None:
        for number in range(int(data)):
            await call.drained()
            call.write([b"%d" % number])

    async def _endless(self, data: bytes, call: Call) -> None:
        try:
            while True:
                await call.drained()
                call.write([bytes(int(data or b"1000"))])
                self.written += 1
        except asyncio.CancelledError:
            self.cancelled.append("endless")
            raise


class Desk:
    """A server without a port, whose time is moved."""

    def __init__(self, clock: VirtualClock, server: GrpcServer, table: Table) -> None:
        self.clock = clock
        self.server = server
        self.table = table

    @classmethod
    def open(
        cls,
        *,
        tokens: Path | None = None,
        connections_max: int = 100,
        handshakes_max: int = 50,
        now_ns: Callable[[], int] = lambda: 0,
    ) -> "Desk":
        """Start one in the running loop, whose timers follow the same clock."""
        clock, table = VirtualClock(), Table()
        loop = asyncio.get_running_loop()
        loop.time = lambda: clock.monotonic_ms() / 1000  # type: ignore[method-assign]
        server = GrpcServer(
            table.methods(),
            authenticator=Authenticator(tokens=tokens, now_ms=clock.monotonic_ms),
            limits=Limits(handshakes_max=handshakes_max),
            connections_max=connections_max,
            now_ms=clock.monotonic_ms,
            now_ns=now_ns,
        )
        return cls(clock, server, table)

    def caller(self, *, hello: bool = True) -> Caller:
        """Return a new client."""
        return Caller(self.server, hello=hello)

    async def pass_time(self, seconds: float) -> None:
        """Move on, run the timers that are due, and look at every session."""
        self.clock.advance(seconds)
        await settle()
        self.server.sweep()
        await settle()

    async def pass_seconds(self, count: int, *callers: Caller) -> None:
        """Move on second by second; the callers say a word in each."""
        for _ in range(count):
            for one in callers:
                one.send(http2.frame(http2.PING, http2.ACK, 0, bytes(8)))
            await self.pass_time(1.0)


def refusal(text: str, code: StatusCode = StatusCode.NOT_FOUND) -> Refusal:
    """Return an error of a handler."""
    return Refusal(code, text)


def statuses(caller: Caller, stream_ids: Sequence[int]) -> list[int | None]:
    """Return the status of each of several calls."""
    return [caller.answer(stream_id).status for stream_id in stream_ids]
