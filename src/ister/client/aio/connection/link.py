"""Drives a session over sockets: connects, reconnects, moves bytes, calls back.

Always true:
- one transport at most feeds the session, and it is written to once per turn of the loop;
- only `close` and errors that no retry can mend end the link; everything else reconnects.
"""

import asyncio
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLError
from time import perf_counter_ns
from typing import TypeVar, cast

from ister.base import Clock, Timer, housekeeping
from ister.base.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    ConnectionLostError,
    FrozenClockError,
    IsterError,
    NotConnectedError,
    RequestTimeoutError,
    UnauthenticatedError,
    UntrustedBrokerError,
)
from ister.base.limits import STAGE_WINDOW_BYTES
from ister.client.aio.connection.futures import Deadline
from ister.client.aio.connection.repeatable import is_repeatable
from ister.client.aio.connection.sockets import (
    Address,
    Connector,
    HandshakeError,
    UntrustedError,
    closing_hint,
    has_answered,
    reason_of,
    tls_reason,
)
from ister.client.aio.connection.tokens import TokenSource
from ister.client.session import Access, Link, Session, backoff_s
from ister.telemetry import library_logger
from ister.wire import (
    Command,
    Seek,
    Wakefulness,
)

logger = library_logger("ister.client")

PULSE_S = 1.0
# One read of small frames.
SCRATCH_BYTES = 64 * 1024

# After a lost connection the next attempt comes almost at once. Not when the broker has thrown us
# out sooner than this: it would be asked twenty times a second, and have the same to say.
STEADY_MS = 1_000

# Not the generator that all modules share: an application may have seeded that.
_own_random = random.Random()

# Of a connection that ended without an error.
CLOSED = "closed by the broker"


_R = TypeVar("_R")


