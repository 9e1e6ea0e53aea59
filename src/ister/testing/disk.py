"""A disk in memory that fails as real ones do: power cuts, torn writes, errors, flipped bits.

It keeps apart what a program sees and what would be found after a power cut. The model:

- `write` and `allocate` change what is seen; only `sync` (and `truncate`, which syncs) makes it
  durable;
- `create`, `put` and `remove` are durable when they return, as `LocalDisk` promises; one that the
  power cut interrupts happened or did not;
- un-synced writes reach the platter in sectors, in any order: each is found as it was after the
  last sync or after any later write to it;
- a failed `sync` (or `truncate`) leaves what was un-synced in doubt, as on Linux: it is still seen,
  and a second `sync` reports success without it. After a power cut each sector of it is there or
  not, as of what nobody has tried to sync;
- a failed `write` has written its first half; a failed `allocate` has changed nothing.

Only operations that change the disk are counted: a power cut during a read is found as one before
the next change. To visit every crash point, run a workload once, take `len(disk.operations)`, and
run it again with `crash_at` each number below that:

>>> disk = FaultyDisk()
>>> disk.crash_at(1)
>>> disk.put("manifests/1", b"one")
>>> disk.put("manifests/2", b"two")
Traceback (most recent call last):
ister.testing.disk.Crash: put of manifests/2, operation 1
>>> disk.reopen("none").names("manifests"), disk.reopen("all").names("manifests")
(['manifests/1'], ['manifests/1', 'manifests/2'])
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from ister.objects import MemoryFile

Buffer = bytes | bytearray | memoryview
# What is found of un-synced bytes after a power cut: nothing, all (also: the process was killed
# and the machine went on), or any sectors of them.
Keep = Literal["none", "all", "torn"]
Change = Literal["create", "put", "remove", "write", "allocate", "sync", "truncate"]
Action = Change | Literal["open", "read"]

SECTOR_BYTES = 512


class Crash(BaseException):
    """The machine stopped. No code under test may catch this and go on."""


class Operation(NamedTuple):
    """One change of the disk that was asked for."""

    action: Change
    name: str


@dataclass(slots=True)
class Fault:
    """An `OSError` to raise from operations.

    `at` names one by its number; without it, every operation that fits `actions` and `prefix`
    is meant. A fault hits once, or with `lasting` from then on whatever fits, until `heal`.
    """

    error: int = errno.EIO
    at: int | None = None
    actions: Collection[Action] = get_args(Change)
    prefix: str = ""
    lasting: bool = False
    # The operation is done, and only its answer is lost.
    done: bool = False
    hits: int = 0

    def fits(self, action: Action, name: str, number: int) -> bool:
        """Tell whether the operation is to fail."""
        if self.hits:
            return self.lasting and action in self.actions and name.startswith(self.prefix)
        if self.at is not None:
            return number == self.at and action not in ("open", "read")
        return action in self.actions and name.startswith(self.prefix)


@dataclass(slots=True)
class Content:
    """A file: what is seen, what is durable, and the writes that make the difference."""

    seen: MemoryFile = field(default_factory=MemoryFile)
    durable: MemoryFile = field(default_factory=MemoryFile)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    # Older writes whose sync has failed: no later sync makes them durable.
    doubtful: list[tuple[int, bytes]] = field(default_factory=list)
    # The size of an `allocate` that nobody has synced.
    allocated: int = 0
    # The size of a `truncate` that failed, or that a power cut interrupted.
    cut: int | None = None

    def write(self, position: int, data: bytes) -> None:
        """Change what is seen."""
        self.seen.write(position, [data])
        self.unsynced.append((position, data))

    def allocate(self, size_bytes: int) -> None:
        """Change the size that is seen."""
        self.seen.allocate(size_bytes)
        self.allocated = max(size_bytes, self.allocated)

    def sync(self) -> None:
        """Make what was written durable."""
        if self.cut is not None:
            self.durable.truncate(self.cut)
            self.cut = None
        self.durable.allocate(self.allocated)
        self.allocated = 0
        for position, data in self.unsynced:
            self.durable.write(position, [data])
            self.doubtful = without(self.doubtful, position, position + len(data))
        self.unsynced.clear()

    def fail_sync(self) -> None:
        """Leave what was written in doubt."""
        self.doubtful += self.unsynced
        self.unsynced.clear()

    def truncate(self, size_bytes: int) -> None:
        """Cut off, durably."""
        self.sync()
        self.seen.truncate(size_bytes)
        self.durable.truncate(size_bytes)
        end = max((position + len(data) for position, data in self.doubtful), default=0)
        self.doubtful = without(self.doubtful, size_bytes, end)

    def after_crash(self, keep: Keep, chance: random.Random, sector_bytes: int) -> MemoryFile:
        """Return the file as it is found."""
        found = self.durable.copy()
        kept = 1.0 if keep == "all" else chance.choice((0.1, 0.5, 0.9))
        if self.allocated and keep != "none" and chance.random() < kept:
            found.allocate(self.allocated)
        writes = [] if keep == "none" else [*self.doubtful, *self.unsynced]
        lost: set[int] = set()
        for position, data in writes:
            for start, piece in sectors(position, data, sector_bytes):
                # Once lost, later writes to the same sector are lost too, so that it is found as
                # it was at one moment.
                if start // sector_bytes in lost:
                    continue
                if chance.random() < kept:
                    found.write(start, [piece])
                else:
                    lost.add(start // sector_bytes)
        if self.cut is not None and keep != "none" and chance.random() < kept:
            found.truncate(self.cut)
        return found


def without(writes: list[tuple[int, bytes]], start: int, end: int) -> list[tuple[int, bytes]]:
    """Return writes without what they wrote from `start` to `end`."""
    kept = []
    for position, data in writes:
        before = data[: max(start - position, 0)]
        behind = data[max(end - position, 0) :]
        if position + len(data) <= start or position >= end:
            kept.append((position, data))
            continue
        if before:
            kept.append((position, before))
        if behind:
            kept.append((position + len(data) - len(behind), behind))
    return kept


def sectors(position: int, data: bytes, sector_bytes: int) -> list[tuple[int, bytes]]:
    """Divide a write at the edges of sectors."""
    pieces = []
    start = 0
    while start < len(data):
        end = start + sector_bytes - (position + start) % sector_bytes
        pieces.append((position + start, data[start:end]))
        start = end
    return pieces


class FaultyFile:
    """One open file of a `FaultyDisk`."""

    def __init__(self, disk: "FaultyDisk", name: str, content: Content) -> None:
        self._disk = disk
        self._name = name
        self._content = content
        disk.open_files.add(self)

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write all of `parts` one after the other from `position` on."""
        data = b"".join(parts)
        self._disk.change(
            Operation("write", self._name),
            act=lambda: self._content.write(position, data),
            interrupt=lambda: self._content.write(position, data),
            fail=lambda: self._content.write(position, data[: len(data) // 2]),
        )

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return what is seen from `position` on."""
        self._disk.look("read", self._name)
        return self._content.seen.read(position, size_bytes)

    def sync(self) -> None:
        """Make what was written durable."""
        self._disk.change(
            Operation("sync", self._name),
            act=self._content.sync,
            fail=self._content.fail_sync,
        )

    def size(self) -> int:
        """Return the size that is seen."""
        self._disk.look("read", self._name)
        return self._content.seen.size()

    def allocate(self, size_bytes: int) -> None:
        """Reserve zeros up to a size."""
        self._disk.change(
            Operation("allocate", self._name),
            act=lambda: self._content.allocate(size_bytes),
            interrupt=lambda: self._content.allocate(size_bytes),
        )

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off, durably."""

        def interrupt() -> None:
            self._content.cut = size_bytes

        def fail() -> None:
            # Its second half, the sync, has failed.
            self._content.seen.truncate(size_bytes)
            self._content.fail_sync()
            self._content.cut = size_bytes

        self._disk.change(
            Operation("truncate", self._name),
            act=lambda: self._content.truncate(size_bytes),
            interrupt=interrupt,
            fail=fail,
        )

    def close(self) -> None:
        """Do nothing else, also after a crash: clean-up code runs through here."""
        self._disk.open_files.discard(self)


def nothing() -> None:
    """Leave the disk as it is."""


class FaultyDisk:
    """A disk to break. Does all that `LocalDisk` does until told otherwise."""

    def __init__(self, *, sector_bytes: int = SECTOR_BYTES) -> None:
        self.url = "memory://faulty"
        self.sector_bytes = sector_bytes
        # Every change asked for, those that failed included; the slot is the operation's number.
        self.operations: list[Operation] = []
        self.crashed = False
        # Those that nobody has closed.
        self.open_files: set[FaultyFile] = set()
        self._crash_at: int | None = None
        self._faults: list[Fault] = []
        self._contents: dict[str, Content] = {}
        # The name under way when the power went: what it names if it happened.
        self._undecided: tuple[str, Content | None] | None = None
        self._lock = threading.RLock()

    # What tests ask for

    def crash_at(self, number: int) -> None:
        """Stop the machine in the middle of operation `number`, counted from zero."""
        self._crash_at = number

    def fail(self, fault: Fault) -> Fault:
        """Raise errors from now on; `fault.hits` tells how often it happened."""
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Take back every fault."""
        self._faults.clear()

    def flip(self, name: str, position: int, bit: int = 0) -> None:
        """Turn one bit around, in memory and on the platter."""
        content = self._find(name)
        for image in (content.seen, content.durable):
            image.write(position, [bytes([image.read(position, 1)[0] ^ 1 << bit])])

    def reopen(self, keep: Keep = "none", *, seed: int = 0) -> "FaultyDisk":
        """Return the disk as it is found after a power cut now, or at the crash that happened.

        It is a new disk without faults; this one is unchanged and can be reopened in other ways.
        """
        # Not of cryptographic use: the same seed must give the same disk.
        chance = random.Random(seed)
        disk = FaultyDisk(sector_bytes=self.sector_bytes)
        with self._lock:
            contents = dict(self._contents)
            if self._undecided is not None and (
                keep == "all" or (keep == "torn" and chance.random() < 0.5)
            ):
                name, content = self._undecided
                contents.pop(name, None)
                if content is not None:
                    contents[name] = content
            for name, content in sorted(contents.items()):
                found = content.after_crash(keep, chance, self.sector_bytes)
                disk._contents[name] = Content(found.copy(), found)
        return disk

    # The port

    def create(self, name: str, *, allocate_bytes: int = 0) -> FaultyFile:
        """Make a file, or raise `FileExistsError`."""
        empty = MemoryFile(allocated_bytes=allocate_bytes)
        content = Content(empty.copy(), empty)
        self._name(Operation("create", name), content)
        return FaultyFile(self, name, content)

    def open(self, name: str) -> FaultyFile:
        """Open a file, or raise `FileNotFoundError`."""
        self.look("open", name)
        return FaultyFile(self, name, self._find(name))

    def put(self, name: str, data: Buffer) -> None:
        """Make a whole file, or raise `FileExistsError`."""
        self._name(Operation("put", name), Content(MemoryFile(data), MemoryFile(data)))

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, sorted."""
        self.look("read", folder + "/")
        with self._lock:
            return sorted(name for name in self._contents if name.rpartition("/")[0] == folder)

    def remove(self, name: str) -> None:
        """Remove a file. It may be missing."""
        self._name(Operation("remove", name), None)

    def room(self) -> tuple[int, int] | None:
        """Tell nothing: this disk is never full. See `SmallDisk`."""
        return None

    # Between the disk and its files

    def look(self, action: Action, name: str) -> None:
        """Raise what is due before something is read."""
        with self._lock:
            self._stop_if_crashed()
            fault = self._find_fault(action, name)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), name)

    def change(
        self,
        operation: Operation,
        *,
        act: Callable[[], None],
        interrupt: Callable[[], None] = nothing,
        fail: Callable[[], None] = nothing,
    ) -> None:
        """Do `act`; or `interrupt` and stop the machine; or `fail` and raise the error due."""
        with self._lock:
            self._stop_if_crashed()
            fault = self._find_fault(operation.action, operation.name)
            self.operations.append(operation)
            if len(self.operations) - 1 == self._crash_at:
                interrupt()
                self.crashed = True
                self._stop_if_crashed()
            if fault is None:
                act()
                return
            (act if fault.done else fail)()
        raise OSError(fault.error, os.strerror(fault.error), operation.name)

    def _name(self, operation: Operation, content: Content | None) -> None:
        """Let a name mean `content`, or nothing."""
        name = operation.name

        def act() -> None:
            self._contents.pop(name, None)
            if content is not None:
                self._contents[name] = content

        def interrupt() -> None:
            self._undecided = (name, content)

        with self._lock:
            self._stop_if_crashed()
            if content is not None and name in self._contents:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            self.change(operation, act=act, interrupt=interrupt)

    def _find(self, name: str) -> Content:
        with self._lock:
            if name not in self._contents:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            return self._contents[name]

    def _find_fault(self, action: Action, name: str) -> Fault | None:
        for fault in self._faults:
            if fault.fits(action, name, len(self.operations)):
                fault.hits += 1
                return fault
        return None

    def _stop_if_crashed(self) -> None:
        if self.crashed:
            number = len(self.operations) - 1
            operation = self.operations[number]
            raise Crash(f"{operation.action} of {operation.name}, operation {number}")
