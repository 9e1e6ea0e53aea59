"""TLS under load and over restarts: nothing is lost or doubled, and memory is bounded."""

import asyncio
import contextlib
import hashlib
import os
import random
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.certificates import Certificates
from tests.e2e.conftest import BrokerProcess
from tests.e2e.raw import WAIT_S, memory_bounded, wait_until
from tests.e2e.secured import (
    TOKEN,
    client_hello,
    connect,
    native,
    open_secured_target,
    raw_tls,
    running,
    tls_flags,
    trusting,
    write_tokens,
)
from tests.e2e.target import Target

import ister
from ister.base.limits import CREDIT_MAX, MIB
from ister.codec import encode
from ister.server.handshakes import HANDSHAKE_S_MAX
from ister.server.native.door import SCRATCH_BYTES
from ister.wire import (
    GoingAway,
    Hello,
    ListTopics,
    OpenProducer,
    Subscribe,
    Subscribed,
    Welcome,
    control_frame,
    credit_frame,
    publish_frame,
)

pytestmark = pytest.mark.e2e

SEED = 20_260_229


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Target]:
    with open_secured_target(tmp_path_factory.mktemp("target"), certificates) as target:
        yield target


@pytest.fixture
def flags(tmp_path: Path, certificates: Certificates) -> list[str]:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}")
    return [*tls_flags(certificates), "--tokens", str(tokens)]


# Load


