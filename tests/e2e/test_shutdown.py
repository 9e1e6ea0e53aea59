"""SIGTERM: the broker stops accepting, tells its clients, drains what can be drained, and ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker, free_port
from tests.e2e.raw import WAIT_S, RawClient, eventually, publish, wait_until

import ister
from ister.base.errors import GoingAwayError
from ister.base.limits import CREDIT_MAX
from ister.wire import (
    GoingAway,
    ListTopics,
    Opcode,
    OpenProducer,
    Subscribe,
    Topics,
    credit_frame,
)

pytestmark = pytest.mark.e2e

TOPIC = "/default/a"


def begin_closing(broker: BrokerProcess) -> None:
    """Send SIGTERM and wait until the broker acts on it."""
    os.kill(broker.pid, signal.SIGTERM)
    wait_until(lambda: "broker_closing" in broker.log_text(), "the broker is closing")


def exit_code(broker: BrokerProcess) -> int:
    """Wait for the end of the process."""
    assert broker.process is not None
    return broker.process.wait(WAIT_S)


def refuses(broker: BrokerProcess) -> bool:
    try:
        socket.create_connection((broker.host, broker.port), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return True
    return False


def stuck_consumer(broker: BrokerProcess) -> RawClient:
    """Return a consumer with messages waiting for it that neither reads nor leaves."""
    raw = RawClient(broker)
    raw.greet()
    raw.subscribe(TOPIC, "stuck", channel=2)
    raw.open_producer(TOPIC, channel=1)
    raw.send(publish(*[b"x"] * 10))
    frame = raw.frame()
    assert frame is not None
    assert frame[0] == Opcode.PUBLISHED
    return raw


def test_a_closing_broker_tells_its_clients_accepts_nobody_and_ends_with_code_0(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("--shutdown-deadline", "1h")
    with RawClient(broker) as idle, stuck_consumer(broker) as stuck, RawClient(broker) as silent:
        idle.greet()
        os.kill(broker.pid, signal.SIGTERM)

        assert "shutting down" in idle.expect(GoingAway).reason
        assert "shutting down" in stuck.expect(GoingAway).reason
        # Nothing waits for these two, so they are let go first.
        assert idle.farewell() is None
        assert silent.farewell() is None
        wait_until(lambda: refuses(broker), "the port is closed")
        assert broker.process is not None
        assert broker.process.poll() is None
        stuck.send(credit_frame(2, 10, 10_000))
        assert stuck.farewell() is None

    assert exit_code(broker) == 0


def test_what_is_queued_is_drained_before_the_end(start_broker: StartBroker) -> None:
    broker = start_broker("--shutdown-deadline", "1h")
    with stuck_consumer(broker) as raw:
        begin_closing(broker)
        delivered = 0
        # As slowly as a busy consumer, a message at a time.
        for _ in range(10):
            raw.send(credit_frame(2, 1, 10_000))
            while (frame := raw.frame()) is not None:
                if frame[0] == Opcode.DELIVER:
                    delivered += 1
                    break
        assert raw.farewell() is None

    assert delivered == 10
    assert exit_code(broker) == 0


async def test_a_subscription_receives_everything_that_was_acknowledged_before_the_end(
    broker: BrokerProcess,
) -> None:
    count = 5_000
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", buffer_count=100) as sub,
        client.producer(TOPIC) as producer,
    ):
        await producer.send_batch([b"%d" % n for n in range(count)])
        os.kill(broker.pid, signal.SIGTERM)
        received: list[int] = []
        while len(received) < count:
            received += [int(m.payload) for m in await sub.fetch(count, timeout=WAIT_S)]
        code = await asyncio.to_thread(exit_code, broker)

    assert received == list(range(count))
    assert code == 0


async def test_no_acknowledged_message_is_lost_when_the_broker_closes_under_load(
    broker: BrokerProcess,
) -> None:
    resumed = asyncio.Event()
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", on_event=lambda _: resumed.set()) as sub,
        client.producer(TOPIC) as producer,
    ):
        received: list[int] = []

        async def listen() -> None:
            async for batch in sub.batches():
                received.extend(map(int, batch.payloads))

        listening = asyncio.create_task(listen())
        stopping = asyncio.create_task(asyncio.to_thread(broker.restart))
        acknowledged = []
        number = 0
        while not resumed.is_set() or number % 100:
            try:
                await producer.send(b"%d" % number)
                acknowledged.append(number)
            except ister.BusyError:
                pass  # In flight when the connection ended: nobody knows, so the sender is told.
            number += 1
        await stopping
        await eventually(lambda: received[-1:] == acknowledged[-1:])
        await sub.close()
        await listening

    # Told first, a client holds back what it has not sent: hardly any send is left in doubt.
    assert number - len(acknowledged) <= 1
    assert set(acknowledged) <= set(received)
    assert received == sorted(set(received))


async def test_clients_go_on_with_the_next_broker(broker: BrokerProcess) -> None:
    resumed = asyncio.Event()
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", on_event=lambda _: resumed.set()) as sub,
        client.producer(TOPIC) as producer,
    ):
        await asyncio.to_thread(broker.restart)
        async with asyncio.timeout(WAIT_S):
            await resumed.wait()
        await producer.send(b"x")

        assert (await sub.receive(WAIT_S)).payload == b"x"


@pytest.mark.parametrize("reads", [True, False], ids=["without credit", "without reading"])
def test_a_stuck_client_does_not_hold_the_end_past_the_deadline(
    start_broker: StartBroker, reads: bool
) -> None:
    broker = start_broker("--shutdown-deadline", "0.5s")
    if reads:
        raw = stuck_consumer(broker)
    else:
        raw = RawClient(broker, receive_bytes=4_096)
        raw.greet()
        raw.open_producer(TOPIC)
        raw.subscribe(TOPIC, "s")
        raw.send(credit_frame(2, CREDIT_MAX, CREDIT_MAX))
        # More than the buffers of both sides, so that bytes are waiting to be read.
        raw.send_while_taken(publish(bytes(100_000)) * 200)
    with raw:
        os.kill(broker.pid, signal.SIGTERM)

        assert exit_code(broker) == 0

    assert "client_cut_off" in broker.log_text()


def test_a_second_signal_ends_at_once(start_broker: StartBroker) -> None:
    broker = start_broker("--shutdown-deadline", "1h")
    with stuck_consumer(broker):
        begin_closing(broker)
        os.kill(broker.pid, signal.SIGINT)

        assert exit_code(broker) == 0

    assert "broker_forced" in broker.log_text()


def test_a_closing_broker_opens_nothing_new_and_still_answers(start_broker: StartBroker) -> None:
    broker = start_broker("--shutdown-deadline", "1h")
    with stuck_consumer(broker) as raw:
        begin_closing(broker)
        raw.expect(GoingAway)

        for command in (
            OpenProducer(topic=TOPIC, name="p", channel=7),
            Subscribe(topic=TOPIC, subscription="new", consumer="c", channel=7),
        ):
            assert isinstance(raw.refusal(command), GoingAwayError)
        assert raw.call(ListTopics(), Topics).rows[0].topic == TOPIC
        # What was on its way when the client was told is taken.
        raw.send(publish(b"late", sequence=9))
        frame = raw.frame()
        assert frame is not None
        assert frame[:3] == (Opcode.PUBLISHED, 1, 9)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("object_store", [True, False], ids=["object store", "data folder"])
async def test_a_closed_broker_ends_whatever_its_threads_do(
    tmp_path: Path, object_store: bool, number: signal.Signals
) -> None:
    ready, store = tmp_path / "ready.json", f"file://{tmp_path}/store"
    flags = {
        "data": str(tmp_path / "data"),
        "ready_file": str(ready),
        "native.port": free_port(),
        "http.port": free_port(),
        "grpc.mode": "off",
        **({"storage.object_store": store} if object_store else {}),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - it is quick
            [sys.executable, "-m", "tests.e2e.busy_broker", json.dumps(flags)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        await eventually(ready.exists)
        async with ister.connect(json.loads(ready.read_text())["url"]) as client:
            await client.create_topic(
                TOPIC, kind="stream", durability="object" if object_store else "fsync"
            )
            async with client.producer(TOPIC) as producer:
                await producer.send(b"x")
                process.send_signal(number)
                code = await asyncio.to_thread(process.wait, WAIT_S)
    finally:
        process.kill()
        process.wait()

    assert code == 0
    assert "broker_closed" in (tmp_path / "log").read_text()
