"""A disk that fails: nothing committed is lost, nothing refused comes back, writing goes on."""

import errno

import pytest
from tests.unit.log.harness import SMALL, Bench, filler

from ister.base.errors import CorruptedError
from ister.log import Entry, FileBackend, open_log
from ister.testing import Fault, FaultyDisk, Keep
from ister.testing.disk import Change


def make_bench(disk: FaultyDisk) -> Bench:
    return Bench(FileBackend(disk), SMALL)


@pytest.mark.parametrize("action", ["write", "sync"])
@pytest.mark.parametrize("keep", ["none", "all", "torn"])
def test_a_group_that_failed_is_never_seen_again(action: Change, keep: Keep) -> None:
    disk = FaultyDisk(sector_bytes=64)
    bench = make_bench(disk)
    bench.publish(1, b"a")
    disk.fail(Fault(actions=[action]))
    bench.append(1, b"refused")
    assert isinstance(bench.try_commit(), OSError)
    bench.log.recover()
    bench.publish(1, b"b")

    assert bench.payloads(1) == [b"a", b"b"]
    for seed in range(10):
        again = make_bench(disk.reopen(keep, seed=seed))
        assert again.payloads(1) == [b"a", b"b"]
        assert again.numbers == [1, 2]


def test_what_was_collected_behind_a_failed_group_is_void_as_well() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"before")
    bench.append(1, b"first")
    group = bench.log.take()
    assert group is not None
    bench.append(1, b"second")
    disk.fail(Fault(actions=["sync"]))
    bench.log.write(group)
    with pytest.raises(OSError, match="error"):
        bench.log.sync(group)
    bench.log.failed(group)

    assert not bench.log.collecting
    assert bench.log.collecting_bytes == 0


def test_nothing_is_written_between_a_failure_and_its_recovery() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    disk.fail(Fault(actions=["sync"]))
    bench.append(1, b"b")
    bench.try_commit()
    before = len(disk.operations)
    bench.append(1, b"c")

    assert bench.try_commit() is not None
    assert len(disk.operations) == before


def test_recovery_fails_as_long_as_the_disk_does() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    disk.fail(Fault(error=errno.ENOSPC, lasting=True))
    bench.append(1, b"b")
    assert bench.try_commit() is not None
    for _ in range(3):
        with pytest.raises(OSError, match="space"):
            bench.log.recover()
    disk.heal()
    bench.log.recover()
    bench.publish(1, b"c")

    assert bench.payloads(1) == [b"a", b"c"]
    assert bench.reopened().payloads(1) == [b"a", b"c"]


def test_after_a_failed_sync_the_file_is_not_written_to_any_more() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    disk.fail(Fault(actions=["sync"]))
    bench.append(1, b"b")
    bench.try_commit()
    before = len(disk.operations)
    bench.log.recover()
    bench.publish(1, b"c")

    touched = {operation.name for operation in disk.operations[before:]}
    assert touched == {"segments/00000000000000000002.seg"}


@pytest.mark.parametrize("action", ["write", "sync"])
@pytest.mark.parametrize("keep", ["none", "all", "torn"])
def test_what_was_committed_without_a_sync_survives_a_disk_that_fails(
    action: Change, keep: Keep
) -> None:
    disk = FaultyDisk(sector_bytes=64)
    bench = make_bench(disk)
    bench.publish(1, b"a")
    bench.publish(1, b"lazy one", sync=False)
    bench.publish(2, b"lazy two", sync=False)
    disk.fail(Fault(actions=[action]))
    bench.append(1, b"refused")
    assert bench.try_commit() is not None
    bench.log.recover()

    assert bench.payloads(1) == [b"a", b"lazy one"]
    assert bench.payloads(2) == [b"lazy two"]
    again = make_bench(disk.reopen(keep))
    assert again.payloads(1) == [b"a", b"lazy one"]
    assert again.payloads(2) == [b"lazy two"]


