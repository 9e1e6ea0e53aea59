"""The native door: listens, keeps its sessions alive or ends them, and shuts down gracefully.

Always true:
- connections that have not said hello are few and short-lived: the oldest makes room;
- incomplete frames of all connections together stay below one limit;
- every session with something to send is flushed before the loop waits again.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import structlog

from ister.base import housekeeping
from ister.base.errors import (
    InternalError,
    IsterError,
    LimitReachedError,
    ProtocolError,
    UnauthenticatedError,
)
from ister.base.limits import BUSY_POLL_US, HEARTBEAT_MS, MIB
from ister.broker import Broker, Turns
from ister.server.handshakes import Handshakes
from ister.server.native.conversation import Conversation
from ister.server.native.session import NativeSession
from ister.server.operations import Dispatcher, Done
from ister.server.security import TOKEN_GONE, Authenticator
from ister.telemetry import Occasions
from ister.wire import PlacePool, State

CallSoon = Callable[[Callable[[], object]], object]

# What the answer to a bulk producer may wait for company.
LATE_S = 0.001
# One read of small frames.
SCRATCH_BYTES = 64 * 1024
HANDSHAKE_MS_MAX = 5_000
SWEEP_S = 1.0
# Frames that have begun to arrive and not ended, of all connections: 32 of the largest, or 800
# that have only claimed to be large.
BUFFERED_BYTES_MAX = 512 * MIB
# Batches given to sessions and not yet to their sockets, which we first do when all frames of a
# read are dealt with. A piece costs about 400 B on its way: without this, 600 small messages in
# one read would cost 10,000 subscriptions 2 GB.
UNFLUSHED_COUNT_MAX = 16_384
# Between telling a client and closing its connection: a few round trips on any network.
DRAIN_S = 0.1
# Calls of all connections that wait for the metadata: a thousand producers may start at once, and
# register what they send. Definitions of schemas have up to 1 MiB each, and a few KiB mostly.
CALLS_MAX = 1_024
CALLS_BYTES_MAX = 64 * MIB
# A queue of connections waiting to be accepted, for a thousand clients that start at once.
BACKLOG = 4_096


@dataclass(slots=True)
class DoorCounts:
    """What the door has seen since it opened."""

    accepted: int = 0
    refused: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class NativeDoor:
    """Listens for native clients and owns their sessions."""

    def __init__(
        self,
        broker: Broker,
        *,
        heartbeat_ms: int = HEARTBEAT_MS,
        busy_poll_us: int = BUSY_POLL_US,
        dispatcher: Dispatcher | None = None,
        authenticator: Authenticator | None = None,
        logger: structlog.typing.BindableLogger | None = None,
        call_soon: CallSoon | None = None,
        now_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """`call_soon` is the running event loop's unless given, `now_ns` times turns of it."""
        self.broker = broker
        self.dispatcher = dispatcher or Dispatcher(broker)
        self.authenticator = authenticator or Authenticator()
        self._logger: Any = logger or structlog.get_logger("native")
        self.conversation = Conversation(busy_poll_us)
        self._call_soon = call_soon or asyncio.get_running_loop().call_soon
        self.turns = Turns(call_soon=self._call_soon, now_ns=now_ns)
        self.heartbeat_ms = heartbeat_ms
        self.closing = False
        self.counts = DoorCounts()
        self.dirty: list[NativeSession] = []
        # Whether frames are being acted on, after which everything dirty is flushed.
        self.reading = False
        self.pool = PlacePool()
        # Of transactions that are neither committed nor aborted.
        self.staged_bytes = 0
        # What sockets read into, one after the other; frames are copied out at once.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._sessions: set[NativeSession] = set()
        # In order of arrival, for the oldest to make room.
        self._greeting: dict[NativeSession, None] = {}
        self._buffered_bytes = 0
        self._unflushed_count = 0
        self._flush_scheduled = False
        self._late: list[NativeSession] = []
        self._servers: list[asyncio.Server] = []
        self._handshakes: Handshakes | None = None
        # Events that clients can cause at will are logged at most once a second.
        self._told = Occasions(broker.clock.monotonic_ms)
        self._calls: set[asyncio.Task[None]] = set()
        self._calls_bytes = 0
        # Twice in a heartbeat at least, or a short one would find peers dead that were never asked.
        self._sweep_s = min(SWEEP_S, heartbeat_ms / 2000)
        broker.streams.after_commit += [self.flush, self.conversation.on_committed]
        self._sweep_timer = broker.clock.call_later(self._sweep_s, self._sweep)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the port and return the address; port 0 picks a free one."""
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = self.session
        if self.authenticator.tls is not None:
            self._handshakes = Handshakes(
                lambda: self.authenticator.tls,
                count_max=self.broker.limits.handshakes_max,
                on_failed=self._on_handshake_failed,
            )
            make = partial(self._handshakes.protocol, self.session)
        server = await loop.create_server(make, host, port, backlog=BACKLOG)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        return address[0], address[1]

    def session(self, below: asyncio.Transport | None = None) -> NativeSession:
        """Return the protocol object of a new connection; `below` is what TLS goes over."""
        return NativeSession(self, secrets.randbits(63), below)

    async def close(self, deadline_s: float) -> None:
        """Stop accepting, tell clients, send what is queued until the deadline, then close.

        A client that was told holds back what it has not sent yet and reconnects when its
        connection ends; what it had sent by then is on the way, so each gets `DRAIN_S`.
        """
        self.closing = True
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        for session in list(self._sessions):
            session.go_away("the broker is shutting down")
        self.flush()
        clock = self.broker.clock
        start_ms = clock.monotonic_ms()
        while self._sessions and clock.monotonic_ms() - start_ms < deadline_s * 1000:
            await asyncio.sleep(DRAIN_S)
            for session in [s for s in self._sessions if s.drained]:
                session.close()
        left = list(self._sessions)
        if left:
            # In one line: there is no later one to count the others in.
            self._logger.warning("client_cut_off", address=left[0].address, times=len(left))
        for session in left:
            session.abort()
        self._sweep_timer.cancel()
        for call in self._calls:
            call.cancel()

    # From the sessions

    def run(self, work: Coroutine[Any, Any, Any], done: Done[Any], size_bytes: int = 0) -> None:
        """Have `work` done, which waits for more than the broker, and tell what comes of it.

        It holds on to `size_bytes` of what the client sent. Raises `LimitReachedError`.
        """
        refused = None
        if len(self._calls) >= CALLS_MAX:
            refused = LimitReachedError("calls_max", CALLS_MAX)
        elif self._calls_bytes + size_bytes > CALLS_BYTES_MAX:
            refused = LimitReachedError("calls_bytes_max", CALLS_BYTES_MAX)
        if refused is not None:
            work.close()
            raise refused
        self._calls_bytes += size_bytes
        call = asyncio.get_running_loop().create_task(self._answer(work, done))
        self._calls.add(call)
        call.add_done_callback(partial(self._on_answered, size_bytes))

    def _on_answered(self, size_bytes: int, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._calls_bytes -= size_bytes

    async def _answer(self, work: Coroutine[Any, Any, Any], done: Done[Any]) -> None:
        try:
            done(await work)
        except IsterError as error:
            done(error)
        except Exception as error:  # the top of a task
            if times := self._told.times(f"internal_error {type(error).__name__}"):
                self._logger.exception("internal_error", times=times)
            done(InternalError(type(error).__name__))

    def on_connected(self, session: NativeSession) -> None:
        """Count a new connection in, or refuse it."""
        self.counts.accepted += 1
        self._sessions.add(session)
        self.broker.connections = len(self._sessions)
        limits = self.broker.limits
        if len(self._sessions) > limits.connections_max:
            session.fail(LimitReachedError("connections_max", limits.connections_max))
            return
        self._greeting[session] = None
        if len(self._greeting) > limits.handshakes_max:
            oldest = next(iter(self._greeting))
            self._greeting.pop(oldest)
            oldest.fail(LimitReachedError("handshakes_max", limits.handshakes_max))

    def on_opened(self, session: NativeSession, agent: str) -> None:
        """A client has said hello."""
        self._greeting.pop(session, None)
        who = {"user": session.shown.name} if session.shown.name else {}
        self._logger.debug("client_connected", address=session.address, agent=agent[:100], **who)

    def on_disconnected(self, session: NativeSession) -> None:
        """A connection is gone."""
        self._greeting.pop(session, None)
        self._sessions.discard(session)
        self._buffered_bytes -= session.buffered_bytes
        self.broker.connections = len(self._sessions)
        self._logger.debug("client_disconnected", address=session.address)

    def on_refused(self, session: NativeSession, error: IsterError) -> None:
        """A connection was closed with an error."""
        self._count_refused(error)
        # Told already: who came without a token, by the authenticator, though not each of many.
        if isinstance(error, UnauthenticatedError):
            return
        if times := self._told.times(type(error).__name__):
            address = session.address
            self._logger.info("client_refused", address=address, error=str(error), times=times)

    def _on_handshake_failed(self, address: str, reason: str) -> None:
        error = ProtocolError(reason)
        self._count_refused(error)
        if times := self._told.times("handshake"):
            self._logger.info("client_refused", address=address, error=str(error), times=times)

    def _count_refused(self, error: IsterError) -> None:
        self.counts.refused += 1
        name = type(error).__name__
        self.counts.errors[name] = self.counts.errors.get(name, 0) + 1

    def on_bug(self, session: NativeSession, error: Exception) -> None:
        """Our own code failed on a frame: the broker lives on, the log tells."""
        # Each kind of bug by itself: one that comes all the time must not hide another.
        if times := self._told.times(f"internal_error {type(error).__name__}"):
            address = session.address
            self._logger.error("internal_error", address=address, exc_info=error, times=times)

    def on_drift(self, session: NativeSession, consumer: str, drift_us: int) -> None:
        """The clock of a client with a consumer differs too much from ours."""
        if times := self._told.times("clock_drift"):
            self._logger.warning(
                "clock_drift",
                client=session.address,
                consumer=consumer,
                drift_ms=drift_us // 1000,
                hint="set the clocks of both machines right: times it makes are wrong by as much",
                times=times,
            )

    def count_buffered(self, session: NativeSession) -> None:
        """Account for an incomplete frame; when they are too many, who holds most makes room.

        Not who came last: that may be an honest client with a small frame in two parts.
        """
        change = session.connection.buffered_bytes - session.buffered_bytes
        session.buffered_bytes += change
        self._buffered_bytes += change
        if change > 0 and self._buffered_bytes > BUFFERED_BYTES_MAX:
            largest = max(self._sessions, key=lambda s: s.buffered_bytes)
            error = LimitReachedError("buffered_bytes_max", BUFFERED_BYTES_MAX)
            if largest is session:
                raise error
            largest.fail(error)
            self._buffered_bytes -= largest.buffered_bytes
            largest.buffered_bytes = 0

    def flush_soon(self) -> None:
        """Send once everything that can be read now is read.

        For bulk: the large frames of one turn of the loop leave together, and so do their
        acknowledgements, which halves the system calls.
        """
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._call_soon(self._flush_scheduled_now)

    def flush_late(self, session: NativeSession) -> None:
        """Flush a session within `LATE_S`, if nothing else does before."""
        if not self._late:
            asyncio.get_running_loop().call_later(LATE_S, self._flush_late_now)
        self._late.append(session)

    def _flush_late_now(self) -> None:
        late, self._late = self._late, []
        for session in late:
            session.flush()

    def _flush_scheduled_now(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def count_copies(self, count: int) -> None:
        """Account for a batch that was given to many; send now when very much has gathered."""
        self._unflushed_count += count
        if self._unflushed_count >= UNFLUSHED_COUNT_MAX:
            self.flush()

    def flush(self) -> None:
        """Send what the last frames made of work, and messages that consumers have room for."""
        self.broker.end_of_turn.run()
        self._unflushed_count = 0
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for session in dirty:
                session.flush()

    @housekeeping
    def _sweep(self) -> None:
        """End the sessions of dead peers, of those without a hello, and of tokens taken back."""
        self.authenticator.look()
        now_ms = self.broker.clock.monotonic_ms()
        for session in list(self._sessions):
            if session.connection.state is State.GREETING:
                if now_ms - session.connected_ms >= HANDSHAKE_MS_MAX:
                    session.fail(ProtocolError("no hello within the time for it"))
            elif session.pulse(now_ms):
                if times := self._told.times("client_dead"):
                    self._logger.info("client_dead", address=session.address, times=times)
                session.abort()
            elif session.connection.state is State.OPEN and not self.authenticator.admits(
                session.shown
            ):
                user = session.shown.name
                # By name: who else lost their token is worth a line of their own.
                if times := self._told.times(f"client_token_gone {user}"):
                    address = session.address
                    self._logger.info("client_token_gone", address=address, user=user, times=times)
                session.fail(UnauthenticatedError(TOKEN_GONE))
        self.flush()
        self._sweep_timer = self.broker.clock.call_later(self._sweep_s, self._sweep)
