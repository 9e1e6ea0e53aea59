"""Files in a folder of the machine, with the care that surviving a power cut takes.

Always true:
- when `create`, `put`, `remove` or `lock` returns, the name is (or is no longer) in its folder on
  the disk: every change of a folder is followed by a sync of that folder;
- a file made by `put` is whole or absent, whenever the machine stops: it is written and synced
  under a name of its own, then linked to its name, which also makes the name once only;
- folders and files are for their owner alone, whatever the umask says;
- an error of the disk is raised as it came. A failed `sync` has lost what was not yet on the
  disk, and a second try would report success for bytes that are gone: nobody here tries again.
"""

import errno
import fcntl
import os
import secrets
import stat
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from ister.base.errors import StorageTakenError

Buffer = bytes | bytearray | memoryview

LOCK_NAME = "lock"
# Files under way to their name. No name of ours starts with a dot.
TEMPORARY_PREFIX = ".new-"
# Messages are nobody else's business on a shared machine.
FOLDER_MODE = 0o700
FILE_MODE = 0o600
# What POSIX promises for one call is 16; Linux and macOS take 1024.
PARTS_MAX = max(16, os.sysconf("SC_IOV_MAX"))
# One call of about so much. Linux 6.18 with ext4 takes 0.3 s for 256 MiB in such pieces, and 1 to
# 3 s in pieces of 4 MiB or all at once: it then looks for large runs of free memory.
WRITE_BYTES = 1024 * 1024


class LocalFile:
    """One open file. Reads and writes at positions, so any threads may share it."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write all of `parts` one after the other from `position` on, or raise `OSError`."""
        start = size = 0
        for slot, part in enumerate(parts):
            size += len(part)
            if size >= WRITE_BYTES or slot - start == PARTS_MAX - 1:
                position = self._write_group(position, parts[start : slot + 1])
                start, size = slot + 1, 0
        if start < len(parts):
            self._write_group(position, parts[start:] if start else parts)

    def _write_group(self, position: int, parts: Sequence[Buffer]) -> int:
        total = sum(map(len, parts))
        written = os.pwritev(self._descriptor, parts, position)
        if written < total:
            # A disk about to be full, a signal, or more than 2 GiB at once: one copy is fine here.
            self._write_rest(position + written, memoryview(b"".join(parts))[written:])
        return position + total

    def _write_rest(self, position: int, rest: memoryview) -> None:
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            if written == 0:
                raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
            position += written
            rest = rest[written:]

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes from `position` on; fewer than asked for only at the end of the file."""
        data = os.pread(self._descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        pieces = [data]
        missing = size_bytes - len(data)
        while missing and (
            data := os.pread(self._descriptor, missing, position + size_bytes - missing)
        ):
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def sync(self) -> None:
        """Have everything written so far on the disk, or raise `OSError`."""
        sync_data(self._descriptor)

    def size(self) -> int:
        """Return the size of the file, with what was allocated ahead."""
        return os.fstat(self._descriptor).st_size

    def allocate(self, size_bytes: int) -> None:
        """Reserve zeros up to a size, or raise `OSError` with the file as it was.

        The size is durable after the next `sync`.
        """
        before = self.size()
        try:
            allocate(self._descriptor, size_bytes - before, start=before)
        except OSError:
            # A disk that is full may have given some of it.
            with suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off, durably."""
        os.ftruncate(self._descriptor, size_bytes)
        sync_all(self._descriptor)

    def close(self) -> None:
        """Let go of the file; what was not synced is left to the operating system."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalDisk:
    """The files below `root`, which is made when it is missing. Names are `folder/name`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._folders: set[Path] = set()
        self._lock_descriptor = -1
        self._changing = threading.Lock()

    def create(self, name: str, *, allocate_bytes: int = 0) -> LocalFile:
        """Make a file, or raise `FileExistsError`. Its name is durable on return.

        `allocate_bytes` of zeros are reserved, so that syncs need not write the file's size and
        a full disk shows here and not in the middle of a write. After an error the file is gone.
        """
        path = self._path_to_make(name)
        descriptor = new_file(path)
        try:
            allocate(descriptor, allocate_bytes)
            sync_all(descriptor)
            sync_folder(path.parent)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return LocalFile(descriptor)

    def open(self, name: str) -> LocalFile:
        """Open a file for reading and writing, or raise `FileNotFoundError`.

        On a read-only copy of a data folder it can be read; writing to it then fails.
        """
        path = self._path(name)
        try:
            return LocalFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        return LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def put(self, name: str, data: Buffer) -> None:
        """Make a whole file, durably, or raise `FileExistsError` with the other one untouched."""
        path = self._path_to_make(name)
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        descriptor = new_file(temporary)
        file = LocalFile(descriptor)
        try:
            file.write(0, [data])
            sync_all(descriptor)
            # Unlike a rename, a link never replaces a file that somebody else made meanwhile.
            os.link(temporary, path)
        finally:
            file.close()
            temporary.unlink(missing_ok=True)
        try:
            sync_folder(path.parent)
        except OSError:
            # The caller is told that nothing was made; a second try must not meet the first.
            path.unlink(missing_ok=True)
            raise

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, sorted; none when it is missing."""
        try:
            with os.scandir(self._path(folder)) as found:
                files = [one.name for one in found if one.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return [f"{folder}/{name}" for name in sorted(files) if not name.startswith(".")]

    def remove(self, name: str) -> None:
        """Remove a file, durably. It may be missing."""
        path = self._path(name)
        path.unlink(missing_ok=True)
        # Also when it was missing: a `put` that could not sync the folder has unlinked it, and
        # after a power cut it would be there.
        with suppress(FileNotFoundError):
            sync_folder(path.parent)

    def room(self) -> tuple[int, int] | None:
        """Return how many bytes are free, and of how many; `None` when that is not known."""
        try:
            found = os.statvfs(self.root)
        except OSError:
            return None
        total = found.f_blocks * found.f_frsize
        return (found.f_bavail * found.f_frsize, total) if total else None

    def lock(self) -> None:
        """Make this process the owner of the folder until `unlock` or its end.

        Raises `StorageTakenError` with the owner's process number, and `OSError` with nothing
        locked. What an earlier owner left half-made is removed.
        """
        path = self._path_to_make(LOCK_NAME)
        # No link is followed: the number of our process would be written to any file.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._lock_descriptor = descriptor
        warn_if_open_to_others("data_folder_open_to_others", self.root, FOLDER_MODE)

    def _lock(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        # A hard link is another name of a file that may be somebody's.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            reason = "is not a file of its own: remove it if no broker uses the folder"
            raise OSError(errno.EINVAL, reason, str(self.root / LOCK_NAME))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise StorageTakenError(
                str(self.root), f"process {owner}" if owner else "another process"
            ) from None
        own(descriptor, FILE_MODE)
        # The number is for people: a full disk must not keep a broker from making room on it.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        for temporary in self.root.glob(f"*/{TEMPORARY_PREFIX}*"):
            temporary.unlink(missing_ok=True)

    def unlock(self) -> None:
        """Let others have the folder. The file stays: removing it would let two owners in."""
        descriptor, self._lock_descriptor = self._lock_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _path(self, name: str) -> Path:
        pure = PurePosixPath(name)
        if not name or pure.is_absolute() or any(part.startswith(".") for part in pure.parts):
            raise ValueError(f"{name!r} is no name of a file inside the folder")
        return self.root / pure

    def _path_to_make(self, name: str) -> Path:
        path = self._path(name)
        if path.parent not in self._folders:
            with self._changing:
                make_folder(path.parent)
                self._folders.add(path.parent)
        return path


def make_folder(path: Path) -> None:
    """Make a folder and those above it, durably; it may be there."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if path.is_dir():
            return
        raise
    if stat.S_IMODE(path.stat().st_mode) != FOLDER_MODE:
        with suppress(PermissionError):
            path.chmod(FOLDER_MODE)
    sync_folder(path.parent)


