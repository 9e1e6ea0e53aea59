"""The HTTP door of a real broker against peers that are rude, huge, quick or gone."""

import re
import socket
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.http.asking import API, ORDERS, WAIT_S, ask

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024


@pytest.fixture
def line(shared_broker: BrokerProcess) -> Iterator[socket.socket]:
    """A connection to the broker, which must answer others afterwards."""
    host, _, port = shared_broker.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as line:
        yield line
    assert ask(shared_broker.http, "GET", f"{API}/broker").status == 200
    assert ask(shared_broker.http, "GET", ORDERS).status in (200, 404)


def read_all(line: socket.socket) -> bytes:
    """Return what the broker sends until it closes the connection."""
    found = b""
    try:
        while data := line.recv(65_536):
            found += data
    except ConnectionResetError:
        # It closes without reading the rest of what it was sent.
        pass
    return found


def read_answer(line: socket.socket) -> bytes:
    """Return one answer, with its body."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += line.recv(65_536)
    size = re.search(rb"content-length: (\d+)", found)
    end = found.index(b"\r\n\r\n") + 4 + (int(size[1]) if size else 0)
    while len(found) < end:
        found += line.recv(65_536)
    return found


def head(method: str, target: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


JSON = "Content-Type: application/json"


def test_requests_sent_at_once_are_answered_in_order(line: socket.socket) -> None:
    targets = ["/namespaces", "/nothing", "/broker", "/topics?limit=0"] * 25
    line.sendall(b"".join(head("GET", API + target) for target in targets))
    line.sendall(head("GET", f"{API}/brokers", "Connection: close"))

    text = read_all(line)

    statuses = [part[:3] for part in text.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200", b"400"] * 25 + [b"200"]


def test_a_body_that_says_it_is_too_large_is_not_waited_for(line: socket.socket) -> None:
    line.sendall(head("PUT", ORDERS, JSON, f"Content-Length: {3 * MIB}"))

    assert read_answer(line).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_say_its_size_is_refused_at_the_limit(line: socket.socket) -> None:
    line.sendall(head("PUT", ORDERS, JSON, "Transfer-Encoding: chunked"))
    for _ in range(64):
        line.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    line.sendall(b"0\r\n\r\n" + head("GET", f"{API}/broker", "Connection: close"))

    text = read_all(line)

    # The rest of the body was not taken for a request.
    assert [part[:3] for part in text.split(b"HTTP/1.1 ")[1:]] == [b"413", b"200"]


def test_a_body_of_the_largest_size_is_taken(shared_broker: BrokerProcess) -> None:
    topic = f"{API}/namespaces/default/topics/large"
    assert ask(shared_broker.http, "PUT", topic, {"kind": "stream"}).status in (200, 201)
    payload = "x" * (2 * MIB - 20)

    answer = ask(shared_broker.http, "POST", f"{topic}/messages", {"payload": payload})

    assert answer.status == 200
    larger = ask(shared_broker.http, "POST", f"{topic}/messages", {"payload": payload + "x" * 20})
    assert larger.error == (413, 1007)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /api/v1/broker HTTP/1.1\r\n\r\n",
        b"GET /api/v1/broker HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        head("GET", f"{API}/broker", *(f"X-{n}: {'x' * 100}" for n in range(500))),
        head("PUT", ORDERS, JSON, "Content-Length: -1"),
        head("PUT", ORDERS, JSON, "Content-Length: 1", "Content-Length: 2") + b"{}",
        head("PUT", ORDERS, JSON, "Transfer-Encoding: chunked") + b"zz\r\n",
        head("PUT", ORDERS, JSON, "Transfer-Encoding: chunked") + b"2\r\n{}XX",
        head("PUT", ORDERS, JSON, "Transfer-Encoding: gzip") + b"2\r\n{}\r\n",
        head("GET", f"{API}/broker") + b"\x16\x03\x01\x02\x00",
        head("GET", f"{API}/broker", "Connection: Upgrade", "Upgrade: websocket")
        + b"GET / HTTP/9.9\r\n\r\n",
    ],
    ids=range(14),
)
def test_a_peer_that_breaks_the_rules_of_http_costs_only_its_connection(
    sent: bytes, line: socket.socket
) -> None:
    try:
        line.sendall(sent)
        line.shutdown(socket.SHUT_WR)
    except (ConnectionResetError, BrokenPipeError, OSError):
        pass

    read_all(line)


@pytest.mark.parametrize("size_bytes", [0, 1, 100])
def test_a_peer_that_leaves_in_the_middle_of_a_body_changes_nothing(
    size_bytes: int, line: socket.socket, shared_broker: BrokerProcess
) -> None:
    target = f"{API}/namespaces/default/topics/half"
    line.sendall(head("PUT", target, JSON, "Content-Length: 200") + b" " * size_bytes)
    line.close()

    assert ask(shared_broker.http, "GET", target).error == (404, 3001)


def test_a_peer_is_told_to_go_on_only_if_its_body_is_wanted(line: socket.socket) -> None:
    line.sendall(head("PUT", ORDERS, JSON, "Content-Length: 16", "Expect: 100-continue"))
    assert read_answer(line).startswith(b"HTTP/1.1 100")
    line.sendall(b'{"kind": "live"}')
    assert read_answer(line).startswith(b"HTTP/1.1 20")

    line.sendall(head("PUT", ORDERS, JSON, f"Content-Length: {3 * MIB}", "Expect: 100-continue"))

    assert read_answer(line).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("host", ["127.0.0.1", "elsewhere.example"])
@pytest.mark.parametrize("more", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\r\n\r\n", b"x" * 100_000])
def test_what_follows_the_last_request_of_a_connection_is_not_read(
    line: socket.socket, host: str, more: bytes
) -> None:
    last = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    target = f"GET {API}/broker HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    for sent in (last, target):
        with socket.create_connection(line.getpeername(), timeout=WAIT_S) as other:
            other.sendall(sent.encode() + more)
            text = read_all(other)

        expected = b"200" if host == "127.0.0.1" or sent is last else b"421"
        # A reset may have taken the answer away; there is never a second one.
        assert [part[:3] for part in text.split(b"HTTP/1.1 ")[1:]] in ([expected], [])


@pytest.mark.parametrize("host", ["127.0.0.1", "elsewhere.example"])
@pytest.mark.parametrize("target", ["/healthz", f"{API}/broker", ORDERS])
def test_a_request_with_a_bad_body_is_answered_once(
    line: socket.socket, host: str, target: str
) -> None:
    lines = [f"PUT {target} HTTP/1.1", f"Host: {host}", JSON, "Transfer-Encoding: chunked"]
    line.sendall("\r\n".join([*lines, "", "no chunk\r\n"]).encode())

    assert read_all(line).count(b"HTTP/1.1 ") == 1
