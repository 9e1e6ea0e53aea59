"""Encryption at rest, as a user turns it on: keys made, lost, mistaken and rotated."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker, plain_environment
from tests.e2e.disks import contents, segments
from tests.e2e.raw import WAIT_S, eventually

import ister
from ister.base.errors import CorruptedError, EncryptionKeyError, NotEncryptedError

pytestmark = pytest.mark.e2e

pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")

TOPIC = "/default/secrets"
SECRET = b"nobody-may-read-this-on-the-disk"


def run_cli(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ister", *args],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=plain_environment(),
        check=False,
    )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return make_keys(tmp_path / "keys.json")


def make_keys(path: Path) -> Path:
    done = run_cli("keys", "create", str(path))
    assert done.returncode == 0, done.stderr
    return path


def key_ids(path: Path) -> list[str]:
    done = run_cli("keys", "list", str(path), "--json")
    assert done.returncode == 0, done.stderr
    return [str(key) for key in json.loads(done.stdout)["keys"]]


async def send(broker: BrokerProcess, *payloads: bytes) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC, name="p") as producer:
            for payload in payloads:
                await producer.send(payload)


async def stored(broker: BrokerProcess) -> list[bytes]:
    async with ister.connect(broker.url) as client, client.reader(TOPIC) as reader:
        return [payload async for batch in reader for payload in batch.payloads]


def refusal(broker: BrokerProcess, *args: str) -> "subprocess.CompletedProcess[str]":
    data = str(broker.folder / "data")
    return run_cli("serve", "--data", data, "--port", "0", "--http-port", "0", "--no-grpc", *args)


def is_on_disk(broker: BrokerProcess) -> bool:
    return any(SECRET in data for data in contents(broker.folder / "data").values())


async def test_nothing_of_a_message_is_readable_on_the_disk(
    start_broker: StartBroker, keys: Path
) -> None:
    plain, encrypted = start_broker(), start_broker("--key-file", str(keys))
    for broker in (plain, encrypted):
        await send(broker, SECRET)
        broker.stop()

    assert is_on_disk(plain)
    assert not is_on_disk(encrypted)
    assert not any(TOPIC.encode() in d for d in contents(encrypted.folder / "data").values())
    encrypted.restart()
    assert await stored(encrypted) == [SECRET]


@pytest.mark.parametrize(
    ("which", "end"), [("missing", BrokerProcess.kill), ("wrong", BrokerProcess.stop)]
)
async def test_without_the_right_key_the_broker_refuses_and_changes_nothing(
    which: str, end: object, start_broker: StartBroker, keys: Path, tmp_path: Path
) -> None:
    broker = start_broker("--key-file", str(keys))
    await send(broker, SECRET, SECRET)
    assert callable(end)
    end(broker)
    before = contents(broker.folder / "data")

    args = ["--key-file", str(make_keys(tmp_path / "wrong.json"))] if which == "wrong" else []
    done = refusal(broker, *args)

    assert done.returncode == EncryptionKeyError.exit_code
    assert "key" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(broker.folder / "data") == before
    broker.restart()
    assert await stored(broker) == [SECRET, SECRET]


async def test_after_a_rotation_old_and_new_messages_are_readable(
    start_broker: StartBroker, keys: Path
) -> None:
    broker = start_broker("--key-file", str(keys), "--segment-size", "1MiB")
    await send(broker, b"old")
    files = len(segments(broker.folder / "data"))

    assert run_cli("keys", "rotate", str(keys)).returncode == 0
    assert len(key_ids(keys)) == 2
    # Enough for further files, which are begun under the new key.
    large = b"l" * 100_000
    await send(broker, *[large] * 25)
    assert len(segments(broker.folder / "data")) > files
    broker.kill()
    broker.restart()

    assert await stored(broker) == [b"old", *[large] * 25]


async def test_encryption_may_begin_later_and_is_told_of_once(
    start_broker: StartBroker, keys: Path
) -> None:
    broker = start_broker()
    await send(broker, b"plain")
    broker.stop()
    args = broker.args
    broker.args = [*args, "--key-file", str(keys), "--accept-unencrypted"]
    broker.restart()
    await send(broker, SECRET)
    assert broker.log_text().count("log_not_encrypted") == 1
    broker.args = [*args, "--key-file", str(keys)]
    broker.restart()

    assert await stored(broker) == [b"plain", SECRET]
    assert not is_on_disk(broker)
    assert broker.log_text().count("log_not_encrypted") == 1


async def test_a_plain_file_is_refused_in_a_log_that_is_encrypted(
    start_broker: StartBroker, keys: Path
) -> None:
    plain, encrypted = start_broker(), start_broker("--key-file", str(keys))
    for broker in (plain, encrypted):
        await send(broker, b"something")
        broker.stop()
    [theirs], [ours] = segments(plain.folder / "data"), segments(encrypted.folder / "data")
    assert theirs.name == ours.name
    ours.write_bytes(theirs.read_bytes())
    before = contents(encrypted.folder / "data")

    done = refusal(encrypted, "--key-file", str(keys))

    assert done.returncode == CorruptedError.exit_code
    assert ours.name in done.stderr
    assert "not encrypted" in done.stderr
    assert contents(encrypted.folder / "data") == before


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
async def test_a_broker_with_keys_refuses_a_log_without_and_changes_nothing(
    end: object, start_broker: StartBroker, keys: Path
) -> None:
    broker = start_broker()
    await send(broker, b"something")
    assert callable(end)
    end(broker)
    before = contents(broker.folder / "data")

    done = refusal(broker, "--key-file", str(keys))

    assert done.returncode == NotEncryptedError.exit_code
    assert "--accept-unencrypted" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(broker.folder / "data") == before
    broker.restart()
    assert await stored(broker) == [b"something"]


def manifest_numbers(folder: Path) -> set[int]:
    """Return which manifests there are, without files that are still being made."""
    return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}


async def test_a_killed_broker_needs_the_option_for_unencrypted_logs_only_once(
    start_broker: StartBroker, keys: Path
) -> None:
    broker = start_broker()
    await send(broker, b"plain")
    broker.stop()
    args = broker.args
    broker.args = [*args, "--key-file", str(keys), "--accept-unencrypted"]
    broker.restart()
    manifests = broker.folder / "data" / "manifests"
    before = manifest_numbers(manifests)
    await send(broker, SECRET)
    await eventually(lambda: manifest_numbers(manifests) != before)
    broker.kill()
    broker.args = [*args, "--key-file", str(keys)]
    broker.restart()

    assert await stored(broker) == [b"plain", SECRET]
