"""Space on a disk: the sizes of files, and the reserve that is released and created again."""

import errno

import pytest

from ister.log.files.ports import File
from ister.log.journal.space import FILE_BYTES_MIN, PIECES, RESERVE_BYTES, RESERVE_BYTES_MIN, Space
from ister.testing import Crash, Fault, FaultyDisk, SmallDisk

MIB = 1024 * 1024
SEGMENT_BYTES = 128 * MIB


def open_space(disk: FaultyDisk) -> Space:
    space = Space(disk)
    space.open()
    space.refill()
    return space


def create(
    space: Space,
    name: str = "segments/1",
    *,
    bytes_max: int,
    bytes_min: int = 0,
    allocate_bytes: int = MIB,
    keep: int = 0,
) -> tuple[File, int, int]:
    return space.create(
        name, allocate_bytes=allocate_bytes, bytes_max=bytes_max, bytes_min=bytes_min, keep=keep
    )


def reserve_bytes(disk: SmallDisk) -> int:
    return sum(disk.open(name).size() for name in disk.names("reserve"))


@pytest.mark.parametrize(
    ("free_mib", "size_bytes"),
    [(2_000, 128 * MIB), (1_024, 128 * MIB), (72, 9 * MIB), (8, 1 * MIB), (1, FILE_BYTES_MIN)],
)
def test_a_file_has_at_most_an_eighth_of_the_free_space(free_mib: int, size_bytes: int) -> None:
    disk = SmallDisk(4_000 * MIB)
    space = open_space(disk)
    disk.create("foreign/file", allocate_bytes=disk.free_bytes - free_mib * MIB)

    _, allocated, limit = create(space, bytes_max=SEGMENT_BYTES)

    assert allocated == min(MIB, size_bytes)
    assert limit == size_bytes
    assert space.is_short == (limit < SEGMENT_BYTES)
    assert not space.is_full


def test_a_file_has_space_for_the_group_it_is_created_for() -> None:
    disk = SmallDisk(80 * MIB)
    space = open_space(disk)

    _, allocated, limit = create(space, bytes_max=SEGMENT_BYTES, bytes_min=20 * MIB)

    assert allocated == limit == 20 * MIB


def test_a_file_grows_to_an_eighth_of_the_space_that_is_free_by_then() -> None:
    disk = SmallDisk(4_000 * MIB)
    space = open_space(disk)
    file, size, limit = create(space, bytes_max=SEGMENT_BYTES)
    assert limit == SEGMENT_BYTES
    grown = space.grow(file, size, allocate_bytes=8 * MIB, bytes_min=0)
    short = [space.is_short]
    assert grown == file.size() == 8 * MIB
    disk.create("foreign/file", allocate_bytes=disk.free_bytes - 72 * MIB)

    assert space.grow(file, grown, allocate_bytes=16 * MIB, bytes_min=0) == 10 * MIB
    assert space.grow(file, 10 * MIB, allocate_bytes=20 * MIB, bytes_min=12 * MIB) == 10 * MIB
    assert file.size() == 10 * MIB
    assert [*short, space.is_short] == [False, True]
    assert not space.is_full


def test_a_file_grows_by_as_much_as_a_quota_allows() -> None:
    class Quota(SmallDisk):
        def room(self) -> tuple[int, int]:
            return 2_000 * MIB, 4_000 * MIB

    space = open_space(Quota(40 * MIB))
    file, size, _ = create(space, bytes_max=SEGMENT_BYTES)

    assert space.grow(file, size, allocate_bytes=64 * MIB, bytes_min=3 * MIB) == 32 * MIB
    assert space.grow(file, 32 * MIB, allocate_bytes=64 * MIB, bytes_min=50 * MIB) == 32 * MIB
    assert space.is_short
    assert not space.is_full


def test_the_reserve_is_a_tenth_of_a_small_disk_and_of_fixed_size_on_a_large_one() -> None:
    small, large = SmallDisk(20 * MIB), SmallDisk(2_000 * MIB)
    open_space(small)
    open_space(large)

    assert 0.9 * 2 * MIB < reserve_bytes(small) <= 2 * MIB
    assert reserve_bytes(large) == RESERVE_BYTES_MIN


