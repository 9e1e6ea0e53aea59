"""A disk of limited size: what counts, and what is written when it is full."""

import doctest
import errno

import pytest

from ister.testing import Crash, SmallDisk, full
from ister.testing.full import BLOCK_BYTES


def test_the_example_in_the_docs_works() -> None:
    assert doctest.testmod(full).failed == 0


def test_a_write_that_does_not_fit_writes_what_fits() -> None:
    disk = SmallDisk(2 * BLOCK_BYTES)
    file = disk.create("a/1", allocate_bytes=BLOCK_BYTES)
    file.write(0, [b"a" * BLOCK_BYTES])
    with pytest.raises(OSError, match="No space") as caught:
        file.write(BLOCK_BYTES, [b"b" * BLOCK_BYTES, b"c"])

    assert caught.value.errno == errno.ENOSPC
    assert file.read(0, 1_000) == b"a" * BLOCK_BYTES + b"b" * BLOCK_BYTES
    # What is there can be changed.
    file.write(0, [b"d" * 2 * BLOCK_BYTES])


def test_a_file_grows_only_if_all_of_it_fits() -> None:
    disk = SmallDisk(4 * BLOCK_BYTES)
    file = disk.create("a/1", allocate_bytes=BLOCK_BYTES)
    disk.put("a/2", b"")
    file.allocate(2 * BLOCK_BYTES)
    with pytest.raises(OSError, match="No space"):
        file.allocate(5 * BLOCK_BYTES)

    assert file.size() == 2 * BLOCK_BYTES
    assert disk.free_bytes == 2 * BLOCK_BYTES


def test_removed_and_truncated_bytes_are_free() -> None:
    disk = SmallDisk(10 * BLOCK_BYTES)
    file = disk.create("a/1", allocate_bytes=6 * BLOCK_BYTES)
    disk.put("a/2", bytes(4 * BLOCK_BYTES))
    assert disk.room() == (0, 10 * BLOCK_BYTES)
    file.truncate(1)
    assert disk.free_bytes == 5 * BLOCK_BYTES
    disk.remove("a/2")

    assert disk.free_bytes == 9 * BLOCK_BYTES


def test_a_disk_is_as_full_after_a_power_cut_as_before() -> None:
    disk = SmallDisk(10 * BLOCK_BYTES)
    disk.put("a/1", bytes(7 * BLOCK_BYTES))
    disk.crash_at(1)
    with pytest.raises(Crash):
        disk.remove("a/1")

    assert disk.reopen("none").free_bytes == 3 * BLOCK_BYTES
    assert disk.reopen("all").free_bytes == 10 * BLOCK_BYTES
