"""Backups of a real broker under load, restored, checked and started."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.nursery import IsterProcess
from tests.e2e.shell import Shell

from ister import sync
from ister.errors import ClosedError

pytestmark = pytest.mark.e2e

ORDERS = "/default/orders"
REMINDERS = "/default/reminders"
LATER = "/default/later"
DELAYED = 200
# 64 messages fill a journal file of 1 MiB.
PAYLOAD = b"x" * 16_384


class Load:
    """Publishes to a stream until it is ended, and remembers what was acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged = 0
        self._url = url
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with (
            suppress(ClosedError),  # A test that fails ends its broker.
            sync.connect(self._url) as client,
            client.producer(ORDERS) as producer,
        ):
            while not self._ending.is_set():
                producer.send_batch([b"%d " % (self.acknowledged + n) + PAYLOAD for n in range(4)])
                self.acknowledged += 4

    def wait_for(self, count: int) -> None:
        """Return when so many more are acknowledged."""
        until = self.acknowledged + count
        while self.acknowledged < until:
            self._ending.wait(0.005)
            assert self._thread.is_alive()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def begin(shell: Shell, place: str) -> "subprocess.Popen[bytes]":
    """Start a backup, and return when it has begun to copy something."""
    process = IsterProcess(
        ["storage", "backup", place],
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list(Path(place).glob("files/.new-*")):
        pass
    return process


@pytest.fixture
def shell(start_broker: StartBroker, tmp_path: Path) -> Iterator[Shell]:
    keys = tmp_path / "keys.json"
    shell = Shell()
    shell.run("keys", "create", str(keys))
    broker = start_broker("--segment-size", "1MiB", "--key-file", str(keys))
    shell.environment |= {
        "ISTER_URL": broker.url,
        "ISTER_DATA": str(broker.folder / "data"),
        "ISTER_KEY_FILE": str(keys),
    }
    shell.run("topics", "create", ORDERS, "--kind", "stream")
    shell.run("topics", "create", LATER, "--kind", "stream")
    shell.run("topics", "create", REMINDERS, "--kind", "timeline")
    shell.run("schemas", "register", "orders", "--type", "bytes", "-", input=b"")
    yield shell
    shell.close()


def test_a_backup_under_load_has_everything_that_was_acknowledged_before(
    shell: Shell, start_broker: StartBroker, tmp_path: Path
) -> None:
    place = str(tmp_path / "backup")
    load = Load(shell.environment["ISTER_URL"])
    load.wait_for(100)
    shell.run("timeline", "put", REMINDERS, "wake up", "--id", "a", "--at", "2090-01-01T00:00Z")
    with sync.connect(shell.environment["ISTER_URL"]) as client:
        # Some are published before the backup, some meanwhile, and some never by this broker.
        with client.producer(LATER) as producer:
            for number in range(DELAYED):
                producer.send(b"%d" % number, deliver_after=number * 0.015)
        published = load.acknowledged
        first = shell.json("storage", "backup", place)
        load.wait_for(100)
        # A backup that is killed leaves the one before it.
        killed = begin(shell, place)
        killed.kill()
        killed.wait()
        contents = json.loads((tmp_path / "backup" / "backup.json").read_text())
        before = load.acknowledged
        second = shell.json("storage", "backup", place)
        load.end()
    assert isinstance(first, dict)
    assert isinstance(second, dict)

    # Sealed segments are copied once.
    assert contents["files"][0]["name"].startswith("epochs/")
    assert second["copied_bytes"] < second["size_bytes"]
    assert second["copied_files"] < second["files"]
    # Encrypted streams stay encrypted.
    copies = list((tmp_path / "backup" / "files").iterdir())
    assert len(copies) == second["files"]
    assert not any(b"xxxxxxxx" in copy.read_bytes() for copy in copies)

    new = tmp_path / "new"
    new.mkdir()
    broker = BrokerProcess(new, ["--key-file", shell.environment["ISTER_KEY_FILE"]])
    data = str(new / "data")
    shell.run("storage", "restore", place, "--data", data)
    shell.run("storage", "restore", place, "--data", data, code=64)
    assert b"no problems" in shell.run("storage", "check", data).stderr
    broker.start()
    try:
        with sync.connect(broker.url) as client, client.reader(ORDERS, end="latest") as reader:
            found = [payload for batch in reader for payload in batch.payloads]
            assert len(found) >= before >= published
            assert [int(one.split()[0]) for one in found] == list(range(len(found)))
            assert client.timeline(REMINDERS).get("a").payload == b"wake up"
            assert client.schemas.latest("orders").version == 1
            client.publish(ORDERS, b"goes on")
            # Each delayed message is published once, by whichever broker.
            delayed: list[int] = []
            with client.reader(LATER, end=None) as later:
                for batch in later:
                    delayed += map(int, batch.payloads)
                    if len(delayed) >= DELAYED:
                        break
            assert sorted(delayed) == list(range(DELAYED))
            [report] = client.topics(LATER)
            assert report.next_offset == DELAYED
    finally:
        broker.kill()


def test_a_stream_that_is_exported_and_imported_has_the_same_messages(
    shell: Shell, tmp_path: Path
) -> None:
    with sync.connect(shell.environment["ISTER_URL"]) as client:
        with client.producer(ORDERS) as producer:
            producer.send(b"text \xc3\xa4", key="k", attributes={"a": "1"}, id="1")
            producer.send(b"\xff\x00")
        client.create_topic("/default/copy", kind="stream")
    file = str(tmp_path / "orders.jsonl")
    shell.run("topics", "export", ORDERS, file)
    shell.run("topics", "import", file, "/default/copy")
    shell.run("topics", "import", "-", "/default/copy", input=b"oops\n", code=64)
    shell.run("topics", "import", file, "/default/missing", code=66)
    shell.run("topics", "export", REMINDERS, file, code=64)

    rows = [
        [json.loads(line) for line in shell.run("read", topic, "--json").stdout.splitlines()]
        for topic in (ORDERS, "/default/copy")
    ]
    fields = ("key", "attributes", "id", "payload", "payload_base64", "offset")
    one, other = ([{name: row.get(name) for name in fields} for row in side] for side in rows)
    assert one == other
    assert len(one) == 2


def test_what_a_killed_broker_has_kept_for_a_backup_is_copied_and_then_gone(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    data, place = str(broker.folder / "data"), str(tmp_path / "backup")
    shell = Shell(broker.url, ISTER_DATA=data)
    with sync.connect(broker.url) as client:
        client.create_topic(ORDERS, kind="stream")
        with client.producer(ORDERS) as producer:
            producer.send_batch([PAYLOAD] * 2_000)
    backup = begin(shell, place)
    broker.kill()
    assert backup.wait() == 0
    shell.run("storage", "restore", place, "--data", str(tmp_path / "new"))
    report = shell.json("storage", "check", str(tmp_path / "new"))
    broker.restart()

    assert isinstance(report, dict)
    assert report["problems"] == []
    assert report["checked_bytes"] > 2_000 * len(PAYLOAD)
    assert not (broker.folder / "data" / "backup").exists()


def test_without_a_broker_or_a_data_folder_the_error_says_so(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    shell, place = Shell(), str(tmp_path / "backup")
    nothing = shell.run("storage", "backup", place, "--data", str(tmp_path / "none"), code=75)
    broker = start_broker("--object-store", f"file://{tmp_path}/store")
    data = str(broker.folder / "data")
    refused = shell.run("storage", "backup", place, "--data", data, code=64)
    inside = shell.run("storage", "backup", f"{data}/backup", "--data", data, code=64)

    assert b"no broker at" in nothing.stderr
    assert b"which a backup does not copy" in refused.stderr
    assert b"is in the data folder" in inside.stderr
