"""Hostile peers of the gRPC door: what they cost the broker, and who is served meanwhile.

Each attack runs beside an honest client of `grpcio` and the one of `watched_broker.py`. Turns of
the event loop are bounded as in `test_hostile_stalls.py`, and so is memory.
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import grpc
import pytest
from tests.e2e.grpc.peers import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PING,
    PREFACE,
    REFUSED_STREAM,
    RESET,
    SETTINGS,
    WAIT_S,
    WINDOW,
    Honest,
    Peer,
    enveloped,
    fields,
    frame,
    reset,
    settings,
    window,
)
from tests.e2e.raw import memory_bounded
from tests.e2e.watching import WatchedBroker, trials, watched_broker

from ister.base.limits import MIB
from ister.server.grpc.messages import message

pytestmark = pytest.mark.e2e

HEALTH = "/danube.HealthCheck/HealthCheck"
PARTITIONS = "/danube.Discovery/TopicPartitions"
LATEST = "/danube_schema.SchemaRegistry/GetLatestSchema"
REGISTER = "/danube_schema.SchemaRegistry/RegisterSchema"
SEND = "/danube.ProducerService/SendMessage"
NOTHING = "/danube.Nothing/Nothing"
TOPIC = message("danube.TopicLookupRequest")(topic="/default/none").SerializeToString()
LARGE = message("danube_schema.GetLatestSchemaRequest")(subject="large").SerializeToString()
LARGE_BYTES = 512 * 1024
STREAMS_MAX = 10_000
# What an attack may cost beside the memory that it fills itself.
GROWTH_BYTES_MAX = 64 * MIB
# How long a flood lasts.
FLOOD_S = 0.5

Attack = Callable[[str], None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    with watched_broker(tmp_path_factory.mktemp("peers")) as broker:
        with grpc.insecure_channel(broker.grpc) as channel:
            made = message("danube_schema.RegisterSchemaRequest")(
                subject="large",
                schema_type="bytes",
                schema_definition=b"x" * LARGE_BYTES,
            )
            channel.unary_unary(REGISTER)(made.SerializeToString(), timeout=WAIT_S)
        yield broker


def withstand(
    broker: WatchedBroker, attack: Attack, *, growth_bytes_max: int = GROWTH_BYTES_MAX
) -> None:
    """Attack, and see that nobody is held up, nobody is refused, and memory is bounded."""
    assert broker.process is not None
    for trial in trials(broker):
        with (
            memory_bounded(broker.process.pid, growth_bytes_max),
            Honest(broker.grpc, PARTITIONS, TOPIC).calling(),
            trial,
        ):
            attack(broker.grpc)
    assert "internal_error" not in broker.log_text()


def flood(peer: Peer, unit: bytes, *, within_s: float = FLOOD_S) -> int:
    """Send the same over and over until nothing more is taken; return how much was."""
    part = unit * (MIB // len(unit) + 1)
    end_s, sent = time.monotonic() + within_s, 0
    while (left_s := end_s - time.monotonic()) > 0:
        count = peer.send_while_taken(part, within_s=left_s)
        sent += count
        if count < len(part):
            break
    return sent


# Headers


def flood_with_headers(address: str) -> None:
    with closing(Peer(address)) as peer:
        extra = [(f"x-{n}", "v" * 80) for n in range(100)]
        # Names of the dynamic table, in another order each time: none is found by its bytes.
        blocks = [
            peer.encoder.encode([*fields(NOTHING), *extra[n:], *extra[:n]]) for n in range(50)
        ]
        end_s = time.monotonic() + FLOOD_S
        with suppress(ConnectionError):
            while time.monotonic() < end_s:
                peer.send(
                    *(
                        frame(HEADERS, END_HEADERS | END_STREAM, peer.next_stream(), block)
                        for block in blocks
                    )
                )


def flood_with_continuations(address: str) -> None:
    for piece in (b"", b"x", b"x" * 16_000):
        with closing(Peer(address)) as peer:
            begin = frame(HEADERS, 0, 1, peer.encoder.encode(fields(NOTHING)))
            peer.send(begin)
            flood(peer, frame(CONTINUATION, 0, 1, piece), within_s=0.2)
            with suppress(ConnectionError):
                peer.send(begin)
            assert peer.farewell() in (ENHANCE_YOUR_CALM, None)


def in_huffman(size: int) -> bytes:
    """Return a field whose value has `size` bytes in Huffman's code."""
    left = size - 127
    return (
        b"\x00\x01a\xff"
        + bytes((left & 127 | 128, left >> 7 & 127 | 128, left >> 14))
        + (b"\x18" * size)
    )


