"""The free space on the disk of a log, and a reserve for changes when the disk is full.

The reserve is a few files of zeros in the data folder. When the disk is full, they are removed one
by one, to free space for trims, deletes, acknowledgements and checkpoints. So retention can free
more space. Messages are refused until all files of the reserve exist again.

Always true:
- `is_full` is set when a piece of the reserve is released, and cleared when the reserve is whole;
- `refill` creates a piece of the reserve only if the disk has space for it;
- a disk that does not report its size has no reserve, and its errors are raised unchanged.

Threads: any worker; any thread may read `is_full` and `is_short`.
"""

import errno
import os
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from ister.base.limits import KIB, MIB
from ister.log.files.ports import Buffer, Disk, File
from ister.log.files.segment import SEGMENTS

_T = TypeVar("_T")

RESERVE = "reserve"
# The size of the reserve. A checkpoint of 10,000 topics takes 2 to 3 MiB, and the smallest journal
# file `FILE_BYTES_MIN`: the reserve holds several of each. At most a tenth of a small disk.
RESERVE_BYTES = 8 * MIB
RESERVE_SHARE = 10
# While there is less in the log, there is less to acknowledge and to write before a file of it can
# be removed: twice what the journal files take, and at least this, in so many pieces.
RESERVE_BYTES_MIN = 2 * MIB
JOURNAL_TIMES = 2
PIECES = 4
# With more topics: space for a snapshot, a manifest, and as much again for the journal.
LARGEST_TIMES = 3
# The smallest journal file holds some thousand acknowledgements. At most 1/64 of a small disk.
FILE_BYTES_MIN = 256 * KIB
FILE_MIN_SHARE = 64
# A journal file has at most an eighth of the free space. A file can only be removed as a whole,
# after it is sealed, so several files must fit on the disk for retention to free any.
FILE_SHARE = 8
_BLOCK_BYTES = 4 * KIB


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that the disk is full or a quota is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class Space:
    """The free space of a log's disk. Created by `FileBackend`; call `open` first."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = Lock()
        self._pieces: list[str] = []
        # How large the reserve should be, and in how many pieces.
        self._wanted = RESERVE_BYTES_MIN
        self._count = PIECES
        self._opened = False
        # Whether messages are refused.
        self.is_full = False
        # Whether journal files are smaller than they should be.
        self.is_short = False

    def open(self) -> None:
        """Find the pieces of the reserve, and release one if the disk has no space left."""
        room = self._disk.room()
        if room is None:
            return
        with self._lock:
            # Another program would take what larger pieces leave free on a full disk.
            larger = room[0] < RESERVE_BYTES
            self._pieces = self._find_pieces(_piece_bytes(room[1]), keep_larger=larger)
            self._opened = True
        self._want_for_journal(self._journal_bytes())
        if room[0] < _file_bytes_min(room[1]):
            self.release()

    @property
    def is_whole(self) -> bool:
        """Whether the reserve is complete, so that `refill` has nothing to do."""
        return not self._opened or (len(self._pieces) >= self._count and not self.is_full)

    @property
    def kept(self) -> int:
        """How many pieces messages and rewrites must leave for changes and checkpoints."""
        return self._count // 2

    def put(self, name: str, data: Buffer) -> None:
        """Write a whole file, using the reserve if necessary. The reserve grows with the file.

        Raises the errors of `Disk.put`.
        """
        self.attempt(lambda: self._disk.put(name, data))
        self._want(len(data) * LARGEST_TIMES)

    def create(
        self, name: str, *, allocate_bytes: int, bytes_max: int, bytes_min: int, keep: int = 0
    ) -> tuple[File, int, int]:
        """Create a file that fits the free space; return it, its size, and what it may grow to.

        It has `allocate_bytes` if they fit, or at least `bytes_min`. `keep` pieces of the reserve
        are kept. Raises `OSError` if `bytes_min` do not fit.
        """
        room = self._disk.room()
        if room is None:
            size = max(bytes_min, min(bytes_max, allocate_bytes))
            return self._disk.create(name, allocate_bytes=size), size, max(size, bytes_max)
        smallest = max(bytes_min, min(bytes_max, _file_bytes_min(room[1])))
        limit = max(smallest, min(bytes_max, _share_of(room[0])))
        size = max(smallest, min(limit, allocate_bytes))
        while True:
            try:
                file = self._disk.create(name, allocate_bytes=size)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                # The free space that the disk reports may be wrong, as with a quota.
                if size > smallest:
                    size = limit = max(smallest, size // 2)
                elif not self.release(keep=keep):
                    raise
            else:
                self.is_short = limit < bytes_max
                self._want_for_journal(size)
                return file, size, limit

    def grow(self, file: File, size: int, *, allocate_bytes: int, bytes_min: int) -> int:
        """Allocate more of a file that has `size` bytes; return the size it has then.

        It is less than `bytes_min` if the disk has no space for so much. The reserve is kept: the
        next file may use it. Raises other errors of the disk.
        """
        room = self._disk.room()
        # As large as a file that is created now.
        limit = allocate_bytes if room is None else _share_of(room[0] + size)
        wanted = min(allocate_bytes, limit)
        self.is_short = self.is_short or wanted < allocate_bytes
        while wanted >= bytes_min and wanted > size:
            try:
                file.allocate(wanted)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self.is_short = True
                wanted = max(bytes_min, wanted // 2) if wanted > bytes_min else 0
            else:
                self._want_for_journal(wanted)
                return wanted
        return size

    def check(self, size_bytes: int) -> None:
        """Raise ENOSPC unless there is room for so much, and as much again for others."""
        room = self._disk.room()
        if room is not None and room[0] < 2 * size_bytes:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {size_bytes} B")

    def attempt(self, call: Callable[[], _T], *, keep: int = 0) -> _T:
        """Return the result of `call`. While the disk is full, release the reserve and retry.

        `call` may be called several times. `keep` pieces of the reserve are kept.
        """
        while True:
            try:
                return call()
            except OSError as error:
                if not is_disk_full(error) or not self.release(keep=keep):
                    raise

    def release(self, *, keep: int = 0) -> bool:
        """Remove a piece of the reserve if more than `keep` are left; return whether it did."""
        if not self._opened:
            return False
        with self._lock:
            self.is_full = True
            if len(self._pieces) <= keep:
                return False
            # Kept in the list until it is removed: after an error the next call tries again.
            self._disk.remove(self._pieces[-1])
            self._pieces.pop()
            return True

    def refill(self) -> None:
        """Create the missing pieces of the reserve, as far as there is space. For a worker."""
        if self.is_whole:
            return
        room = self._disk.room()
        if room is None:
            return
        piece = _piece_bytes(room[1])
        with self._lock:
            taken = set(self._pieces)
            for number in range(self._count):
                name = f"{RESERVE}/{number}"
                if name in taken:
                    continue
                try:
                    self._disk.create(name, allocate_bytes=piece).close()
                except FileExistsError:
                    pass  # Removing it failed, or its result was lost.
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    self.is_full = True
                    return
                self._pieces.append(name)
            room = self._disk.room()
            # With less, the next message would fill the disk again.
            self.is_full = room is not None and room[0] < _file_bytes_min(room[1])

    def _want(self, size_bytes: int) -> None:
        """Have the next `refill` make the reserve so large, or a tenth of the disk."""
        if size_bytes <= self._wanted:
            return
        room = self._disk.room()
        if room is not None:
            self._wanted = size_bytes
            wanted = min(size_bytes, room[1] // RESERVE_SHARE)
            self._count = max(PIECES, wanted // _piece_bytes(room[1]))

    def _want_for_journal(self, size_bytes: int) -> None:
        self._want(min(RESERVE_BYTES, size_bytes * JOURNAL_TIMES))

    def _journal_bytes(self) -> int:
        """Return what the files of the log take, or more than makes a difference."""
        total = 0
        for name in self._disk.names(SEGMENTS):
            if total * JOURNAL_TIMES >= RESERVE_BYTES:
                break
            total += self._size_of(name)
        return total

    def _find_pieces(self, size_bytes: int, *, keep_larger: bool) -> list[str]:
        """Return the existing pieces; remove those of a crash, another disk or another version."""
        found = []
        for name in self._disk.names(RESERVE):
            size = self._size_of(name)
            if size_bytes <= size * 2 and (keep_larger or size <= size_bytes * 2):
                found.append(name)
            else:
                self._disk.remove(name)
        return found

    def _size_of(self, name: str) -> int:
        file = self._disk.open(name)
        try:
            return file.size()
        finally:
            file.close()


def _piece_bytes(total_bytes: int) -> int:
    return _round_to_blocks(min(RESERVE_BYTES_MIN, total_bytes // RESERVE_SHARE) // PIECES)


def _share_of(free_bytes: int) -> int:
    return _round_to_blocks(free_bytes // FILE_SHARE)


def _file_bytes_min(total_bytes: int) -> int:
    return min(FILE_BYTES_MIN, total_bytes // FILE_MIN_SHARE)


def _round_to_blocks(size_bytes: int) -> int:
    return max(1, size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
