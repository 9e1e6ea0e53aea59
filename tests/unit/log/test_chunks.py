"""A log in an object store: a group is an object, and making the next one is the fence."""

import pytest
from tests.unit.log.harness import Bench, filler

from ister.base.errors import CorruptedError, StorageTakenError
from ister.log import ChunkBackend, Place
from ister.log.log import CHUNKS_PER_CHECKPOINT
from ister.objects import LocalStore
from ister.testing import Crash, Fault, FaultyDisk

payload = filler(200)


def make_bench(disk: FaultyDisk) -> Bench:
    return Bench(ChunkBackend(LocalStore(disk)))


def test_what_is_committed_is_read_back_and_replayed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(20):
        bench.append(1, payload(number))
        bench.append(2, payload(number), payload(number))
        bench.commit()
    assert bench.payloads(1) == [payload(n) for n in range(20)]

    again = make_bench(disk)
    assert again.payloads(1) == bench.payloads(1)
    assert again.payloads(2) == bench.payloads(2)
    assert again.numbers == list(range(1, 41))


def test_every_group_is_one_object() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    before = len(disk.names("chunks"))
    bench.append(1, b"a")
    bench.append(2, b"b")
    bench.commit()
    bench.publish(1, b"c")

    assert len(disk.names("chunks")) - before == 2
    assert {row.place for row in bench.log.segments} == {Place.CHUNK}


def test_a_large_group_is_read_in_portions() -> None:
    bench = make_bench(FaultyDisk())
    for number in range(50):
        bench.append(1, payload(number))
    bench.commit()

    plan = bench.log.plan(1, 10, 1_000)
    assert plan is not None
    assert sum(batch.size_bytes for batch in plan.run()) < 3_000
    assert bench.read(1, 0, 100_000) == [(n, payload(n)) for n in range(50)]


def test_a_former_owner_is_stopped_by_its_next_write() -> None:
    disk = FaultyDisk()
    old = make_bench(disk)
    old.publish(1, b"a")
    new = make_bench(disk)
    old.append(1, b"too late")

    with pytest.raises(StorageTakenError):
        old.commit()
    with pytest.raises(StorageTakenError):
        old.log.recover()
    with pytest.raises(StorageTakenError):
        old.checkpoint()
    new.publish(1, b"b")
    assert new.payloads(1) == [b"a", b"b"]
    assert make_bench(disk).payloads(1) == [b"a", b"b"]


def test_a_former_owner_that_writes_during_the_take_over_loses_nothing() -> None:
    disk = FaultyDisk()
    old = make_bench(disk)
    old.publish(1, b"a")
    wrote = False

    class Racing(LocalStore):
        def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
            nonlocal wrote
            if name.startswith("chunks/") and not wrote:
                wrote = True
                old.publish(1, b"just in time")
            super().put(name, data)

    new = Bench(ChunkBackend(Racing(disk)))
    assert wrote
    assert new.payloads(1) == [b"a", b"just in time"]


@pytest.mark.parametrize("done", [False, True])
def test_a_group_that_failed_never_comes_back_even_if_it_reached_the_store(done: bool) -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    disk.fail(Fault(actions=["put"], prefix="chunks/", done=done))
    bench.append(1, b"refused")
    assert bench.try_commit() is not None
    bench.log.recover()
    bench.publish(1, b"b")

    assert bench.payloads(1) == [b"a", b"b"]
    again = make_bench(disk)
    assert again.payloads(1) == [b"a", b"b"]
    assert again.numbers == [1, 2]


def test_a_checkpoint_replaces_replay_and_removes_what_is_not_needed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(30):
        bench.publish(1, payload(number))
    bench.append_changes(b"x")
    bench.commit()
    bench.checkpoint(b"state", {1: 20})

    again = make_bench(disk)
    assert again.snapshots == [b"state"]
    assert again.seen == []
    assert again.read(1, 20) == [(n, payload(n)) for n in range(20, 30)]
    assert len(disk.names("chunks")) < 15
    again.publish(1, b"more")
    assert make_bench(disk).numbers == [32]


def test_a_checkpoint_is_wanted_when_many_chunks_were_made() -> None:
    bench = make_bench(FaultyDisk())
    for number in range(CHUNKS_PER_CHECKPOINT - 1):  # The fence is one as well.
        assert not bench.log.wants_checkpoint
        bench.publish(1, b"%d" % number)

    assert bench.log.wants_checkpoint


def test_a_missing_chunk_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(5):
        bench.publish(1, payload(number))
    disk.remove(disk.names("chunks")[2])

    with pytest.raises(CorruptedError, match="missing"):
        make_bench(disk)


@pytest.mark.parametrize("position", [0, 60, 300, 420])
def test_a_chunk_that_was_changed_stops_the_start(position: int) -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, payload(0))
    name = disk.names("chunks")[-1]
    disk.flip(name, position)

    with pytest.raises(CorruptedError) as caught:
        make_bench(disk)
    assert caught.value.file == name


def test_stopping_anywhere_loses_nothing() -> None:
    crash_at = 0
    while True:
        disk = FaultyDisk()
        disk.crash_at(crash_at)
        acknowledged = 0
        try:
            bench = make_bench(disk)
            for number in range(6):
                bench.publish(1, payload(number))
                acknowledged += 1
            bench.checkpoint(b"state", {1: 2})
            bench.publish(1, payload(6))
            acknowledged += 1
        except Crash:
            pass
        for keep in ("none", "all"):
            again = make_bench(disk.reopen(keep))
            rows = again.read(1, 2)
            assert rows == [(n, payload(n)) for n in range(2, 2 + len(rows))]
            assert 2 + len(rows) >= acknowledged
        if acknowledged == 7:
            return
        crash_at += 1
