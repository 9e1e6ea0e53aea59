"""A checkpoint: a restart reads little, what is gone is removed, and only one owner makes them."""

import errno
from collections.abc import Callable

import pytest
from tests.unit.log.harness import SMALL, Bench, filler

from ister.base.errors import CorruptedError, StorageTakenError
from ister.log import ChunkBackend, FileBackend, Kind
from ister.log.files.manifest import decode_document, decode_manifest
from ister.log.files.segment import number_of, snapshot_name
from ister.objects import LocalStore
from ister.testing import Crash, Fault, FaultyDisk

payload = filler(200)


def make_bench(disk: FaultyDisk) -> Bench:
    return Bench(FileBackend(disk), SMALL)


def make_store_bench(disk: FaultyDisk) -> Bench:
    return Bench(ChunkBackend(LocalStore(disk)), SMALL)


def fill(bench: Bench, count: int, *, topic: int = 1) -> None:
    first = bench.next_offsets.get(topic, 0)
    for number in range(first, first + count):
        bench.publish(topic, payload(number))


def test_a_start_restores_the_snapshot_and_replays_only_the_open_file() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 200)
    bench.checkpoint(b"the state")

    again = bench.reopened()
    assert again.snapshots == [b"the state"]
    assert len(again.seen) < 30
    assert again.payloads(1) == [payload(n) for n in range(200)]
    assert again.log.next_offset(1) == 200


def test_a_checkpoint_is_wanted_when_a_file_was_sealed_since_the_last() -> None:
    bench = make_bench(FaultyDisk())
    wanted = [bench.log.wants_checkpoint]
    for _ in range(2):
        fill(bench, 60)
        wanted.append(bench.log.wants_checkpoint)
        bench.checkpoint()
        wanted.append(bench.log.wants_checkpoint)

    assert wanted == [False, True, False, True, False]


def test_a_checkpoint_is_wanted_after_a_start_that_replayed_sealed_files() -> None:
    bench = make_bench(FaultyDisk())
    fill(bench, 100)
    again = bench.reopened()

    assert again.log.wants_checkpoint


def test_the_last_snapshot_counts() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(6):
        fill(bench, 30)
        bench.checkpoint(b"%d" % number)

    assert bench.reopened().snapshots == [b"5"]
    assert len(disk.names("manifests")) == 3
    assert len(disk.names("snapshots")) == 3


def test_entries_committed_while_a_checkpoint_runs_are_kept_and_replayed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 60)
    checkpoint = bench.log.plan_checkpoint(b"state", {1: 0})
    fill(bench, 60)
    checkpoint.run()
    fill(bench, 60)
    bench.log.checkpointed(checkpoint)
    checkpoint.sweep()

    assert bench.payloads(1) == [payload(n) for n in range(180)]
    assert bench.log.wants_checkpoint
    again = bench.reopened()
    assert again.payloads(1) == [payload(n) for n in range(180)]
    assert len(again.seen) >= 120


def test_segments_below_the_horizon_are_removed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 200)
    before = len(disk.names("segments"))
    bench.checkpoint(horizon={1: 100})

    assert len(disk.names("segments")) < before
    assert bench.log.first_offset(1) == 100
    assert bench.read(1, 100) == [(n, payload(n)) for n in range(100, 200)]
    again = bench.reopened()
    assert again.log.first_offset(1) == 100
    assert again.read(1, 100) == [(n, payload(n)) for n in range(100, 200)]


def test_a_segment_stays_while_any_topic_has_something_in_it() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(2, b"precious")
    fill(bench, 100)
    bench.checkpoint(horizon={1: 100, 2: 0})

    assert bench.payloads(2) == [b"precious"]
    assert bench.reopened().payloads(2) == [b"precious"]
    bench.checkpoint(horizon={1: 100, 2: 1})
    assert len(disk.names("segments")) == 1


def test_a_topic_without_a_horizon_is_deleted() -> None:
    bench = make_bench(FaultyDisk())
    fill(bench, 100)
    fill(bench, 100, topic=2)
    bench.checkpoint(horizon={2: 0})

    assert bench.read(2, 0) == [(n, payload(n)) for n in range(100)]
    plan = bench.reopened().log.plan(1, 0, 1_000)
    assert plan is None


def test_files_with_changes_only_go_with_the_next_checkpoint() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for _ in range(100):
        bench.append_changes(bytes(200))
        bench.commit()
    bench.checkpoint()

    assert len(disk.names("segments")) == 1


