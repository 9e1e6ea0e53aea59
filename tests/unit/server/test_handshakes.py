"""TLS at a door, over connections in memory: what is let through, what fails, and what it costs."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Self

import pytest
from tests.e2e.certificates import Certificates, make_certificates

from ister.server.handshakes import HANDSHAKE_S_MAX, Handshakes, Protocol, _explain
from ister.testing import MemoryTransport, settle

TEXT = b"hello over TLS" * 10_000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class SocketLike(MemoryTransport):
    """A connection in memory that takes TLS on top, as sockets do."""

    _start_tls_compatible = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", 1234) if name == "peername" else default

    def _force_close(self, _: BaseException | None) -> None:
        self.abort()


class Keeping(asyncio.Protocol):
    """A door's protocol, which keeps what comes."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class Buffering(asyncio.BufferedProtocol):
    """The same with a small buffer of its own, as the native door's has one."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.data = bytearray()
        self._space = bytearray(1_000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._space[:nbytes]


class Peer(asyncio.Protocol):
    """A client: shakes hands, and says something in the very flight that ends the handshake."""

    def __init__(self, context: ssl.SSLContext | None, text: bytes = b"") -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._text = text
        self.shaken = self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport
        self._step()

    def data_received(self, data: bytes) -> None:
        self._in.write(data)
        self._step()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def _step(self) -> None:
        if self._tls is None or self.shaken:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            self.shaken = True
            if self._text:
                self._tls.write(self._text)
        if sent := self._out.read():
            self.transport.write(sent)


class Door:
    """A door with TLS, and what came of its connections."""

    def __init__(
        self,
        certificates: Certificates,
        *,
        count_max: int = 10,
        asks: bool = False,
        make: Callable[[], Keeping | Buffering] = Keeping,
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.cert, certificates.key)
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(certificates.ca)
        self.made: list[Keeping | Buffering] = []
        self.below: list[asyncio.Transport] = []
        self.failed: list[tuple[str, str]] = []
        self._make = make
        self._near: list[SocketLike] = []
        self.handshakes = Handshakes(
            lambda: context, count_max=count_max, on_failed=lambda *said: self.failed.append(said)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for transport in self._near:
            transport.abort()
        await settle()

    def accept(self, peer: Peer) -> Peer:
        """Let somebody connect."""
        loop = asyncio.get_running_loop()
        near = SocketLike(loop, self.handshakes.protocol(self._protocol))
        far = SocketLike(loop, peer)
        near.attach(far)
        far.attach(near)
        self._near.append(near)
        near.start()
        far.start()
        return peer

    def _protocol(self, below: asyncio.Transport) -> Protocol:
        self.below.append(below)
        self.made.append(self._make())
        return self.made[-1]


def client(certificates: Certificates, *, shows: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca)
    if shows:
        context.load_cert_chain(certificates.client_cert, certificates.client_key)
    return context


@pytest.mark.parametrize("make", [Keeping, Buffering])
async def test_the_doors_protocol_gets_the_connection_and_every_byte_of_it(
    certificates: Certificates, make: Callable[[], Keeping | Buffering]
) -> None:
    async with Door(certificates, make=make) as door:
        peer = door.accept(Peer(client(certificates), TEXT))
        await settle()

        [protocol] = door.made
        assert peer.shaken
        assert protocol.events == ["made"]
        assert protocol.data == TEXT
        assert isinstance(door.below[0], SocketLike)
        assert door.failed == []


async def test_the_protocol_is_not_made_before_the_handshake_is_done(
    certificates: Certificates,
) -> None:
    async with Door(certificates) as door:
        peer = door.accept(Peer(None))
        await settle()
        assert (door.made, peer.lost) == ([], False)

        door.handshakes.close()
        await settle()
        assert peer.lost


async def test_the_end_of_a_connection_comes_to_the_doors_protocol(
    certificates: Certificates,
) -> None:
    async with Door(certificates) as door:
        peer = door.accept(Peer(client(certificates)))
        await settle()
        peer.transport.abort()
        await settle()

        assert door.made[0].events == ["made", "lost"]


async def test_what_is_no_tls_is_closed_and_told_with_where_it_came_from(
    certificates: Certificates,
) -> None:
    async with Door(certificates) as door:
        peer = door.accept(Peer(None))
        peer.transport.write(b"GET / HTTP/1.1\r\n\r\n")
        await settle()

        assert peer.lost
        assert door.made == []
        assert door.failed == [("10.0.0.9:1234", "no TLS that this broker speaks: http request")]


async def test_a_client_without_the_certificate_that_is_asked_for_is_closed_and_told(
    certificates: Certificates,
) -> None:
    async with Door(certificates, asks=True) as door:
        peer = door.accept(Peer(client(certificates), TEXT))
        await settle()

        assert peer.lost
        assert door.made == []
        [(_, reason)] = door.failed
        assert "peer did not return a certificate" in reason


async def test_a_client_with_the_certificate_that_is_asked_for_comes_in(
    certificates: Certificates,
) -> None:
    async with Door(certificates, asks=True) as door:
        door.accept(Peer(client(certificates, shows=True), TEXT))
        await settle()

        assert [protocol.data for protocol in door.made] == [TEXT]


async def test_a_peer_that_leaves_before_it_is_done_is_nobodys_business(
    certificates: Certificates,
) -> None:
    async with Door(certificates) as door:
        peer = door.accept(Peer(None))
        await settle()
        peer.transport.abort()
        await settle()

        assert (door.made, door.failed) == ([], [])


async def test_of_too_many_the_oldest_makes_room(certificates: Certificates) -> None:
    async with Door(certificates, count_max=2) as door:
        silent = [door.accept(Peer(None)) for _ in range(2)]
        await settle()
        assert not any(peer.lost for peer in silent)

        peer = door.accept(Peer(client(certificates), TEXT))
        await settle()

        assert [one.lost for one in silent] == [True, False]
        assert door.failed == [("10.0.0.9:1234", "over 2 others shake hands")]
        assert peer.shaken
        # Who has shaken hands no longer counts.
        door.accept(Peer(None))
        await settle()
        assert not silent[1].lost


async def test_closing_ends_handshakes_and_leaves_connections(certificates: Certificates) -> None:
    async with Door(certificates) as door:
        silent = door.accept(Peer(None))
        peer = door.accept(Peer(client(certificates)))
        await settle()
        door.handshakes.close()
        await settle()

        assert (silent.lost, peer.lost) == (True, False)
        assert door.failed == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionAbortedError(), f"no TLS handshake within {HANDSHAKE_S_MAX:.0f} s"),
        (TimeoutError(), f"no TLS handshake within {HANDSHAKE_S_MAX:.0f} s"),
        (ConnectionResetError(), ""),
        (OSError("gone"), ""),
        (ValueError("bug"), "ValueError"),
    ],
)
def test_a_failure_is_told_in_words_unless_the_peer_just_left(error: Exception, said: str) -> None:
    assert _explain(error) == said
