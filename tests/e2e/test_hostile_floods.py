"""Attacks by sheer number: the broker's memory and its other clients do not suffer.

As in `test_hostile`, one broker process takes them all. Bounds are generous, and far below what
the attack would cost a broker without the limit it meets.
"""

import resource
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.e2e.raw import RawClient, header, publish, wait_until
from tests.e2e.target import Target, assert_refused, attacked, open_target

from ister import sync
from ister.base.errors import LimitReachedError, ProtocolError
from ister.base.limits import CREDIT_MAX, MIB, Limits
from ister.codec import Codec, available, encode
from ister.server.native.door import BUFFERED_BYTES_MAX
from ister.wire import (
    Hello,
    ListTopics,
    Opcode,
    control_frame,
    credit_frame,
    publish_frame,
    reply_frame,
)
from ister.wire.frames import ping_frame

pytestmark = pytest.mark.e2e

HALF_OPEN_COUNT = 10_000


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with open_target(tmp_path_factory.mktemp("floods")) as target:
        yield target


def half_open_count() -> int:
    """Return how many connections this machine lets one process hold, 10,000 if it can."""
    # A few hundred are for Python, the broker's pipes and the test runner.
    wanted = HALF_OPEN_COUNT + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        print(f"only {hard} open files are allowed here: {hard - 500} connections, not 10,000")
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(HALF_OPEN_COUNT, wanted - 500)


def test_ten_thousand_half_open_connections_keep_nobody_out(target: Target) -> None:
    sockets: list[socket.socket] = []
    # About 8 KiB for each of the handshakes the broker keeps, and what a burst leaves behind.
    with attacked(target, growth_bytes_max=128 * MIB):
        try:
            for number in range(half_open_count()):
                # Some have begun to say hello, as a client that dies in between has.
                sockets.append(socket.create_connection((target.broker.host, target.broker.port)))
                if number % 3 == 0:
                    with suppress(ConnectionError):
                        sockets[-1].send(control_frame(Hello(client_id="half"))[:20])
                if number % 1_000 == 0:
                    target.check()
            with sync.connect(target.broker.url) as newcomer:
                connections = newcomer.broker().connections
            # The healthy one, the newcomer, and those that may still say hello.
            assert connections <= Limits().handshakes_max + 2
        finally:
            for one in sockets:
                one.close()


def test_the_newest_handshakes_are_kept_when_there_are_too_many(target: Target) -> None:
    count = Limits().handshakes_max
    with attacked(target, growth_bytes_max=128 * MIB):
        oldest = target.connect()
        others = [target.connect() for _ in range(count)]

        error = assert_refused(oldest, LimitReachedError)

        assert isinstance(error, LimitReachedError)
        assert (error.limit, error.value) == ("handshakes_max", count)
        others[-1].greet()
        for one in others:
            one.close()


def test_a_client_that_never_says_hello_is_cut_off(target: Target) -> None:
    with attacked(target):
        silent, trickling = target.connect(), target.connect()
        hello = control_frame(Hello(client_id="slow"))
        trickling.send(hello[:1])

        assert_refused(silent, ProtocolError)
        with suppress(ConnectionError):
            trickling.send(hello[1:2])
        assert_refused(trickling, ProtocolError)


def test_frames_begun_and_never_ended_are_bounded_together(target: Target) -> None:
    size = Limits().batch_bytes_max
    claim = header(size, Opcode.PUBLISH, channel=1)
    body = bytes(size - 1)
    count = BUFFERED_BYTES_MAX // size + 4
    # The limit itself, one read and one join on top, and the allocator's rounding.
    with attacked(target, growth_bytes_max=BUFFERED_BYTES_MAX + 128 * MIB):
        raws = [target.greeted() for _ in range(count)]
        for raw in raws:
            raw.send(claim)
            raw.send_while_taken(body)
        target.check()
        # A client with a frame in two parts is not the one to pay for it.
        with target.greeted() as honest:
            honest.open_producer("/default/honest")
            frame = publish(b"x" * 1_000)
            honest.send(frame[:500])
            target.check()
            honest.send(frame[500:])
            answer = honest.frame()
            assert answer is not None
            assert answer[0] == Opcode.PUBLISHED
        cut_off = [raw for raw in raws if closed(raw)]
        assert cut_off, "more than the limit is held"
        for raw in raws:
            raw.close()