def test_a_plan_made_before_its_segment_was_removed_finds_what_is_left() -> None:
    bench = make_bench(FaultyDisk())
    fill(bench, 200)
    plan = bench.log.plan(1, 0, 1_000)
    assert plan is not None
    bench.checkpoint(horizon={1: 150})

    assert plan.run()[0].base_offset == 150


def test_another_owner_that_made_the_next_manifest_is_noticed() -> None:
    disk = FaultyDisk()
    first, second = make_bench(disk), make_bench(disk)
    second.checkpoint(horizon={})

    with pytest.raises(StorageTakenError):
        first.checkpoint(horizon={})


@pytest.mark.parametrize("done", [False, True])
def test_a_checkpoint_that_failed_is_made_again(done: bool) -> None:
    for prefix in ("snapshots/", "manifests/"):
        disk = FaultyDisk()
        bench = make_bench(disk)
        fill(bench, 100)
        disk.fail(Fault(actions=["put"], prefix=prefix, done=done))
        with pytest.raises(OSError, match="error"):
            bench.checkpoint(b"first")
        assert bench.payloads(1) == [payload(n) for n in range(100)]
        bench.checkpoint(b"second")

        again = bench.reopened()
        assert again.snapshots == [b"second"]
        assert again.payloads(1) == [payload(n) for n in range(100)]


def test_a_checkpoint_is_not_planned_before_everything_is_on_the_disk() -> None:
    """A checkpoint cannot sync by itself: when that fails and is done again, it seems to work."""
    bench = Bench(FileBackend(FaultyDisk()))
    bench.publish(1, b"a", sync=False)

    with pytest.raises(AssertionError, match="synced before a checkpoint"):
        bench.log.plan_checkpoint(b"state", {1: 0})


def test_messages_whose_sync_failed_before_a_checkpoint_are_there_after_a_power_cut() -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk))
    bench.publish(1, b"a", sync=False)
    disk.fail(Fault(actions=["sync"]))
    bench.append_changes(b"")
    assert bench.try_commit() is not None
    bench.log.recover()
    bench.checkpoint()

    assert bench.reopened(FileBackend(disk.reopen("none"))).payloads(1) == [b"a"]


def test_stopping_anywhere_in_a_checkpoint_loses_nothing() -> None:
    def run(crash_at: int) -> tuple[FaultyDisk, bool]:
        """Return the disk, and whether the machine stopped before the end."""
        disk = FaultyDisk(sector_bytes=64)
        bench = make_bench(disk)
        fill(bench, 100)
        bench.checkpoint(b"one", {1: 30})
        fill(bench, 60)
        disk.crash_at(len(disk.operations) + crash_at)
        try:
            bench.checkpoint(b"two", {1: 80})
        except Crash:
            return disk, True
        return disk, False

    crash_at = 0
    stopped = True
    while stopped:
        disk, stopped = run(crash_at)
        for keep in ("none", "all", "torn"):
            again = make_bench(disk.reopen(keep, seed=crash_at))
            assert again.snapshots in ([b"one"], [b"two"])
            assert again.read(1, 80) == [(n, payload(n)) for n in range(80, 160)]
            again.publish(1, b"more")
            again.checkpoint(b"three", {1: 80})
            assert again.reopened().snapshots == [b"three"]
        crash_at += 1
    assert crash_at > 4


def test_a_manifest_that_was_changed_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 60)
    bench.checkpoint()
    name = disk.names("manifests")[-1]
    disk.flip(name, 200)

    with pytest.raises(CorruptedError) as caught:
        bench.reopened()
    assert caught.value.file == name


def test_a_segment_the_manifest_names_and_that_is_missing_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 100)
    bench.checkpoint()
    name = disk.names("segments")[0]
    disk.remove(name)

    with pytest.raises(CorruptedError, match="missing") as caught:
        bench.reopened()
    assert caught.value.file == name


def test_the_file_to_replay_cannot_be_missing() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 100)
    bench.checkpoint()
    disk.remove(disk.names("segments")[-1])

    with pytest.raises(CorruptedError, match="missing"):
        bench.reopened()


def test_a_checkpoint_right_after_the_start_keeps_everything() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 100)
    again = bench.reopened()
    again.checkpoint()
    again = again.reopened()
    again.checkpoint()

    assert again.reopened().payloads(1) == [payload(n) for n in range(100)]