class BrokerLink:
    """Connects a session to a broker: moves bytes, reconnects, calls back."""

    def __init__(
        self,
        access: Access,
        *,
        agent: str,
        timeout_s: float,
        clock: Clock,
        connector: Connector,
        busy_poll_s: float,
    ) -> None:
        self.clock = clock
        self.timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self.wakefulness = Wakefulness(
            busy_poll_s * 1e6, call_soon=self._loop.call_soon, now_ns=perf_counter_ns
        )
        self.session = Session(
            client_id=secrets.token_hex(8),
            secret=secrets.token_hex(16),
            agent=agent,
            now_ms=clock.monotonic_ms,
            on_dirty=self._schedule,
            timeout_ms=int(timeout_s * 1000),
            on_lease=self._renew_at,
            now_us=clock.now_us,
        )
        self._access = access
        self._tokens = TokenSource(access, timeout_s=timeout_s)
        self._connector = connector
        self._wire: _Wire | None = None
        self._transport: asyncio.Transport | None = None
        self._scheduled = False
        self._open_waiters: dict[asyncio.Future[None], None] = {}
        self._lost: asyncio.Future[str] | None = None
        # Why the broker was left, when it was because of what it sent.
        self._failed: IsterError | None = None
        # Why the link has ended for good, and why it is not connected yet.
        self._end: IsterError | None = None
        self._trouble = ""
        self._trouble_answered = False
        self._supervisor: asyncio.Task[None] | None = None
        self._pulse_timer: Timer | None = None
        self._expiry_timer: Timer | None = None
        # How long that timer was set for.
        self._expiry_s = 0.0
        self._lease_timer: Timer | None = None
        # Whether more than `STAGE_WINDOW_BYTES` wait to be sent, and who waits for that to end.
        self._paused = False
        self._sent_waiters: list[asyncio.Future[None]] = []

    async def open(self, wait_s: float) -> None:
        """Connect, trying the addresses for `wait_s`, then stay connected until `close`."""
        deadline_ms = self.clock.monotonic_ms() + int(wait_s * 1000)
        attempt = 0
        while errors := await self._try_addresses():
            left_s = (deadline_ms - self.clock.monotonic_ms()) / 1000
            reasons = "; ".join(map(reason_of, errors))
            # Another attempt would meet the same certificates.
            if all(isinstance(error, UntrustedError) for error in errors):
                raise UntrustedBrokerError(self._access.shown(), reasons)
            if left_s <= 0 or all(isinstance(error, HandshakeError) for error in errors):
                answered = any(map(has_answered, errors))
                raise NotConnectedError(self._access.shown(), reasons, answered)
            attempt += 1
            # Once where it is seen: else a program whose broker nobody has started seems to hang.
            log = logger.warning if attempt == 1 else logger.info
            log("not_connected_yet", url=self._access.shown(), reason=reasons, waits_s=int(left_s))
            pause_s = min(left_s, backoff_s(attempt, _own_random.random()))
            with suppress(RequestTimeoutError):
                await self.wait_for(self._loop.create_future(), pause_s, "a connection")
        self._pulse()
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """Send what is queued, then disconnect for good."""
        wire = self._wire
        if self._end is None:
            self.session.receivers.leave()
            self.session.timelines.leave()
            self.flush()
            self._stop(ClosedError("the client"))
            if self._supervisor is not None:
                self._supervisor.cancel()
                await asyncio.gather(self._supervisor, return_exceptions=True)
        if wire is not None:
            await wire.wait_farewell()

    async def call(self, command: Command, expect: type[_R]) -> _R:
        """Send a command and return its reply, waiting for a connection first.

        What does no harm when done twice is sent again if the connection is lost on the way.
        """
        while True:
            await self.wait_open()
            future: asyncio.Future[Command] = self._loop.create_future()
            if isinstance(command, Seek):
                self.session.receivers.seek(command, settler(future))
            else:
                self.session.call(command, settler(future))
            try:
                reply = await future
            except ConnectionLostError:
                if is_repeatable(command):
                    continue
                raise
            if not isinstance(reply, expect):
                raise BadRequestError(f"broker answered {type(reply).__name__}")
            return reply

    async def wait_open(self, timeout_s: float | None = None) -> None:
        """Return once connected; raise `NotConnectedError` after the client's timeout or less."""
        timeout_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        while self.session.link is not Link.OPEN:
            if self._end is not None:
                raise self._end
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._open_waiters[waiter] = None
            try:
                await self.wait_for(waiter, timeout_s, "a connection")
            except RequestTimeoutError:
                reason = f"reconnecting; {self._trouble}" if self._trouble else "reconnecting"
                shown = self._access.shown()
                raise NotConnectedError(shown, reason, self._trouble_answered) from None
            finally:
                self._open_waiters.pop(waiter, None)

    async def wait_for(
        self, future: "asyncio.Future[_R]", timeout_s: float | None, what: str, name: str = ""
    ) -> _R:
        """Await a future of our own; raise `RequestTimeoutError` after `timeout_s`."""
        if timeout_s is None:
            return await future

        def end(frozen: IsterError | None) -> None:
            if not future.done():
                text = f"{what} {name!r}" if name else what
                future.set_exception(frozen or RequestTimeoutError(text, timeout_s))

        timer = self.clock.call_later(timeout_s, Deadline(end))
        try:
            return await future
        finally:
            timer.cancel()

    def expire_requests(self, timeout_s: float) -> None:
        """Make sure that requests which time out within `timeout_s` are noticed.

        One timer for all of them: most requests are answered long before, and a timer for each
        would be a tenth of what a request costs.
        """
        # A timer that was set earlier, and for no longer than this, is due before this.
        if self._expiry_timer is not None and self._expiry_s <= timeout_s:
            return
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_s = timeout_s
        self._expiry_timer = self.clock.call_later(timeout_s, Deadline(self._expire_requests))

    def _expire_requests(self, frozen: IsterError | None) -> None:
        self._expiry_timer = None
        if frozen is not None:
            self.session.requests.fail_all(frozen)
        next_ms = self.session.requests.expire()
        if next_ms is not None:
            # A millisecond more, because clocks are cut off at whole ones.
            self.expire_requests((next_ms - self.session.now_ms() + 1) / 1000)

    def _renew_at(self, due_ms: int) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        delay_s = max(0, due_ms - self.clock.monotonic_ms()) / 1000
        self._lease_timer = self.clock.call_later(delay_s, self._renew_leases)

    def _renew_leases(self) -> None:
        self._lease_timer = None
        self.session.receivers.renew()
        self.write()

    def flush(self) -> None:
        """Turn what the application sent into frames, and write them."""
        self.session.flush()
        self.write()

    def write(self) -> None:
        """Write what the session has to say."""
        parts = self.session.outgoing()
        if parts and self._transport is not None and not self._transport.is_closing():
            if len(parts) == 1:
                self._transport.write(parts[0])
            elif self._access.tls is not None:
                # Else each part, however small, is a record with a checksum of its own.
                self._transport.write(b"".join(parts))
            else:
                self._transport.writelines(parts)

    async def wait_sent(self) -> None:
        """Return once only a few MiB wait to be sent, or none any more: the connection is lost.

        Raises `RequestTimeoutError` after the client's timeout.
        """
        if self._paused:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._sent_waiters.append(waiter)
            await self.wait_for(waiter, self.timeout_s, "sending")

    # From the transport

    def on_paused(self, transport: asyncio.Transport | None, *, paused: bool) -> None:
        """So much waits to be sent that whoever can wait should; or not any more."""
        if transport is self._transport:
            self._paused = paused
            if not paused:
                self._wake_sent()

    def _wake_sent(self) -> None:
        self._paused = False
        waiters, self._sent_waiters = self._sent_waiters, []
        for waiter in waiters:
            finish(waiter)

    def on_data(self, data: bytes | None, count: int = 0) -> None:
        """Feed the session with `data`, or with `count` bytes read in place, and answer at once.

        Then let the application's callbacks run.
        """
        was_open = self.session.can_publish
        self._scheduled = True  # The flush below covers what happens in here.
        try:
            if data is None:
                self.session.filled(count)
            else:
                self.session.receive(data)
        except IsterError as error:
            logger.warning("connection_failed", error=str(error))
            self._drop(error)
        finally:
            self._scheduled = False
        self.flush()
        if not was_open and self.session.can_publish:
            waiters, self._open_waiters = self._open_waiters, {}
            for waiter in waiters:
                finish(waiter)
        while self.session.events:
            call, event = self.session.events.popleft()
            try:
                call(event)
            except Exception:
                # The application's bug must not cost the connection.
                logger.exception("event_callback_failed", about=event)

    def on_lost(self, transport: asyncio.Transport, reason: str) -> None:
        """The transport is gone."""
        if transport is self._transport:
            self._transport = None
            self.session.disconnected(reason)
            self._wake_sent()
            if self._lost is not None and not self._lost.done():
                self._lost.set_result(reason)

    # Inner workings

    async def _try_addresses(self) -> list[Exception]:
        """Connect to the first address that answers; return what each said when none does."""
        token = await self._tokens.get()
        errors: list[Exception] = []
        for address in self._access.addresses:
            try:
                await self._connect(address, token)
            except BaseException as error:
                self._abandon()
                if not isinstance(error, OSError | BusyError):
                    raise
                errors.append(error)
            else:
                return []
        return errors

    async def _connect(self, address: Address, token: str) -> None:
        self._lost = self._loop.create_future()
        self._failed = None
        self._wire = wire = _Wire(self)
        async with asyncio.timeout(self.timeout_s):
            transport = await self._connector(lambda: wire, address)
        if transport.is_closing():
            # Accepted and closed at once; `on_lost` came before we knew the transport.
            raise self._failure(address, wire.reason or CLOSED)
        self._transport = transport
        self.session.connected(token)
        self.write()
        opened = self._loop.create_future()
        self._open_waiters[opened] = None
        lost = self._lost
        try:
            async with asyncio.timeout(self.timeout_s):
                await asyncio.wait({opened, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open_waiters.pop(opened, None)
        if lost.done():
            raise self._failure(address, lost.result())

    def _failure(self, address: Address, reason: str) -> IsterError:
        """Return why the connection that was just lost came to nothing."""
        if reason == CLOSED:
            reason = f"{CLOSED} without a word: {closing_hint(self._access.tls)}"
        return self._failed or NotConnectedError(
            self._access.shown([address]), reason, answered=True
        )

    async def _supervise(self) -> None:
        attempt, connected, since_ms = 0, True, self.clock.monotonic_ms()
        while True:
            if self._lost is not None and connected:
                reason = await self._lost
                logger.warning("connection_lost", reason=reason, next="reconnecting")
                lasted_ms = self.clock.monotonic_ms() - since_ms
                if self._failed is None or lasted_ms >= STEADY_MS:
                    attempt = 0
            connected = False
            attempt += 1
            try:
                await self._sleep(backoff_s(attempt, _own_random.random()))
            except FrozenClockError as error:
                self._stop(error)
                return
            addresses = self._access.addresses
            address = addresses[(attempt - 1) % len(addresses)]
            try:
                token = await self._tokens.get()
            except Exception as error:  # noqa: BLE001 - the application's function
                # What it asks may be back in a moment.
                reason = reason_of(error)
                logger.warning("token_failed", attempt=attempt, error=reason)
                self._trouble, self._trouble_answered = f"no token: {reason}", False
                continue
            try:
                await self._connect(address, token)
            except self._passing() as error:
                logger.debug("reconnect_failed", attempt=attempt, error=str(error))
                self._trouble, self._trouble_answered = reason_of(error), has_answered(error)
                self._abandon()
                continue
            except IsterError as error:
                self._stop(error)
                return
            self._trouble, self._trouble_answered = "", False
            logger.info("reconnected", attempt=attempt, address=f"{address[0]}:{address[1]}")
            connected, since_ms = True, self.clock.monotonic_ms()

    def _passing(self) -> tuple[type[Exception], ...]:
        """Return the errors that another attempt may not meet.

        A function may have another token then; text stays what it is.
        """
        if self._tokens.may_change:
            return OSError, BusyError, UnauthenticatedError
        return OSError, BusyError

    async def _sleep(self, delay_s: float) -> None:
        never: asyncio.Future[None] = self._loop.create_future()
        with suppress(RequestTimeoutError):
            await self.wait_for(never, delay_s, "a new connection")

    def _abandon(self) -> None:
        transport, self._transport = self._transport, None
        self.session.disconnected("connecting failed")
        self._wake_sent()
        if transport is not None:
            transport.abort()

    def _drop(self, error: IsterError) -> None:
        """End the connection because of what the broker sent; the supervisor goes on."""
        self._failed = error
        if self._transport is not None:
            self._transport.close()

    def _stop(self, error: IsterError) -> None:
        self._end = error
        if self._pulse_timer is not None:
            self._pulse_timer.cancel()
        for timer in (self._expiry_timer, self._lease_timer):
            if timer is not None:
                timer.cancel()
        transport, self._transport = self._transport, None
        self.session.close(error)
        self._wake_sent()
        if transport is not None:
            transport.close()
        for waiter in self._open_waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._open_waiters.clear()

    @housekeeping
    def _pulse(self) -> None:
        if self.session.pulse():
            logger.warning("broker_silent")
            if self._transport is not None:
                self._transport.abort()
        self.write()
        # Twice in a heartbeat at least, as the broker does.
        pulse_s = min(PULSE_S, self.session.connection.heartbeat_ms / 2000)
        self._pulse_timer = self.clock.call_later(pulse_s, self._pulse)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()


class _Wire(asyncio.BufferedProtocol):
    """One transport of a link."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        # Where the read under way goes, if into a large frame.
        self._space: memoryview | None = None
        # Why it was lost, and that it was, for who waits for the end of TLS.
        self.reason = ""
        self._farewell: asyncio.Future[None] | None = None

    async def wait_farewell(self) -> None:
        """Return when what was written is on its way, after `close`.

        Over TCP the system has it, and sends it whatever becomes of us. The end of TLS takes a
        round trip, which is bounded: see `SHUTDOWN_S`.
        """
        if self._farewell is not None:
            await self._farewell

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._farewell = asyncio.get_running_loop().create_future()
        self._transport.set_write_buffer_limits(high=STAGE_WINDOW_BYTES)

    def pause_writing(self) -> None:
        self._link.on_paused(self._transport, paused=True)

    def resume_writing(self) -> None:
        self._link.on_paused(self._transport, paused=False)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._space = space = self._link.session.connection.space()
        return self._scratch if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        if self._space is None:
            self._link.on_data(bytes(self._scratch[:nbytes]))
        else:
            self._space = None
            self._link.on_data(None, nbytes)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a transport that brings its own, as memory does."""
        self._link.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._farewell is not None:
            finish(self._farewell)
        if self._transport is not None:
            said = tls_reason(exc) if isinstance(exc, SSLError) else str(exc or CLOSED)
            self.reason = said or type(exc).__name__
            self._link.on_lost(self._transport, self.reason)


def finish(waiter: "asyncio.Future[None]") -> None:
    """Wake who waits, unless it has stopped waiting."""
    if not waiter.done():
        waiter.set_result(None)


def settler(future: "asyncio.Future[Command]") -> Callable[[Command | IsterError], None]:
    """Return a callback that finishes `future` with a reply or an error."""

    def settle(reply: Command | IsterError) -> None:
        if future.done():
            return
        if isinstance(reply, IsterError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    return settle
