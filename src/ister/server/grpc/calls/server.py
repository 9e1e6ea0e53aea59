"""A gRPC server on one port, in the broker's event loop.

Always true:
- connections of which no call has reached a handler are few: the oldest makes room;
- a connection without a call under way, and a peer that says nothing, are ended after a while;
- requests that are not complete stay below one limit, all of them together;
- every session with something to send is flushed before the loop waits again.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter_ns

import structlog

from ister.base.errors import UnauthenticatedError
from ister.base.limits import MIB, Limits
from ister.broker import ConnectionCounts, Turns
from ister.server.grpc.calls.calls import Method
from ister.server.grpc.calls.session import GrpcSession
from ister.server.grpc.calls.status import StatusCode
from ister.server.handshakes import Handshakes
from ister.server.http2 import ErrorCode
from ister.server.security import TOKEN_GONE, Authenticator
from ister.telemetry import Occasions

logger = structlog.get_logger("grpc")

# A connection that nothing was heard on for so long is asked for a sign of life, and cut off when
# none comes: its consumers' messages wait for somebody.
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
# Between a connection and the first words of HTTP/2.
HANDSHAKE_MS_MAX = 5_000
# Between two parts of a request.
REQUEST_MS_MAX = 30_000
# A connection without a call under way is ended after this. Danube's clients ask every 5 s
# whether they are well, and a stream is a call; any client of gRPC connects again when it has
# something to ask.
IDLE_MS_MAX = 30_000
# What is queued for a peer when its connection ends, and the peer does not read.
GOODBYE_MS_MAX = 5_000
SWEEP_S = 1.0
# Sessions and calls that are looked at in one step: a few milliseconds, but for one client with
# more calls.
LOOKS_AT_ONCE = 2_000
# How many of them until mistakes of clients are forgotten: a minute.
SWEEPS_PER_PARDON = 60
# Requests that have begun to arrive and not ended, of all connections: 8 of the largest.
BUFFERED_BYTES_MAX = 256 * MIB
# Calls of all connections that are not over, at about 1.5 KB each: ten Danube clients with as many
# streams as one may have.
CALLS_MAX = 100_000
# Connections beyond the limit that are being closed.
LEAVING_MAX = 8
# Connections whose clients have not yet ended their half after we have ended ours: of more, the
# oldest is closed.
HALF_CLOSED_MAX = 64
# A queue of connections waiting to be accepted, for a thousand clients that start at once.
BACKLOG = 4_096


class GrpcServer:
    """Accepts gRPC connections on one port and closes them gracefully."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        authenticator: Authenticator,
        limits: Limits,
        connections_max: int,
        now_ms: Callable[[], int],
        counts: ConnectionCounts | None = None,
        turns: Turns | None = None,
        now_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """`now_ms` is a clock that only rises."""
        loop = asyncio.get_running_loop()
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.authenticator = authenticator
        self.now_ms = now_ms
        self.call_soon = loop.call_soon
        self.turns = turns or Turns(call_soon=loop.call_soon, now_ns=now_ns)
        # Called when everything that was read is dealt with, before answers are sent.
        self.after_read: list[Callable[[], object]] = []
        self.sessions: set[GrpcSession] = set()
        self.counts = counts or ConnectionCounts()
        self._handshakes_max = limits.handshakes_max
        self._connections_max = connections_max
        # In order of arrival, for the oldest to make room.
        self._strangers: dict[GrpcSession, None] = {}
        # Connections of which our half has ended, in the order in which it did.
        self._leaving: dict[GrpcSession, None] = {}
        self._buffered_bytes = 0
        # Calls that are not over, of all connections.
        self.calls_count = 0
        self.calls_max = CALLS_MAX
        # Whether frames are being acted on, after which everything dirty is flushed.
        self._reading = False
        self._dirty: list[GrpcSession] = []
        self._flush_scheduled = False
        self._handshakes: Handshakes | None = None
        self._server: asyncio.Server | None = None
        # Set while the server closes.
        self._all_gone: asyncio.Future[None] | None = None
        self._sweeps = 0
        self._sweeping: asyncio.TimerHandle | None = None
        # What peers can make happen as often as they like is told once in a while.
        self._told = Occasions(now_ms)

    async def listen(self, host: str, port: int) -> int:
        """Open the port and return its number; port 0 picks a free one."""
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = partial(GrpcSession, self)
        if self.authenticator.certificate is not None:
            certificate = self.authenticator.certificate
            self._handshakes = Handshakes(
                lambda: certificate.http2_context,
                count_max=self._handshakes_max,
                on_failed=self._on_handshake_failed,
            )
            make = partial(self._handshakes.protocol, lambda _: GrpcSession(self))
        self._server = await loop.create_server(make, host, port, backlog=BACKLOG)
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, deadline_s: float) -> None:
        """Stop accepting, answer what is under way until the deadline, then close."""
        loop = asyncio.get_running_loop()
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        end_s = loop.time() + deadline_s
        for session in list(self.sessions):
            session.go_away("the broker is shutting down")
        self.flush()
        if self.sessions:
            self._all_gone = loop.create_future()
            await asyncio.wait({self._all_gone}, timeout=max(end_s - loop.time(), 0.0))
        for session in list(self.sessions):
            for call in list(session.calls.values()):
                call.refuse(StatusCode.UNAVAILABLE, "the broker is shutting down")
            session.close()
        if self._sweeping is not None:
            # Not before: it cuts off who does not leave.
            self._sweeping.cancel()
        # uvloop writes at the end of a turn.
        await asyncio.sleep(0)
        for session in list(self.sessions):
            session.abort()

    # From the sessions

    def on_connected(self, session: GrpcSession) -> None:
        """Count a new connection in, or refuse it."""
        self.counts.accepted += 1
        self.sessions.add(session)
        self.counts.open += 1
        self._strangers[session] = None
        count = len(self.sessions) - len(self._leaving)
        many = count > self._connections_max
        if many or len(self._strangers) > self._handshakes_max:
            oldest = next(iter(self._strangers))
            reason = "too many connections, and no call has come on this one"
            if oldest is session:
                reason = f"more than {self._connections_max} connections"
            self._forget_stranger(oldest)
            oldest.fail(ErrorCode.ENHANCE_YOUR_CALM, reason)
            if count > self._connections_max + LEAVING_MAX:
                # Over TLS a polite end takes up to a second.
                oldest.abort()

    def on_known(self, session: GrpcSession) -> None:
        """A call of a client has reached a handler."""
        self._forget_stranger(session)

    def _forget_stranger(self, session: GrpcSession) -> None:
        self._strangers.pop(session, None)

    def on_leaving(self, session: GrpcSession) -> None:
        """Our half of a connection has ended."""
        self._strangers.pop(session, None)
        self._leaving[session] = None
        if len(self._leaving) > HALF_CLOSED_MAX:
            oldest = next(iter(self._leaving))
            del self._leaving[oldest]
            oldest.leave()

    def on_disconnected(self, session: GrpcSession) -> None:
        """A connection is gone."""
        self._strangers.pop(session, None)
        self._leaving.pop(session, None)
        if session in self.sessions:
            self.sessions.remove(session)
            self.counts.open -= 1
        if not self.sessions and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)
        self._buffered_bytes -= session.buffered_bytes
        session.buffered_bytes = 0

    def on_refused(self, session: GrpcSession, reason: str) -> None:
        """A connection was ended because of what its peer did."""
        self._on_handshake_failed(session.address, reason)

    def _on_handshake_failed(self, address: str, reason: str) -> None:
        self.counts.refused += 1
        if times := self._told.times("refused"):
            logger.info("client_refused", door="grpc", address=address, error=reason, times=times)

    def on_bug(self, method: str, error: BaseException) -> None:
        """Our own code failed: the broker lives on, the log tells."""
        if times := self._told.times(f"internal_error {type(error).__name__}"):
            logger.error("internal_error", method=method, exc_info=error, times=times)

    def count_buffered(self, session: GrpcSession, change: int) -> None:
        """Account for parts of requests; when they are too many, who holds most makes room."""
        session.buffered_bytes += change
        self._buffered_bytes += change
        if change > 0 and self._buffered_bytes > BUFFERED_BYTES_MAX:
            largest = max(self.sessions, key=lambda s: s.buffered_bytes)
            largest.fail(
                ErrorCode.ENHANCE_YOUR_CALM, f"over {BUFFERED_BYTES_MAX} B of unfinished requests"
            )
            self._buffered_bytes -= largest.buffered_bytes
            largest.buffered_bytes = 0

    def count_call(self) -> None:
        """Account for a new call; when they are too many, who has most makes room."""
        self.calls_count += 1
        if self.calls_count > self.calls_max:
            largest = max(self.sessions, key=lambda s: len(s.calls))
            largest.fail(ErrorCode.ENHANCE_YOUR_CALM, f"over {self.calls_max} calls at a time")

    def mark_dirty(self, session: GrpcSession) -> None:
        """A session has something to send."""
        self._dirty.append(session)
        if not self._reading:
            self.flush_soon()

    def begin_read(self) -> None:
        """Frames are about to be acted on."""
        self._reading = True

    def end_read(self) -> None:
        """Everything that was read is dealt with."""
        self._reading = False
        for act in self.after_read:
            act()
        self.flush()

    def flush_soon(self) -> None:
        """Flush in the next turn of the loop, unless somebody does before."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.call_soon(self._flush_scheduled_now)

    def sweep(self) -> None:
        """Look at every session: `listen` has this done every `SWEEP_S`."""
        for _ in self._sweep_steps():
            pass

    def _flush_scheduled_now(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send what has gathered."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for session in dirty:
                session.flush()

    def _sweep(self) -> None:
        self._go_on_sweeping(self._sweep_steps())

    def _go_on_sweeping(self, steps: Iterator[None]) -> None:
        loop = asyncio.get_running_loop()
        for _ in steps:
            self._sweeping = loop.call_later(0.0, self._go_on_sweeping, steps)
            return
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)

    def _sweep_steps(self) -> Iterator[None]:
        """Look at every session, some in each step."""
        self.authenticator.look()
        self._sweeps += 1
        now_ms = self.now_ms()
        looked = 0
        for session in list(self.sessions):
            if looked >= LOOKS_AT_ONCE:
                self.flush()
                yield
                looked = 0
            if self._sweeps % SWEEPS_PER_PARDON == 0:
                session.mistakes = 0
            looked += 1 + len(session.calls)
            self._look_at(session, now_ms)
        self.flush()

    def _look_at(self, session: GrpcSession, now_ms: int) -> None:
        """End a session that is dead, idle or late, and calls that are."""
        quiet_ms = now_ms - session.heard_ms
        if session.ended_ms is not None:
            if now_ms - session.ended_ms >= GOODBYE_MS_MAX:
                session.abort()
            return
        if not session.connection.is_open:
            if now_ms - session.connected_ms >= HANDSHAKE_MS_MAX:
                session.fail(ErrorCode.SETTINGS_TIMEOUT, "no settings within the time for them")
            return
        if session.is_idle:
            if now_ms - session.busy_ms >= IDLE_MS_MAX:
                # Those that do not read their answers are closed at the second look.
                session.close() if session.closing else session.go_away("idle")
                return
        else:
            self._look_at_calls(session, now_ms)
        if session.pinged_ms is not None and (
            # The answer may come within the millisecond.
            session.heard_ms > session.pinged_ms or not session.connection.pinged
        ):
            session.pinged_ms = None
        if session.pinged_ms is not None:
            if now_ms - session.pinged_ms >= KEEPALIVE_TIMEOUT_MS:
                if times := self._told.times("client_dead"):
                    logger.info("client_dead", address=session.address, times=times)
                session.abort()
        elif quiet_ms >= KEEPALIVE_MS:
            session.ping(now_ms)

    def _look_at_calls(self, session: GrpcSession, now_ms: int) -> None:
        now_s = asyncio.get_running_loop().time()
        for call in list(session.calls.values()):
            if not self.authenticator.admits(call.shown):
                call.fail(UnauthenticatedError(TOKEN_GONE))
            elif call.expires_s is not None and call.expires_s <= now_s:
                # Those that run have timers; this one waits for the rest of its request.
                session.expire(call)
            elif not call.stream.client_ended and now_ms - call.begun_ms >= REQUEST_MS_MAX:
                call.refuse(StatusCode.CANCELLED, "the rest of the request did not come")