def send_and_end(broker: BrokerProcess, context: ssl.SSLContext, first: bytes, then: bytes) -> None:
    """Send bytes over TLS, and when they are answered others, with its end in the same write."""
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, to_send, server_hostname=broker.host)
    with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as raw:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(to_send.read())
                received.write(raw.recv(65_536))
        tls.write(first)
        raw.sendall(to_send.read())
        answer = b""
        while not answer:
            received.write(raw.recv(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = tls.read()
        tls.write(then)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        raw.sendall(to_send.read())
        # Until the broker has ended it as well.
        while raw.recv(65_536):
            pass


def test_what_was_sent_before_the_end_of_tls_is_published(
    target: Target, certificates: Certificates
) -> None:
    broker, topic, count = target.broker, "/default/farewell", 200
    head, body = encode([b"x"], producer=b"p")
    hello = control_frame(Hello(client_id="hasty", token=TOKEN))
    frames = [
        control_frame(OpenProducer(topic=topic, name="p", channel=1), sequence=1),
        # These take longer than a turn.
        *(control_frame(ListTopics(pattern=topic), sequence=2) for _ in range(600)),
        *(b"".join(publish_frame(1, 3 + number, head, body)) for number in range(count)),
    ]
    # One read of the broker.
    assert sum(map(len, frames)) < SCRATCH_BYTES
    with native(broker, certificates) as client:
        client.create_topic(topic)

        send_and_end(broker, trusting(certificates), hello, b"".join(frames))

        wait_until(lambda: not client.topics(topic)[0].producers, "the connection is gone")
        [found] = client.topics(topic)
        client.delete_topic(topic)

    assert found.messages_in == count


async def test_large_messages_come_whole_to_a_slow_consumer(
    target: Target, certificates: Certificates
) -> None:
    rng = random.Random(SEED)
    payloads = [rng.randbytes(size) for size in (8 * MIB, 1, 5 * MIB, 0, 3 * MIB, 16_384, 7 * MIB)]
    sent = [hashlib.sha256(payload).digest() for payload in payloads]
    tls = ister.Tls(ca=certificates.ca)
    async with ister.connect(target.broker.url, token=TOKEN, tls=tls) as client:
        await client.create_topic("/default/large", kind="stream")
        async with (
            client.producer("/default/large") as producer,
            client.subscribe("/default/large", "s", start="earliest", buffer_count=1) as sub,
        ):
            sending = asyncio.gather(*(producer.send(payload) for payload in payloads))
            received = []
            for _ in payloads:
                message = await sub.receive(timeout=WAIT_S)
                received.append(hashlib.sha256(message.payload).digest())
                await message.ack()
                # Slower than the broker can send.
                await asyncio.sleep(0.02)
            await sending
        await client.delete_topic("/default/large")

    assert received == sent


async def test_many_small_messages_come_in_order(
    target: Target, certificates: Certificates
) -> None:
    count = 200_000
    tls = ister.Tls(ca=certificates.ca)
    async with (
        ister.connect(target.broker.url, token=TOKEN, tls=tls) as client,
        client.subscribe("/default/many", "s", buffer_count=count) as sub,
        client.producer("/default/many") as producer,
    ):

        async def send() -> None:
            for start in range(0, count, 1_000):
                await producer.send_batch([b"%d" % n for n in range(start, start + 1_000)])

        sending = asyncio.create_task(send())
        received: list[int] = []
        async for batch in sub.batches():
            received.extend(map(int, batch.payloads))
            if len(received) >= count:
                break
        await sending
        assert sub.dropped == 0

    assert received == list(range(count))


def test_a_consumer_that_does_not_read_costs_no_more_than_its_queue(
    target: Target, certificates: Certificates
) -> None:
    topic = "/default/unread"
    payload = secrets.token_bytes(MIB)
    with raw_tls(target.broker, certificates, receive_bytes=16_384) as raw:
        raw.send(control_frame(Hello(client_id="unread", token=TOKEN)))
        raw.expect(Welcome)
        command = Subscribe(topic=topic, subscription="s", consumer="c", channel=2)
        raw.call(command, Subscribed)
        raw.send(credit_frame(2, CREDIT_MAX, CREDIT_MAX))
        with (
            # A queue of 16 MiB, and a send buffer of 1 MiB above TLS and as much below.
            memory_bounded(target.broker.pid, 72 * MIB),
            target.client.producer(topic) as producer,
        ):
            for _ in range(150):
                producer.send(payload)
            target.check()
    target.check_alone()


# Restarts


async def test_nothing_acknowledged_is_lost_or_doubled_when_the_broker_is_killed(
    tmp_path: Path, certificates: Certificates, flags: list[str]
) -> None:
    topic, count = "/default/killed", 20_000
    tls = ister.Tls(ca=certificates.ca)
    with running(tmp_path, *flags) as broker:
        async with ister.connect(broker.url, token=TOKEN, tls=tls) as client:
            await client.create_topic(topic, kind="stream")
            progress = asyncio.Event()

            async def send() -> None:
                async with client.producer(topic, name="p") as producer:
                    for n in range(0, count, 20):
                        await producer.send_batch([b"%d" % m for m in range(n, n + 20)])
                        progress.set()

            sending = asyncio.create_task(send())
            for _ in range(3):
                progress.clear()
                async with asyncio.timeout(WAIT_S):
                    await progress.wait()
                await asyncio.to_thread(crash, broker)
            await sending
            async with client.reader(topic, start="earliest", end="latest") as reader:
                read = [int(p) async for batch in reader for p in batch.payloads]

    assert read == list(range(count))


def crash(broker: BrokerProcess) -> None:
    broker.kill()
    broker.restart()


def test_a_broker_with_half_open_handshakes_and_tls_clients_ends_at_once_and_well(
    tmp_path: Path, certificates: Certificates, flags: list[str]
) -> None:
    hello = client_hello(certificates)
    with running(tmp_path, *flags, "--shutdown-deadline", "1h") as broker, ExitStack() as stack:
        client = stack.enter_context(raw_tls(broker, certificates))
        client.send(control_frame(Hello(client_id="raw", token=TOKEN)))
        client.expect(Welcome)
        for address in (broker.native, broker.http, broker.grpc):
            for data in (b"", hello[:100]):
                stack.enter_context(connect(address)).sendall(data)
        idle = stack.enter_context(connect(broker.http))
        stack.enter_context(trusting(certificates).wrap_socket(idle, server_hostname="localhost"))
        start = time.monotonic()
        os.kill(broker.pid, signal.SIGTERM)

        assert "shutting down" in client.expect(GoingAway).reason
        assert client.farewell() is None
        assert broker.process is not None
        assert broker.process.wait(WAIT_S) == 0
        assert time.monotonic() - start < HANDSHAKE_S_MAX - 1


async def test_a_subscription_has_all_that_was_acknowledged_when_the_broker_closes(
    tmp_path: Path, certificates: Certificates, flags: list[str]
) -> None:
    count = 5_000
    tls = ister.Tls(ca=certificates.ca)
    with running(tmp_path, *flags) as broker:
        async with (
            ister.connect(broker.url, token=TOKEN, tls=tls) as client,
            client.subscribe("/default/a", "s", buffer_count=100) as sub,
            client.producer("/default/a") as producer,
        ):
            await producer.send_batch([b"%d" % n for n in range(count)])
            os.kill(broker.pid, signal.SIGTERM)
            received: list[int] = []
            while len(received) < count:
                received += [int(m.payload) for m in await sub.fetch(count, timeout=WAIT_S)]
            assert broker.process is not None
            assert await asyncio.to_thread(broker.process.wait, WAIT_S) == 0

    assert received == list(range(count))
