"""Making a file of SQLite, opening it, and what its errors mean.

Always true:
- a transaction that returned is on the disk: write-ahead log, synced at every commit (`SETTINGS`);
- the file is whole or absent, whenever the process ends, and is nobody else's to read;
- a file that is not ours, or of another format, is not touched.
"""

import errno
import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ister.base.errors import BadRequestError, CorruptedError, DiskFullError, StorageFailedError

# Where the two numbers of a format are in the header of the file, for errors.
FORMAT_POSITION = 60
APPLICATION_ID_POSITION = 68
# What is kept may be a secret: nobody else on the machine reads it.
FOLDER_MODE = 0o700
FILE_MODE = 0o600

# Of every connection that writes.
SETTINGS = (
    "PRAGMA synchronous = FULL",
    # Only macOS knows these: `fsync` alone leaves bytes in the cache of the drive there.
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    # The file may have been changed by anybody: nothing in it is run, and pages are looked over.
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)
# What SQLite says when the file is not what we wrote, rather than that the disk does not answer.
DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}
# What the system says when a disk, or what one may use of it, is full.
FULL = {errno.ENOSPC, errno.EDQUOT}


class Format(NamedTuple):
    """What a file is: `file` and we tell it from others by its numbers."""

    application_id: int
    # In `PRAGMA user_version`.
    number: int
    tables: Sequence[str]
    # What is said of a file that is something else.
    foreign: str


def make_file(file: Path, format: Format) -> None:
    """Make a file with empty tables, and the folders above it, durably; it may be there by now.

    It is made under another name and then linked to its own: it is whole or absent, whenever the
    process ends, and of two processes that make it at once both get the same.
    """
    make_folder(file.parent)
    temporary = file.with_name(f".new-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        # A umask takes rights away, also those of the owner. SQLite gives the files beside this
        # one the same mode.
        with suppress(PermissionError):
            os.fchmod(descriptor, FILE_MODE)
        fill_file(temporary, format)
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        os.close(descriptor)
        for name in (temporary.name, f"{temporary.name}-wal", f"{temporary.name}-shm"):
            temporary.with_name(name).unlink(missing_ok=True)
    sync_folder(file.parent)


def fill_file(file: Path, format: Format) -> None:
    """Make tables in an empty file."""
    connection = connect(file, timeout_s=0)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageFailedError(f"{file.parent} takes no files with a write-ahead log")
        with transaction(connection):
            for statement in format.tables:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {format.application_id}")
            connection.execute(f"PRAGMA user_version = {format.number}")
        # Closing it does the same, and does not tell when there was no room for that: the tables
        # would be in the write-ahead log alone, which is removed.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()


def connect(file: Path, *, timeout_s: float) -> sqlite3.Connection:
    """Open a file that is there."""
    # `rw`: SQLite itself never makes a file. `None`: transactions begin where we say so. Calls
    # come from several threads, but one at a time.
    return sqlite3.connect(
        f"{file.as_uri()}?mode=rw",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def check_format(file: Path, connection: sqlite3.Connection, format: Format) -> None:
    """Raise `CorruptedError` for a file that is not ours, or not yet."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    if owner != format.application_id:
        raise CorruptedError(str(file), APPLICATION_ID_POSITION, format.foreign)
    if number != format.number:
        reason = f"format {number} is not {format.number}: use the ister that wrote it"
        raise CorruptedError(str(file), FORMAT_POSITION, reason)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably; it may be there."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(FOLDER_MODE)
    except FileExistsError:
        if folder.is_dir():
            return
        raise
    with suppress(PermissionError):
        folder.chmod(FOLDER_MODE)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk: SQLite does that for its own files only."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, or undo it when an error comes out."""
    # Immediate: two writers wait for each other here, and never in the middle.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


@contextmanager
def translated(file: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as ours."""
    try:
        yield
    except sqlite3.Error as error:
        # The upper bytes tell more than we need: SQLITE_IOERR_FSYNC and the like.
        # Without a code it is the module's own: text that is none, for example.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in DAMAGE:
            raise CorruptedError(str(file), 0, str(error)) from error
        # The file for memory that is shared does not grow where there is no room.
        is_full = code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
        failed = DiskFullError if is_full else StorageFailedError
        raise failed(f"{file}: {error}") from error
    except OSError as error:
        failed = DiskFullError if error.errno in FULL else StorageFailedError
        raise failed(f"{file}: {error.strerror or error}") from error
    except OverflowError as error:
        raise BadRequestError("a number is larger than 63 bits") from error


def copy_to(connection: sqlite3.Connection, file: Path) -> None:
    """Write everything in a database, as it is at one moment, into a new file.

    Others may write to the database meanwhile. The file is not synced.
    """
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    copy = sqlite3.connect(file, isolation_level=None)
    try:
        connection.backup(copy)
    finally:
        copy.close()


@contextmanager
def copied(file: Path, *more: str) -> Iterator[Path]:
    """Yield a copy of a file, with its write-ahead log if there is one, somewhere else.

    `more` are the suffixes of other files beside it that belong to it.

    Whoever only looks at it changes nothing then: SQLite makes files beside the one it reads, and
    folds its log into it at the end. Raises `StorageFailedError`.
    """
    with tempfile.TemporaryDirectory(prefix="ister-check-") as name:
        try:
            for suffix in ("", "-wal", *more):
                part = file.with_name(f"{file.name}{suffix}")
                if part.exists():
                    shutil.copyfile(part, Path(name) / part.name)
        except OSError as error:
            reason = f"{file} cannot be copied to {name}: {error.strerror or error}"
            raise StorageFailedError(reason) from error
        yield Path(name) / file.name
