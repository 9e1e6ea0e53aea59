"""TLS at a door: from a connection that was accepted to one that the door's protocol takes.

    accepted --handshake--> the door's own protocol has the connection
    accepted --garbage, no certificate, silence, too many--> closed, counted

Always true:
- connections that have not shaken hands are few and short-lived: the oldest makes room;
- a door's protocol sees only connections that have, and every byte of theirs;
- a peer that fails costs its connection, and at most a line of the log in a second.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

# A few round trips on any network, and a slow machine at the other end.
HANDSHAKE_S_MAX = 5.0
# How long the peer may take to say goodbye, which we have no use for.
GOODBYE_S_MAX = 1.0

# Called with the peer's address and what was wrong.
OnFailed = Callable[[str, str], object]
Protocol = asyncio.Protocol | asyncio.BufferedProtocol
# Given the transport below TLS: what waits there to be sent, the one above does not count.
Make = Callable[[asyncio.Transport], Protocol]


class Handshakes:
    """The handshakes of one door."""

    def __init__(
        self, tls: Callable[[], ssl.SSLContext | None], *, count_max: int, on_failed: OnFailed
    ) -> None:
        """`tls` is asked for each connection: certificates are renewed."""
        self._tls = tls
        self._count_max = count_max
        self._on_failed = on_failed
        # In order of arrival, for the oldest to make room.
        self._gates: dict[_Gate, asyncio.Task[None]] = {}

    def protocol(self, make: Make) -> asyncio.Protocol:
        """Return the protocol of a new connection; `make` makes the one that is to have it."""
        return _Gate(self, make)

    def close(self) -> None:
        """End all that are under way."""
        for gate in list(self._gates):
            gate.abort()

    def begin(self, gate: "_Gate", transport: asyncio.Transport) -> None:
        """Shake hands on a new connection."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._shake(gate, transport))
        self._gates[gate] = task
        task.add_done_callback(lambda _: self._gates.pop(gate, None))
        # Right after the first step of the task, and before TLS looks at what there is.
        loop.call_soon(gate.hand_over)
        if len(self._gates) > self._count_max:
            oldest = next(iter(self._gates))
            self._gates.pop(oldest)
            oldest.refusal = f"over {self._count_max} others shake hands"
            oldest.abort()

    async def _shake(self, gate: "_Gate", transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        early, tls = _Early(), self._tls()
        assert tls is not None, "a door with handshakes has a certificate"
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                tls,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=GOODBYE_S_MAX,
            )
        except Exception as error:  # noqa: BLE001 - the top of a task: it costs this connection
            transport.abort()
            self._fail(gate, _explain(error))
            return
        if secured is None or secured.is_closing():
            # Aborted: the event loop does not tell that from a handshake.
            self._fail(gate, "")
            return
        protocol = gate.make(transport)
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        # The door may have refused it already.
        if early.data and not secured.is_closing():
            _give(protocol, bytes(early.data))

    def _fail(self, gate: "_Gate", reason: str) -> None:
        if reason := gate.refusal or reason:
            self._on_failed(gate.address, reason)


class _Gate(asyncio.Protocol):
    """Has a connection until the handshake begins, which is in the next turn of the loop."""

    def __init__(self, handshakes: Handshakes, make: Make) -> None:
        self.make = make
        self.address = ""
        # Why it had to make room.
        self.refusal = ""
        self._handshakes = handshakes
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin. uvloop reads even so: `data_received` keeps what it finds."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        self._handshakes.begin(self, self._transport)

    def data_received(self, data: bytes) -> None:
        """Keep what belongs to the handshake: one read of the socket."""
        self._data += data

    def hand_over(self) -> None:
        """Give what was kept to TLS, which has taken our place at the socket."""
        if self._data and self._transport is not None and not self._transport.is_closing():
            _give(cast("Protocol", self._transport.get_protocol()), bytes(self._data))
            self._data.clear()

    def abort(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


class _Early(asyncio.Protocol):
    """Keeps what a peer says in the moment until the door's protocol is in its place."""

    def __init__(self) -> None:
        self.data = bytearray()

    def data_received(self, data: bytes) -> None:
        """Keep it: of one turn of the loop, so a few reads of a socket."""
        self.data += data


def _give(protocol: Protocol, data: bytes) -> None:
    """Hand over bytes as a socket would."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    view = memoryview(data)
    while view:
        space = memoryview(protocol.get_buffer(len(view)))
        count = min(len(space), len(view))
        space[:count] = view[:count]
        protocol.buffer_updated(count)
        view = view[count:]


def _explain(error: Exception) -> str:
    """Return what was wrong, empty for a peer that just left."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "broken").replace("_", " ").lower()
        return f"no TLS that this broker speaks: {reason}"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"no TLS handshake within {HANDSHAKE_S_MAX:.0f} s"
    return "" if isinstance(error, OSError) else type(error).__name__
