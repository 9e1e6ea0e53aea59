"""Bad peers of doors with TLS: each costs its own connection, and nobody else notices.

They speak no TLS, half of it, or say nothing. While they are there, and again after them, a healthy
client publishes and receives; the broker's memory stays within a bound.
"""

import os
import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.e2e.certificates import Certificates
from tests.e2e.raw import WAIT_S, RawClient, memory_bounded, wait_until
from tests.e2e.secured import (
    TOKEN,
    client_hello,
    connect,
    native,
    open_secured_target,
    raw_tls,
    trusting,
)
from tests.e2e.target import Target

from ister.base.limits import MIB
from ister.server.handshakes import HANDSHAKE_S_MAX
from ister.wire import Hello, Welcome, control_frame, decode_command

pytestmark = pytest.mark.e2e

SEED = 20_260_229
# Small, for a test to fill it.
HANDSHAKES_MAX = 40
CONNECTIONS_MAX = 60
# The first words of HTTP/2, with settings that are empty.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("target")
    limits = [f"handshakes_max={HANDSHAKES_MAX}", f"connections_max={CONNECTIONS_MAX}"]
    flags = [word for limit in limits for word in ("--limit", limit)]
    with open_secured_target(folder, certificates, *flags) as target:
        yield target


def is_closed(peer: socket.socket) -> bool:
    """Read to the end of a connection, which is to come in time."""
    try:
        while peer.recv(65_536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


# Bad peers


def test_garbage_in_place_of_a_handshake_ends_its_connection_and_nobody_notices(
    target: Target, certificates: Certificates
) -> None:
    rng = random.Random(SEED)
    hello = client_hello(certificates)
    broken = bytearray(hello)
    broken[9:60] = rng.randbytes(51)
    pieces = [
        b"GET / HTTP/1.1\r\nHost: ister\r\n\r\n",
        control_frame(Hello(client_id="plain", token="")),
        bytes(100_000),
        bytes.fromhex("16030100020100"),
        hello[:5] + rng.randbytes(len(hello) - 5),
        bytes(broken),
        hello + rng.randbytes(100_000),
        # A record larger than any.
        bytes.fromhex("160301ffff") + rng.randbytes(70_000),
        *(rng.randbytes(rng.choice([1, 5, 300, 20_000])) for _ in range(30)),
    ]
    target.check()
    with memory_bounded(target.broker.pid, 48 * MIB):
        for address in (target.broker.native, target.broker.http):
            for piece in pieces:
                with connect(address) as peer:
                    with suppress(ConnectionError):
                        peer.sendall(piece)
                        # Or a broker that wants more of it would be right to wait.
                        peer.shutdown(socket.SHUT_WR)
                    target.check()
                    assert is_closed(peer)
        target.check_alone()


def test_a_handshake_that_is_cut_off_anywhere_leaves_nothing_behind(
    target: Target, certificates: Certificates
) -> None:
    hello = client_hello(certificates)
    for address in (target.broker.native, target.broker.http):
        for size in (0, 1, 4, 5, 6, len(hello) // 2, len(hello) - 1, len(hello)):
            for crash in (False, True):
                peer = connect(address)
                peer.sendall(hello[:size])
                if crash:
                    linger = (1).to_bytes(4, "little") + bytes(4)
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                peer.close()
    target.check()
    target.check_alone()


def test_garbage_and_ends_in_the_middle_of_tls_cost_one_connection(
    target: Target, certificates: Certificates
) -> None:
    for said in (b"no record of TLS", bytes.fromhex("1703030020") + bytes(32), b""):
        for greeted in (False, True):
            raw = raw_tls(target.broker, certificates)
            if greeted:
                raw.send(control_frame(Hello(client_id="raw", token=TOKEN)))
                raw.expect(Welcome)
            # Past the library, which would make a record of it; at last an end without a farewell.
            os.write(raw.socket.fileno(), said)
            below = socket.socket(fileno=raw.socket.detach())
            with below:
                below.settimeout(WAIT_S)
                below.shutdown(socket.SHUT_WR)
                target.check()
                assert is_closed(below)
    target.check_alone()


def test_peers_that_say_nothing_are_dropped_when_their_time_is_over(
    target: Target, certificates: Certificates
) -> None:
    hello = client_hello(certificates)
    broker = target.broker
    with ExitStack() as stack:
        peers = []
        for address in (broker.native, broker.http, broker.grpc, broker.admin):
            for data in (b"", hello[:100]):
                peers.append(stack.enter_context(connect(address)))
                peers[-1].sendall(data)
        # Hands shaken, and no hello.
        mute = stack.enter_context(raw_tls(broker, certificates))
        start = time.monotonic()
        target.check()
        assert all(is_closed(peer) for peer in peers)
        mute.farewell()
        took_s = time.monotonic() - start

    assert HANDSHAKE_S_MAX - 1 < took_s < HANDSHAKE_S_MAX + 5
    target.check_alone()


def test_of_many_half_open_handshakes_the_oldest_make_room(
    target: Target, certificates: Certificates
) -> None:
    hello = client_hello(certificates)
    count = 10 * HANDSHAKES_MAX
    with memory_bounded(target.broker.pid, 64 * MIB), ExitStack() as stack:
        peers = [stack.enter_context(connect(target.broker.native)) for _ in range(count)]
        start = time.monotonic()
        for peer in peers[::2]:
            with suppress(ConnectionError):
                peer.sendall(hello[:50])
        for peer in peers[: count - HANDSHAKES_MAX]:
            assert is_closed(peer)
        # Long before their time was over.
        assert time.monotonic() - start < HANDSHAKE_S_MAX - 1
        # One that comes now is served at once.
        native(target.broker, certificates).close()
        target.check()
        youngest = peers[-1]
        youngest.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            youngest.recv(1)
    target.check_alone()


def test_strangers_who_speak_http2_and_make_no_call_leave_files_to_the_others(
    target: Target, certificates: Certificates
) -> None:
    context = trusting(certificates)
    context.set_alpn_protocols(["h2"])
    broker = target.broker

    def files() -> int:
        return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))

    before = files()
    with ExitStack() as stack:
        for address in (broker.grpc, broker.admin):
            for _ in range(CONNECTIONS_MAX + 20):
                below = stack.enter_context(connect(address))
                with suppress(OSError):
                    secured = context.wrap_socket(below, server_hostname="localhost")
                    stack.enter_context(secured).sendall(PREFACE)
        target.check()
        assert files() - before <= 2 * CONNECTIONS_MAX + 20
    target.check_alone()


