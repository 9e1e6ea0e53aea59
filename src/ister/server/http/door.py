"""The HTTP door: uvicorn on a port of ours, without its signals, logs and event loop.

Always true: a connection that for `REQUEST_S` sends no whole request, or takes nothing of its
answers, is closed, and there are at most `CONNECTIONS_MAX`. Beyond them, the one that was idle for
longest makes room; so slow, idle or many peers cannot use the door up.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ister.server.handshakes import Handshakes
from ister.server.http.app import App
from ister.telemetry import Occasions

# Health checks and scrapers, some per second, each with a connection or two.
CONNECTIONS_MAX = 256
REQUEST_S = 10.0
# A head of a request: what common proxies allow.
HEAD_BYTES_MAX = 16 * 1024
# Parts of a body that is sent in chunks; each costs 15 µs: with one byte in each, 2 MiB would
# take half a minute. Clients make chunks of some KiB.
BODY_CHUNKS_MAX = 4_096
# What is parsed of one connection when bytes arrive: a whole request, mostly. The rest waits for a
# turn of the loop, in which all connections together get so much time.
EVENTS_AT_ONCE = 4
TURN_S = 0.002

logger = structlog.get_logger("http")


class HttpDoor:
    """Serves HTTP on one port with uvicorn."""

    def __init__(self, app: App) -> None:
        self._handshakes: Handshakes | None = None
        self._told = Occasions(app.now_ms)
        self._pacer = _Pacer()
        if app.authenticator.tls is not None:
            self._handshakes = Handshakes(
                lambda: app.authenticator.tls,
                count_max=CONNECTIONS_MAX,
                on_failed=self._on_handshake_failed,
            )
        config = uvicorn.Config(
            app,
            loop="none",
            # uvicorn calls it as the class that it is taken for.
            http=self._protocol if self._handshakes is None else self._secured,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._server = _QuietServer(config)
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the port and return the address; port 0 picks a free one. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=CONNECTIONS_MAX)
        # The task is the door's own: `close` ends and awaits it.
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        bound = self._socket.getsockname()
        return bound[0], bound[1]

    async def close(self) -> None:
        """Close the port; answers under way get a second to leave."""
        if self._handshakes is not None:
            self._handshakes.close()
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    def _protocol(self, **arguments: Any) -> "_BoundedProtocol":
        """Return the protocol of a new connection."""
        protocol = _BoundedProtocol(**arguments)
        protocol.on_crowded = self._on_crowded
        protocol.pacer = self._pacer
        # uvicorn only calls it; its own would write a line for each bad request.
        protocol.logger = _OccasionalLog(self._told, protocol)  # type: ignore[assignment]
        return protocol

    def _secured(self, **arguments: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection, which is to speak TLS first."""
        assert self._handshakes is not None

        def make(below: asyncio.Transport) -> asyncio.Protocol:
            protocol = self._protocol(**arguments)
            protocol.below = below
            return protocol

        return self._handshakes.protocol(make)

    def _on_crowded(self, peer: tuple[str, int] | None) -> None:
        if times := self._told.times("crowded"):
            address = f"{peer[0]}:{peer[1]}" if peer else ""
            reason = f"over {CONNECTIONS_MAX} connections"
            logger.info("client_refused", address=address, error=reason, times=times)

    def _on_handshake_failed(self, address: str, reason: str) -> None:
        if times := self._told.times("handshake"):
            logger.info("client_refused", address=address, error=reason, times=times)


class _OccasionalLog:
    """What uvicorn's protocol takes for its log: tells of many bad requests in few lines."""

    level = logging.WARNING

    def __init__(self, told: Occasions, protocol: "_BoundedProtocol") -> None:
        self._told = told
        self._protocol = protocol

    def warning(self, message: str, *args: object) -> None:
        text = message % args if args else message
        if times := self._told.times("bad_request"):
            peer = self._protocol.client
            address = f"{peer[0]}:{peer[1]}" if peer else ""
            logger.info("client_refused", address=address, error=text, times=times)

    def error(self, message: str, *args: object, exc_info: Any = None) -> None:
        if times := self._told.times("failed"):
            text = message % args if args else message
            logger.error("http_request_failed", error=text, exc_info=exc_info, times=times)

    def log(self, level: int, message: str, *args: object) -> None:
        """Say nothing of what only traces would have."""