@pytest.mark.parametrize("action", ["write", "sync"])
def test_what_was_committed_without_a_sync_survives_a_kill_at_every_step_of_a_recovery(
    action: Change,
) -> None:
    for step in range(20):
        disk = FaultyDisk(sector_bytes=64)
        bench = make_bench(disk)
        bench.publish(1, b"a")
        bench.publish(1, b"lazy one", sync=False)
        bench.publish(2, b"lazy two", sync=False)
        disk.fail(Fault(actions=[action]))
        bench.append(1, b"refused")
        assert bench.try_commit() is not None
        fault = disk.fail(Fault(at=len(disk.operations) + step, lasting=True))
        is_whole = True
        try:
            bench.log.recover()
        except OSError:
            is_whole = False
        disk.heal()

        again = make_bench(disk)
        assert again.payloads(1)[:2] == [b"a", b"lazy one"]
        assert again.payloads(2) == [b"lazy two"]
        if not fault.hits:
            break
    assert is_whole
    assert step >= 4


def test_every_operation_may_fail_once_without_loss() -> None:
    payload = filler(400)

    def run(fault: Fault | None) -> tuple[Bench, FaultyDisk, list[bytes]]:
        disk = FaultyDisk(sector_bytes=64)
        bench = make_bench(disk)
        if fault is not None:
            disk.fail(fault)
        kept = []
        for number in range(30):
            bench.append(1, payload(number), sync=number % 3 != 0)
            if bench.try_commit() is None:
                kept.append(payload(number))
                continue
            bench.log.recover()
        return bench, disk, kept

    _, disk, everything = run(None)
    assert len(everything) == 30
    for at in range(len(disk.operations)):
        for done in (False, True):
            bench, disk, kept = run(Fault(at=at, done=done))
            assert len(kept) >= 29
            assert bench.payloads(1) == kept
            bench.log.close()
            for keep in ("none", "torn"):
                again = make_bench(disk.reopen(keep, seed=at))
                assert again.payloads(1) == kept


def test_a_segment_that_failed_can_be_read_and_checkpointed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(10):
        bench.publish(1, filler(100)(number))
    disk.fail(Fault(actions=["sync"]))
    bench.append(1, b"refused")
    bench.try_commit()
    bench.log.recover()
    bench.publish(1, b"after")
    bench.checkpoint()

    expected = [*(filler(100)(n) for n in range(10)), b"after"]
    assert bench.payloads(1) == expected
    again = bench.reopened()
    assert again.payloads(1) == expected
    assert again.numbers == [11]


def test_a_read_that_fails_is_tried_once_more() -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk))
    bench.publish(1, b"one")
    fault = disk.fail(Fault(actions=["read"], prefix="segments/"))

    assert bench.payloads(1) == [b"one"]
    assert fault.hits == 1


def test_a_read_that_fails_for_long_is_an_error_of_the_storage_and_no_damage() -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk))
    bench.publish(1, b"one")
    disk.fail(Fault(actions=["read"], prefix="segments/", lasting=True))
    with pytest.raises(OSError, match="Input/output"):
        bench.payloads(1)
    disk.heal()

    assert bench.payloads(1) == [b"one"]


def test_start_that_fails_leaves_no_file_open() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    bench.checkpoint()
    bench.publish(1, *[filler(3_000)(number) for number in range(9)])
    bench.publish(1, b"b")
    whole = disk.reopen("all")
    first = len(whole.operations)
    make_bench(whole)
    changes = range(first, len(whole.operations))
    names = [
        name for folder in ("manifests", "snapshots", "segments") for name in disk.names(folder)
    ]
    faults = [Fault(at=number) for number in changes]
    faults += [
        Fault(actions=[action], prefix=name) for action in ("open", "read") for name in names
    ]

    assert len(changes) > 3
    for fault in faults:
        again = disk.reopen("all")
        again.fail(fault)
        with pytest.raises(OSError, match="error"):
            make_bench(again)
        assert again.open_files == set(), fault
        make_bench(again)


def test_start_that_cannot_apply_an_entry_leaves_no_file_open() -> None:
    disk = FaultyDisk()
    make_bench(disk).publish(1, b"a")
    disk = disk.reopen("all")

    def ignore(_: bytes) -> None:
        pass

    def apply(_: Entry) -> None:
        raise CorruptedError("segments/1", 0, "the ledger does not know it")

    with pytest.raises(CorruptedError):
        open_log(FileBackend(disk), SMALL, restore=ignore, apply=apply, reset=disk.heal)
    assert disk.open_files == set()
