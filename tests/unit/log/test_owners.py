"""Owners of a log: every start has its own epoch, and no two owners use the same file name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.unit.log.harness import SMALL, TIME_MS, Bench, filler

from ister.base.errors import ConfigError, CorruptedError, EncryptionKeyError, StorageTakenError
from ister.log import (
    ChunkBackend,
    CompactionPolicy,
    FileBackend,
    Rewrite,
    open_log,
    plan_compaction,
)
from ister.log.files.manifest import decode_manifest
from ister.log.files.segment import chunk_name
from ister.log.journal.chunks import ChunkJournal
from ister.log.opening import UNDISTURBED_ATTEMPTS_MAX
from ister.objects import FileKeyring, LocalStore, MemoryDisk
from ister.testing import FaultyDisk


def on_disk(disk: FaultyDisk) -> Bench:
    return Bench(FileBackend(disk), SMALL)


def in_store(disk: FaultyDisk) -> Bench:
    return Bench(ChunkBackend(LocalStore(disk)), SMALL)


@pytest.mark.parametrize("make", [on_disk, in_store])
def test_every_start_has_a_higher_epoch(make: Callable[[FaultyDisk], Bench]) -> None:
    disk = FaultyDisk()
    found = []
    for number in range(4):
        bench = make(disk)
        found.append(bench.log.epoch)
        if number % 2:
            bench.publish(1, b"a")
            bench.checkpoint()
        disk = disk.reopen("none")

    assert found == sorted(set(found))
    assert found[0] > 0


def test_epochs_on_a_disk_are_one_empty_file() -> None:
    disk = FaultyDisk()
    for _ in range(3):
        on_disk(disk)

    [name] = disk.names("epochs")
    assert disk.open(name).size() == 0


def test_a_manifest_written_too_late_removes_nothing_of_the_new_owner() -> None:
    disk = FaultyDisk()
    old = in_store(disk)
    for number in range(10):
        old.publish(1, b"%d" % number)
    rewrite = plan_compaction(old.log, old.log.state(), {1: 0}, CompactionPolicy(chunk_count_min=4))
    assert rewrite is not None
    rewrite.run()
    old.log.rewritten(rewrite)
    stalled = old.log.plan_checkpoint(b"", {1: 0})
    new = in_store(disk)
    # So many that the number the old owner is about to take is free again.
    for _ in range(4):
        new.publish(1, b"x")
        new.checkpoint()

    with pytest.raises(StorageTakenError):
        stalled.run()
    expected = [*(b"%d" % n for n in range(10)), *[b"x"] * 4]
    assert new.payloads(1) == expected
    assert in_store(disk).payloads(1) == expected


def test_a_rewrite_that_fails_too_late_removes_nothing_of_the_new_owner() -> None:
    payload = filler(64 * 1024)
    options = replace(SMALL, segment_bytes=256 * 1024)
    disk = MemoryDisk()

    def bench() -> Bench:
        return Bench(ChunkBackend(LocalStore(disk)), options)

    def rewrite_of(one: Bench) -> Rewrite:
        policy = CompactionPolicy(chunk_count_min=4)
        found = plan_compaction(one.log, one.log.state(), {1: 0}, policy)
        assert found is not None
        return found

    old = bench()
    for number in range(48):
        old.publish(1, payload(number))
    took_over = False

    def stall(_: int) -> None:
        nonlocal took_over
        if disk.names("segments") and not took_over:
            took_over = True
            new = bench()
            rewrite = rewrite_of(new)
            rewrite.run()
            new.log.rewritten(rewrite)
            new.checkpoint()
            raise InterruptedError("the broker is closing")

    with pytest.raises(InterruptedError):
        rewrite_of(old).run(stall)
    assert took_over
    assert bench().payloads(1) == [payload(n) for n in range(48)]


def test_a_former_owner_is_fenced_for_a_week_however_many_starts_follow() -> None:
    disk = FaultyDisk()
    now_ms = TIME_MS
    options = replace(SMALL, now_ms=lambda: now_ms)

    def bench() -> Bench:
        return Bench(ChunkBackend(LocalStore(disk)), options)

    old = bench()
    old.publish(1, b"a")
    for _ in range(40):
        new = bench()
        new.publish(1, b"b")
        new.checkpoint(horizon={})
        now_ms += 4 * 3_600_000
    old.append(1, b"too late")

    with pytest.raises(StorageTakenError):
        old.commit()
    with pytest.raises(StorageTakenError):
        old.log.recover()
    now_ms += 7 * 24 * 3_600_000
    bench().checkpoint(horizon={})
    assert len(disk.names("chunks")) < 4


@pytest.mark.parametrize("damage", ["key", "chunk", "state"])
def test_a_failed_start_does_not_affect_the_owner(tmp_path: Path, damage: str) -> None:
    disk = FaultyDisk()
    keyring = FileKeyring.create(tmp_path / "keys.json")
    options = replace(SMALL, ciphers=keyring)
    owner = Bench(ChunkBackend(LocalStore(disk)), options)
    owner.publish(1, b"a")
    owner.checkpoint(b"one")
    owner.publish(1, b"b")
    before = content(disk)

    def restore(_: bytes) -> None:
        if damage == "state":
            raise ValueError("the snapshot is of a newer version")

    found = disk.reopen("none") if damage == "chunk" else disk
    if damage == "chunk":
        found.flip(found.names("chunks")[-1], 300)
        owner.backend = ChunkBackend(LocalStore(found))
        before = content(found)
    with pytest.raises((CorruptedError, EncryptionKeyError, ValueError)):
        open_log(
            ChunkBackend(LocalStore(found)),
            SMALL if damage == "key" else options,
            restore=restore,
            apply=lambda _: None,
            reset=lambda: None,
        )

    assert content(found) == before
    owner.publish(1, b"c")
    owner.checkpoint(b"two")
    again = Bench(ChunkBackend(LocalStore(disk)), options)
    assert again.snapshots == [b"two"]
    assert again.payloads(1) == [b"a", b"b", b"c"]


def test_refused_take_over_leaves_the_store_as_it_was() -> None:
    disk = MemoryDisk()
    old = Bench(ChunkBackend(LocalStore(disk)), SMALL)
    old.publish(1, b"a")
    old.checkpoint()
    old.publish(1, b"b")
    folders = ("chunks", "manifests", "segments", "snapshots")
    before = [name for folder in folders for name in disk.names(folder)]
    seen: list[int] = []

    def refuse() -> None:
        raise ConfigError([f"{len(seen)} entries were read"])

    with pytest.raises(ConfigError, match="1 entries were read"):
        open_log(
            ChunkBackend(LocalStore(disk)),
            SMALL,
            restore=lambda _: None,
            apply=lambda entry: seen.append(entry.number),
            reset=seen.clear,
            before_take_over=refuse,
        )
    assert [name for folder in folders for name in disk.names(folder)] == before
    old.publish(1, b"c")
    old.checkpoint()
    assert old.reopened().payloads(1) == [b"a", b"b", b"c"]


def test_a_chunk_of_a_lower_epoch_after_a_higher_one_stops_the_start() -> None:
    disk = FaultyDisk()
    old = in_store(disk)
    old.publish(1, b"a")
    new = in_store(disk)
    # As if the store had not refused it: the number behind that of the new owner's last chunk.
    journal = old.log._journal
    assert isinstance(journal, ChunkJournal)
    journal._number = 4
    old.publish(1, b"behind the fence")
    assert disk.names("chunks")[-1] == chunk_name(4)

    with pytest.raises(CorruptedError, match="epoch"):
        in_store(disk)
    with pytest.raises(StorageTakenError):
        new.publish(1, b"b")


def content(disk: FaultyDisk) -> dict[str, bytes]:
    folders = ("segments", "manifests", "snapshots", "chunks")
    names = [name for folder in folders for name in disk.names(folder)]
    return {name: (file := disk.open(name)).read(0, file.size()) for name in names}


def test_a_log_whose_owner_makes_checkpoints_all_the_time_can_be_taken_over() -> None:
    disk = FaultyDisk()
    old = in_store(disk)
    old.publish(1, b"x")
    disturbed = 0

    class Disturbed(LocalStore):
        """A store where the old owner drops everything whenever the new owner has listed names."""

        def names(self, prefix: str) -> list[str]:
            nonlocal disturbed
            found = super().names(prefix)
            if prefix == "segments/":
                try:
                    old.checkpoint(horizon={1: old.next_offsets[1]})
                except StorageTakenError:
                    return found
                disturbed += 1
                old.publish(1, b"x")
                old.publish(1, b"x")
            return found

    new = Bench(ChunkBackend(Disturbed(disk)), SMALL)

    assert disturbed == UNDISTURBED_ATTEMPTS_MAX
    first, end = old.next_offsets[1] - 2, old.next_offsets[1]
    assert new.read(1, first) == [(n, b"x") for n in range(first, end)]
    assert new.log.epoch > old.log.epoch
    with pytest.raises(StorageTakenError):
        old.publish(1, b"too late")


def test_a_start_that_was_stopped_for_long_puts_no_fence_behind_entries_it_has_not_read() -> None:
    disk = FaultyDisk()
    old = in_store(disk)
    lives = 0

    class Stopped(LocalStore):
        """Is stopped once, after it has listed the chunks, for the life of another owner."""

        def names(self, prefix: str) -> list[str]:
            nonlocal lives
            found = super().names(prefix)
            if prefix == "segments/" and not lives:
                lives += 1
                old.publish(1, b"a")
                new = in_store(disk)
                new.checkpoint(horizon={1: 1})
                # Another start that was stopped for long: it finds the number of "a" free again.
                backend = ChunkBackend(LocalStore(disk))
                ChunkJournal(
                    backend, SMALL, number=2, entry_end=1, owner="x", epoch=new.log.epoch
                ).recover()
            return found

    stopped = Bench(ChunkBackend(Stopped(disk)), SMALL)
    stopped.next_offsets[1] = 1
    stopped.publish(1, b"b")

    assert lives == 1
    assert in_store(disk).read(1, 1) == [(1, b"b")]


def test_a_manifest_without_epochs_is_read() -> None:
    body = {
        "replay_from": 3,
        "replay_exists": False,
        "entry_end": 9,
        "next_segment": 4,
        "snapshot": 5,
        "segments": [],
        "spans": [],
    }
    manifest = decode_manifest(7, msgspec.msgpack.encode(body), "manifests/7")

    assert manifest.epoch == 0
    assert manifest.kept == ((7, 5),)
    assert manifest.fences == ()
