"""A log in an object store: what a start holds in memory, and who is kept out for how long."""

from dataclasses import replace

import pytest
from tests.unit.log.harness import SMALL, TIME_MS, Bench

from ister.base.errors import StorageTakenError
from ister.log import ChunkBackend, Entry, open_log
from ister.log.files.fences import FENCE_KEPT_MS
from ister.objects import LocalStore
from ister.testing import FaultyDisk


def make_bench(disk: FaultyDisk) -> Bench:
    return Bench(ChunkBackend(LocalStore(disk)))


class CountingBackend(ChunkBackend):
    """Counts the chunks that were fetched."""

    fetched = 0

    def get(self, name: str) -> bytes:
        if name.startswith("chunks/"):
            self.fetched += 1
        return super().get(name)


def test_a_start_holds_a_few_chunks_at_a_time() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(20):
        bench.publish(1, b"%d" % number)
    backend = CountingBackend(LocalStore(disk))
    ahead: list[int] = []

    def apply(entry: Entry) -> None:
        ahead.append(backend.fetched - len(ahead))

    open_log(backend, SMALL, restore=lambda _: None, apply=apply, reset=ahead.clear)

    assert len(ahead) == 20
    assert max(ahead) <= 3


@pytest.mark.parametrize("starts", [1, 3])
def test_a_former_owner_is_kept_out_also_when_everything_since_was_removed(starts: int) -> None:
    disk = FaultyDisk()
    old = make_bench(disk)
    old.publish(1, b"a")
    for _ in range(starts):
        new = make_bench(disk)
        new.publish(1, b"b")
        new.checkpoint(horizon={})
    old.append(1, b"too late")

    with pytest.raises(StorageTakenError):
        old.commit()
    with pytest.raises(StorageTakenError):
        old.log.recover()


def test_chunks_that_kept_somebody_out_do_not_gather_for_ever() -> None:
    disk = FaultyDisk()
    now_ms = TIME_MS
    options = replace(SMALL, now_ms=lambda: now_ms)
    for _ in range(60):
        Bench(ChunkBackend(LocalStore(disk)), options).checkpoint(horizon={})
        now_ms += FENCE_KEPT_MS // 10

    assert len(disk.names("chunks")) <= 11
