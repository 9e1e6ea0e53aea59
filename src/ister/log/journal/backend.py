"""What a log is kept in: a disk with files, or an object store with chunks.

Both offer the same few calls on whole objects and parts of them, which any thread may use.
"""

from collections import OrderedDict
from threading import Lock
from typing import Protocol

from ister.base.errors import ObjectExistsError
from ister.log.files.ports import Buffer, Disk, File, Store
from ister.log.journal.space import Space

# Files kept open for reading. A reader of many segments comes back to the same one for the next
# window; more than this only holds descriptors.
OPEN_FILES_MAX = 64


class Readable(Protocol):
    """What is enough to read a log that somebody else writes."""

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""


class Backend(Protocol):
    """Objects of a log by name."""

    def put(self, name: str, data: Buffer) -> None:
        """Make an object, durably, or raise `ObjectExistsError`."""

    def get(self, name: str) -> bytes:
        """Return an object, or raise `FileNotFoundError`."""

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""

    def size(self, name: str) -> int:
        """Return the size of an object, or raise `FileNotFoundError`."""

    def remove(self, name: str) -> None:
        """Remove an object. It may be missing."""

    def close(self) -> None:
        """Let go of whatever is open."""


class FileBackend:
    """A log on a disk: the journal is a file that grows."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.space = Space(disk)
        self._files = _OpenFiles(disk)

    def put(self, name: str, data: Buffer) -> None:
        """Make a whole file, durably, or raise `ObjectExistsError`."""
        try:
            self.space.put(name, data)
        except FileExistsError:
            raise ObjectExistsError(name) from None

    def get(self, name: str) -> bytes:
        """Return a whole file, or raise `FileNotFoundError`."""
        file = self.disk.open(name)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of a file; fewer bytes than asked for only at its end."""
        try:
            return self._files.read(name, position, size_bytes)
        except FileNotFoundError:
            raise
        except OSError:
            # Once more, by another descriptor: a network disk that was away for a moment leaves
            # nothing behind but descriptors that fail for ever.
            self._files.forget(name)
            return self._files.read(name, position, size_bytes)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return self.disk.names(folder)

    def size(self, name: str) -> int:
        """Return the size of a file, or raise `FileNotFoundError`."""
        file = self.disk.open(name)
        try:
            return file.size()
        finally:
            file.close()

    def remove(self, name: str) -> None:
        """Remove a file. It may be missing."""
        self.disk.remove(name)
        # Afterwards: a read in between would have opened it again.
        self._files.forget(name)

    def close(self) -> None:
        """Close the files open for reading."""
        self._files.close()


class ChunkBackend:
    """A log in an object store: the journal is a row of chunks, one for each group."""

    def __init__(self, store: Store, *, reads_at_once: int = 32) -> None:
        """A start reads chunks by `reads_at_once` requests, each in a thread of its own."""
        self.store = store
        self.reads_at_once = reads_at_once

    def put(self, name: str, data: Buffer) -> None:
        """Make an object, durably, or raise `ObjectExistsError`."""
        self.store.put(name, data)

    def get(self, name: str) -> bytes:
        """Return an object, or raise `FileNotFoundError`."""
        return self.store.get(name)

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""
        return self.store.get_range(name, position, size_bytes)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return self.store.names(folder + "/")

    def size(self, name: str) -> int:
        """Return the size of an object, or raise `FileNotFoundError`."""
        return self.store.size(name)

    def remove(self, name: str) -> None:
        """Remove an object. It may be missing."""
        self.store.remove(name)

    def close(self) -> None:
        """There is nothing to let go of."""


class _OpenFiles:
    """Files open for reading, the last used ones. Any thread may read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = Lock()
        self._files: OrderedDict[str, _SharedFile] = OrderedDict()

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        shared = self._borrow(name)
        try:
            return shared.file.read(position, size_bytes)
        finally:
            self._give_back(shared)

    def forget(self, name: str) -> None:
        with self._lock:
            shared = self._files.pop(name, None)
            if shared is not None:
                self._retire(shared)

    def close(self) -> None:
        with self._lock:
            while self._files:
                self._retire(self._files.popitem()[1])

    def _borrow(self, name: str) -> "_SharedFile":
        with self._lock:
            shared = self._files.get(name)
            if shared is None:
                shared = self._files[name] = _SharedFile(self._disk.open(name))
                if len(self._files) > OPEN_FILES_MAX:
                    self._retire(self._files.popitem(last=False)[1])
            else:
                self._files.move_to_end(name)
            shared.users += 1
            return shared

    def _give_back(self, shared: "_SharedFile") -> None:
        with self._lock:
            shared.users -= 1
            if shared.retired and not shared.users:
                shared.file.close()

    def _retire(self, shared: "_SharedFile") -> None:
        # Closing a file that another thread reads would let that thread read whatever file gets
        # its descriptor next.
        shared.retired = True
        if not shared.users:
            shared.file.close()


class _SharedFile:
    __slots__ = ("file", "retired", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.retired = False