# Blocks of headers of a size that cost as much as can be.
BOMBS: dict[str, Callable[[int], bytes]] = {
    "table sizes": lambda size: b"\x20" * size,
    "table sizes of more bytes": lambda size: b"\x3f\xe1\x1f\x20" * (size // 4),
    "literals": lambda size: b"\x40\x00\x00" * (size // 3),
    "literals and a large one": lambda size: b"\x40\x00\x00" * 900 + in_huffman(size - 2_720),
    "literals that are kept by nobody": lambda size: b"\x00\x00\x00" * (size // 3),
    "references": lambda size: b"\x82" * size,
    "huffman": lambda size: in_huffman(size - 10),
    "an endless number": lambda size: b"\x7f" + b"\xff" * (size - 1),
}


# In one frame, in two, and more than is taken.
@pytest.mark.parametrize("size", [16_000, 24_000, 32_000])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_headers(broker: WatchedBroker, name: str, size: int) -> None:
    block = BOMBS[name](size)

    def attack(address: str) -> None:
        for _ in range(4):
            with closing(Peer(address)) as peer, suppress(ConnectionError):
                for _ in range(16):
                    peer.send(
                        frame(HEADERS, END_STREAM, peer.next_stream(), block[:16_000]),
                        frame(CONTINUATION, END_HEADERS, peer.stream, block[16_000:]),
                    )
                peer.send(frame(PING, 0, 0, b"the last"))
                while (got := peer.frame()) is not None and got[:2] != (PING, ACK):
                    pass

    withstand(broker, attack)


def test_a_large_entry_that_is_referred_to_many_times(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address)) as peer:
            block = peer.encoder.encode([*fields(NOTHING), ("x", "v" * 3_900)])
            peer.send(frame(HEADERS, END_HEADERS | END_STREAM, peer.next_stream(), block))
            peer.send(frame(HEADERS, END_HEADERS, peer.next_stream(), b"\xbe" * 16_000))
            assert peer.farewell() == ENHANCE_YOUR_CALM

    withstand(broker, attack)


@pytest.mark.parametrize("attack", [flood_with_headers, flood_with_continuations])
def test_a_flood_of_headers(broker: WatchedBroker, attack: Attack) -> None:
    withstand(broker, attack)


# Streams


@pytest.mark.parametrize("path", [NOTHING, PARTITIONS, SEND, LATEST])
@pytest.mark.parametrize("whole", [False, True], ids=["headers", "request"])
def test_a_rapid_reset(broker: WatchedBroker, path: str, whole: bool) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address)) as peer:
            end_s = time.monotonic() + FLOOD_S
            with suppress(ConnectionError):
                while time.monotonic() < end_s:
                    for _ in range(50):
                        call = peer.request(path, LARGE if whole else None)
                        peer.send(call, reset(peer.stream))

    withstand(broker, attack)


def test_a_peer_that_gives_up_too_many_calls_is_told_why(broker: WatchedBroker) -> None:
    with closing(Peer(broker.grpc)) as peer:
        calls = [peer.request(PARTITIONS, None) + reset(2 * n + 1) for n in range(1_001)]
        with suppress(ConnectionError):
            peer.send(*calls)

        assert peer.farewell() == ENHANCE_YOUR_CALM


def test_calls_whose_message_never_comes(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address)) as peer:
            peer.send(*(peer.request(SEND, None) for _ in range(STREAMS_MAX)))
            peer.send(peer.request(SEND, None))

            refused = peer.wait_for(RESET, stream=2 * STREAMS_MAX + 1)
            assert int.from_bytes(refused, "big") == REFUSED_STREAM
            # All are given up at once.
            peer.socket.close()

    withstand(broker, attack)


def test_ten_thousand_calls_that_come_at_once(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address)) as peer:
            requests = b"".join(peer.request(PARTITIONS, TOPIC) for _ in range(STREAMS_MAX))
            peer.send(requests)
            peer.answer(2 * STREAMS_MAX - 1)

    withstand(broker, attack)


# Frames without use


FLOODS = {
    "settings": settings(s3=100),
    "large settings": frame(SETTINGS, 0, 0, b"\0\3\0\0\0\1" * 2_700),
    "windows of a new stream": settings(s4=1_000) + settings(s4=2_000),
    "pings": frame(PING, 0, 0, b"flooding"),
    "answers to pings": frame(PING, ACK, 0, b"flooding"),
    "frames of no known type": frame(99),
    "windows": window(1),
    "priorities": frame(2, 0, 1, bytes(3) + b"\3\7"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_a_peer_that_does_not_read(broker: WatchedBroker, name: str) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address, receive_bytes=4_096)) as peer:
            # So that a change of the window has many to change.
            peer.send(*(peer.request(SEND, None) for _ in range(1_000)))
            flood(peer, FLOODS[name])

    withstand(broker, attack)