def test_a_checkpoint_of_an_empty_log_can_be_opened() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.checkpoint(b"nothing yet", {})
    again = bench.reopened()
    again.publish(1, b"a")

    assert again.reopened().payloads(1) == [b"a"]
    assert again.reopened().snapshots == [b"nothing yet"]


@pytest.mark.parametrize("make", [make_bench, make_store_bench], ids=["files", "chunks"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("attempts", [1, 4, 17])
def test_the_snapshot_of_a_manifest_stays_after_any_number_of_failed_attempts(
    make: Callable[[FaultyDisk], Bench], error: int, done: bool, attempts: int
) -> None:
    disk = FaultyDisk()
    bench = make(disk)
    fill(bench, 30)
    for _ in range(attempts):
        disk.fail(Fault(error, actions=["put"], prefix="manifests/", done=done))
        with pytest.raises(OSError, match="manifests/"):
            bench.checkpoint(b"failed")
        disk.heal()
    for number in range(5):
        fill(bench, 10)
        bench.checkpoint(b"%d" % number)
        again = make(disk.reopen("none"))
        assert again.snapshots == [b"%d" % number]
        assert again.payloads(1) == bench.payloads(1)
    assert len(disk.names("snapshots")) == len(disk.names("manifests")) == 3


@pytest.mark.parametrize("make", [make_bench, make_store_bench], ids=["files", "chunks"])
def test_failed_attempts_do_not_end_checkpoints_after_a_restart(
    make: Callable[[FaultyDisk], Bench],
) -> None:
    disk = FaultyDisk()
    for _ in range(3):
        bench = make(disk)
        fill(bench, 10)
        disk.fail(Fault(errno.ENOSPC, actions=["put"], prefix="manifests/", lasting=True))
        for _ in range(17):
            with pytest.raises(OSError, match="manifests/"):
                bench.checkpoint(b"failed")
        disk = disk.reopen("none")
    bench = make(disk)
    bench.checkpoint(b"made")

    assert make(disk).snapshots == [b"made"]


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("prefix", ["snapshots/", "manifests/"])
def test_a_failed_attempt_leaves_no_file_on_a_disk(prefix: str, done: bool) -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 30)
    bench.checkpoint(b"one")
    before = [*disk.names("manifests"), *disk.names("snapshots")]
    for _ in range(6):
        disk.fail(Fault(errno.ENOSPC, actions=["put"], prefix=prefix, done=done))
        with pytest.raises(OSError, match=prefix):
            bench.checkpoint(b"failed")

    assert [*disk.names("manifests"), *disk.names("snapshots")] == before
    assert bench.reopened().snapshots == [b"one"]


def test_a_kept_manifest_has_its_snapshot() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(12):
        fill(bench, 10)
        if number % 3:
            disk.fail(Fault(actions=["put"], prefix="manifests/", done=number % 2 == 0))
            with pytest.raises(OSError, match="manifests/"):
                bench.checkpoint()
        else:
            bench.checkpoint()
        if number == 6:
            bench = bench.reopened()
        for name in disk.names("manifests"):
            body = decode_document(Kind.MANIFEST, bench.backend.get(name), name, None)
            manifest = decode_manifest(number_of(name), body, name)
            assert snapshot_name(manifest.snapshot) in disk.names("snapshots")


@pytest.mark.parametrize("make", [make_bench, make_store_bench])
def test_what_could_not_be_removed_is_removed_after_the_next_checkpoint(
    make: Callable[[FaultyDisk], Bench],
) -> None:
    disk = FaultyDisk()
    bench = make(disk)
    fill(bench, 200)
    folder = "segments" if make is make_bench else "chunks"
    before = disk.names(folder)
    disk.fail(Fault(actions=["remove"], prefix=folder))
    with pytest.raises(OSError, match=folder):
        bench.checkpoint(horizon={1: 199})
    assert len(disk.names(folder)) > 3

    bench.checkpoint(horizon={1: 199})

    # The file that is open, or the chunk with the last message, and the fence of the start.
    assert len(disk.names(folder)) <= 2 < len(before)
    assert bench.payloads(1)[-1:] == [payload(199)]


def test_one_file_that_cannot_be_removed_keeps_no_others() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fill(bench, 200)
    stuck = disk.names("segments")[1]
    disk.fail(Fault(actions=["remove"], prefix=stuck, lasting=True))
    for _ in range(5):
        with pytest.raises(OSError, match=stuck):
            bench.checkpoint(horizon={1: 199})

    assert disk.names("segments")[:-1] == [stuck]
    assert len(disk.names("snapshots")) == 3
