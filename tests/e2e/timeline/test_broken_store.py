"""A file of timelines that somebody has damaged: a named error, and never a message made up."""

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.nursery import IsterProcess

import ister
from ister.base.errors import CorruptedError
from ister.timeline import FILE_NAME

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"
END_TIMEOUT_S = 30.0


@pytest.fixture
async def stopped(broker: BrokerProcess) -> BrokerProcess:
    """A broker that has two messages of a timeline, and was stopped."""
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline")
        timeline = client.timeline(TOPIC, group="shop")
        await timeline.put(b"damaged", id="damaged")
        await timeline.put(b"whole", id="whole")
    broker.stop()
    return broker


def file_of(broker: BrokerProcess) -> Path:
    return broker.folder / "data" / FILE_NAME


def damage(broker: BrokerProcess, *statements: str) -> None:
    connection = sqlite3.connect(file_of(broker), isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def serve(broker: BrokerProcess) -> tuple[int, str]:
    """Start a broker that is not to come up; return its exit code and all it says."""
    with IsterProcess(
        [
            "serve",
            "--data",
            str(broker.folder / "data"),
            "--port",
            "0",
            "--http-port",
            "0",
            "--no-grpc",
        ],
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            words, _ = process.communicate(timeout=END_TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, words.decode()


def write_over(broker: BrokerProcess) -> None:
    file_of(broker).write_bytes(b"no database at all, and long enough to be read as one" * 100)


def cut(broker: BrokerProcess) -> None:
    data = file_of(broker).read_bytes()
    file_of(broker).write_bytes(data[: len(data) // 2])


def executing(*statements: str) -> Callable[[BrokerProcess], None]:
    return lambda broker: damage(broker, *statements)


DAMAGES: dict[str, Callable[[BrokerProcess], None]] = {
    "settings that are no text": executing("UPDATE topics SET settings = x'81a46b696e64a1ff'"),
    "settings that are cut": executing("UPDATE topics SET settings = x'84'"),
    "settings out of bounds": executing(
        "UPDATE topics SET settings = x'81ac6c656173655f6d735f6d617800'"
    ),
    "no settings": executing("UPDATE topics SET settings = x''"),
    "a head behind its messages": executing("UPDATE head SET version = 0"),
    "no head": executing("DELETE FROM head"),
    "no table of messages": executing("DROP TABLE messages"),
    "no table of topics": executing("DROP TABLE topics"),
    "another format": executing("PRAGMA user_version = 99"),
    "another application": executing("PRAGMA application_id = 1"),
    "other bytes": write_over,
    "half of the file": cut,
}


@pytest.mark.parametrize("spoil", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_stops_the_start_with_a_named_error(
    stopped: BrokerProcess, spoil: Callable[[BrokerProcess], None]
) -> None:
    spoil(stopped)

    code, words = serve(stopped)

    assert code == 70, words
    assert "Traceback" not in words
    assert FILE_NAME in words or TOPIC in words


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE messages SET payload = x'00' WHERE id = 'damaged'",
        "UPDATE messages SET crc = 0 WHERE id = 'damaged'",
    ],
)
async def test_a_damaged_message_is_told_and_the_others_are_delivered(
    stopped: BrokerProcess, spoil: str
) -> None:
    damage(stopped, spoil)
    stopped.restart()

    async with ister.connect(stopped.url) as client:
        timeline = client.timeline(TOPIC, group="shop")
        with pytest.raises(CorruptedError):
            await timeline.get("damaged")
        async with timeline.consume("worker") as leases:
            lease = await leases.receive(timeout=20.0)
            assert lease.payload == b"whole"
            await lease.done()
    assert "internal_error" not in stopped.log_text()