@pytest.mark.parametrize("size", [0, 1], ids=["empty", "a byte"])
def test_a_request_of_32_mib_in_tiny_frames(broker: WatchedBroker, size: int) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address)) as peer:
            peer.send(peer.request(SEND, None))
            peer.send(frame(DATA, 0, 1, enveloped(bytes(32 * MIB))[:5]))
            # It is the stream's window that stops it: nothing is read that would enlarge it.
            flood(peer, frame(DATA, 0, 1, bytes(size)))

    withstand(broker, attack)


def test_requests_that_never_end_are_bounded_together(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with ExitStack() as stack:
            for _ in range(9):
                peer = stack.enter_context(closing(Peer(address)))
                peer.send(peer.request(SEND, None))
                peer.send(frame(DATA, 0, 1, enveloped(bytes(32 * MIB))[:5]))
                part = frame(DATA, 0, 1, bytes(16_384)) * (MIB // 16_384)
                with suppress(ConnectionError):
                    for _ in range(30):
                        peer.send(part)
                        # The second update of the stream's window is for the rest of it.
                        peer.wait_for(WINDOW, stream=1)
                        peer.wait_for(WINDOW, stream=1)

    # 256 MiB of requests, and what a buffer that grows has beside it.
    withstand(broker, attack, growth_bytes_max=400 * MIB)


# Windows


def test_large_answers_by_windows_of_a_byte(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address, words=PREFACE + settings(s4=0))) as peer:
            peer.send(*(peer.request(LATEST, LARGE) for _ in range(20)))
            end_s = time.monotonic() + FLOOD_S
            streams = range(1, 41, 2)
            part = b"".join(window(1, stream) for stream in streams) * 100
            with suppress(ConnectionError):
                while time.monotonic() < end_s:
                    peer.send_while_taken(part, within_s=FLOOD_S)

    withstand(broker, attack)


def test_ten_thousand_answers_that_grow_by_a_byte_together(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address, words=PREFACE + settings(s4=0) + window(2**30))) as peer:
            request = message("danube.HealthCheckRequest")(client=0, id=5).SerializeToString()
            peer.send(b"".join(peer.request(PARTITIONS, TOPIC) for _ in range(STREAMS_MAX - 1)))
            peer.send(peer.request(HEALTH, request))
            peer.wait_for(HEADERS, flags=END_HEADERS, stream=2 * STREAMS_MAX - 1)
            peer.send(*(settings(s4=size) for size in (1, 2, 3, 4, 3, 2, 1, 2, 3, 4)))
            peer.send(frame(PING, 0, 0, b"the last"))
            peer.wait_for(PING, flags=ACK)

    withstand(broker, attack)


def test_ten_thousand_answers_wait_for_the_connection_s_window(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with closing(Peer(address)) as peer:
            # The connection's window goes to the first, of which the stream's own has as much.
            peer.send(peer.request(LATEST, LARGE))
            peer.wait_for(DATA, stream=1)
            peer.send(reset(1))
            peer.send(b"".join(peer.request(PARTITIONS, TOPIC) for _ in range(STREAMS_MAX - 1)))
            peer.wait_for(HEADERS, flags=END_HEADERS, stream=2 * STREAMS_MAX - 1)
            peer.send(window(2**30))
            peer.wait_for(HEADERS, flags=END_HEADERS | END_STREAM, stream=2 * STREAMS_MAX - 1)

    withstand(broker, attack)


def test_answers_that_nobody_reads(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with ExitStack() as stack:
            for _ in range(8):
                words = PREFACE + settings(s4=2**31 - 1) + window(2**30)
                peer = stack.enter_context(closing(Peer(address, receive_bytes=4_096, words=words)))
                request = b"".join(peer.request(LATEST, LARGE) for _ in range(200))
                peer.send_while_taken(request, within_s=FLOOD_S)

    withstand(broker, attack, growth_bytes_max=160 * MIB)


def test_answers_for_which_there_is_no_window(broker: WatchedBroker) -> None:
    def attack(address: str) -> None:
        with ExitStack() as stack:
            for _ in range(4):
                peer = stack.enter_context(closing(Peer(address, words=PREFACE + settings(s4=0))))
                peer.send(b"".join(peer.request(LATEST, LARGE) for _ in range(200)))
                # Handlers do not make more answers than there is room for.
                peer.send(frame(PING, payload=bytes(8)))
                peer.wait_for(PING, flags=ACK)

    withstand(broker, attack, growth_bytes_max=100 * MIB)


# Connections


def test_two_thousand_idle_connections(broker: WatchedBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 1_000)), hard))

    def attack(address: str) -> None:
        with ExitStack() as stack:
            peers = [stack.enter_context(closing(Peer(address))) for _ in range(count)]
            # The oldest have made room for the newest.
            assert peers[0].farewell() == ENHANCE_YOUR_CALM
            peers[-1].send(peers[-1].request(PARTITIONS, TOPIC))
            assert peers[-1].answer(1)[0]["grpc-status"] == "0"

    try:
        withstand(broker, attack)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
