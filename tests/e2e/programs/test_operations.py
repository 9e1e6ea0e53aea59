"""What an operator sees of a disk that is full."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.disks import ballast_of, fill_disk, small_disk
from tests.e2e.shell import WAIT_S, Shell

from ister import sync
from ister.errors import DiskFullError

pytestmark = pytest.mark.e2e

DISK_MIB = 80
PAYLOAD = b"x" * 100_000
# EX_TEMPFAIL: wait and repeat.
BUSY = 75


def ready(broker: BrokerProcess) -> tuple[int, str]:
    """Return what `/readyz` answers."""
    try:
        with urllib.request.urlopen(f"http://{broker.http}/readyz", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def fill_until_refused(url: str, disk: Path) -> None:
    """Fill a disk until the broker stores no message."""
    with sync.connect(url) as client:
        client.create_topic("orders", kind="stream")
        while True:
            try:
                client.publish("orders", PAYLOAD)
            except DiskFullError:
                return
            fill_disk(disk)


def test_a_full_disk_refuses_messages_says_why_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path, "tmpfs", DISK_MIB) as disk:
        broker = BrokerProcess(disk)
        broker.ready_file, broker.log = tmp_path / "ready.json", tmp_path / "log"
        broker.start()
        shell = Shell(broker.url)
        try:
            fill_until_refused(broker.url, disk)
            code, why = ready(broker)
            refused = shell.run("produce", "orders", input=PAYLOAD, code=BUSY)
            taken = shell.run("consume", "orders", "-s", "s", "--start", "earliest", "--count", "1")

            ballast_of(disk).unlink()
            while ready(broker)[0] != 200:
                pass
            shell.run("produce", "orders", input=PAYLOAD)
        finally:
            broker.kill()

    assert code == 503
    assert "free space on the disk of the data folder" in why
    assert refused.stderr.decode() == f"ister: {why}"
    assert taken.stdout.strip() == PAYLOAD
