"""A sealed segment that went bad: readers of what is bad are told, all others go on."""

import pytest
from tests.unit.log.harness import SMALL, Bench, filler

from ister.base.errors import CorruptedError
from ister.log import FileBackend
from ister.log.files.scan import Scan
from ister.testing import FaultyDisk

FIRST = "segments/00000000000000000001.seg"
payload = filler(100)


def make_bench() -> tuple[Bench, FaultyDisk]:
    """Return a log with a sealed segment that two topics share, and its disk."""
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk), SMALL)
    for number in range(40):
        bench.append(1, payload(number))
        bench.append(2, payload(number))
        bench.commit()
    bench.checkpoint()
    return bench, disk


def entry_position(disk: FaultyDisk, topic: int, slot: int) -> int:
    file = disk.open(FIRST)
    return [p for header, p, _ in Scan(file.read, file.size()) if header.topic == topic][slot]


@pytest.mark.parametrize("inside", [0, 4, 5, 6, 8, 10, 12, 16, 24, 32, 36, 40, 100])
def test_a_bad_entry_is_met_by_readers_of_its_topic_only(inside: int) -> None:
    bench, disk = make_bench()
    position = entry_position(disk, 1, 5)
    disk.flip(FIRST, position + inside)

    assert bench.payloads(2) == [payload(n) for n in range(40)]
    with pytest.raises(CorruptedError) as caught:
        bench.payloads(1)
    assert (caught.value.file, caught.value.position) == (FIRST, position)


@pytest.mark.parametrize("inside", [0, 4, 8, 12, 100])
def test_what_lies_before_and_behind_a_bad_entry_is_read(inside: int) -> None:
    bench, disk = make_bench()
    disk.flip(FIRST, entry_position(disk, 1, 5) + inside)

    before = []
    offset = 0
    while offset < 5:
        plan = bench.log.plan(1, offset, 1_000)
        assert plan is not None
        for batch in plan.run():
            before += batch.payloads
            offset = batch.base_offset + 1
    assert before == [payload(n) for n in range(5)]
    assert bench.read(1, 6) == [(n, payload(n)) for n in range(6, 40)]


def test_a_forged_entry_inside_a_bad_one_is_not_taken_for_real() -> None:
    disk = FaultyDisk()
    bench = Bench(FileBackend(disk), SMALL)
    bench.publish(1, b"a")
    file = disk.open(FIRST)
    [(_, position, stored)] = [row for row in Scan(file.read, file.size()) if row[0].topic == 1]
    real = file.read(position, 40 + len(stored))
    # Of another file, so with another mark.
    other_disk = FaultyDisk()
    other = Bench(FileBackend(other_disk), SMALL)
    other.publish(1, b"".join(bytes(pad) + real for pad in range(8)))
    other.publish(1, b"b")
    file = other_disk.open(FIRST)
    first = next(p for header, p, _ in Scan(file.read, file.size()) if header.topic == 1)
    other_disk.flip(FIRST, first)

    with pytest.raises(CorruptedError):
        other.read(1)
    assert other.read(1, 1) == [(1, b"b")]


def test_a_bad_footer_is_met_by_readers_and_not_by_the_start() -> None:
    bench, disk = make_bench()
    end = disk.open(FIRST).size()
    disk.flip(FIRST, end - 100)

    again = bench.reopened()
    with pytest.raises(CorruptedError, match="footer"):
        again.payloads(1)


def test_a_segment_that_was_cut_off_is_met_by_readers() -> None:
    bench, disk = make_bench()
    bench.payloads(1)  # The footer is in memory by now.
    disk.open(FIRST).truncate(1_000)

    with pytest.raises(CorruptedError, match="cut off"):
        bench.payloads(1)