class _Pacer:
    """Gives the connections that have more to parse their turns, `TURN_S` in all at a time."""

    def __init__(self) -> None:
        self._waiting: deque[_BoundedProtocol] = deque()

    def add(self, protocol: "_BoundedProtocol") -> None:
        if not self._waiting:
            protocol.loop.call_soon(self._turn)
        self._waiting.append(protocol)

    def _turn(self) -> None:
        loop = self._waiting[0].loop
        end_s = loop.time() + TURN_S
        while self._waiting:
            protocol = self._waiting.popleft()
            if protocol.go_on():
                self._waiting.append(protocol)
            if loop.time() >= end_s:
                break
        if self._waiting:
            loop.call_soon(self._turn)


class _PacedConnection(h11.Connection):
    """Parses a few events at a time. `spent` says that there may be more."""

    left = EVENTS_AT_ONCE
    chunks = 0
    spent = False

    def next_event(self) -> Any:
        if self.their_state is h11.MUST_CLOSE:
            # Whoever has sent `Connection: close` gets this one answer; what follows is not read.
            return h11.NEED_DATA
        if self.left <= 0:
            self.spent = True
            return h11.NEED_DATA
        self.left -= 1
        event = super().next_event()
        if isinstance(event, h11.Data):
            self.chunks += 1
            if self.chunks > BODY_CHUNKS_MAX:
                raise h11.RemoteProtocolError(f"a body has at most {BODY_CHUNKS_MAX} chunks")
        elif isinstance(event, h11.EndOfMessage):
            self.chunks = 0
        return event


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process that owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


class _BoundedProtocol(H11Protocol):
    """Closes connections that are too many, or that do not ask for anything."""

    _checked_cycle: object = None
    _check_timer: asyncio.TimerHandle | None = None
    # Bytes of answers that the peer had not taken at the last check.
    _unsent_bytes = 0
    # What TLS goes over.
    below: asyncio.Transport | None = None
    # Called with the address of who was closed because there are too many.
    on_crowded: Callable[[tuple[str, int] | None], object]
    # Since when there is nothing to answer.
    idle_s = 0.0
    pacer: _Pacer
    # Whether it waits for a turn to parse more.
    _waits = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.conn = self._paced = _PacedConnection(
            h11.SERVER, self.config.h11_max_incomplete_event_size or HEAD_BYTES_MAX
        )

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.MUST_CLOSE:
            return
        if self._waits:
            # uvicorn let the peer go on before we had parsed what there was.
            self.conn.receive_data(data)
            self.transport.pause_reading()
            return
        super().data_received(data)

    def handle_events(self) -> None:
        if self._waits:
            return
        self._parse()
        if self._paced.spent and not self.transport.is_closing():
            self._waits = True
            self.transport.pause_reading()
            self.pacer.add(self)

    def _parse(self) -> None:
        self._paced.left, self._paced.spent = EVENTS_AT_ONCE, False
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # A bad end of a body whose request is answered: there is nobody to tell.
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_started:
            # A request with a bad body is answered here, and not once more by the application.
            cycle.disconnected = True
            cycle.message_event.set()
        super().send_400_response(msg)

    def go_on(self) -> bool:
        """Parse a few events more; return whether there are still others."""
        if self.transport.is_closing():
            return False
        self._parse()
        if self._paced.spent and not self.transport.is_closing():
            return True
        self._waits = False
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()
        return False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle_s = self.loop.time()
        self._check_timer = self.loop.call_later(REQUEST_S, self._check)
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def on_response_complete(self) -> None:
        self.idle_s = self.loop.time()
        super().on_response_complete()

    def _make_room(self) -> None:
        """Close the connection that was idle for longest; this one, when all others are busy."""
        # All are of this class, whatever uvicorn's annotation says.
        all_ = cast("set[_BoundedProtocol]", self.connections)
        idle = [one for one in all_ if not one.answering]
        oldest = min(idle, key=lambda one: one.idle_s)
        # At once, for the next one that comes in this turn of the loop.
        all_.discard(oldest)
        oldest.transport.abort()
        self.on_crowded(oldest.client)

    @property
    def answering(self) -> bool:
        """Whether a request has come, and its answer is not complete."""
        # uvicorn has no cycle before the first request, whatever its annotation says.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        idle = self.cycle is self._checked_cycle
        before, self._unsent_bytes = self._unsent_bytes, self._count_unsent()
        if idle and 0 < before <= self._unsent_bytes:
            # A polite close would wait for the peer to take the rest, for ever.
            self.transport.abort()
            return
        if idle and not self.answering and not self._unsent_bytes:
            self.transport.close()
            return
        self._checked_cycle = self.cycle
        self._check_timer = self.loop.call_later(REQUEST_S, self._check)

    def _count_unsent(self) -> int:
        below = 0 if self.below is None else self.below.get_write_buffer_size()
        return self.transport.get_write_buffer_size() + below
