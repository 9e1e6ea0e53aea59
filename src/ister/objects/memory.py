"""Files in memory: for a broker without a data folder, and for tests.

They end with the process. Apart from that they do what `LocalDisk` does.
"""

import threading
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview


class MemoryFile:
    """One file. Every `open` of a name gives the same one; any threads may share it."""

    __slots__ = ("_allocated_bytes", "_content", "_lock")

    def __init__(self, content: Buffer = b"", *, allocated_bytes: int = 0) -> None:
        self._content = bytearray(content)
        # Zeros behind the content take no memory.
        self._allocated_bytes = allocated_bytes
        self._lock = threading.Lock()

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write all of `parts` one after the other from `position` on."""
        with self._lock:
            content = self._content
            if position > len(content):
                content.extend(bytes(position - len(content)))
            for part in parts:
                end = position + len(part)
                content[position:end] = part
                position = end

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes from `position` on; fewer than asked for only at the end of the file."""
        with (
            self._lock,
            memoryview(self._content) as view,
            view[position : position + size_bytes] as part,
        ):
            data = bytes(part)
            size = max(len(view), self._allocated_bytes)
        zeros = min(position + size_bytes, size) - position - len(data)
        return data + bytes(zeros) if zeros > 0 else data

    def sync(self) -> None:
        """Do nothing: there is nothing safer than memory here."""

    def size(self) -> int:
        """Return the size of the file, with what was allocated ahead."""
        return max(len(self._content), self._allocated_bytes)

    def allocate(self, size_bytes: int) -> None:
        """Reserve zeros up to a size."""
        with self._lock:
            self._allocated_bytes = max(size_bytes, self._allocated_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off."""
        with self._lock:
            del self._content[size_bytes:]
            self._allocated_bytes = size_bytes

    def close(self) -> None:
        """Do nothing: the file stays for the next `open`."""

    def copy(self) -> "MemoryFile":
        """Return a file of its own with the same bytes."""
        with self._lock:
            return MemoryFile(self._content, allocated_bytes=self._allocated_bytes)


class MemoryDisk:
    """A folder of files in memory. Names are `folder/name`."""

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self._files: dict[str, MemoryFile] = {}

    def create(self, name: str, *, allocate_bytes: int = 0) -> MemoryFile:
        """Make a file, or raise `FileExistsError`."""
        return self._add(name, MemoryFile(allocated_bytes=allocate_bytes))

    def open(self, name: str) -> MemoryFile:
        """Open a file, or raise `FileNotFoundError`."""
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(name)
        return file

    def put(self, name: str, data: Buffer) -> None:
        """Make a whole file, or raise `FileExistsError`."""
        self._add(name, MemoryFile(data))

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, sorted."""
        # `list` first: other threads make and remove files meanwhile.
        return sorted(name for name in list(self._files) if name.rpartition("/")[0] == folder)

    def remove(self, name: str) -> None:
        """Remove a file; who has it open can still read it. It may be missing."""
        self._files.pop(name, None)

    def room(self) -> tuple[int, int] | None:
        """Tell nothing: memory has other limits."""
        return None

    def _add(self, name: str, file: MemoryFile) -> MemoryFile:
        # One step, so that of two threads only one makes it.
        if self._files.setdefault(name, file) is not file:
            raise FileExistsError(name)
        return file
