"""Two brokers on one object store: the second takes over, whatever the first one does."""

import asyncio
import itertools
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest
from tests.contract.objects.s3_like import BUCKET, s3_like
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import WAIT_S, eventually
from tests.e2e.shell import Shell

import ister
from ister.base.errors import ShardMovedError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

TOPIC = "/default/ledger"
STOPPED_S = 7.0
# Each is a chunk; from 64 on they are rewritten, and the former ones removed.
MESSAGES = 80
LATENCY_S = 0.02


async def publish(url: str, name: str, start: int) -> list[bytes]:
    """Publish messages one by one, and return those that were acknowledged."""
    acknowledged = []
    async with ister.connect(url) as client, client.producer(TOPIC, name=name) as producer:
        for number in range(start, start + MESSAGES):
            await producer.send(b"%d" % number)
            acknowledged.append(b"%d" % number)
    return acknowledged


async def read_all(url: str) -> list[bytes]:
    async with ister.connect(url) as client, client.reader(TOPIC) as reader:
        return [payload async for batch in reader for payload in batch.payloads]


async def error_of(awaitable: Awaitable[object]) -> type[Exception] | None:
    """Return the type of the error that a call raises."""
    try:
        await asyncio.wait_for(awaitable, WAIT_S)
    except ister.IsterError as error:
        return type(error)
    return None


def readiness(broker: BrokerProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}/readyz", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def is_stopped(pid: int) -> bool:
    """Tell whether every thread of a process is stopped: a signal takes a moment."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def contents(store: Path) -> dict[str, bytes]:
    files = (path for path in store.rglob("*") if path.is_file())
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


async def test_paused_broker_detects_that_its_storage_is_lost_and_deletes_nothing(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = start_broker("--object-store", store.as_uri())
    async with ister.connect(first.url) as client:
        await client.create_topic(TOPIC, kind="stream", durability="object")
    acknowledged = await publish(first.url, "p", 0)
    async with (
        ister.connect(first.url, timeout=30.0) as client,
        client.subscribe(TOPIC, "idle", start="latest") as subscription,
        client.producer(TOPIC, name="late") as producer,
    ):
        await producer.send(b"%d" % MESSAGES)
        acknowledged.append(b"%d" % MESSAGES)
        message = await subscription.receive(WAIT_S)
        await message.ack(confirm=True)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            stopped = asyncio.get_running_loop().time()
            second = await asyncio.to_thread(start_broker, "--object-store", store.as_uri())
            acknowledged += await publish(second.url, "q", MESSAGES + 1)
            passed_s = asyncio.get_running_loop().time() - stopped
            await asyncio.sleep(max(0.0, STOPPED_S - passed_s))
            # From now on whatever changes in the store is the doing of the first.
            os.kill(second.pid, signal.SIGSTOP)
            await eventually(lambda: is_stopped(second.pid))
            before = contents(store)
        finally:
            os.kill(first.pid, signal.SIGCONT)

        told = await error_of(subscription.receive(WAIT_S))
        assert told is ShardMovedError, first.log_text()
        assert await error_of(producer.send(b"lost")) is ShardMovedError
        assert await error_of(read_all(first.url)) is ShardMovedError
    status, why = readiness(first)
    assert status == 503
    assert "another broker has taken over the object storage" in why
    first.stop()
    assert first.log_text().count("storage_lost") == 1
    assert contents(store) == before

    os.kill(second.pid, signal.SIGCONT)
    assert await read_all(second.url) == acknowledged
    acknowledged += await publish(second.url, "r", 2 * MESSAGES + 1)
    second.restart()
    assert await read_all(second.url) == acknowledged
    second.stop()
    assert b"no problems" in Shell().run("storage", "check", store.as_uri()).stderr


async def publish_until_moved(url: str, name: str, acknowledged: list[bytes]) -> None:
    """Publish without a pause, and note what was acknowledged, until the topic is elsewhere."""
    async with ister.connect(url) as client, client.producer(TOPIC, name=name) as producer:
        for number in itertools.count():
            payload = f"{name} {number}".encode()
            try:
                await producer.send(payload)
            except ShardMovedError:
                return
            acknowledged.append(payload)


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a store that takes its time, so that two requests take longer than one."""
    with s3_like() as server:
        server.latency_s = LATENCY_S
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield f"s3://{BUCKET}/log"


async def test_broker_that_never_pauses_is_taken_over_and_loses_nothing(
    start_broker: StartBroker, slow_store: str
) -> None:
    first = start_broker("--object-store", slow_store)
    async with ister.connect(first.url) as client:
        await client.create_topic(TOPIC, kind="stream", durability="object")
    # While one group is written the next one gathers, so that the broker always writes.
    names = ["a", "b", "c", "d"]
    acknowledged: dict[str, list[bytes]] = {name: [] for name in names}
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(publish_until_moved(first.url, name, acknowledged[name]))
        await eventually(lambda: all(acknowledged.values()))
        before = sum(map(len, acknowledged.values()))
        second = await asyncio.to_thread(start_broker, "--object-store", slow_store)

    assert sum(map(len, acknowledged.values())) > before, "the first broker had a pause"
    assert first.log_text().count("storage_lost") == 1
    stored = await read_all(second.url)
    assert len(set(stored)) == len(stored)
    for name in names:
        own = [payload for payload in stored if payload.startswith(name.encode())]
        assert own[: len(acknowledged[name])] == acknowledged[name]
    more = await publish(second.url, "q", 0)
    second.restart()
    assert await read_all(second.url) == [*stored, *more]
    first.stop()
    second.stop()
    assert b"no problems" in Shell().run("storage", "check", slow_store).stderr


@pytest.mark.parametrize("fault", ["ports", "gRPC port", "timelines", "topic names", "timeline"])
async def test_start_that_fails_leaves_the_owner_of_the_object_store_undisturbed(
    start_broker: StartBroker, tmp_path: Path, fault: str
) -> None:
    store = (tmp_path / "store").as_uri()
    owner = start_broker("--object-store", store)
    async with ister.connect(owner.url) as client:
        await client.create_topic(TOPIC, kind="stream", durability="object")
    acknowledged = await publish(owner.url, "p", 0)
    folder, flags, said = tmp_path / "data", ["--port", "0", "--http-port", "0", "--no-grpc"], b""
    match fault:
        case "ports":
            ports = owner.native.rpartition(":")[2], owner.http.rpartition(":")[2]
            flags, said = ["--port", ports[0], "--http-port", ports[1], "--no-grpc"], b"is taken"
        case "gRPC port":
            port = owner.grpc.rpartition(":")[2]
            flags = [*flags[:4], "--grpc-port", port, "--admin-port", "0"]
            said = b"is taken"
        case "timelines":
            flags += ["--timelines", "postgresql://127.0.0.1:1/none"]
            said = b"--timelines: "
        case _:
            other = start_broker()
            folder, said = other.folder / "data", TOPIC.encode()
            async with ister.connect(other.url) as client:
                kind = "timeline" if fault == "timeline" else "stream"
                await client.create_topic(TOPIC, kind=kind)
            other.stop()

    command = ["serve", "--data", str(folder), "--object-store", store, *flags]
    failed = await asyncio.to_thread(Shell().run, *command, code=64)

    assert said in failed.stderr
    acknowledged += await publish(owner.url, "q", MESSAGES)
    assert await read_all(owner.url) == acknowledged
    assert "storage_lost" not in owner.log_text()
    owner.stop()
    assert b"no problems" in Shell().run("storage", "check", store).stderr
