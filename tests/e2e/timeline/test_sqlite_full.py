"""Timelines in SQLite on a disk without room: refused or made, and never a promise broken.

`TIMELINE_FULL_SEED=n` takes another seed, `TIMELINE_FULL_STRIDE=1` has every single write fail.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.e2e.disks import fill_disk, preload, small_disk
from tests.e2e.timeline.full_disk_life import FULL, NOW_MS

from ister.base.errors import DiskFullError
from ister.base.limits import KIB, MIB
from ister.timeline import FILE_NAME, Changed, Done, Lease, Put, Row, SqliteStore, Work

ROOT = Path(__file__).resolve().parent.parent.parent.parent
MODULE = "tests.e2e.timeline.full_disk_life"
SEED = int(os.environ.get("TIMELINE_FULL_SEED", "5"))
STRIDE = int(os.environ.get("TIMELINE_FULL_STRIDE", "29"))
# Where syncs take no time, if there is such a place.
MEMORY = Path("/dev/shm")
FAR = 2**62

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(600)
def test_a_write_that_finds_no_room_breaks_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload(tmp_path, monkeypatch, FULL)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        command = [sys.executable, "-m", MODULE, f"{folder}/data", str(SEED), str(STRIDE)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr.decode()[-3_000:]
    lives, refused = map(int, done.stdout.split())
    assert lives > 10
    assert refused > 0


class Shop:
    """A timeline on a disk that fills up."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder / FILE_NAME, reserve_bytes=16 * MIB)
        self.topic = self.store.create_topic("/default/a", "timeline", b"").number
        self.count = 0

    def put(self, count: int, size_bytes: int = 1_000) -> int:
        """Put messages, and return how many were taken: all or none."""
        puts = []
        for _ in range(count):
            self.count += 1
            puts.append(Put(self.topic, f"m{self.count}", "g", NOW_MS, os.urandom(size_bytes)))
        (outcomes,) = self.store.apply(NOW_MS, [Work([*puts])])
        assert isinstance(outcomes, list)
        assert len({type(outcome) for outcome in outcomes}) == 1
        assert isinstance(outcomes[0], Changed | DiskFullError)
        return count if isinstance(outcomes[0], Changed) else 0

    def work(self, count: int) -> int:
        """Lease messages and finish them; return how many there were."""
        slots = self.store.scan(self.topic, 0, (-FAR, 0), FAR, count)
        leases = [Lease(self.topic, s.seq, s.version, "c", NOW_MS + 1_000) for s in slots]
        if not leases:
            return 0
        (leased,) = self.store.apply(NOW_MS, [Work([*leases])])
        assert isinstance(leased, list)
        rows = [row for row in leased if isinstance(row, Row)]
        assert len(rows) == len(slots)
        dones = [Done(self.topic, row.id, "c", row.version, row.seq) for row in rows]
        (done,) = self.store.apply(NOW_MS, [Work([*dones])])
        assert isinstance(done, list)
        assert all(isinstance(one, Changed) for one in done)
        return len(rows)


@pytest.mark.parametrize(
    ("kind", "left_kib"),
    [*(("tmpfs", left_kib) for left_kib in (0, 4, 12, 40, 100, 400, 1_000, 3_000)), ("ext4", 100)],
)
def test_all_messages_can_be_worked_on_while_the_disk_is_full_of_something_else(
    kind: str, left_kib: int, tmp_path: Path
) -> None:
    with small_disk(tmp_path, kind, 48) as disk:
        (disk / "data").mkdir()
        shop = Shop(disk / "data")
        taken = sum(shop.put(200) for _ in range(10))
        ballast = fill_disk(disk)
        os.truncate(ballast, max(0, ballast.stat().st_size - left_kib * KIB))
        while more := shop.put(1) or shop.put(100):
            taken += more
        # Others take what was let go of, again and again.
        done = 0
        while more := shop.work(150):
            done += more
            fill_disk(disk)
        assert shop.store.count(shop.topic, 0, FAR) == 0
        ballast.unlink()
        again = shop.put(100)
        shop.store.close()

    assert done >= taken
    assert again == 100


def test_a_disk_full_of_messages_takes_others_once_some_are_done(tmp_path: Path) -> None:
    with small_disk(tmp_path, "tmpfs", 48) as disk:
        (disk / "data").mkdir()
        shop = Shop(disk / "data")
        for _ in range(3):
            taken = 0
            while more := shop.put(500):
                taken += more
            assert taken
            while shop.work(1_000):
                pass
        shop.store.close()
