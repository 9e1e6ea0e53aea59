"""A new file of timelines with what can still be read of a damaged one.

Always true:
- a message is as it was put: its payload has its checksum, and where the indexes can be read, they
  say of it what its row says;
- one that was dealt with does not come back: puts are taken from their log only where the tables
  tell which of them they had;
- a lease that cannot be read is over: its message is due again.
"""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from ister import database
from ister.base.errors import CorruptedError
from ister.database import Rows, is_intact
from ister.timeline.port import TopicRow
from ister.timeline.sqlite.check import held
from ister.timeline.sqlite.file import FORMAT, SETTINGS
from ister.timeline.sqlite.put_log import LOG_BYTES, SUFFIX, Logged, salvage_puts
from ister.timeline.sqlite.statements import put_row
from ister.timeline.sqlite.store import RESERVED_VERSIONS

# Written with one commit.
ROWS_AT_ONCE = 1_000
READ = (
    "SELECT seq, topic, id, version, level, due, owner, leases, payload, attributes, crc"
    " FROM messages"
)
MESSAGE_KINDS = (int, int, str, int, int, int, str, int, bytes, bytes, int)
ADD = (
    "INSERT OR IGNORE INTO messages (seq, topic, id, version, level, due, owner, leases, payload,"
    " attributes, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ADD_PUT = (
    "INSERT OR IGNORE INTO messages (topic, seq, id, version, level, due, owner, leases, payload,"
    " attributes, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
READ_LEASES = "SELECT seq, topic, level, due, position, version, holder, leases FROM leases"
LEASE_KINDS = (int, int, int, int, int, int, str, int)
ADD_LEASE = (
    "INSERT OR IGNORE INTO leases (seq, topic, level, due, position, version, holder, leases)"
    " SELECT ?, ?, ?, ?, ?, ?, ?, ? FROM messages WHERE seq = ? AND topic = ? AND level = ?"
    " AND due = ?"
)
IN_ORDER = (
    "SELECT 1 FROM messages INDEXED BY message_order"
    " WHERE topic = ? AND level = ? AND due = ? AND seq = ? AND version = ?"
)
IN_IDS = "SELECT 1 FROM messages INDEXED BY message_ids WHERE topic = ? AND id = ? AND rowid = ?"
COUNT_ORDERED = "SELECT count(*) FROM messages INDEXED BY message_order"
ALL_IDS = "SELECT seq, topic FROM messages INDEXED BY message_ids ORDER BY topic, id"


@dataclass(slots=True)
class SalvagedTimelines:
    """What was found, and how many messages of each timeline are lost by its name."""

    topics: int = 0
    messages: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    # Timelines that are lost with all they had.
    lost_topics: list[str] = field(default_factory=list)
    # Whether that is all that is lost.
    is_whole: bool = True
    notes: list[str] = field(default_factory=list)


def salvage_timelines(
    file: Path,
    target: Path,
    check: Callable[[list[TopicRow]], None],
    on_progress: Callable[[int], object] = lambda _: None,
) -> SalvagedTimelines:
    """Write what can be read of `file` into a new file. `check` raises `CorruptedError` for topics.

    Raises `StorageTakenError` while a broker has it, and `StorageFailedError`.
    """
    with held(file), database.copied(file, SUFFIX) as copy:
        data = copy.with_name(f"{copy.name}{SUFFIX}")
        log = data.read_bytes()[:LOG_BYTES] if data.exists() else b""
        with database.translated(target):
            database.make_file(target, FORMAT)
            source = database.connect(copy, timeout_s=0)
            new = database.connect(target, timeout_s=0)
            try:
                for setting in SETTINGS:
                    new.execute(setting)
                salvage = _Salvage(source, new, check, on_progress)
                salvage.run(log)
            finally:
                source.close()
                new.close()
    return salvage.report


class _Salvage:
    def __init__(
        self,
        source: sqlite3.Connection,
        new: sqlite3.Connection,
        check: Callable[[list[TopicRow]], None],
        on_progress: Callable[[int], object],
    ) -> None:
        self.report = SalvagedTimelines()
        self._source = source
        self._new = new
        self._check = check
        self._on_progress = on_progress
        self._is_intact = is_intact(source)
        self._topics: dict[int, TopicRow] = {}
        self._pending_deletes: set[int] = set()
        self._seqs: set[int] = set()
        self._version = 0
        self._number = 0
        self._lost: dict[int, int] = {}

    def run(self, log: bytes) -> None:
        version, number, logged = self._read_head()
        self._read_topics()
        self._copy_messages()
        self._copy_leases()
        self._count_lost()
        self._take_puts(log, logged)
        # Nothing is ever given twice, also where nothing tells any more what was given.
        version = max(version or 0, self._version + (RESERVED_VERSIONS if version is None else 0))
        number = max(number or 0, self._number + (RESERVED_VERSIONS if number is None else 0))
        with database.transaction(self._new):
            self._new.execute(
                "UPDATE head SET version = ?, number = ?, logged = ?", (version, number, version)
            )
        for topic, count in sorted(self._lost.items()):
            row = self._topics.get(topic)
            self.report.lost[row.name if row is not None else f"number {topic}"] = count
        self.report.messages = len(self._seqs)

    def _read_head(self) -> tuple[int | None, int | None, int | None]:
        try:
            rows = self._source.execute("SELECT version, number, logged FROM head").fetchall()
        except sqlite3.DatabaseError:
            rows = []
        match rows:
            case [(int(version), int(number), int(logged))] if 0 <= logged <= version:
                return version, number, logged
            case _:
                self.report.notes.append("the last version that was given is lost")
                return None, None, None

    def _read_topics(self) -> None:
        rows = Rows(self._source, "SELECT number, name, kind, settings FROM topics", "number")
        kinds = (int, str, str, bytes)
        found = [TopicRow(*row) for row in rows if tuple(map(type, row)) == kinds]
        remains = Rows(self._source, "SELECT number FROM remains", "number")
        self._pending_deletes = {number for (number,) in remains}
        self.report.is_whole = rows.is_whole and remains.is_whole
        names: set[str] = set()
        for row in found:
            try:
                # With the others: the topic of its rules is one of them.
                self._check([row, *(other for other in found if row.name in other.name[:-1])])
            except (CorruptedError, ValueError):
                self.report.lost_topics.append(row.name)
                continue
            if row.name not in names and row.number not in self._pending_deletes:
                names.add(row.name)
                self._topics[row.number] = row
        self._number = max([*self._pending_deletes, *self._topics], default=0)
        with database.transaction(self._new):
            self._new.executemany(
                "INSERT INTO topics VALUES (?, ?, ?, ?)", list(self._topics.values())
            )
        self.report.topics = len(self._topics)

    def _copy_messages(self) -> None:
        rows = Rows(self._source, READ, "seq")
        for some in _bundles(row for row in rows if self._is_good(row)):
            with database.transaction(self._new):
                self._new.executemany(ADD, some)
            self._on_progress(sum(len(row[8]) + len(row[9]) for row in some))
        self._seqs = {seq for (seq,) in self._new.execute("SELECT seq FROM messages")}

    def _is_good(self, row: tuple[Any, ...]) -> bool:
        if tuple(map(type, row)) != MESSAGE_KINDS:
            return False
        seq, topic, name, version, level, due_ms = row[:6]
        self._number = max(self._number, topic)
        if topic in self._pending_deletes:
            return False
        is_good = crc32(row[9], crc32(row[8])) == row[10] and 0 < seq <= version
        if is_good and not self._is_intact:
            is_good = self._agrees(IN_ORDER, (topic, level, due_ms, seq, version))
            is_good = is_good and self._agrees(IN_IDS, (topic, name, seq))
        is_known = topic in self._topics
        if is_good:
            self._version = max(self._version, version)
        if self._is_intact and not (is_good and is_known):
            self._lost[topic] = self._lost.get(topic, 0) + 1
        return is_good and is_known

    def _agrees(self, query: str, values: tuple[object, ...]) -> bool:
        """Whether an index says of a message what its row says, if it says anything."""
        try:
            return self._source.execute(query, values).fetchone() is not None
        except sqlite3.DatabaseError:
            return True

    def _copy_leases(self) -> None:
        rows = Rows(self._source, READ_LEASES, "seq")
        is_lease = (row for row in rows if tuple(map(type, row)) == LEASE_KINDS)
        for some in _bundles(is_lease):
            self._version = max([self._version, *(row[5] for row in some)])
            with database.transaction(self._new):
                self._new.executemany(ADD_LEASE, [(*row, *row[:4]) for row in some])
        if not rows.is_whole:
            self.report.notes.append("some leases are lost: their messages are due again")

    def _count_lost(self) -> None:
        if self._is_intact:
            return
        try:
            listed = 0
            for seq, topic in self._source.execute(ALL_IDS):
                listed += 1
                if seq not in self._seqs and topic not in self._pending_deletes:
                    self._lost[topic] = self._lost.get(topic, 0) + 1
            # Two indexes that agree are believed.
            [(ordered,)] = self._source.execute(COUNT_ORDERED).fetchall()
            self.report.is_whole &= listed == ordered
        except sqlite3.DatabaseError:
            self.report.is_whole = False

    def _take_puts(self, log: bytes, logged: int | None) -> None:
        found, is_whole = salvage_puts(log, logged or 0)
        self.report.is_whole &= is_whole
        for version, put in found:
            self._version = max(self._version, version)
            if logged is not None and version <= logged:
                continue
            if logged is None or put.topic not in self._topics:
                if put.topic not in self._pending_deletes and version not in self._seqs:
                    self._lost[put.topic] = self._lost.get(put.topic, 0) + 1
                continue
            self._add(Logged(version, put))

    def _add(self, logged: Logged) -> None:
        with database.transaction(self._new):
            self._new.execute(ADD_PUT, put_row(logged.put, logged.version))
        self._seqs.add(logged.version)


def _bundles(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    some: list[tuple[Any, ...]] = []
    for row in rows:
        some.append(row)
        if len(some) == ROWS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some