def closed(raw: RawClient) -> bool:
    """Whether the broker has closed the connection already."""
    raw.socket.settimeout(0.05)
    try:
        return raw.frame() is None or raw.frame() is None
    except TimeoutError:
        return False


def test_a_client_that_asks_without_reading_the_answers_is_not_answered_for_ever(
    target: Target,
) -> None:
    for number in range(500):
        target.client.create_topic(f"/default/list.{number}")
    question = control_frame(ListTopics(), sequence=1)
    with attacked(target, growth_bytes_max=48 * MIB):
        raw = target.greeted()
        # Each question of 40 bytes asks for 80 KB: a flood that fits into one read asks for GBs.
        raw.send_while_taken(question * (8 * MIB // len(question)))
        target.check()
        raw.close()
    for number in range(500):
        target.client.delete_topic(f"/default/list.{number}")


def test_answers_to_a_client_that_does_not_read_are_bounded(target: Target) -> None:
    with (
        attacked(target, growth_bytes_max=128 * MIB),
        RawClient(target.broker, receive_bytes=4_096) as deaf,
    ):
        session = deaf.greet().session
        with target.greeted() as friend:
            parts = encode([bytes(64 * 1024)], replies=[(session, 1)])
            answers = b"".join(bytes(p) for p in reply_frame(parts))
            for _ in range(400 * MIB // (16 * len(answers))):
                friend.send(answers * 16)
            friend.send(ping_frame())
            frame = friend.frame()
            assert frame is not None


def test_notices_to_a_client_that_does_not_read_are_bounded(target: Target) -> None:
    with (
        attacked(target, growth_bytes_max=64 * MIB),
        RawClient(target.broker, receive_bytes=4_096) as deaf,
    ):
        session = deaf.greet().session
        with target.greeted() as friend:
            friend.open_producer("/default/nobody")
            # Requests in somebody else's name, to a topic on which nobody answers.
            count = 8_192
            requests = [(session, 2**62 + n) for n in range(count)]
            head, body = encode([b""] * count, replies=requests, producer=b"p")
            frame = b"".join(publish_frame(1, 1, head, body))
            # 73 KB of notices for each: 100 MB in all.
            for _ in range(1_400):
                friend.send(frame)
                assert friend.frame() is not None


@pytest.mark.skipif(Codec.ZSTD not in available(), reason="zstandard is not installed")
def test_small_batches_that_unpack_to_large_ones_do_not_fill_the_memory(target: Target) -> None:
    with (
        attacked(target, growth_bytes_max=224 * MIB),
        RawClient(target.broker, receive_bytes=4_096) as deaf,
    ):
        # Speaks no compression, so that the broker must unpack; grants all credit and never reads.
        deaf.greet()
        deaf.subscribe("/default/bombs", "s", channel=2)
        deaf.send(credit_frame(2, CREDIT_MAX, CREDIT_MAX))
        with target.greeted() as friend:
            friend.open_producer("/default/bombs")
            head, body = encode([bytes(8 * MIB)], producer=b"p", codec=Codec.ZSTD)
            bomb = b"".join(publish_frame(1, 1, head, body))
            friend.send(bomb * 100)
            for _ in range(100):
                frame = friend.frame()
                assert frame is not None
                assert frame[0] == Opcode.PUBLISHED
            target.check()


def test_a_burst_to_a_thousand_consumers_does_not_fill_the_memory(target: Target) -> None:
    # Small messages, all in one read, for each of so many consumers.
    consumers, messages = 1_000, 600
    with (
        attacked(target, growth_bytes_max=160 * MIB),
        RawClient(target.broker, receive_bytes=4_096) as deaf,
    ):
        deaf.greet()
        for channel in range(1, consumers + 1):
            deaf.subscribe("/default/burst", f"s{channel}", channel=channel)
            deaf.send(credit_frame(channel, CREDIT_MAX, CREDIT_MAX))
        with target.greeted() as friend:
            friend.open_producer("/default/burst")
            friend.send(publish(b"x") * messages)
            for _ in range(messages):
                assert friend.frame() is not None


def test_bytes_one_at_a_time_do_not_keep_a_connection_alive(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("loris")
    with open_target(folder, "--heartbeat", "0.5") as target, attacked(target):
        loris = target.greeted()
        loris.send(header(1_000, Opcode.CONTROL))
        loris.socket.settimeout(0.05)

        def is_cut_off() -> bool:
            try:
                loris.send(b"\x00")
                return loris.frame() is None
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(is_cut_off, "the trickling client is cut off")
        loris.close()
