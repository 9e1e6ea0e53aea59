"""A check finds whatever would stop a broker or a reader, and changes nothing."""

from pathlib import Path

import pytest
from tests.unit.log.harness import SMALL, Bench, filler

from ister.base.errors import EncryptionKeyError
from ister.log import CheckReport, ChunkBackend, FileBackend, LogOptions, check_folder
from ister.log.files.scan import Scan
from ister.objects import LocalStore
from ister.objects.keyring import FileKeyring
from ister.testing import Crash, FaultyDisk

payload = filler(100)


def fill(disk: FaultyDisk, options: LogOptions = SMALL) -> Bench:
    """Return a log with sealed segments, a transaction, a manifest and an open file."""
    bench = Bench(FileBackend(disk), options)
    for number in range(60):
        bench.append(1, payload(number))
        bench.append(2, payload(number), payload(number))
        bench.commit()
    batch = bench.batch(1, b"in a transaction")
    bench.log.append_transaction(
        [(1, batch.base_offset, batch.publish_time_ms, 1, [batch.to_bytes()])], b"changes"
    )
    bench.commit()
    bench.checkpoint(b"state", {1: 7, 2: 0})
    bench.publish(1, b"open")
    return bench


def check(disk: FaultyDisk) -> CheckReport:
    before = len(disk.operations)
    report = check_folder(FileBackend(disk))
    assert len(disk.operations) == before, "a check writes nothing"
    return report


def test_a_good_log_has_no_problems() -> None:
    disk = FaultyDisk()
    fill(disk)
    seen: list[tuple[str, int]] = []

    report = check_folder(
        FileBackend(disk), on_progress=lambda name, size: seen.append((name, size))
    )
    assert (report.problems, report.notes) == ([], [])
    assert report.entries == 60 * 2 + 2
    assert report.files == len(disk.names("segments")) + 2
    assert report.checked_bytes > 20_000
    assert disk.names("segments")[0] in [name for name, _ in seen]


def test_an_empty_folder_has_no_problems() -> None:
    assert check(FaultyDisk()).problems == []


def test_every_flipped_bit_in_a_sealed_segment_is_found() -> None:
    disk = FaultyDisk()
    fill(disk)
    name = disk.names("segments")[1]
    file = disk.open(name)
    scan = Scan(file.read, file.size())
    # Padding is not covered: nobody reads it.
    covered = [p for header, at, _ in scan for p in range(at, at + 40 + header.length)]
    for position in covered[::13]:
        disk.flip(name, position, bit=position % 8)
        problems = check(disk).problems
        assert problems, f"bit at {position}"
        assert all(problem.file == name for problem in problems)
        assert min(problem.position for problem in problems) <= position
        disk.flip(name, position, bit=position % 8)
    assert check(disk).problems == []


def test_a_problem_names_what_may_be_lost_and_what_to_do() -> None:
    disk = FaultyDisk()
    fill(disk)
    name = disk.names("segments")[1]
    file = disk.open(name)
    position = [p for header, p, _ in Scan(file.read, file.size()) if header.topic == 2][3]
    disk.flip(name, position + 50)

    [problem] = check(disk).problems
    assert (problem.file, problem.position) == (name, position)
    assert "restore the file from a copy" in problem.advice
    assert "topic 2 between messages" in problem.advice


def test_several_bad_entries_of_a_file_are_all_listed() -> None:
    disk = FaultyDisk()
    fill(disk)
    name = disk.names("segments")[1]
    file = disk.open(name)
    positions = [p for header, p, _ in Scan(file.read, file.size()) if header.topic == 2]
    for slot in (2, 5, 9):
        disk.flip(name, positions[slot] + 8)

    assert [p.position for p in check(disk).problems] == [positions[n] for n in (2, 5, 9)]


def test_a_missing_segment_is_found() -> None:
    disk = FaultyDisk()
    fill(disk)
    name = disk.names("segments")[1]
    disk.remove(name)

    assert {problem.file for problem in check(disk).problems} == {name}


@pytest.mark.parametrize("folder", ["manifests", "snapshots"])
def test_a_bad_manifest_or_snapshot_is_found(folder: str) -> None:
    disk = FaultyDisk()
    fill(disk)
    [name] = disk.names(folder)
    disk.flip(name, disk.open(name).size() // 2)

    assert name in [problem.file for problem in check(disk).problems]


def test_an_old_manifest_that_went_bad_is_only_noted() -> None:
    disk = FaultyDisk()
    bench = fill(disk)
    bench.checkpoint(b"state", {1: 7, 2: 0})
    name = disk.names("manifests")[0]
    disk.flip(name, disk.open(name).size() // 2)

    report = check(disk)
    assert report.problems == []
    assert len(report.notes) == 1


def test_a_torn_end_is_noted_and_a_bad_entry_before_it_is_a_problem() -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk), SMALL)
    for number in range(5):
        bench.publish(1, payload(number))
    [name] = disk.names("segments")
    file = disk.open(name)
    positions = [p for header, p, _ in Scan(file.read, file.size()) if header.topic == 1]
    disk.flip(name, positions[-1] + 50)
    torn = check(disk)
    assert torn.problems == []
    assert "torn end" in torn.notes[0]

    disk.flip(name, positions[-1] + 50)
    disk.flip(name, positions[2] + 50)
    [problem] = check(disk).problems
    assert (problem.file, problem.position) == (name, positions[2])


def test_whatever_a_crash_leaves_is_no_problem() -> None:
    for crash_at in range(0, 150, 3):
        disk = FaultyDisk(sector_bytes=64)
        disk.crash_at(crash_at)
        try:
            fill(disk)
        except Crash:
            pass
        for keep in ("none", "all", "torn"):
            found = disk.reopen(keep, seed=crash_at)
            assert check(found).problems == []


def test_an_encrypted_log_is_checked_with_its_key(tmp_path: Path) -> None:
    keyring = FileKeyring.create(tmp_path / "keys")
    disk = FaultyDisk()
    fill(disk, LogOptions(segment_bytes=8_192, extent_bytes=1_024, ciphers=keyring))

    assert check_folder(FileBackend(disk), keyring=keyring).problems == []
    with pytest.raises(EncryptionKeyError):
        check_folder(FileBackend(disk))


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_log_without_encryption_is_a_problem_when_keys_are_given(
    tmp_path: Path, with_manifest: bool
) -> None:
    disk = FaultyDisk()
    if with_manifest:
        fill(disk)
    else:
        Bench(FileBackend(disk), SMALL).publish(1, b"a")
    keyring = FileKeyring.create(tmp_path / "keys")

    [problem] = check_folder(FileBackend(disk), keyring=keyring).problems
    assert problem.file.startswith("manifests" if with_manifest else "segments")
    assert "--accept-unencrypted" in problem.advice


def test_a_log_of_chunks_is_checked() -> None:
    disk = FaultyDisk()
    bench = Bench(ChunkBackend(LocalStore(disk)))
    for number in range(20):
        bench.publish(1, payload(number))
    bench.checkpoint(b"state", {1: 5})
    bench.publish(1, b"more")
    backend = ChunkBackend(LocalStore(disk))
    before = len(disk.operations)

    report = check_folder(backend)
    assert report.problems == []
    assert report.entries == 16
    assert len(disk.operations) == before
    name = disk.names("chunks")[3]
    disk.flip(name, 300)
    assert [problem.file for problem in check_folder(backend).problems] == [name]
