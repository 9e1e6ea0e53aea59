"""A `FaultyDisk` in memory of a limited size.

Allocated and written bytes count, in blocks. Removed and truncated bytes are free at once. An
operation that does not fit raises ENOSPC; a `write` first writes as much as fits.

>>> disk = SmallDisk(10 * BLOCK_BYTES)
>>> disk.put("a/1", bytes(9 * BLOCK_BYTES))
>>> disk.room()
(64, 640)
>>> disk.put("a/2", bytes(2 * BLOCK_BYTES))
Traceback (most recent call last):
OSError: [Errno 28] No space left on device: 'a/2'
"""

import errno
import os
from collections.abc import Sequence

from ister.testing.disk import SECTOR_BYTES, FaultyDisk, FaultyFile, Keep

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES = 64


class SmallFile(FaultyFile):
    """One open file of a `SmallDisk`."""

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write `parts`. If they do not fit, write what fits and raise ENOSPC."""
        data = b"".join(parts)
        disk, size = self._disk, self._content.seen.size()
        assert isinstance(disk, SmallDisk)
        room = _blocks(size) + disk.free_bytes - position
        super().write(position, [data[: max(0, room)]])
        if len(data) > room:
            raise _no_space(self._name)

    def allocate(self, size_bytes: int) -> None:
        """Reserve zeros up to a size, or raise ENOSPC with the file as it was."""
        disk, size = self._disk, self._content.seen.size()
        assert isinstance(disk, SmallDisk)
        if _blocks(size_bytes) - _blocks(size) > disk.free_bytes and not disk.crashed:
            raise _no_space(self._name)
        super().allocate(size_bytes)


class SmallDisk(FaultyDisk):
    """A `FaultyDisk` of `capacity_bytes`."""

    def __init__(self, capacity_bytes: int, *, sector_bytes: int = SECTOR_BYTES) -> None:
        super().__init__(sector_bytes=sector_bytes)
        self.capacity_bytes = capacity_bytes

    @property
    def free_bytes(self) -> int:
        """The free space."""
        with self._lock:
            used = sum(_blocks(content.seen.size()) for content in self._contents.values())
        return self.capacity_bytes - used

    def room(self) -> tuple[int, int]:
        """Return the free bytes and the size of the disk."""
        return max(0, self.free_bytes), self.capacity_bytes

    def fill(self, name: str = "foreign/file") -> None:
        """Fill the disk with a file of another program."""
        super().create(name, allocate_bytes=max(0, self.free_bytes))

    def create(self, name: str, *, allocate_bytes: int = 0) -> FaultyFile:
        """Create a file. Raises `FileExistsError`, or ENOSPC with nothing created."""
        self._check_room(name, allocate_bytes)
        made = super().create(name, allocate_bytes=allocate_bytes)
        return SmallFile(self, name, made._content)  # noqa: SLF001 - the same file

    def open(self, name: str) -> FaultyFile:
        """Open a file, or raise `FileNotFoundError`."""
        found = super().open(name)
        return SmallFile(self, name, found._content)  # noqa: SLF001 - the same file

    def put(self, name: str, data: Buffer) -> None:
        """Write a whole file. Raises `FileExistsError`, or ENOSPC with nothing written."""
        self._check_room(name, len(data))
        super().put(name, data)

    def reopen(self, keep: Keep = "none", *, seed: int = 0) -> "SmallDisk":
        """Return the disk as found after a power cut. See `FaultyDisk.reopen`."""
        disk = SmallDisk(self.capacity_bytes, sector_bytes=self.sector_bytes)
        found = super().reopen(keep, seed=seed)
        disk._contents = found._contents  # noqa: SLF001 - the same disk
        return disk

    def _check_room(self, name: str, size_bytes: int) -> None:
        # An empty file takes a block for its name.
        if max(_blocks(size_bytes), BLOCK_BYTES) > self.free_bytes and not self.crashed:
            raise _no_space(name)


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _no_space(name: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
