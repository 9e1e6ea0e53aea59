"""An object store in a folder: the `file://` one, and one in memory over a `MemoryDisk`.

Always true: a file handle is closed only when no thread reads with it, or its number could be
given to another file in the middle of a read.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ister.base.errors import ObjectExistsError

Buffer = bytes | bytearray | memoryview

# A reader goes through one object after the other; 128 readers at once is a busy broker, and
# most systems give a process 1,024 files.
HANDLES_MAX = 128


class ReadableFile(Protocol):
    """What a store needs of an open file."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes from `position` on; fewer than asked for only at the end of the file."""

    def size(self) -> int:
        """Return the size of the file."""

    def close(self) -> None:
        """Let go of the file."""


class Files(Protocol):
    """What a store needs of a disk."""

    @property
    def url(self) -> str:
        """Where the files are, for people."""

    def open(self, name: str) -> ReadableFile:
        """Open a file, or raise `FileNotFoundError`."""

    def put(self, name: str, data: Buffer) -> None:
        """Make a whole file, durably, or raise `FileExistsError`."""

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, sorted; none when it is missing."""

    def remove(self, name: str) -> None:
        """Remove a file, durably. It may be missing."""


class Handle:
    """An open file and how many threads read with it."""

    __slots__ = ("file", "readers", "retired")

    def __init__(self, file: ReadableFile) -> None:
        self.file = file
        self.readers = 0
        self.retired = False


class LocalStore:
    """Objects as the files of a disk. Any threads may share it."""

    def __init__(self, disk: Files) -> None:
        self.url = disk.url
        self._disk = disk
        # The least recently used first.
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, name: str, data: Buffer) -> None:
        """Make an object, durably, or raise `ObjectExistsError` with the other one untouched."""
        try:
            self._disk.put(name, data)
        except FileExistsError:
            raise ObjectExistsError(name) from None

    def get(self, name: str) -> bytes:
        """Return an object, or raise `FileNotFoundError`."""
        with self._reading(name) as file:
            return file.read(0, file.size())

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""
        with self._reading(name) as file:
            return file.read(position, size_bytes)

    def size(self, name: str) -> int:
        """Return the size of an object, or raise `FileNotFoundError`."""
        with self._reading(name) as file:
            return file.size()

    def names(self, prefix: str) -> list[str]:
        """Return the names that start with `prefix`, which ends with `/`, sorted."""
        return self._disk.names(prefix.removesuffix("/"))

    def remove(self, name: str) -> None:
        """Remove an object; a read under way gets all of it. It may be missing."""
        self._disk.remove(name)
        # After the removal: a read in between would have opened it again.
        with self._lock:
            handle = self._handles.pop(name, None)
            if handle is not None:
                retire(handle)

    def close(self) -> None:
        """Let go of every file that nobody reads."""
        with self._lock:
            while self._handles:
                retire(self._handles.popitem()[1])

    @contextmanager
    def _reading(self, name: str) -> Iterator[ReadableFile]:
        handle = self._take(name)
        try:
            yield handle.file
        finally:
            with self._lock:
                handle.readers -= 1
                if handle.retired and not handle.readers:
                    handle.file.close()

    def _take(self, name: str) -> Handle:
        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = Handle(self._disk.open(name))
                if len(self._handles) > HANDLES_MAX:
                    retire(self._handles.popitem(last=False)[1])
            else:
                self._handles.move_to_end(name)
            handle.readers += 1
            return handle


def retire(handle: Handle) -> None:
    """Close a file, or leave that to its last reader."""
    handle.retired = True
    if not handle.readers:
        handle.file.close()
