"""Bits turn around and files go missing: that is noticed, and hurts nobody else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.conftest import Setup
from tests.crash.machine import TOPICS, History, Machine, agree, content, in_store
from tests.crash.workload import live, log_options

from ister.base.errors import CorruptedError, EncryptionKeyError
from ister.log import check_folder
from ister.log.files.entry import JOURNAL_KINDS
from ister.log.files.scan import Scan
from ister.objects import FileKeyring
from ister.testing import FaultyDisk

# Every bit of every byte would take minutes; a prime meets every field of an entry sooner or later.
STEP_BYTES = 13

Damages = Callable[[str, bytes], Iterator[Callable[[FaultyDisk], None]]]


def finished(setup: Setup) -> tuple[FaultyDisk, History]:
    """Return the disk of a log that was used and closed as a broker does: with a checkpoint."""
    disk, history = FaultyDisk(), History()
    machine = live(disk, setup.open_backend, setup.options, history)
    machine.checkpoint()
    machine.close()
    return disk.reopen("none"), history


def unharmed(machine: Machine) -> set[int]:
    """Return the topics that can be read, and have exactly what they should."""
    *_, state = machine.history.states(len(machine.history.entries))
    fine = set()
    for topic in TOPICS:
        try:
            found = machine.messages_of(topic)
        except CorruptedError:
            continue
        floor = machine.history.horizon.get(topic)
        if floor is not None:
            end = machine.next_offsets[topic]
            assert agree(found, state.messages[topic], end, floor), f"topic {topic} has changed"
        fine.add(topic)
    return fine


def flips(name: str, data: bytes) -> Iterator[Callable[[FaultyDisk], None]]:
    """Yield ways to turn one bit around."""
    for position in range(len(name) % STEP_BYTES, len(data), STEP_BYTES):
        yield lambda disk, at=position: disk.flip(name, at, bit=at % 8)  # type: ignore[misc]


def truncations(name: str, data: bytes) -> Iterator[Callable[[FaultyDisk], None]]:
    """Yield ways to cut a file off: between entries, and inside of their headers and bodies."""
    edges = {0, 1, 8}
    scan = Scan(lambda position, size: data[position : position + size], len(data))
    for header, position, _ in scan:
        end = position + header.size_bytes
        edges |= {position + 1, position + 20, position + 40, (position + end) // 2, end - 8, end}
    # A sealed file and a document end with their last entry; behind it a file may have zeros.
    edges |= {(scan.position + len(data)) // 2, len(data) - 8, len(data) - 1}
    for edge in sorted(edge for edge in edges if 0 <= edge < len(data)):
        yield lambda disk, at=edge: disk.open(name).truncate(at)  # type: ignore[misc]


@pytest.mark.parametrize("damages", [flips, truncations], ids=["flipped bit", "truncated file"])
def test_damage_after_a_clean_stop_is_never_silent(setup: Setup, damages: Damages) -> None:
    """The start fails, or a read does, or everything that was acknowledged is there."""
    disk, history = finished(setup)
    *_, state = history.states(len(history.entries))
    blamed = set()
    noticed = 0
    for name, data in content(disk).items():
        for damage in damages(name, data):
            damaged = disk.reopen("none")
            damage(damaged)
            report = check_folder(setup.open_backend(damaged), keyring=setup.options.ciphers)
            try:
                machine = setup.open(damaged, history)
            except CorruptedError as error:
                blamed.add((name, error.file))
                assert report.problems, f"a check finds nothing wrong with {name}"
                continue
            assert machine.marks == state.marks, f"changes are missing after damage of {name}"
            hurt = unharmed(machine) != set(TOPICS)
            assert not hurt or report.problems, f"a check finds nothing wrong with {name}"
            noticed += hurt

    assert noticed > 20
    # Manifest and snapshot at least.
    assert len(blamed) >= 2
    assert all(name == file for name, file in blamed), blamed


def test_an_end_below_the_last_checkpoint_is_not_taken_for_a_torn_write(setup: Setup) -> None:
    if setup.open_backend is in_store:
        pytest.skip("a chunk is whole or absent")
    disk, history = finished(setup)
    last = max(disk.names("segments"))
    file = disk.open(last)
    positions = [
        position
        for header, position, _ in Scan(file.read, file.size())
        if header.kind in JOURNAL_KINDS
    ]
    assert len(positions) > 1
    for missing, position in enumerate(reversed(positions), start=1):
        damaged = disk.reopen("none")
        damaged.open(last).truncate(position)
        before = content(damaged)

        with pytest.raises(CorruptedError) as caught:
            setup.open(damaged, history)
        assert (caught.value.file, caught.value.position) == (last, position)
        assert f"{missing} entr" in caught.value.reason
        assert content(damaged) == before


def test_damage_in_a_sealed_file_hurts_only_the_topics_it_is_in(setup: Setup) -> None:
    disk, history = FaultyDisk(), History()
    machine = live(disk, setup.open_backend, setup.options, history)
    # From here on no start reads the files before it.
    machine.checkpoint()
    machine.close()
    sealed = {row.number for row in machine.log.segments}
    hurt = []
    for name, data in content(disk).items():
        if name.startswith(("segments/", "chunks/")) and int(name.partition("/")[2][:20]) in sealed:
            for position in positions_of_payloads(data):
                damaged = disk.reopen("none")
                damaged.flip(name, position)
                hurt.append(set(TOPICS) - unharmed(setup.open(damaged, history)))

    # One that was trimmed or deleted, one topic, or those of a transaction.
    assert {len(topics) for topics in hurt} <= {0, 1, 2}
    assert {1} in hurt
    assert {2} in hurt


def positions_of_payloads(data: bytes) -> list[int]:
    """Return one position in each message: they end with dots."""
    return [at for at in range(1, len(data)) if data[at] == ord(".") != data[at - 1]]


def test_a_missing_file_is_noticed_or_changes_nothing(setup: Setup) -> None:
    disk, history = finished(setup)
    noticed = 0
    for name in content(disk):
        damaged = disk.reopen("none")
        damaged.remove(name)
        try:
            machine = setup.open(damaged, history)
        except (CorruptedError, FileNotFoundError):
            noticed += 1
            continue
        if name != newest_file(disk):
            assert unharmed(machine) == set(TOPICS), f"nobody misses {name}"

    assert noticed >= 3


def newest_file(disk: FaultyDisk) -> str:
    """Return the end of the journal: nothing in the log knows of it but itself."""
    return max(disk.names("segments") + disk.names("chunks"))


@pytest.mark.parametrize("keys", ["another key file", "none"])
def test_without_its_key_a_log_is_neither_read_nor_changed(
    encrypted: Setup, keys: str, tmp_path: Path
) -> None:
    disk, history = finished(encrypted)
    before = content(disk)
    other = FileKeyring.create(tmp_path / "other.json") if keys != "none" else None

    with pytest.raises(EncryptionKeyError):
        Setup(encrypted.open_backend, log_options(other)).open(disk, history)
    assert content(disk) == before
    assert unharmed(encrypted.open(disk, history)) == set(TOPICS)


def test_nothing_of_a_message_is_on_an_encrypted_disk(setup: Setup, encrypted: Setup) -> None:
    dots = b"." * 16
    assert any(dots in data for data in content(finished(setup)[0]).values())

    assert not any(dots in data for data in content(finished(encrypted)[0]).values())
