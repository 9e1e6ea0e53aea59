"""The disk that fails: what is found after a power cut, errors, and flipped bits."""

import doctest
import errno
from collections.abc import Callable

import pytest

from ister.testing import Crash, Fault, FaultyDisk, Keep, disk
from ister.testing.disk import FaultyFile

SECTOR = 512


def test_the_example_in_the_docs_works() -> None:
    assert doctest.testmod(disk).failed == 0


def test_what_was_not_synced_may_be_lost_or_kept() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    file.write(0, [b"safe"])
    file.sync()
    file.write(4, [b" and not"])

    assert file.read(0, 100) == b"safe and not"
    assert machine.reopen("none").open("segments/1").read(0, 100) == b"safe"
    assert machine.reopen("all").open("segments/1").read(0, 100) == b"safe and not"


def test_a_reopened_disk_is_independent() -> None:
    machine = FaultyDisk()
    machine.create("segments/1").write(0, [b"one"])
    found = machine.reopen("all")
    found.open("segments/1").write(0, [b"two"])
    found.put("manifests/1", b"")

    assert machine.open("segments/1").read(0, 10) == b"one"
    assert machine.names("manifests") == []
    assert found.reopen("none").open("segments/1").read(0, 10) == b"one"


def torn_states(machine: FaultyDisk) -> set[bytes]:
    return {
        machine.reopen("torn", seed=seed).open("segments/1").read(0, 10 * SECTOR)
        for seed in range(200)
    }


def test_sectors_reach_the_platter_in_any_order() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1", allocate_bytes=3 * SECTOR)
    file.write(0, [b"a" * SECTOR, b"b" * SECTOR, b"c" * SECTOR])

    patterns = {bytes(state[::SECTOR]) for state in torn_states(machine)}
    assert patterns == {
        bytes([a, b, c]) for a in (0, ord("a")) for b in (0, ord("b")) for c in (0, ord("c"))
    }


def test_a_sector_is_found_as_it_was_at_one_moment() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    file.write(0, [b"0000"])
    file.sync()
    file.write(0, [b"11"])
    file.write(2, [b"22"])

    assert torn_states(machine) == {b"0000", b"1100", b"1122"}


def test_a_write_over_the_edge_of_sectors_is_torn_there() -> None:
    machine = FaultyDisk()
    machine.create("segments/1").write(SECTOR - 2, [b"abcd"])

    ends = {state[SECTOR - 2 :] for state in torn_states(machine)}
    assert ends == {b"", b"ab", b"abcd", b"\0\0cd"}


def test_the_same_seed_gives_the_same_disk() -> None:
    machine = FaultyDisk()
    machine.create("segments/1").write(0, [bytes(range(256)) * 40])

    first, second = (machine.reopen("torn", seed=5).open("segments/1") for _ in range(2))
    assert first.read(0, 20_000) == second.read(0, 20_000)


def test_a_file_that_grew_has_its_new_size_or_the_old_one_until_the_next_sync() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1", allocate_bytes=SECTOR)
    file.allocate(3 * SECTOR)

    def sizes(*seeds: int) -> set[int]:
        return {machine.reopen("torn", seed=s).open("segments/1").size() for s in seeds}

    assert file.size() == 3 * SECTOR
    assert machine.reopen("none").open("segments/1").size() == SECTOR
    assert machine.reopen("all").open("segments/1").size() == 3 * SECTOR
    assert sizes(*range(50)) == {SECTOR, 3 * SECTOR}
    file.sync()
    assert sizes(*range(50)) == {3 * SECTOR}


