"""Danube's client and a broker that crashes, restarts or closes: it goes on by itself."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from tests.e2e.conftest import BrokerProcess, StartBroker, plain_environment
from tests.e2e.grpc.danubes import Danube, code_of, new_topic

WAIT_S = 30.0


async def is_away(call: Awaitable[Any]) -> bool:
    """Make a call, and return whether the broker was away."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not StatusCode.UNAVAILABLE:
            raise
        return True
    return False


async def send(producer: Any, payload: bytes) -> None:
    """Send as an application does: again, while the broker is away.

    gRPC itself waits longer and longer before it connects again, longer than Danube's client.
    """
    async with asyncio.timeout(WAIT_S):
        while await is_away(producer.send(payload)):
            pass


async def crash(broker: BrokerProcess) -> None:
    """End a broker as a crash would, and start it again."""
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)


async def test_nothing_acknowledged_is_lost_and_everybody_goes_on(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    topic = new_topic()
    async with Danube(broker.grpc) as danube:
        producer = await danube.producer(topic, reliable=True)
        inbox = await danube.consumer(topic)
        sent: list[bytes] = []

        async def produce() -> None:
            for number in range(300):
                payload = b"%d" % number
                await send(producer, payload)
                sent.append(payload)

        producing = asyncio.create_task(produce())
        got = await inbox.payloads(50, ack=True)
        await crash(broker)
        # Its old id is all that this consumer has. What was under way may come twice.
        while len(set(got)) < 300:
            (one,) = await asyncio.wait_for(inbox.take(), WAIT_S)
            got.append(one.payload)
            # What cannot be acknowledged comes again.
            await is_away(inbox.consumer.ack(one))
        await producing

    assert set(got) == set(sent)
    assert [int(payload) for payload in dict.fromkeys(got)] == list(range(300))


async def test_live_clients_go_on_after_a_crash(start_broker: StartBroker) -> None:
    broker = start_broker()
    topic, parted = new_topic(), new_topic()
    async with Danube(broker.grpc) as danube:
        producer = await danube.producer(topic)
        parts = await danube.producer(parted, partitions=3)
        inbox = await danube.consumer(topic)
        await producer.send(b"before")
        await inbox.take()

        await crash(broker)
        await send(producer, b"after")
        # Whoever comes anew finds the topic as well.
        late = await danube.consumer(parted, "late")
        for _ in range(3):
            await send(parts, b"part")
        assert await late.payloads(3) == [b"part"] * 3

        # The consumer comes back by itself, some time after the producer.
        async def send_on() -> None:
            while True:
                await send(producer, b"after")
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(send_on())
        assert await asyncio.wait_for(inbox.payloads(1), WAIT_S) == [b"after"]
        sending.cancel()


async def test_offsets_and_unacknowledged_messages_survive_a_restart(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    topic = new_topic()
    async with Danube(broker.grpc) as danube:
        producer = await danube.producer(topic, reliable=True)
        inbox = await danube.consumer(topic)
        for n in range(4):
            await producer.send(b"%d" % n)
        first = await inbox.take(4)
        for got in first[:2]:
            await inbox.consumer.ack(got)

        await asyncio.to_thread(broker.restart)
        await send(producer, b"4")

        again = await asyncio.wait_for(inbox.take(3, ack=True), WAIT_S)
    assert [(m.msg_id.topic_offset, m.payload) for m in again] == [(2, b"2"), (3, b"3"), (4, b"4")]
    assert {m.msg_id.producer_id for m in [*first, *again]} == {first[0].msg_id.producer_id}


async def test_streams_end_with_unavailable_when_the_broker_closes(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    topic = new_topic()
    async with Danube(broker.grpc) as danube:
        producer = await danube.producer(topic, reliable=True)
        made = await danube.ask(
            "danube.ConsumerService/Subscribe", "danube.ConsumerRequest", "danube.ConsumerResponse",
            topic_name=topic, consumer_name="c", subscription="s",
        )  # fmt: skip
        stream = danube.stream(made.consumer_id)
        # It has a connection of its own: what comes through it says that it is open.
        await producer.send(b"x")
        assert await asyncio.wait_for(stream.read(), WAIT_S)
        reading = asyncio.ensure_future(code_of(stream.read()))

        code = await asyncio.to_thread(broker.stop)

        assert await reading is StatusCode.UNAVAILABLE
    assert code == 0
    assert "cut_off" not in broker.log_text()


@pytest.mark.parametrize("flag", ["--no-grpc", "--grpc"])
def test_the_doors_can_be_switched_off(start_broker: StartBroker, flag: str) -> None:
    broker = start_broker(flag)

    assert bool(broker.grpc) == bool(broker.admin) == (flag == "--grpc")


async def test_a_broker_on_every_address_leaves_clients_with_the_one_they_have(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("--grpc-host", "0.0.0.0")
    topic = new_topic()
    async with Danube(f"127.0.0.1:{broker.grpc.rpartition(':')[2]}") as danube:
        producer = await danube.producer(topic)
        inbox = await danube.consumer(topic)
        await producer.send(b"x")

        assert await inbox.payloads(1) == [b"x"]


async def test_an_advertised_host_is_told(start_broker: StartBroker) -> None:
    broker = start_broker("--advertise", "broker.example")
    topic = new_topic()
    async with Danube(broker.grpc) as danube:
        create = "danube.ProducerService/CreateProducer"
        fields = {"topic_name": topic, "producer_name": "p"}
        await danube.ask(create, "danube.ProducerRequest", "danube.ProducerResponse", **fields)
        answer = await danube.ask(
            "danube.Discovery/TopicLookup", "danube.TopicLookupRequest",
            "danube.TopicLookupResponse", topic=topic,
        )  # fmt: skip

    assert answer.connect_url == f"http://broker.example:{broker.grpc.rpartition(':')[2]}"


SEGMENTS = "danube.StorageService/ListSegmentDescriptors"


async def test_closed_segments_are_told_with_their_offsets(start_broker: StartBroker) -> None:
    broker = start_broker("--segment-size", "1MiB")
    topic = new_topic()
    async with Danube(broker.grpc) as danube:
        producer = await danube.producer(topic, reliable=True)
        for _ in range(6):
            await producer.send(bytes(600_000))
        fields = {"topic": topic}
        names = ("danube.ListSegmentDescriptorsRequest", "danube.ListSegmentDescriptorsResponse")
        found = list((await danube.ask(SEGMENTS, *names, **fields)).segments)
        later = list((await danube.ask(SEGMENTS, *names, **fields, after_offset=2)).segments)

    assert len(found) >= 2
    assert found[0].start_offset == 0
    for one, following in pairwise(found):
        assert one.end_offset + 1 == following.start_offset
    assert all(one.segment_id and one.etag and one.size >= 600_000 for one in found)
    assert all(one.created_at > 1_700_000_000 for one in found)
    assert [one.segment_id for one in later] == [s.segment_id for s in found if s.end_offset > 2]


# Without the extra


def run_without_grpc(*args: str) -> "subprocess.Popen[str]":
    """Start a broker without the extra `grpc`."""
    code = "import sys; sys.modules['hpack'] = None; from ister.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--http-port", "0", *args]
    return subprocess.Popen(command, env=plain_environment(), stderr=subprocess.PIPE, text=True)


def test_a_broker_without_the_extra_says_so_and_runs(tmp_path: Path) -> None:
    with run_without_grpc("--data", str(tmp_path)) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while "broker_ready" not in (line := process.stderr.readline()):
            assert line, lines
            lines.append(line)
        process.terminate()
        process.stderr.read()

    assert process.returncode == 0
    assert '"grpc"' not in line
    assert [n for n in lines if "door_missing" in n and "ister[grpc]" in n]


def test_a_broker_needs_no_grpcio(tmp_path: Path) -> None:
    code = "import sys; sys.modules['grpc'] = None; from ister.cli import main; main()"
    ports = ["--port", "0", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    command = [sys.executable, "-c", code, "serve", *ports, "--data", str(tmp_path)]
    with subprocess.Popen(
        command, env=plain_environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "broker_ready" not in (line := process.stderr.readline()):
            assert line
        process.terminate()
        process.stderr.read()

    assert process.returncode == 0
    assert '"grpc"' in line


@pytest.mark.parametrize("args", [("--grpc-port", "0"), ("--admin-port", "0"), ("--grpc",)])
def test_asking_for_a_door_that_cannot_be_is_a_mistake(
    tmp_path: Path, args: tuple[str, ...]
) -> None:
    with run_without_grpc("--data", str(tmp_path), *args) as process:
        _, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == 64, said
    assert "pip install 'ister[grpc]'" in said
    assert "Traceback" not in said


def test_a_taken_grpc_port_is_a_clear_error(tmp_path: Path, start_broker: StartBroker) -> None:
    port = start_broker().grpc.rpartition(":")[2]
    command = [sys.executable, "-m", "ister", "serve", "--port", "0", "--http-port", "0"]
    command += ["--data", str(tmp_path), "--grpc-port", port, "--admin-port", "0"]

    with subprocess.Popen(
        command, env=plain_environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        _, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == 64, said
    assert f"--grpc-port {port}: 127.0.0.1:{port} is taken" in said
    # gRPC's own words are no lines of ours.
    assert "add_port.cc" not in said
