"""The table of facts in one file of SQLite: blocking, for one thread.

Always true:
- a write that returned is on the disk: write-ahead log, synced at every commit;
- every row has a checksum of what was written, which SQLite itself does not keep: a changed byte
  is told, not handed out;
- reading makes no file; the first write does, and it is whole or absent;
- a file that is not ours, or of another format, is not touched;
- after an error of the storage nothing is remembered: the next call opens the file again, so that
  what it finds is what the disk has. A write that failed may be found there; it was promised to
  nobody.

The format of the file is `FORMAT`, in `PRAGMA user_version`.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ister import database
from ister.base.errors import CorruptedError, IsterError, RevisionMismatchError, StorageFailedError
from ister.metadata.facts import LAST_CHARACTER, Change, Fact, Facts, Put, holds

# The write-ahead log is cut to this when a long one has been copied into the file.
WAL_BYTES_KEPT = 4 * 1024 * 1024

FACTS_COLUMNS = (
    "key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, crc INTEGER NOT NULL"
)
TABLES = (
    f"CREATE TABLE facts ({FACTS_COLUMNS})",
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL)",
    "INSERT INTO head VALUES (1, 0)",
)
FORMAT = database.Format(
    application_id=0x69737472,  # "istr"
    number=1,
    tables=TABLES,
    foreign="it is no table of facts",
)
SETTINGS = (*database.SETTINGS, f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
GET = "SELECT key, value, revision, crc FROM facts WHERE key = ?"
LIST = (
    "SELECT key, value, revision, crc FROM facts"
    " WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?"
)

# Each a position in the file, 0 when that is not known, and what is wrong.
Faults = list[tuple[int, str]]


class FactTable:
    """The facts of one file. Raises `StorageFailedError` and `CorruptedError`."""

    def __init__(self, file: Path, *, busy_timeout_s: float) -> None:
        self._file = file.absolute()
        self._busy_timeout_s = busy_timeout_s
        self._was_there = False
        self._connection: sqlite3.Connection | None = None

    def get(self, key: str) -> Fact | None:
        """Return the fact of that key, if there is one."""
        with self._translated():
            connection = self._open()
            if connection is None:
                return None
            row = connection.execute(GET, (key,)).fetchone()
            return self._fact(row) if row else None

    def list(self, prefix: str, after: str, limit: int) -> Facts:
        """Return the first `limit` facts below `prefix` and behind `after`, by key."""
        with self._translated():
            connection = self._open()
            if connection is None:
                return []
            values = (prefix, after, prefix + LAST_CHARACTER, limit)
            return [self._fact(row) for row in connection.execute(LIST, values)]

    def write(self, changes: Sequence[Change]) -> int:
        """Make all changes or none, durably; return their revision."""
        with self._translated():
            connection = self._open_to_write()
            with database.transaction(connection):
                for change in changes:
                    if not holds(change.revision, revision_of(connection, change.key)):
                        raise RevisionMismatchError(change.key)
                revision = self._next_revision(connection)
                for change in changes:
                    apply(connection, change, revision)
            return revision

    def verify(self, faults_max: int) -> tuple[int, Faults]:
        """Read everything; return how many facts are there, and what is not as it was written.

        Raises `CorruptedError` when nothing more can be read.
        """
        faults: Faults = []
        with self._translated():
            connection = self._open()
            if connection is None:
                return 0, []
            found = connection.execute(f"PRAGMA integrity_check({faults_max})")
            faults += [(0, text) for (text,) in found if text != "ok"]
            facts = newest = 0
            for row in connection.execute("SELECT key, value, revision, crc FROM facts"):
                facts += 1
                try:
                    newest = max(newest, self._fact(row).revision)
                except CorruptedError as error:
                    faults.append((error.position, error.reason))
            match connection.execute("SELECT revision FROM head").fetchall():
                case [(int(revision),)] if revision >= newest:
                    pass
                case _:
                    faults.append((0, "the revision of the table is not what was written"))
            return facts, faults[:faults_max]

    def close(self) -> None:
        """Let go of the file. What was written is in it by then, if the disk lets it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    # Opening

    def _open(self) -> sqlite3.Connection | None:
        """Return the connection, or `None` when there is no file yet."""
        if self._is_there() and self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _open_to_write(self) -> sqlite3.Connection:
        """Return the connection; make the file when it is missing."""
        if not self._is_there():
            database.make_file(self._file, FORMAT)
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _is_there(self) -> bool:
        """Whether there is a file. Raises when it is gone: writes to it would go nowhere."""
        if self._file.exists():
            self._was_there = True
        elif self._was_there:
            self.close()
            raise StorageFailedError(f"{self._file} is gone: put it back")
        return self._was_there

    def _connect(self) -> sqlite3.Connection:
        connection = database.connect(self._file, timeout_s=self._busy_timeout_s)
        try:
            database.check_format(self._file, connection, FORMAT)
            for setting in SETTINGS:
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def _next_revision(self, connection: sqlite3.Connection) -> int:
        match connection.execute("SELECT revision FROM head").fetchall():
            case [(int(revision),)]:
                connection.execute("UPDATE head SET revision = ?", (revision + 1,))
                return revision + 1
            case _:
                raise self._damage("the revision of the table is missing")

    # Errors

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with database.translated(self._file):
                yield
        except (StorageFailedError, CorruptedError):
            self.close()
            raise

    def _damage(self, reason: str) -> IsterError:
        return CorruptedError(str(self._file), 0, reason)

    def _fact(self, row: tuple[object, ...]) -> Fact:
        match row:
            case (str(key), bytes(value), int(revision), int(crc)) if crc == checksum(
                key, value, revision
            ):
                return Fact(key, value, revision)
            case _:
                raise self._damage(f"fact {row[0]!r} is not what was written")


def revision_of(connection: sqlite3.Connection, key: str) -> int:
    """Return the revision a fact is at, 0 when it is absent."""
    row = connection.execute("SELECT revision FROM facts WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def apply(connection: sqlite3.Connection, change: Change, revision: int) -> None:
    """Make one change."""
    if isinstance(change, Put):
        crc = checksum(change.key, change.value, revision)
        connection.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)",
            (change.key, change.value, revision, crc),
        )
    else:
        connection.execute("DELETE FROM facts WHERE key = ?", (change.key,))


def checksum(key: str, value: bytes, revision: int) -> int:
    """Return the checksum of a row."""
    return zlib.crc32(value, zlib.crc32(f"{revision} {key}".encode()))
