"""A part of the disk that is kept for the file of SQLite, for when the disk is full.

A change is written to the write-ahead log, and later copied from there into the file. Where neither
of them can grow, not even a message can be deleted. So there are a few files of zeros beside them.
When SQLite finds no room, first no more messages are taken, and changes are made a few at a time.
If that is not enough, the files of zeros are removed one by one. Blocks for the write-ahead log are
taken at once, before anybody else has them.

Always true:
- while `is_full` is set, changes that store more than before are refused;
- `is_full` is set when SQLite finds no room, or a part of the reserve is missing and there is none
  for it. It is taken back when there is room: on the disk, or where messages were removed;
- leases, which need room until they end, leave the last part to ends of leases and deletions;
- a disk that does not tell its size, or reserves no blocks, has no reserve.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from ister.base.errors import DiskFullError, IsterError
from ister.base.limits import KIB
from ister.timeline.model import Change, Lease, Put, Update, Work
from ister.timeline.port import Outcome, Outcomes

if TYPE_CHECKING:
    from ister.log import Disk

SUFFIX = "-reserve"
PIECES = 4
# Of a small disk no more than a tenth.
RESERVE_SHARE = 10
_BLOCK_BYTES = 4 * KIB
# Changes that are made at once while the disk is full: each may write some pages of 4 KiB. The
# write-ahead log is copied into the file when it has the second number of pages: 256 KiB.
FULL_COUNT_MAX = 64
FULL_PAGES = 64
# What some leases may take of the file.
LEASES_BYTES = 256 * KIB
FULL = "the disk is full"

P = ParamSpec("P")
T = TypeVar("T")


class Reserve:
    """The reserve of the file `name` in `folder`, which `disk` is."""

    def __init__(self, disk: "Disk", folder: Path, name: str, bytes_max: int) -> None:
        self._disk = disk
        self._wal = folder / f"{name}-wal"
        self._folder = f"{name}{SUFFIX}"
        self._bytes_max = bytes_max
        # Whether there is nothing to look for.
        self.is_whole = True
        # Whether changes that store more than before are refused; and whether leases are.
        self.is_full = False
        self.refuses_leases = False

    def open(self) -> None:
        """Make what is missing of the reserve, if there is room. The file was just opened."""
        piece, free = self._sizes()
        missing = self._missing(piece)
        if missing and free < PIECES * piece:
            self.is_full = True
            with suppress(OSError):  # Then it grows as it is written, while it can.
                grow(self._wal, piece)
        self._refill()
        self.is_whole = not self.is_full and not self._missing(piece)

    def on_full(self) -> bool:
        """Let go of a part of the reserve; return whether there was one left."""
        self.is_full, self.is_whole = True, False
        with suppress(OSError):
            for name in self._disk.names(self._folder)[-1:]:
                self._disk.remove(name)
                return True
        return False

    def find_room(self, unused_bytes: int) -> None:
        """Take messages again if there is room for them: on the disk, or unused in the file."""
        self._refill()
        piece, free = self._sizes()
        missing = len(self._missing(piece))
        free += unused_bytes
        if free >= missing * piece + PIECES * piece // 2:
            self.is_full = False
        self.is_whole = not missing and not self.is_full
        self.refuses_leases = missing >= PIECES - 1 and free < LEASES_BYTES

    def _sizes(self) -> tuple[int, int]:
        """Return how large a part is to be, and how many bytes are free on the disk."""
        room = self._disk.room() if self._bytes_max else None
        # Where blocks cannot be reserved, a file of zeros keeps nothing.
        if room is None or not hasattr(os, "posix_fallocate"):
            return 0, 0
        free, total = room
        whole = min(self._bytes_max, total // RESERVE_SHARE)
        return whole // PIECES // _BLOCK_BYTES * _BLOCK_BYTES, free

    def _missing(self, piece: int) -> list[str]:
        """Return the parts that are not there; smaller ones are what a crash has left."""
        missing = [f"{self._folder}/{number}" for number in range(PIECES)] if piece else []
        with suppress(OSError):
            for name in self._disk.names(self._folder):
                file = self._disk.open(name)
                if name in missing and file.size() * 2 >= piece:
                    missing.remove(name)
                file.close()
        return missing

    def _refill(self) -> None:
        """Make the missing parts, as far as there is room for them."""
        piece, free = self._sizes()
        with suppress(OSError):
            for name in self._missing(piece)[: free // piece if piece else 0]:
                self._disk.remove(name)
                self._disk.create(name, allocate_bytes=piece).close()


def grow(file: Path, size_bytes: int) -> None:
    """Have blocks for a file up to a size: zeros behind the end of a write-ahead log are no part.

    Raises `OSError`.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)


class _Reserved(Protocol):
    _reserve: Reserve


S = TypeVar("S", bound=_Reserved)


def with_reserve(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Have a method called again with more room, as long as there is a reserve for that."""

    @wraps(method)
    def attempt(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return method(self, *args, **kwargs)
            except DiskFullError:
                if not self._reserve.on_full():
                    raise

    return attempt


class FullDiskCommits:
    """Makes work on a full disk: without what stores more than before, and a few changes at a time.

    `commit` makes work as one, and so does `commit_reserved`, with the reserve if need be. Either
    raises `DiskFullError` with nothing changed.
    """

    def __init__(
        self,
        commit: Callable[[Work], Outcomes],
        commit_reserved: Callable[[Work], Outcomes],
        *,
        leases: bool,
    ) -> None:
        """`leases`: whether there is room for these."""
        self._commit = commit
        self._commit_reserved = commit_reserved
        self._refused = (Put, Update) if leases else (Put, Update, Lease)

    def make(self, piece: Work) -> Outcomes:
        """Return what came of some work."""
        refused = [isinstance(change, self._refused) for change in piece.changes]
        if piece.atomic:
            return DiskFullError(FULL) if any(refused) else self._make_part(piece)
        rest = [c for c, is_refused in zip(piece.changes, refused, strict=True) if not is_refused]
        made = iter(self._make_parts(piece, rest))
        return [DiskFullError(FULL) if is_refused else next(made) for is_refused in refused]

    def _make_parts(self, piece: Work, changes: Sequence[Change]) -> Iterator[Outcome]:
        for start in range(0, len(changes), FULL_COUNT_MAX):
            part = [*changes[start : start + FULL_COUNT_MAX]]
            outcomes = self._make_part(piece._replace(changes=part))
            yield from outcomes if isinstance(outcomes, list) else [outcomes] * len(part)

    def _make_part(self, part: Work) -> Outcomes:
        changes = part.changes
        try:
            return self._commit(part)
        except DiskFullError:
            if len(changes) > 1 and not part.atomic:
                halves = changes[: len(changes) // 2], changes[len(changes) // 2 :]
                return [*self._both(part, halves[0]), *self._both(part, halves[1])]
        try:
            return self._commit_reserved(part)
        except DiskFullError as error:
            return error if part.atomic else [error] * len(changes)

    def _both(self, part: Work, changes: list[Change]) -> list[Outcome]:
        outcomes = self._make_part(part._replace(changes=changes))
        return [outcomes] * len(changes) if isinstance(outcomes, IsterError) else outcomes
