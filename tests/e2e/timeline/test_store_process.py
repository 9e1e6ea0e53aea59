"""The process that keeps timelines: killed, left behind, or told to end with its broker."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from operator import methodcaller
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess

import ister
from ister.errors import MessageExistsError, StorageFailedError
from ister.timeline import PROCESS_MODULE, SqliteStore, encode
from ister.timeline.sqlite.store import FILE_NAME

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"
WAIT_S = 30.0
GROUP_COUNT = 20


def children_of(broker: BrokerProcess) -> list[int]:
    """Return the processes that a broker has started."""
    told = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()
    return [int(pid) for pid in told.split()]


def keeper_of(broker: BrokerProcess) -> int:
    """Return the process that keeps the timelines of a broker."""
    (pid,) = children_of(broker)
    return pid


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def has(names: set[str], count: int) -> bool:
    return len(names) >= count


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # Gone before, or while we look.
        return True


async def put_all(timeline: ister.Timeline, names: list[str], told: set[str]) -> None:
    """Put messages in groups; those that could not be put are tried again."""
    for start in range(0, len(names), GROUP_COUNT):
        group = names[start : start + GROUP_COUNT]
        while not told.issuperset(group):
            results = await timeline.put_many(
                [(b"x", timedelta(seconds=3_600.0), name) for name in group]
            )
            for name, result in zip(group, results, strict=True):
                match result:
                    case StorageFailedError():
                        continue
                    case MessageExistsError():
                        pass  # It was stored, and nobody could say so.
                    case ister.IsterError():
                        raise result
                told.add(name)


async def test_a_broker_goes_on_with_another_process_and_has_all_it_acknowledged(
    broker: BrokerProcess,
) -> None:
    told: set[str] = set()
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        await timeline.put(b"due", after=1.0, id="due")
        former = set()
        putting = asyncio.create_task(put_all(timeline, [f"m-{n}" for n in range(6_000)], told))
        for count in (500, 1_500, 2_500):
            await asyncio.to_thread(wait_until, partial(has, told, count))
            keeper = keeper_of(broker)
            former.add(keeper)
            os.kill(keeper, signal.SIGKILL)
            await asyncio.to_thread(wait_until, partial(is_gone, keeper))
        async with asyncio.timeout(WAIT_S):
            await putting

        listed = {message.id async for message in timeline.list(start=timedelta(minutes=30))}
        async with timeline.consume("worker") as leases:
            lease = await leases.receive(WAIT_S)
            await lease.done()

    assert listed == told
    assert lease.id == "due"
    assert keeper_of(broker) not in former
    assert broker.log_text().count("timelines_process_ended") == 3


async def test_a_file_that_is_gone_is_not_made_anew_by_the_next_process(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        await timeline.put(b"x", after=3_600.0, id="a")
        keeper = keeper_of(broker)
        data = broker.folder / "data"
        moved = [(path, path.with_name(f"away-{path.name}")) for path in data.glob("timelines.db*")]
        os.kill(keeper, signal.SIGKILL)
        for path, away in moved:
            path.rename(away)

        await asyncio.to_thread(wait_until, partial(is_gone, keeper))
        with pytest.raises(StorageFailedError, match="is gone: put it back"):
            await timeline.put(b"x", after=3_600.0, id="b")
        for path, away in moved:
            away.rename(path)

        assert await timeline.count() == 1


async def test_lone_puts_that_were_acknowledged_outlive_kill_9_of_broker_and_process(
    broker: BrokerProcess,
) -> None:
    names = [f"m-{number}" for number in range(200)]
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC)
        for name in names:
            await timeline.put(b"x", after=3_600.0, id=name)
        os.kill(keeper_of(broker), signal.SIGKILL)
        broker.kill()
        broker.restart()

        assert [message.id async for message in timeline.list()] == names


async def test_it_ends_with_a_broker_that_is_killed(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
    keeper = keeper_of(broker)

    broker.kill()

    await asyncio.to_thread(wait_until, partial(is_gone, keeper))


async def test_signals_for_all_processes_of_a_terminal_lose_nothing(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        await client.timeline(TOPIC).put(b"x", after=3_600.0, id="a")
    keeper = keeper_of(broker)

    # As Ctrl-C does, and a service manager.
    os.kill(keeper, signal.SIGINT)
    os.kill(keeper, signal.SIGTERM)
    async with ister.connect(broker.url) as client:
        await client.timeline(TOPIC).put(b"x", after=3_600.0, id="b")
    code = await asyncio.to_thread(broker.stop)
    await asyncio.to_thread(wait_until, partial(is_gone, keeper))

    assert code == 0
    assert "timelines_not_closed" not in broker.log_text()
    assert not (broker.folder / "data" / "timelines.db-wal").exists()
    broker.restart()
    async with ister.connect(broker.url) as client:
        assert await client.timeline(TOPIC).count() == 2


async def test_a_broker_without_timelines_has_no_such_process(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic("/default/live")

    assert children_of(broker) == []


def test_process_makes_no_call_once_its_broker_is_gone(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        # In the socket before the process has started, as a broker leaves it that is killed.
        ours.sendall(encode(methodcaller("create_topic", TOPIC, "timeline", b"")))
        ours.close()
        command = [sys.executable, "-P", "-m", PROCESS_MODULE, str(tmp_path / FILE_NAME)]
        process = subprocess.run(command, stdin=theirs.fileno(), timeout=WAIT_S, check=False)

    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_process_that_waits_for_the_file_makes_no_call_once_its_broker_is_gone(
    tmp_path: Path,
) -> None:
    file = tmp_path / FILE_NAME
    next_broker = SqliteStore(file)
    next_broker.topics()
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", PROCESS_MODULE, str(file)]
        process = subprocess.Popen(command, stdin=theirs.fileno())
    with process:
        ours.sendall(encode(methodcaller("create_topic", TOPIC, "timeline", b"")))
        wait_until(lambda: has_open(process.pid, file))
        ours.close()
        next_broker.close()
        code = process.wait(WAIT_S)

    assert code == 0
    assert SqliteStore(file).topics() == []


def has_open(pid: int, file: Path) -> bool:
    """Return whether a process has a file open."""
    return any(link.resolve() == file for link in Path(f"/proc/{pid}/fd").iterdir())
