"""Verifying the timelines in a file that nobody has open: every message is read, nothing written.

SQLite folds a write-ahead log into its file when it reads it, and the tables take what the log of
puts has. So a file that has one of these, after a crash, is copied somewhere else and looked at
there; one that has none is read where it is.
"""

import fcntl
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ister.base.errors import CorruptedError, StorageTakenError
from ister.database import check_format, copied, translated
from ister.timeline.port import TopicRow
from ister.timeline.sqlite.file import FORMAT
from ister.timeline.sqlite.put_log import SUFFIX
from ister.timeline.sqlite.statements import ALL, WHOLE, is_whole
from ister.timeline.sqlite.store import SqliteStore

# A file of which nothing is right is not worth a list of it.
FAULTS_MAX = 20
# How often somebody is told how far it is.
STEPS = 50
# The bytes that a process of SQLite locks as long as it has the file for itself.
LOCK_START, LOCK_COUNT = 0x40000002, 510

STRAY_LEASES = (
    "SELECT l.topic, l.seq FROM leases AS l LEFT JOIN messages AS m ON m.seq = l.seq"
    " AND (m.topic, m.level, m.due) = (l.topic, l.level, l.due) WHERE m.seq IS NULL"
)
SETTINGS = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")


class TimelinesReport(NamedTuple):
    """What was found; each fault is a position in the file, 0 when not known, and what is wrong."""

    topics: list[TopicRow]
    messages: int
    size_bytes: int
    faults: list[tuple[int, str]]


def check_timelines(
    file: Path, on_progress: Callable[[int], object] = lambda _: None
) -> TimelinesReport:
    """Verify a file of timelines; `on_progress` is told of bytes that are done, all together.

    Raises `StorageTakenError` while a broker has it, and `StorageFailedError`.
    """
    check = _Check(file, on_progress)
    with held(file), _readable(file) as (copy, mode):
        try:
            with translated(file):
                check.run(copy, mode)
        except CorruptedError as error:
            check.faults.append((error.position, error.reason))
    return TimelinesReport(
        check.topics, check.messages, check.size_bytes, check.faults[:FAULTS_MAX]
    )


class _Check:
    """One look at one file."""

    def __init__(self, file: Path, on_progress: Callable[[int], object]) -> None:
        self.topics: list[TopicRow] = []
        self.messages = 0
        self.size_bytes = sum(part.stat().st_size for part in _parts(file))
        self.faults: list[tuple[int, str]] = []
        self._file = file
        self._on_progress = on_progress
        self._pending_deletes: set[int] = set()
        self._version = 0

    def run(self, copy: Path, mode: str) -> None:
        """Read everything."""
        if copy.with_name(f"{copy.name}{SUFFIX}").exists():
            # It has the tables take what is in that log.
            store = SqliteStore(copy)
            store.topics()
            store.close()
        connection = sqlite3.connect(f"{copy.absolute().as_uri()}?{mode}", uri=True)
        try:
            for setting in SETTINGS:
                connection.execute(setting)
            check_format(self._file, connection, FORMAT)
            # Tables and indexes: whether each has what the other has.
            found = connection.execute(f"PRAGMA integrity_check({FAULTS_MAX})")
            self.faults += [(0, text) for (text,) in found if text != "ok"]
            self._read_head(connection)
            self._read_messages(connection)
        finally:
            connection.close()

    def _read_head(self, connection: sqlite3.Connection) -> None:
        topics = connection.execute("SELECT number, name, kind, settings FROM topics")
        self.topics = [TopicRow(*row) for row in topics]
        self._pending_deletes = {
            number for (number,) in connection.execute("SELECT number FROM remains")
        }
        numbers = self._pending_deletes | {topic.number for topic in self.topics}
        match connection.execute("SELECT version, number FROM head").fetchall():
            case [(int(version), int(number))] if number >= max(numbers, default=0):
                self._version = version
            case _:
                raise CorruptedError(str(self._file), 0, "its head is not what was written")

    def _read_messages(self, connection: sqlite3.Connection) -> None:
        (count,) = connection.execute("SELECT count(*) FROM messages").fetchone()
        known = self._pending_deletes | {topic.number for topic in self.topics}
        step = count // STEPS + 1
        for values in connection.execute(f"{WHOLE} {ALL} ORDER BY m.seq"):
            self.messages += 1
            fault = self._fault(values, known)
            if fault and len(self.faults) < FAULTS_MAX:
                self.faults.append((0, f"message {values[2]!r} {fault}"))
            if self.messages % step == 0:
                self._on_progress(self.size_bytes // STEPS)
        for topic, seq in connection.execute(STRAY_LEASES):
            if topic not in self._pending_deletes and len(self.faults) < FAULTS_MAX:
                self.faults.append((0, f"a lease is of message number {seq}, which is not there"))

    def _fault(self, values: tuple[Any, ...], known: set[int]) -> str:
        """Return what is wrong with a message, if something is."""
        if not is_whole(values):
            return "is not what was written"
        topic, seq, _, version, _, due_ms, position_ms = values[:7]
        if topic not in known:
            return f"is of topic {topic}, which is not there"
        if not 0 < seq <= version <= self._version:
            return f"has version {version}, which nobody gave it"
        if position_ms < due_ms:
            return "stands before the time it is due"
        return ""


def _parts(file: Path) -> list[Path]:
    """Return the file, and those of its logs that may have something in them."""
    logs = [file.with_name(f"{file.name}{suffix}") for suffix in ("-wal", SUFFIX)]
    return [file, *(log for log in logs if log.exists() and log.stat().st_size)]


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Keep brokers away from a file while it is looked at, without writing anything."""
    with translated(file), file.open("rb") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB, LOCK_COUNT, LOCK_START)
        except OSError:
            raise StorageTakenError(str(file), "a broker") from None
        yield


@contextmanager
def _readable(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield what to open, and how, so that nothing is changed."""
    if len(_parts(file)) == 1:
        yield file, "mode=ro&immutable=1"
        return
    with copied(file, SUFFIX) as copy:
        yield copy, "mode=rw"
