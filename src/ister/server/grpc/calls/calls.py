"""One gRPC call: its request as it comes, its answer as it goes.

    OPENING --the whole request--> RUNNING --answer, error, deadline, reset--> over

Always true: a call is answered once; whatever comes for it later is dropped.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

from ister.base.errors import IsterError
from ister.server.grpc.calls.status import Refusal, StatusCode, code_of
from ister.server.http2 import Stream, encode_header
from ister.server.security import Pass

if TYPE_CHECKING:
    from ister.server.grpc.calls.session import GrpcSession

# Whether a message is compressed, and its length.
PREFIX = Struct(">BI")
# Answers that do not wait for others to be sent together.
LARGE_BYTES = 64 * 1024
# A text travels in a header, at worst with twelve bytes for a character. A client takes 8 KiB of
# headers; of more, it makes RESOURCE_EXHAUSTED, which Danube's clients repeat for ever.
DETAILS_MAX = 600

# `:status: 200` is an entry of HPACK's static table.
HEADERS = b"\x88" + encode_header(b"content-type", b"application/grpc")
ACCEPTED = encode_header(b"grpc-accept-encoding", b"identity")
TRAILERS = encode_header(b"grpc-status", b"0")
# What a status text may have as it is: printable, and not the sign of an escape.
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x25}

# Gets the answer, or why there is none.
Reply = Callable[[bytes | BaseException], None]
# Answers a request, now or later, in the bytes of the wire: for what is called for every message.
Direct = Callable[[bytes, Reply], None]


@dataclass(frozen=True, slots=True)
class Method:
    """What answers the calls of one path: `direct`, or `run`, which writes what streams."""

    name: str
    direct: Direct | None = None
    run: Callable[[bytes, "Call"], Any] | None = None


class Call:
    """One gRPC call; handlers get it as their context. Handlers have it as their context."""

    __slots__ = (
        "begun_ms",
        "body",
        "body_bytes",
        "deadline",
        "expires_s",
        "method",
        "over",
        "ready",
        "session",
        "shown",
        "started",
        "stream",
        "task",
    )

    def __init__(
        self, session: "GrpcSession", stream: Stream, method: Method, shown: Pass, now_ms: int
    ) -> None:
        self.session = session
        self.stream = stream
        self.method = method
        self.shown = shown
        # When something of the request came last.
        self.begun_ms = now_ms
        self.body = bytearray()
        self.body_bytes = 0
        # When the client gives up, by the clock of the event loop.
        self.expires_s: float | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        # Set while a task waits for room to write.
        self.ready: asyncio.Future[None] | None = None
        # Whether headers were sent, and whether everything was, or nothing more will be.
        self.started = False
        self.over = False

    def peer(self) -> str:
        """Return the address of the client."""
        return self.session.address

    # What a stream is written with

    @property
    def writable(self) -> bool:
        """Whether the client, and the network, have taken what was written."""
        return not self.stream.pending_bytes and self.session.has_room

    async def drained(self) -> None:
        """Wait until the call is `writable`."""
        while not self.writable:
            self.ready = asyncio.get_running_loop().create_future()
            self.session.wait_for_room(self)
            await self.ready

    def write(self, messages: Sequence[bytes]) -> None:
        """Send messages, which go out together. The caller waits until `drained`."""
        if self.over or not messages:
            return
        parts: list[bytes] = []
        for message in messages:
            parts += (PREFIX.pack(0, len(message)), message)
        out = self.session.connection.out
        if not self.started:
            self.started = True
            out.send_headers(self.stream, HEADERS)
        out.send_data(self.stream, b"".join(parts))
        self.session.mark_dirty()

    # How it ends

    def reply(self, answer: bytes | BaseException) -> None:
        """Answer the call, or say why not."""
        if self.over:
            return
        if isinstance(answer, bytes):
            self._end()
            data = PREFIX.pack(0, len(answer)) + answer
            self.session.connection.out.send_whole(self.stream, HEADERS, data, TRAILERS)
            self.session.on_answered(self)
            if len(data) > LARGE_BYTES:
                # So that it is noticed at once when the client does not read.
                self.session.flush()
        else:
            self.fail(answer)

    def finish(self) -> None:
        """End a stream with a good status."""
        if not self.over:
            self._end()
            self._send_status(TRAILERS)

    def fail(self, error: BaseException) -> None:
        """End the call with the status that `error` stands for."""
        if isinstance(error, IsterError):
            self.refuse(code_of(error), f"[{error.code}] {error}")
        elif isinstance(error, Refusal):
            self.refuse(error.code, error.text)
        else:
            self.session.on_bug(self, error)
            self.refuse(StatusCode.INTERNAL, "a bug in the broker; its log says more")

    def refuse(self, code: StatusCode, text: str) -> None:
        """End the call with a status."""
        if self.over:
            return
        self._end()
        block = encode_header(b"grpc-status", str(int(code)).encode())
        block += encode_header(b"grpc-message", encode_text(text[:DETAILS_MAX]))
        if code is StatusCode.UNIMPLEMENTED:
            block += ACCEPTED
        self._send_status(block)

    def cancel(self) -> None:
        """The client has gone away, or its connection has."""
        if not self.over:
            self._end()
            self.session.on_answered(self)

    def _send_status(self, block: bytes) -> None:
        trailers = block if self.started else HEADERS + block
        self.session.connection.out.send_trailers(self.stream, trailers)
        self.session.on_answered(self)

    def _end(self) -> None:
        self.over = True
        self.body.clear()
        if self.deadline is not None:
            self.deadline.cancel()
        task = self.task
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()


def encode_text(text: str) -> bytes:
    """Return a text as `grpc-message` has it: percent-encoded."""
    encoded = text.encode(errors="replace")
    if _PLAIN.issuperset(encoded):
        return encoded
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in encoded)
