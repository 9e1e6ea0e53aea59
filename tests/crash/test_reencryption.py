"""Re-encryption is killed at every step: nothing is lost, and the next run finishes it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.unit.log.harness import TIME_MS, make_batch
from tests.unit.log.test_uploads import Tier

from ister.base import StreamSettings
from ister.broker import StoppedLog
from ister.broker.state.changes import TopicCreated, TopicTrimmed
from ister.log import (
    ChunkBackend,
    CompactionPolicy,
    FileBackend,
    Kind,
    LogOptions,
    check_folder,
    find_keys,
    plan_compaction,
)
from ister.objects import FileKeyring, LocalStore
from ister.server.reencrypting import has_other_keys, reencrypt
from ister.testing import Crash, FaultyDisk, Keep

pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")

Contents = dict[int, list[bytes]]

# What is found of un-synced bytes, in turn.
KEEPS: tuple[Keep, ...] = ("none", "all", "torn")
UPLOADS = CompactionPolicy(upload_before_ms=2**60)


@dataclass(frozen=True)
class Home:
    """Where a log is kept, with its key file."""

    kind: str
    key_file: Path

    @property
    def keyring(self) -> FileKeyring:
        return FileKeyring.open(self.key_file)

    def backend(self, disk: FaultyDisk) -> FileBackend | ChunkBackend:
        return ChunkBackend(LocalStore(disk)) if self.kind == "chunks" else FileBackend(disk)

    def options(self, disk: FaultyDisk, keyring: FileKeyring | None = None) -> LogOptions:
        remote = LocalStore(Tier(disk)) if self.kind == "tier" else None
        return LogOptions(
            segment_bytes=3_000,
            extent_bytes=1_000,
            ciphers=keyring or self.keyring,
            accept_plain=False,
            remote=remote,
            now_ms=lambda: TIME_MS,
        )

    def open(self, disk: FaultyDisk, keyring: FileKeyring | None = None) -> StoppedLog:
        return StoppedLog(self.backend(disk), self.options(disk, keyring))

    def keys(self, disk: FaultyDisk) -> set[str]:
        remote = self.options(disk).remote
        return set(find_keys(self.backend(disk), keyring=self.keyring, remote=remote))

    def reencrypt(self, disk: FaultyDisk) -> int:
        return reencrypt(self.backend(disk), self.options(disk), self.keyring).segments

    def without_old_keys(self) -> FileKeyring:
        """Return the newest key alone, in a key file of its own."""
        keys = json.loads(self.key_file.read_text())
        keys["keys"] = keys["keys"][-1:]
        path = self.key_file.with_name("newest.json")
        path.write_text(json.dumps(keys))
        path.chmod(0o600)
        return FileKeyring.open(path)


@pytest.fixture(params=["files", "chunks", "tier"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """A log in files, in an object store, and in files with a tier."""
    path = tmp_path / "keys.json"
    FileKeyring.create(path)
    return Home(request.param, path)


def publish(stopped: StoppedLog, topic: int, *payloads: bytes) -> None:
    record = stopped.state.topics[topic]
    batch = make_batch(list(payloads), offset=record.next_offset)
    stopped.log.append(
        Kind.BATCH,
        topic,
        [batch.stamp_bytes(), batch.tail],
        count=batch.count,
        base_offset=batch.base_offset,
        time_ms=TIME_MS,
    )
    stopped.commit()
    stopped.state.on_batch(topic, batch)


def make_log(home: Home) -> FaultyDisk:
    """Return a disk with files of all kinds under two keys; the newest is a third."""
    disk = FaultyDisk()
    for life in range(3):
        stopped = home.open(disk)
        if not life:
            stopped.record([TopicCreated(n, f"/default/t{n}", StreamSettings()) for n in (1, 2)])
        for number in range(4):
            publish(stopped, 1, b"%d/%d" % (life, number) * 150)
            publish(stopped, 2, b"x%d/%d" % (life, number) * 40)
        stopped.checkpoint()
        if home.kind == "tier" and life == 1:
            move_one_to_tier(stopped)
        publish(stopped, 1, b"behind %d" % life)
        if life == 2:
            stopped.record([TopicTrimmed(1, 2)])
        stopped.close()
        if life != 1:
            home.keyring.rotate()
    return disk.reopen("none")


def move_one_to_tier(stopped: StoppedLog) -> None:
    rewrite = plan_compaction(stopped.log, stopped.log.state(), stopped.horizon, UPLOADS)
    assert rewrite is not None
    rewrite.run()
    stopped.log.rewritten(rewrite)
    stopped.checkpoint()


def contents(stopped: StoppedLog) -> Contents:
    """Return the payloads of every topic; every byte of them is read."""
    found: Contents = {}
    for topic, record in stopped.state.topics.items():
        payloads = found[topic] = []
        offset = record.first_offset
        while offset < record.next_offset:
            plan = stopped.log.plan(topic, offset, 1_000_000)
            assert plan is not None
            for batch in plan.run():
                payloads += [
                    payload
                    for at, payload in zip(batch.offsets, batch.payloads, strict=True)
                    if at >= offset
                ]
                offset = batch.base_offset + batch.count
    return found


def test_afterwards_the_newest_key_is_enough(home: Home) -> None:
    disk = make_log(home)
    ids = home.keyring.ids
    before = contents(home.open(disk.reopen("none")))
    assert home.keys(disk) == set(ids[:2])

    assert home.reencrypt(disk) > 0
    assert home.keys(disk) == {ids[2]}
    keyring, remote = home.without_old_keys(), home.options(disk).remote
    checked = check_folder(home.backend(disk), keyring=keyring, remote=remote)
    assert checked.problems == []
    assert contents(home.open(disk, home.without_old_keys())) == before
    assert len(before[1]) == 13


def test_nothing_is_left_to_do_the_second_time(home: Home) -> None:
    disk = make_log(home)
    home.reencrypt(disk)

    remote = home.options(disk).remote
    keys = find_keys(home.backend(disk), keyring=home.keyring, remote=remote)
    assert not has_other_keys(keys, home.keyring)
    assert home.reencrypt(disk) == 0


def test_a_run_that_was_killed_at_any_step_is_finished_by_the_next(home: Home) -> None:
    disk = make_log(home)
    keyring = home.without_old_keys()
    before = contents(home.open(disk.reopen("none")))
    whole = disk.reopen("none")
    home.reencrypt(whole)

    for number in range(len(whole.operations)):
        keep = KEEPS[number % len(KEEPS)]
        found = killed_at(disk, number, home.reencrypt, keep)
        assert contents(home.open(found.reopen("none"))) == before, f"{keep} at {number}"
        home.reencrypt(found)
        assert home.keys(found) == {home.keyring.ids[-1]}, f"{keep} at {number}"
        assert contents(home.open(found, keyring)) == before, f"{keep} at {number}"


def test_a_restored_backup_has_the_last_manifest_only_and_is_re_encrypted(home: Home) -> None:
    disk = make_log(home)
    for folder in ("manifests", "snapshots"):
        for name in disk.names(folder)[:-1]:
            disk.remove(name)

    home.reencrypt(disk)
    assert home.keys(disk) == {home.keyring.ids[-1]}


def killed_at(
    disk: FaultyDisk, number: int, run: Callable[[FaultyDisk], object], keep: Keep
) -> FaultyDisk:
    """Return the disk as it is found after `run` was stopped in the middle of an operation."""
    broken = disk.reopen("none")
    broken.crash_at(number)
    with pytest.raises(Crash):
        run(broken)
    return broken.reopen(keep, seed=number)


def test_what_was_not_encrypted_is_afterwards(tmp_path: Path) -> None:
    FileKeyring.create(tmp_path / "keys.json")
    home, disk = Home("files", tmp_path / "keys.json"), FaultyDisk()
    plain = StoppedLog(home.backend(disk), replace(home.options(disk), ciphers=None))
    plain.record([TopicCreated(1, "/default/t", StreamSettings())])
    publish(plain, 1, b"plain")
    plain.close()
    # As `--accept-unencrypted` does that.
    accepting = StoppedLog(home.backend(disk), replace(home.options(disk), accept_plain=True))
    accepting.checkpoint()
    accepting.close()
    assert "" in home.keys(disk)

    home.reencrypt(disk)
    assert home.keys(disk) == set(home.keyring.ids)
    assert contents(home.open(disk)) == {1: [b"plain"]}
