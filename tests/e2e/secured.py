"""Brokers with TLS and tokens, for tests of their doors."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.e2e.certificates import Certificates
from tests.e2e.conftest import BrokerProcess
from tests.e2e.raw import WAIT_S, RawClient
from tests.e2e.target import Target

import ister
from ister import sync

TOKEN = "vX3p9mQm2T7yLw0c-of-billing"
# One that no broker knows.
STRANGER = "0123456789abcdef-of-nobody"

Broker = BrokerProcess


def write_tokens(path: Path, *lines: str) -> Path:
    """Put a new file of tokens in the place of the former one, as an administrator should."""
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(f"{line}\n" for line in lines))
    part.chmod(0o600)
    part.replace(path)
    return path


def tls_flags(certificates: Certificates) -> list[str]:
    """Return what makes all doors speak TLS, as localhost and 127.0.0.1."""
    return ["--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)]


def trusting(certificates: Certificates) -> ssl.SSLContext:
    """Return the settings of a client that trusts the tests' authority."""
    return ssl.create_default_context(cafile=certificates.ca)


def native(
    broker: Broker, certificates: Certificates, token: str = TOKEN, *, timeout: float = 30.0
) -> sync.Client:
    """Connect a client to a broker with TLS."""
    tls = ister.Tls(ca=certificates.ca)
    return sync.connect(broker.url, token=token, tls=tls, timeout=timeout)


def raw_tls(broker: Broker, certificates: Certificates, *, receive_bytes: int = 0) -> RawClient:
    """Return a client of which every byte above TLS is the test's own."""
    raw = RawClient(broker, receive_bytes=receive_bytes)
    raw.socket = trusting(certificates).wrap_socket(raw.socket, server_hostname=broker.host)
    return raw


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Broker]:
    """Run a broker that tells all it can; afterwards its log has no bug in it, and no secret."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(folder, [*flags, "--log-level", "debug"])
    broker.start()
    try:
        yield broker
        if broker.process is not None:
            assert broker.stop() == 0
    finally:
        broker.kill()
    text = broker.log_text()
    # Lines of ours and no others: libraries would tell of errors nobody has dealt with.
    assert "internal_error" not in {json.loads(line)["event"] for line in text.splitlines()}
    assert TOKEN not in text
    assert STRANGER not in text
    assert "PRIVATE KEY" not in text


@contextmanager
def open_secured_target(folder: Path, certificates: Certificates, *flags: str) -> Iterator[Target]:
    """Run a broker with TLS that asks for a token, and its healthy client."""
    tokens = write_tokens(folder / "tokens", f"billing {TOKEN}")
    secured = [*tls_flags(certificates), "--tokens", str(tokens), *flags]
    with running(folder, *secured) as broker, native(broker, certificates) as client:
        yield Target(broker, client)


def connect(address: str) -> socket.socket:
    """Connect to `host:port`, and say nothing."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def client_hello(certificates: Certificates) -> bytes:
    """Return how a TLS client begins."""
    hello = ssl.MemoryBIO()
    half = trusting(certificates).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        half.do_handshake()
    return hello.read()