CHANGES: dict[str, tuple[Callable[[FaultyDisk], object], list[str], list[str]]] = {
    "create": (lambda it: it.create("a/new"), ["a/old"], ["a/new", "a/old"]),
    "put": (lambda it: it.put("a/new", b"x"), ["a/old"], ["a/new", "a/old"]),
    "remove": (lambda it: it.remove("a/old"), ["a/old"], []),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_name_under_way_when_the_power_went_is_changed_or_not(change: str) -> None:
    act, before, after = CHANGES[change]
    machine = FaultyDisk()
    machine.put("a/old", b"")
    machine.crash_at(1)
    with pytest.raises(Crash, match=f"{change} of a/"):
        act(machine)

    assert machine.reopen("none").names("a") == before
    assert machine.reopen("all").names("a") == after
    found = [machine.reopen("torn", seed=seed).names("a") for seed in range(50)]
    assert before in found
    assert after in found


@pytest.mark.parametrize("change", CHANGES)
def test_a_name_changed_before_the_power_went_stays_changed(change: str) -> None:
    act, _, after = CHANGES[change]
    machine = FaultyDisk()
    machine.put("a/old", b"")
    act(machine)

    assert machine.reopen("none").names("a") == after


def test_a_file_put_is_whole_or_absent() -> None:
    machine = FaultyDisk()
    machine.crash_at(0)
    with pytest.raises(Crash):
        machine.put("a/new", b"x" * 10_000)

    for seed in range(50):
        found = machine.reopen("torn", seed=seed)
        assert [found.open(name).size() for name in found.names("a")] in ([], [10_000])


def test_a_truncation_under_way_happened_or_not() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    file.write(0, [b"0123456789"])
    file.sync()
    machine.crash_at(len(machine.operations))
    with pytest.raises(Crash):
        file.truncate(4)

    assert machine.reopen("none").open("segments/1").size() == 10
    assert machine.reopen("all").open("segments/1").size() == 4
    assert torn_states(machine) == {b"0123", b"0123456789"}


def test_a_sync_under_way_when_the_power_went_promises_nothing() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    file.write(0, [b"bytes"])
    machine.crash_at(2)
    with pytest.raises(Crash):
        file.sync()

    assert machine.reopen("none").open("segments/1").size() == 0
    assert machine.reopen("all").open("segments/1").size() == 5


def test_after_the_crash_nothing_works_but_closing() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    machine.crash_at(1)
    calls: list[Callable[[], object]] = [
        lambda: file.write(0, [b"x"]),
        lambda: file.read(0, 1),
        lambda: machine.open("segments/1"),
        lambda: machine.names("segments"),
        lambda: machine.put("manifests/1", b""),
        file.size,
        file.sync,
    ]

    for call in calls:
        with pytest.raises(Crash):
            call()
    file.close()
    assert machine.crashed


def test_reads_are_no_crash_points() -> None:
    machine = FaultyDisk()
    machine.put("segments/1", b"content")
    machine.crash_at(1)
    machine.open("segments/1").read(0, 7)
    machine.names("segments")

    assert [operation.action for operation in machine.operations] == ["put"]
    assert not machine.crashed


def test_a_fault_at_a_number_hits_once() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    fault = machine.fail(Fault(errno.ENOSPC, at=2))
    file.write(0, [b"abcd"])

    with pytest.raises(OSError, match="No space") as caught:
        file.write(4, [b"efgh"])
    assert caught.value.errno == errno.ENOSPC
    assert fault.hits == 1
    file.write(4, [b"efgh"])
    assert file.read(0, 8) == b"abcdefgh"


def test_a_lasting_fault_hits_until_healed() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    machine.fail(Fault(errno.EIO, actions=["write"], lasting=True))

    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            file.write(0, [b"abcd"])
    file.sync()
    machine.heal()
    file.write(0, [b"abcd"])
    assert file.read(0, 4) == b"abcd"


def test_a_failed_write_has_written_its_first_half() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    machine.fail(Fault(errno.ENOSPC, actions=["write"]))
    with pytest.raises(OSError, match="No space"):
        file.write(0, [b"abcd", b"efgh"])

    assert file.read(0, 8) == b"abcd"
    assert machine.reopen("none").open("segments/1").size() == 0


def doubtful_file(machine: FaultyDisk) -> FaultyFile:
    """Return a file with eight bytes whose sync has failed."""
    file = machine.create("segments/1")
    file.write(0, [b"doubtful"])
    machine.fail(Fault(errno.EIO, actions=["sync"]))
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    return file


def found(machine: FaultyDisk, keep: Keep, seed: int = 0) -> bytes:
    """Return the file as it is found after a power cut."""
    file = machine.reopen(keep, seed=seed).open("segments/1")
    return file.read(0, file.size())


def test_a_failed_sync_leaves_in_doubt_what_the_next_one_claims_to_save() -> None:
    machine = FaultyDisk(sector_bytes=4)
    file = doubtful_file(machine)
    file.sync()

    assert file.read(0, 8) == b"doubtful"
    assert found(machine, "none") == b""
    assert found(machine, "all") == b"doubtful"
    torn = {found(machine, "torn", seed) for seed in range(100)}
    assert torn == {b"", b"doub", b"\0\0\0\0tful", b"doubtful"}


def test_what_is_written_and_synced_over_bytes_in_doubt_is_there_for_sure() -> None:
    machine = FaultyDisk(sector_bytes=4)
    file = doubtful_file(machine)
    file.write(2, [b"SURE"])
    file.sync()

    assert found(machine, "none") == b"\0\0SURE"
    assert found(machine, "all") == b"doSUREul"


def test_a_failed_truncation_may_be_found_or_not() -> None:
    machine = FaultyDisk()
    file = machine.create("segments/1")
    file.write(0, [b"doubtful"])
    file.sync()
    machine.fail(Fault(errno.EIO, actions=["truncate"]))
    with pytest.raises(OSError, match="Input/output"):
        file.truncate(4)

    assert file.size() == 4
    assert found(machine, "none") == b"doubtful"
    assert found(machine, "all") == b"doub"


def test_faults_hit_the_files_and_actions_they_name() -> None:
    machine = FaultyDisk()
    machine.put("segments/1", b"content")
    machine.put("manifests/1", b"content")
    machine.fail(Fault(errno.EIO, actions=["read"], prefix="segments/"))

    assert machine.open("manifests/1").read(0, 7) == b"content"
    with pytest.raises(OSError, match="segments/1"):
        machine.open("segments/1").read(0, 7)


def test_a_change_can_be_done_though_its_answer_is_lost() -> None:
    machine = FaultyDisk()
    machine.fail(Fault(errno.EIO, actions=["put"], done=True))
    with pytest.raises(OSError, match="Input/output"):
        machine.put("chunks/1", b"content")

    assert machine.reopen("none").open("chunks/1").read(0, 10) == b"content"


def test_a_failed_put_makes_nothing() -> None:
    machine = FaultyDisk()
    machine.fail(Fault(errno.ENOSPC, actions=["put"]))
    with pytest.raises(OSError, match="No space"):
        machine.put("chunks/1", b"content")

    assert machine.names("chunks") == []


def test_a_flipped_bit_is_seen_and_stays() -> None:
    machine = FaultyDisk()
    machine.put("segments/1", b"\x00\x00")
    machine.flip("segments/1", 1, bit=3)

    assert machine.open("segments/1").read(0, 2) == b"\x00\x08"
    assert machine.reopen("none").open("segments/1").read(0, 2) == b"\x00\x08"
