"""The file of SQLite that timelines are in: making it, opening it, and what its errors mean.

Always true:
- a transaction that returned is on the disk: write-ahead log, synced at every commit;
- the file is whole or absent, whenever the process ends, and is nobody else's to read;
- one process at a time has it open;
- a file that is not ours, or of another format, is not touched.

The format of the file is `FORMAT`, in `PRAGMA user_version`.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ister.base.errors import BadRequestError, CorruptedError, StorageFailedError
from ister.base.limits import KIB, MIB

FORMAT = 1
# "istt": how `file` tells ours from other databases.
APPLICATION_ID = 0x69737474
# Where the two are in the header of the file, for errors.
FORMAT_POSITION = 60
APPLICATION_ID_POSITION = 68
# Messages may be secrets: nobody else on the machine reads them.
FOLDER_MODE = 0o700
FILE_MODE = 0o600
# The pages that a batch of puts, leases and ends touches again and again are those of the last
# few seconds in each index: some megabytes. The operating system has the rest.
CACHE_KIB = 24 * MIB // KIB
# Whoever fills the write-ahead log copies it into the file, and waits for that: 4 MiB take some
# 5 ms. With 16 MiB nothing was faster, and the longest waits were longer.
CHECKPOINT_PAGES = 4 * MIB // (4 * KIB)
# The log is cut to this when a long one has been copied into the file.
WAL_BYTES_KEPT = 16 * MIB

COLUMNS = (
    "seq INTEGER PRIMARY KEY, topic INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL,"
    " level INTEGER NOT NULL, due INTEGER NOT NULL, position INTEGER NOT NULL,"
    " owner TEXT NOT NULL, holder TEXT NOT NULL, leases INTEGER NOT NULL, payload BLOB NOT NULL,"
    " attributes BLOB NOT NULL, crc INTEGER NOT NULL"
)
TOPIC_COLUMNS = (
    "number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,"
    " settings BLOB NOT NULL"
)
HEAD_COLUMNS = (
    "one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, number INTEGER NOT NULL"
)
TABLES = (
    f"CREATE TABLE messages ({COLUMNS}) STRICT",
    "CREATE UNIQUE INDEX message_ids ON messages (topic, id)",
    # Everything that `scan` returns is in it.
    "CREATE INDEX message_order ON messages (topic, level, position, seq, version, due)",
    "CREATE INDEX message_holders ON messages (topic, holder, position) WHERE position > due",
    f"CREATE TABLE topics ({TOPIC_COLUMNS}) STRICT",
    # Topics that were deleted, and whose messages are not all gone yet.
    "CREATE TABLE remains (number INTEGER PRIMARY KEY) STRICT",
    # The last version, and the last number of a topic, that were given.
    f"CREATE TABLE head ({HEAD_COLUMNS}) STRICT",
    "INSERT INTO head VALUES (1, 0, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
SETTINGS = (
    "PRAGMA synchronous = FULL",
    # Only macOS knows these: `fsync` alone leaves bytes in the cache of the drive there.
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    f"PRAGMA cache_size = -{CACHE_KIB}",
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
    f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}",
    # What was deleted is not to be found in the file. It takes nothing that could be measured.
    "PRAGMA secure_delete = ON",
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


def open_file(file: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the file; make it when it is missing."""
    if not file.exists():
        make_file(file)
    connection = connect(file, timeout_s=busy_timeout_s)
    try:
        # Before anything is read. Nobody else may change the file behind our back, and without
        # memory to share with others a transaction takes less.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        check_format(file, connection)
        for setting in SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def check_format(file: Path, connection: sqlite3.Connection) -> None:
    """Raise for a file that is not ours, or not yet."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    if owner != APPLICATION_ID:
        raise CorruptedError(str(file), APPLICATION_ID_POSITION, "it has no timelines")
    if number != FORMAT:
        reason = f"format {number} is not {FORMAT}: use a newer ister"
        raise CorruptedError(str(file), FORMAT_POSITION, reason)


def make_file(file: Path) -> None:
    """Make a file without timelines, and the folders above it, durably.

    It is made under another name and then linked to its own: it is whole or absent, whenever the
    process ends, and of two processes that make it at once both get the same.
    """
    make_folder(file.parent)
    temporary = file.with_name(f".new-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        fill_file(temporary)
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        os.close(descriptor)
        for name in (temporary.name, f"{temporary.name}-wal", f"{temporary.name}-shm"):
            temporary.with_name(name).unlink(missing_ok=True)
    sync_folder(file.parent)


def fill_file(file: Path) -> None:
    """Make tables in an empty file."""
    connection = connect(file, timeout_s=0)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageFailedError(f"{file.parent} takes no files with a write-ahead log")
        with transaction(connection):
            for statement in TABLES:
                connection.execute(statement)
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


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably; it may be there."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
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
        raise StorageFailedError(f"{file}: {error}") from error
    except OSError as error:
        raise StorageFailedError(f"{file}: {error.strerror or error}") from error
    except OverflowError as error:
        raise BadRequestError("a number is larger than 63 bits") from error
