"""The open file of a log: it starts small, and grows before a group needs it."""

import errno
from dataclasses import replace

import pytest
from tests.unit.log.harness import SMALL, Bench, filler

from ister.base.limits import MIB
from ister.log import FileBackend, LogOptions
from ister.log.journal.space import is_disk_full
from ister.testing import Fault, FaultyDisk, SmallDisk

FIRST = "segments/00000000000000000001.seg"
SECOND = "segments/00000000000000000002.seg"
# It doubles three times before it is sealed.
OPTIONS = replace(SMALL, allocate_bytes=1_024)
MESSAGE = filler(50)


def make_bench(disk: FaultyDisk, options: LogOptions = OPTIONS) -> Bench:
    return Bench(FileBackend(disk), options)


def size_of(disk: FaultyDisk, name: str = FIRST) -> int:
    return disk.open(name).size()


def publish(bench: Bench, count: int) -> list[bytes]:
    """Commit small groups, one behind the other; return what was published."""
    sent = [MESSAGE(number) for number in range(count)]
    for payload in sent:
        bench.publish(1, payload)
    return sent


def test_a_file_with_one_small_message_has_a_mebibyte_allocated() -> None:
    disk = FaultyDisk()
    make_bench(disk, LogOptions()).publish(1, b"hello")

    assert size_of(disk) == MIB


def test_a_file_doubles_behind_groups_before_one_needs_it() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    publish(bench, 1)
    sizes, groups = [size_of(disk)], []
    while not bench.log.segments:
        before = len(disk.operations)
        publish(bench, 1)
        groups.append([operation.action for operation in disk.operations[before:]])
        sizes.append(size_of(disk))

    assert sorted(set(sizes[:-1])) == [1_024, 2_048, 4_096, 8_192]
    assert groups.count(["write", "allocate", "sync"]) == 3
    # All others but the one that seals the file.
    assert groups.count(["write", "sync"]) == len(groups) - 4


def test_the_next_file_begins_with_what_the_one_before_it_needed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    while not bench.log.segments:
        publish(bench, 1)

    assert size_of(disk, SECOND) == OPTIONS.segment_bytes


def test_a_group_larger_than_what_is_allocated_is_written_to_the_same_file() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"before")
    before = len(disk.operations)
    bench.publish(1, bytes(3_000))
    actions = [operation.action for operation in disk.operations[before:]]

    assert actions == ["allocate", "write", "sync"]
    assert bench.log.segments == []
    assert bench.payloads(1) == [b"before", bytes(3_000)]
    assert make_bench(disk.reopen("none")).payloads(1) == bench.payloads(1)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_file_that_cannot_grow_is_sealed_when_it_is_full(error: int) -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    fault = disk.fail(Fault(error, actions=["allocate"], lasting=True))
    sent = publish(bench, 20)

    # It is tried once for each file.
    assert fault.hits == len(bench.log.segments) + 1 > 2
    assert bench.payloads(1) == sent
    assert make_bench(disk.reopen("none")).payloads(1) == sent


def test_on_a_full_disk_a_file_does_not_grow_and_messages_are_refused() -> None:
    disk = SmallDisk(64 * 1024)
    bench = make_bench(disk)
    publish(bench, 1)
    disk.fill()
    for _ in range(50):
        bench.append(1, bytes(300))
        error = bench.try_commit()
        if error is not None:
            break
    assert is_disk_full(error)
    assert size_of(disk) <= OPTIONS.allocate_bytes
    assert bench.log.disk_full
    bench.log.recover()

    # Acknowledgements use the rest of the reserve.
    bench.append_changes(b"acks")
    bench.commit()
    again = make_bench(disk.reopen("none"))
    assert again.payloads(1) == bench.payloads(1)
    assert again.seen[-1][2] == b"acks"


def test_files_grow_again_when_there_is_space() -> None:
    disk = SmallDisk(64 * 1024)
    bench = make_bench(disk)
    publish(bench, 1)
    disk.fill()
    publish(bench, 3)
    disk.remove("foreign/file")
    publish(bench, 20)

    assert size_of(disk) <= OPTIONS.allocate_bytes
    assert size_of(disk, SECOND) > OPTIONS.allocate_bytes
    assert not bench.log.disk_full


@pytest.mark.parametrize("more_bytes", [0, 1, 700, 100_000])
def test_a_file_with_any_number_of_zeros_behind_its_end_is_opened(more_bytes: int) -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    sent = publish(bench, 5)
    [end] = [part.size_bytes for part in bench.log.files() if part.name == FIRST]
    found = disk.reopen("none")
    file = found.open(FIRST)
    file.truncate(end)
    file.allocate(end + more_bytes)

    bench = make_bench(found)
    bench.publish(1, b"after")
    assert bench.payloads(1) == [*sent, b"after"]