def test_many_refusals_are_few_lines_of_the_log(target: Target) -> None:
    def lines() -> int:
        return target.broker.log_text().count('"client_refused"')

    def refused() -> bool:
        with connect(target.broker.native) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return is_closed(peer)

    before, start = lines(), time.monotonic()
    assert all(refused() for _ in range(300))
    # The first of them may have come right after a line about others.
    wait_until(lambda: refused() and lines() > before, "a line tells of them")
    took_s = time.monotonic() - start

    assert lines() - before <= took_s + 1


# What belongs to the handshake and what does not


def test_a_hello_that_comes_in_one_piece_with_the_end_of_the_handshake_is_heard(
    target: Target, certificates: Certificates
) -> None:
    said = control_frame(Hello(client_id="quick", token=TOKEN))
    for _ in range(20):
        with RawClient(target.broker) as raw:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trusting(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
                if outgoing.pending:
                    raw.socket.sendall(outgoing.read())
                incoming.write(raw.socket.recv(65_536))
            tls.write(said)
            # Our Finished is still in there.
            raw.socket.sendall(outgoing.read())
            frame = b""
            while len(frame) < 20:
                with suppress(ssl.SSLWantReadError):
                    frame += tls.read(65_536)
                    continue
                incoming.write(raw.socket.recv(65_536))
            size = int.from_bytes(frame[:4], "little")

            assert isinstance(decode_command(memoryview(frame)[-size:]), Welcome)