def test_the_reserve_grows_with_the_journal() -> None:
    disk = SmallDisk(2_000 * MIB)
    space = open_space(disk)
    sizes = []
    file, size, _ = create(space, bytes_max=SEGMENT_BYTES)
    while size < 16 * MIB:
        space.refill()
        sizes.append(reserve_bytes(disk) // MIB)
        size = space.grow(file, size, allocate_bytes=2 * size, bytes_min=0)

    assert sizes == [2, 4, 8, 8]


def test_a_log_that_is_not_small_has_the_whole_reserve_from_the_start() -> None:
    disk = SmallDisk(2_000 * MIB)
    for number in range(3):
        disk.create(f"segments/{number}", allocate_bytes=2 * MIB)
    open_space(disk)

    assert reserve_bytes(disk) == RESERVE_BYTES


def test_a_reserve_in_larger_pieces_is_replaced() -> None:
    disk = SmallDisk(2_000 * MIB)
    for number in range(4):
        disk.create(f"reserve/{number}", allocate_bytes=2 * MIB)
    space = open_space(disk)

    assert space.is_whole
    assert reserve_bytes(disk) == RESERVE_BYTES_MIN


def test_a_reserve_in_larger_pieces_is_kept_on_a_full_disk() -> None:
    disk = SmallDisk(2_000 * MIB)
    for number in range(4):
        disk.create(f"reserve/{number}", allocate_bytes=2 * MIB)
    disk.fill()
    space = Space(disk)
    space.open()

    assert space.is_full
    assert reserve_bytes(disk) == 6 * MIB
    assert disk.free_bytes == 2 * MIB


def test_a_quota_that_the_disk_does_not_report_makes_files_smaller() -> None:
    class Quota(SmallDisk):
        def room(self) -> tuple[int, int]:
            return 2_000 * MIB, 4_000 * MIB

    space = open_space(Quota(40 * MIB))

    _, allocated, limit = create(space, bytes_max=SEGMENT_BYTES, allocate_bytes=SEGMENT_BYTES)

    assert allocated == limit == 32 * MIB
    assert not space.is_full


def test_messages_leave_some_of_the_reserve_and_changes_use_all_of_it() -> None:
    disk = SmallDisk(80 * MIB)
    space = open_space(disk)
    disk.fill()
    piece = reserve_bytes(disk) // PIECES

    with pytest.raises(OSError, match="No space"):
        create(space, bytes_max=piece, bytes_min=RESERVE_BYTES_MIN, keep=space.kept)
    assert len(disk.names("reserve")) == space.kept == PIECES // 2
    for number in range(PIECES):
        create(space, f"segments/{number}", bytes_max=piece, bytes_min=piece)

    assert disk.names("reserve") == []
    with pytest.raises(OSError, match="No space"):
        space.attempt(lambda: disk.put("manifests/1", bytes(piece)))


def test_the_reserve_grows_with_the_size_of_checkpoints() -> None:
    disk = SmallDisk(1_000 * MIB)
    space = open_space(disk)
    space.put("snapshots/1", bytes(20 * MIB))
    assert not space.is_whole
    space.refill()
    disk.fill()

    # The next one, and a journal file.
    space.put("snapshots/2", bytes(20 * MIB))
    space.put("manifests/2", bytes(15 * MIB))
    create(space, bytes_max=MIB, bytes_min=MIB)

    assert disk.names("reserve")


def test_the_reserve_is_at_most_a_tenth_of_the_disk() -> None:
    disk = SmallDisk(200 * MIB)
    space = open_space(disk)
    space.put("snapshots/1", bytes(60 * MIB))
    space.refill()

    assert 18 * MIB <= reserve_bytes(disk) <= 20 * MIB


def test_a_disk_is_full_from_the_first_released_piece_until_the_reserve_is_whole() -> None:
    disk = SmallDisk(80 * MIB)
    space = open_space(disk)
    disk.fill()
    space.attempt(lambda: disk.put("manifests/1", bytes(10)))
    refused = [space.is_full]
    space.refill()
    refused.append(space.is_full)

    disk.remove("foreign/file")
    space.refill()
    refused.append(space.is_full)

    assert refused == [True, True, False]
    assert space.is_whole
    assert len(disk.names("reserve")) == PIECES


def test_a_disk_without_space_besides_the_reserve_is_still_full() -> None:
    disk = SmallDisk(80 * MIB)
    space = open_space(disk)
    disk.fill()
    space.attempt(lambda: disk.put("manifests/1", bytes(10)))
    disk.remove("manifests/1")
    space.refill()

    assert len(disk.names("reserve")) == PIECES
    assert space.is_full


def test_opening_on_a_full_disk_releases_a_piece() -> None:
    disk = SmallDisk(80 * MIB)
    open_space(disk)
    disk.fill()

    space = Space(disk)
    space.open()

    assert space.is_full
    assert len(disk.names("reserve")) == PIECES - 1
    assert disk.free_bytes > FILE_BYTES_MIN


def test_another_kind_of_error_is_raised_and_nothing_is_released() -> None:
    disk = SmallDisk(80 * MIB)
    space = open_space(disk)
    disk.fail(Fault(errno.EIO, actions=["put", "create"], lasting=True))

    with pytest.raises(OSError, match="Input/output"):
        space.attempt(lambda: disk.put("manifests/1", b""))
    with pytest.raises(OSError, match="Input/output"):
        create(space, bytes_max=MIB)

    assert not space.is_full
    assert len(disk.names("reserve")) == PIECES


@pytest.mark.parametrize("number", range(PIECES))
def test_an_incomplete_reserve_is_completed_by_the_next_start(number: int) -> None:
    disk = SmallDisk(80 * MIB)
    disk.crash_at(number)
    with pytest.raises(Crash):
        open_space(disk)
    found = disk.reopen("all")
    # A file of which the name alone has come to the disk.
    found.put("reserve/x", b"")

    space = open_space(found)

    assert space.is_whole
    assert reserve_bytes(found) == RESERVE_BYTES_MIN


def test_a_disk_that_does_not_report_its_size_has_no_reserve() -> None:
    disk = FaultyDisk()
    space = open_space(disk)
    disk.fail(Fault(errno.ENOSPC, actions=["create"]))

    with pytest.raises(OSError, match="No space"):
        create(space, bytes_max=SEGMENT_BYTES)

    assert disk.names("reserve") == []
    assert not space.is_full
    assert space.is_whole