def new_file(path: Path) -> int:
    """Make a file for its owner alone and return its descriptor, or raise `FileExistsError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    own(descriptor, FILE_MODE)
    return descriptor


def own(descriptor: int, mode: int) -> None:
    """Give a file its mode: a umask takes rights away, also those of the owner."""
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        # Some file systems have modes of their own, and allow no others.
        with suppress(PermissionError):
            os.fchmod(descriptor, mode)


def warn_if_open_to_others(event: str, path: Path, mode: int) -> None:
    """Write a line to the log when others than the owner have rights; `mode` is what it should."""
    try:
        found = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # Whoever uses it says it better.
    if found & 0o077:
        # Not refused: volumes and secrets of a container are often mounted so, for one user.
        warn(event, path=str(path), mode=f"{found:o}", hint=f"chmod {mode:o} {path}")


def warn(event: str, **fields: str) -> None:
    """Write a line to the log."""
    # Not at the top: processes that have nothing to say start in half the time without it, and
    # need a third of the memory less.
    import structlog

    structlog.get_logger("objects").warning(event, **fields)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)


def allocate(descriptor: int, size_bytes: int, *, start: int = 0) -> None:
    """Reserve zeros where the system can; elsewhere the file grows as it is written."""
    if size_bytes > 0 and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size_bytes)


if sys.platform == "darwin":

    def sync_all(descriptor: int) -> None:
        """Have a file's bytes and size on the disk."""
        # `fsync` only hands the bytes to the drive, which may keep them in its cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

    sync_data = sync_all
else:
    sync_all = os.fsync
    sync_data = os.fdatasync
