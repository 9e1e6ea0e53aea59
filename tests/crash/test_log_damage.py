"""Bits turn around and files go missing: that is noticed, and hurts nobody else."""

from pathlib import Path

import pytest
from tests.crash.conftest import Setup
from tests.crash.machine import TOPICS, History, Machine, agree, content
from tests.crash.workload import live, log_options

from ister.base.errors import CorruptedError, EncryptionKeyError
from ister.objects import FileKeyring
from ister.testing import FaultyDisk

# Every bit of every byte would take minutes; a prime meets every field of an entry sooner or later.
STEP_BYTES = 13


def finished(setup: Setup) -> tuple[FaultyDisk, History]:
    """Return the disk of a log that was used and closed."""
    disk, history = FaultyDisk(), History()
    live(disk, setup.open_backend, setup.options, history).close()
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


def test_a_flipped_bit_is_noticed_or_changes_nothing(setup: Setup) -> None:
    disk, history = finished(setup)
    blamed = set()
    noticed = 0
    for name, data in content(disk).items():
        for position in range(len(name) % STEP_BYTES, len(data), STEP_BYTES):
            damaged = disk.reopen("none")
            damaged.flip(name, position, bit=position % 8)
            try:
                machine = setup.open(damaged, history)
            except CorruptedError as error:
                blamed.add((name, error.file))
                continue
            if machine.log.recovery.cut_bytes:
                # The last group of all: nothing behind it tells a bad sector from a torn write.
                assert (name, machine.log.recovery.cut_file) == (max(disk.names("segments")),) * 2
                continue
            noticed += unharmed(machine) != set(TOPICS)

    assert noticed > 100
    assert len(blamed) >= 3
    assert all(name == file for name, file in blamed), blamed


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
