"""The HTTP door: uvicorn on a port of ours, without its signals, logs and event loop.

Always true: a connection that for `REQUEST_S` sends no whole request, or takes nothing of its
answers, is closed, and there are at most `CONNECTIONS_MAX`. Beyond them, the one that was idle for
longest makes room; so slow, idle or many peers cannot use the door up.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ister.server.handshakes import Handshakes
from ister.server.http.app import App
from ister.server.security import Occasional

# Health checks and scrapers, some per second, each with a connection or two.
CONNECTIONS_MAX = 256
REQUEST_S = 10.0
# A head of a request: what common proxies allow.
HEAD_BYTES_MAX = 16 * 1024

logger = structlog.get_logger("http")


class HttpDoor:
    """See the module."""

    def __init__(self, app: App) -> None:
        self._handshakes: Handshakes | None = None
        self._handshake_failed = Occasional(app.now_ms)
        self._crowded = Occasional(app.now_ms)
        if app.guard.tls is not None:
            self._handshakes = Handshakes(
                lambda: app.guard.tls,
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
        if times := self._crowded.times():
            address = f"{peer[0]}:{peer[1]}" if peer else ""
            reason = f"over {CONNECTIONS_MAX} connections"
            logger.info("client_refused", address=address, error=reason, times=times)

    def _on_handshake_failed(self, address: str, reason: str) -> None:
        if times := self._handshake_failed.times():
            logger.info("client_refused", address=address, error=reason, times=times)


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
