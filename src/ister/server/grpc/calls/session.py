"""The broker's end of one gRPC connection: HTTP/2 events in, calls of handlers, answers out.

Always true:
- a call that our own code fails on costs that call; a broken frame costs the connection;
- a peer that does not read what it is sent is not read from either;
- what a peer sends is dealt with in the order it came, a few milliseconds in each turn of the loop.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from ister.base.errors import UnauthenticatedError
from ister.base.limits import KIB, MIB
from ister.server.grpc.calls.calls import PREFIX, Call, Method
from ister.server.grpc.calls.status import StatusCode
from ister.server.http2 import (
    ConnectionFailedError,
    DataReceived,
    ErrorCode,
    Event,
    Head,
    Http2Connection,
    RequestReceived,
    Stream,
    StreamDrained,
    StreamFailedError,
    StreamReset,
    encode_header,
)
from ister.server.http2.headers import HEADERS_BYTES_MAX
from ister.server.security import BEARER_HINT, Pass, bearer

if TYPE_CHECKING:
    from ister.server.grpc.calls.server import GrpcServer

# Far above what a message may have, so that we say what is too large.
REQUEST_BYTES_MAX = 32 * MIB
# Enough to keep a fast reader's socket full between two turns of the loop.
SEND_BUFFER_BYTES = MIB
# What waits for room in a client's windows. Streams write no more beyond the first; beyond the
# second, which only answers reach, of a client that asks and does not read, the connection ends.
# It is room for the largest messages of some streams that the client has stopped reading, so that
# others of its connection go on.
PENDING_BYTES = 16 * MIB
PENDING_BYTES_MAX = 32 * MIB
# A read of so much may have filled the buffer of uvloop, which then reads again, up to 32 times in
# one turn of the loop. Others would wait for all of them: one such read is enough for a turn.
LARGE_READ_BYTES = 128 * KIB
# What is read of a client after we have ended our half, and forgotten: an honest one sends no more
# than its windows allow, 8 MiB of requests and some small frames.
AFTER_END_BYTES_MAX = 16 * MIB
# Streams that a client may break, or give up before they were answered, in a minute: it pays for
# each with a frame, and we with ten times the work.
MISTAKES_MAX = 1_000

_NOWHERE = Method("")
_NO_MESSAGE = (StatusCode.INVALID_ARGUMENT, "the request has no whole message")


class GrpcSession(asyncio.Protocol):
    """The broker's end of one gRPC connection."""

    def __init__(self, server: "GrpcServer") -> None:
        self.server = server
        self.address = ""
        self.connection = Http2Connection()
        self.calls: dict[int, Call] = {}
        # Whether a handler has been given a call of this client.
        self.known = False
        # Of requests that are not complete, as the server has counted them.
        self.buffered_bytes = 0
        now_ms = server.now_ms()
        self.connected_ms = self.heard_ms = self.busy_ms = now_ms
        self.pinged_ms: int | None = None
        self.mistakes = 0
        # Whether no more calls are taken; and when the end began, for what is left to be sent.
        self.closing = False
        self.ended_ms: int | None = None
        # Whether our half of the connection has ended, and what has come since.
        self._half_closed = False
        self._after_end_bytes = 0
        self._writable = True
        self._dirty = False
        # Whether frames wait for a later turn.
        self._waiting = False
        self._transport: asyncio.Transport | None = None
        # Calls that wait for room to write.
        self._blocked: dict[int, Call] = {}

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "memory"
        self.mark_dirty()
        self.server.on_connected(self)
        self.server.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        self._begin_end()
        self._cancel_calls()
        self.server.on_disconnected(self)

    def pause_writing(self) -> None:
        """The peer reads too slowly: stop reading from it."""
        self._writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._writable = True
        self._wake_blocked()
        self._resume_reading()

    def data_received(self, data: bytes) -> None:
        """Act on the frames completed by `data`."""
        if self._half_closed:
            self._after_end_bytes += len(data)
            if self._after_end_bytes > AFTER_END_BYTES_MAX:
                self.abort()
            return
        self.heard_ms = self.server.now_ms()
        self.connection.receive(data)
        self.server.turns.begin()
        self._act()
        if len(data) >= LARGE_READ_BYTES and not self._waiting and self.ended_ms is None:
            self._wait()

    def go_through(self) -> None:
        """Go on with what an earlier turn was too short for."""
        self._waiting = False
        if self.ended_ms is None:
            self._act()
            self._resume_reading()

    # For the server

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self.calls

    @property
    def has_room(self) -> bool:
        """Whether streams may write."""
        return self._writable and self.connection.out.pending_bytes < PENDING_BYTES

    def wait_for_room(self, call: Call) -> None:
        """Wake a call when it may write."""
        self._blocked[call.stream.id] = call

    def mark_dirty(self) -> None:
        """Something is to be sent."""
        if not self._dirty:
            self._dirty = True
            self.server.mark_dirty(self)

    def flush(self) -> None:
        """Hand everything queued to the socket."""
        self._dirty = False
        out = self.connection.outgoing()
        transport = self._transport
        if self._half_closed or transport is None or transport.is_closing():
            return
        if out:
            transport.write(b"".join(out))

    def go_away(self, reason: str) -> None:
        """Take no more calls, and close the connection when those under way are answered."""
        self.connection.go_away(reason)
        self.mark_dirty()
        self.closing = True
        self._close_if_done()

    def close(self) -> None:
        """End our half of the connection, and wait until the client ends its own.

        The server bounds how long. Until then whatever comes is read and forgotten: if it were
        left to the kernel, closing would reset the connection, and the client would lose what is
        still on its way to it. A client that has made no call has no answers to lose, and its
        connection does not take up a file for longer.
        """
        self._begin_end()
        self.flush()
        transport = self._transport
        if transport is None or self._half_closed or transport.is_closing():
            return
        if not self.known:
            transport.close()
            return
        self._half_closed = True
        if transport.can_write_eof():
            transport.write_eof()
        # TLS cannot end one half. GOAWAY was sent, at which a client closes the connection.
        transport.resume_reading()
        self.server.on_leaving(self)

    def leave(self) -> None:
        """Close the connection without waiting for the client, once everything queued is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._begin_end()
        if self._transport is not None:
            self._transport.abort()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """Tell the peer why, then close the connection."""
        self._fail(ConnectionFailedError(code, reason))

    def ping(self, now_ms: int) -> None:
        """Ask for a sign of life."""
        self.pinged_ms = now_ms
        self.connection.ping()
        self.mark_dirty()

    # For the calls

    def expire(self, call: Call) -> None:
        """End a call whose time is over."""
        call.refuse(StatusCode.DEADLINE_EXCEEDED, "the time that the client gave is over")
        self.server.flush_soon()

    def on_answered(self, call: Call) -> None:
        """A call is over."""
        if self.calls.pop(call.stream.id, None) is not None:
            self.server.calls_count -= 1
        self._blocked.pop(call.stream.id, None)
        self._count_buffered(call, -call.body_bytes)
        if not self.calls:
            self.busy_ms = self.server.now_ms()
            self._close_if_done()
        self.mark_dirty()
        if self.connection.out.pending_bytes > PENDING_BYTES_MAX:
            reason = f"more than {PENDING_BYTES_MAX} B of answers that nobody reads"
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, reason)

    def on_bug(self, call: Call, error: BaseException) -> None:
        """Our own code failed on a call: the broker lives on, the log tells."""
        self.server.on_bug(call.method.name, error)

    # Inner workings

    def _act(self) -> None:
        """Act on what came, until the turn is over."""
        connection, turns = self.connection, self.server.turns
        self.server.begin_read()
        try:
            while connection.has_next():
                try:
                    event = connection.next_event()
                except StreamFailedError as error:
                    self._on_mistake(error)
                    event = None
                if event is not None:
                    self._on_event(event)
                # After each frame: one with headers may take milliseconds.
                if turns.is_over() and connection.has_next():
                    self._wait()
                    break
        except ConnectionFailedError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a bug must cost one connection, not all
            self.server.on_bug("", error)
            self.abort()
        self.mark_dirty()
        self.server.end_read()

    def _fail(self, error: ConnectionFailedError) -> None:
        """End the connection because of what its peer did."""
        self.connection.fail(error)
        self.server.on_refused(self, error.reason)
        self._begin_end()
        self._cancel_calls()
        # One that is not reading would not read why.
        if self._writable:
            self.close()
        else:
            self.abort()

    def _begin_end(self) -> None:
        self.closing = True
        if self.ended_ms is None:
            self.ended_ms = self.server.now_ms()

    def _cancel_calls(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()

    def _close_if_done(self) -> None:
        """Close a connection that is going away when its answers are sent."""
        if self.closing and self.ended_ms is None and not self.connection.streams:
            self.server.call_soon(self.close)

    def _wait(self) -> None:
        self._waiting = True
        if self._transport is not None:
            self._transport.pause_reading()
        self.server.turns.wait(self)

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._writable and not self._waiting:
            transport.resume_reading()

    def _on_event(self, event: Event) -> None:
        match event:
            case DataReceived(stream, data):
                call = self.calls.get(stream.id)
                if call is not None:
                    self._on_data(call, data)
            case RequestReceived(stream, head):
                self._on_request(stream, head)
            case StreamReset(stream):
                call = self.calls.get(stream.id)
                if call is not None:
                    self._count_mistake()
                    call.cancel()
                self._on_room()
            case StreamDrained():
                self._on_room()

    def _on_request(self, stream: Stream, head: Head) -> None:
        server = self.server
        if head.method != b"POST" or not head.content_type.startswith(b"application/grpc"):
            status = b"405" if head.method != b"POST" else b"415"
            self.connection.out.send_trailers(stream, encode_header(b":status", status))
            self._count_mistake()
            return
        now_ms = self.heard_ms
        try:
            shown = server.authenticator.check(
                bearer(head.authorization), door="grpc", address=self.address
            )
        except UnauthenticatedError as error:
            call = Call(self, stream, _NOWHERE, Pass(), now_ms)
            call.fail(UnauthenticatedError(f"{error.reason}; {BEARER_HINT}"))
            return
        method = server.methods.get(head.path)
        call = Call(self, stream, method or _NOWHERE, shown, now_ms)
        if method is None:
            path = head.path[:100].decode("latin-1")
            call.refuse(StatusCode.UNIMPLEMENTED, f"there is no method {path!r}")
        elif head.size_bytes > HEADERS_BYTES_MAX:
            reason = f"metadata of {head.size_bytes} B: {HEADERS_BYTES_MAX} at most"
            # gRPC's own servers say RESOURCE_EXHAUSTED, which Danube's clients take for a broker
            # that is busy: they would send the same again.
            call.refuse(StatusCode.INVALID_ARGUMENT, reason)
        elif head.encoding not in (b"", b"identity"):
            encoding = head.encoding[:50].decode("latin-1")
            call.refuse(StatusCode.UNIMPLEMENTED, f"messages compressed with {encoding!r}")
        elif head.bad_timeout:
            call.refuse(StatusCode.INVALID_ARGUMENT, "grpc-timeout is not a time")
        else:
            if head.timeout_s is not None:
                call.expires_s = asyncio.get_running_loop().time() + head.timeout_s
            self.calls[stream.id] = call
            server.count_call()
            if stream.client_ended and not call.over:
                self._on_data(call, b"")

    def _on_data(self, call: Call, data: bytes) -> None:
        if call.over or call.task is not None:
            return
        size_bytes = len(data)
        ended = call.stream.client_ended
        if ended and not call.body and size_bytes >= PREFIX.size:
            # Most requests: one frame.
            flag, length = PREFIX.unpack_from(data)
            if length == size_bytes - PREFIX.size and not flag:
                self._dispatch(call, data[PREFIX.size :])
                return
        call.body += data
        call.begun_ms = self.heard_ms
        self._count_buffered(call, size_bytes)
        mistake = self._find_mistake(call)
        if mistake is not None:
            call.refuse(*mistake)
        elif ended:
            self._dispatch(call, bytes(call.body[PREFIX.size :]))

    def _find_mistake(self, call: Call) -> tuple[StatusCode, str] | None:
        """Return what is wrong with the part of a request that is there."""
        size_bytes, ended = len(call.body), call.stream.client_ended
        if size_bytes < PREFIX.size:
            return _NO_MESSAGE if ended else None
        flag, length = PREFIX.unpack_from(call.body)
        if flag:
            return StatusCode.UNIMPLEMENTED, "compressed messages are not accepted"
        if length > REQUEST_BYTES_MAX:
            text = f"a request of {length} B: {REQUEST_BYTES_MAX} at most"
            return StatusCode.INVALID_ARGUMENT, text
        if size_bytes > PREFIX.size + length:
            return StatusCode.INVALID_ARGUMENT, "more than one message in a request"
        return _NO_MESSAGE if ended and size_bytes < PREFIX.size + length else None

    def _dispatch(self, call: Call, message: bytes) -> None:
        """Give a whole request to its handler."""
        if not self.known:
            self.known = True
            self.server.on_known(self)
        self._count_buffered(call, -call.body_bytes)
        call.body.clear()
        loop = asyncio.get_running_loop()
        method = call.method
        if call.expires_s is not None and call.expires_s <= loop.time():
            self.expire(call)
            return
        if method.direct is not None:
            try:
                method.direct(message, call.reply)
            except Exception as error:  # noqa: BLE001 - a bug must cost one call, not the broker
                call.fail(error)
        else:
            call.task = loop.create_task(self._run(call, message))
        if call.expires_s is not None and not call.over:
            call.deadline = loop.call_at(call.expires_s, self.expire, call)

    async def _run(self, call: Call, message: bytes) -> None:
        """Have a handler answer a call."""
        run = call.method.run
        assert run is not None
        try:
            if not self.has_room:
                # Of many calls in one read, most begin when the first large answers are taken.
                await call.drained()
            answer = await run(message, call)
        except asyncio.CancelledError:
            # Whoever cancelled has said why.
            if not call.over:
                call.refuse(StatusCode.UNAVAILABLE, "the broker is shutting down")
            return
        except Exception as error:  # noqa: BLE001 - a bug must cost one call, not the broker
            call.fail(error)
        else:
            if answer is None:
                call.finish()
            else:
                call.reply(answer)
        self.server.flush_soon()

    def _count_buffered(self, call: Call, change: int) -> None:
        call.body_bytes += change
        if change:
            self.server.count_buffered(self, change)

    def _on_mistake(self, error: StreamFailedError) -> None:
        call = self.calls.get(error.stream_id)
        if call is not None:
            call.cancel()
        self._count_mistake()
        self._on_room()

    def _count_mistake(self) -> None:
        self.mistakes += 1
        if self.mistakes > MISTAKES_MAX:
            raise ConnectionFailedError(
                ErrorCode.ENHANCE_YOUR_CALM, f"over {MISTAKES_MAX} streams given up or broken"
            )

    def _on_room(self) -> None:
        """Something that waited for room was sent, or is gone."""
        self._wake_blocked()
        self._close_if_done()

    def _wake_blocked(self) -> None:
        for call in [c for c in self._blocked.values() if c.over or c.writable]:
            del self._blocked[call.stream.id]
            if call.ready is not None and not call.ready.done():
                call.ready.set_result(None)
