"""Timelines in one file of SQLite: blocking, for one thread at a time.

Always true:
- what `apply` returned for is on the disk, together;
- a payload that is not what was written is told, not handed out: it has a checksum, which SQLite
  itself does not keep;
- nothing of a message is in memory between two calls;
- after an error of the storage nothing is remembered: the next call opens the file again, so that
  what it finds is what the disk has;
- on a full disk messages are refused, and all else goes on with a reserve (`reserve.py`).

A topic that is deleted is gone at once, its messages a few with each `apply` that comes after:
millions of them would hold up everybody else for minutes.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ister.base.errors import (
    CorruptedError,
    DiskFullError,
    IsterError,
    StorageFailedError,
    TopicExistsError,
)
from ister.database import copy_to, transaction, translated
from ister.objects import LocalDisk
from ister.timeline.model import FAR, Bury, Done, Lease, Redrive, Row, Slot, Work, new_row
from ister.timeline.port import Outcomes, TopicRow
from ister.timeline.rules import apply_changes
from ister.timeline.sqlite.change_set import UNREAD, ChangeSet
from ister.timeline.sqlite.file import CHECKPOINT_PAGES, PAGE_BYTES, open_file
from ister.timeline.sqlite.put_log import SUFFIX, load_puts
from ister.timeline.sqlite.reserve import FULL_PAGES, FullDiskCommits, Reserve, with_reserve
from ister.timeline.sqlite.statements import (
    ALL,
    AMONG,
    FIND_SEQS,
    SLIM,
    SLIM_KINDS,
    WHOLE,
    is_whole,
    json_list,
)
from ister.timeline.sqlite.writes import checkpoint, store_logged, write

if TYPE_CHECKING:
    from ister.log import Disk

FILE_NAME = "timelines.db"
# A killed broker leaves its process behind for as long as that takes to start and to see so: some
# tenths of a second, or seconds where processors are few. A restart waits for it.
BUSY_TIMEOUT_S = 15.0
BEFORE_ALL = (-FAR, 0)
# Versions are taken from the file so many at a time, or each commit would write a page more for
# that. Those that were not given when it is opened again never are.
RESERVED_VERSIONS = 1_000_000
# A message takes about 10 µs to remove, and others wait for 2 ms at most.
PENDING_DELETES_PER_CALL = 200

FREE = "NOT EXISTS (SELECT 1 FROM leases AS l WHERE l.seq = m.seq)"
LEASED = "JOIN messages AS m ON m.seq = l.seq"
FIND = f"{WHOLE} {ALL} WHERE m.topic = ? AND m.id = ?"
FIND_SEQ = f"{WHOLE} {ALL} WHERE m.seq = ?"
FIND_IDS = f"{SLIM} {ALL} WHERE m.topic = ? AND m.id {AMONG}"
FIND_SLIM_SEQS = f"{SLIM} {ALL} WHERE m.seq {AMONG}"
# What stands in a range of a level, in order: first of those that nobody has, then of the others.
FREE_ORDER = "FROM messages AS m INDEXED BY message_order"
IN_FREE = f"WHERE m.topic = ? AND m.level = ? AND (m.due, m.seq) > (?, ?) AND m.due <= ? AND {FREE}"
FREE_LIMIT = "ORDER BY m.due, m.seq LIMIT ?"
LEASE_ORDER = "FROM leases AS l INDEXED BY lease_order"
IN_LEASED = "WHERE l.topic = ? AND l.level = ? AND (l.position, l.seq) > (?, ?) AND l.position <= ?"
LEASED_LIMIT = "ORDER BY l.position, l.seq LIMIT ?"
SCAN = (
    f"SELECT m.due, m.seq, m.version, m.due {FREE_ORDER} {IN_FREE} {FREE_LIMIT}",
    f"SELECT l.position, l.seq, l.version, l.due {LEASE_ORDER} {IN_LEASED} {LEASED_LIMIT}",
)
FREE_WHOLE = (
    "SELECT m.topic, m.seq, m.id, m.version, m.level, m.due, m.due, m.owner, '', m.leases,"
    " m.payload, m.attributes, m.crc"
)
PAGE = (
    f"{FREE_WHOLE} {FREE_ORDER} {IN_FREE} {FREE_LIMIT}",
    f"{WHOLE} {LEASE_ORDER} {LEASED} {IN_LEASED} {LEASED_LIMIT}",
)
COUNT = (
    "SELECT count(*) FROM messages INDEXED BY message_order"
    " WHERE topic = ? AND level = ? AND due >= ? AND due < ?"
)
# Of those, how many stand elsewhere; and how many stand there instead.
COUNT_LEFT = "SELECT count(*) FROM leases WHERE topic = ? AND level = ? AND due >= ? AND due < ?"
COUNT_LEASED = (
    "SELECT count(*) FROM leases INDEXED BY lease_order"
    " WHERE topic = ? AND level = ? AND position >= ? AND position < ?"
)
NEXT_LEVEL = (
    "SELECT level FROM messages INDEXED BY message_order"
    " WHERE topic = ? AND level > ? ORDER BY level LIMIT 1"
)
HELD = (
    f"{WHOLE} FROM leases AS l INDEXED BY lease_holders {LEASED}"
    " WHERE l.topic = ? AND l.holder = ? AND (l.position, l.seq) > (?, ?)"
    " ORDER BY l.position, l.seq LIMIT ?"
)
CLEAR = (
    "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY message_order"
    " WHERE topic = ? LIMIT ?)"
)
CLEAR_LEASES = (
    "DELETE FROM leases WHERE seq IN (SELECT seq FROM leases INDEXED BY lease_order"
    " WHERE topic = ? LIMIT ?)"
)


class SqliteStore:
    """See `Store`. Raises `StorageFailedError` and `CorruptedError`."""

    def __init__(
        self,
        file: Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        was_there: bool = False,
        disk: "Disk | None" = None,
        reserve_bytes: int = 0,
        on_locked: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep timelines in `file`, which is opened by the first call.

        `disk` is the folder of the file. `reserve_bytes` of it are kept for when it is full.
        `on_locked` is called whenever the file has been locked, before anything in it is changed.
        """
        self._file = file.absolute()
        self._log_name = f"{file.name}{SUFFIX}"
        self._disk = disk or LocalDisk(self._file.parent)
        self._reserve = Reserve(self._disk, self._file.parent, file.name, reserve_bytes)
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._was_there = was_there
        self._on_locked = on_locked
        # Of the file that is open.
        self._topics: dict[int, TopicRow] = {}
        self._pending_deletes: set[int] = set()
        # The last version that was given, and up to which they are ours by the file.
        self._version = 0
        self._reserved = 0

    @with_reserve
    def topics(self) -> list[TopicRow]:
        """See `Store`."""
        with self._file_open():
            return list(self._topics.values())

    @with_reserve
    def create_topic(self, name: str, kind: str, settings: bytes) -> TopicRow:
        """See `Store`."""
        with self._file_open() as connection:
            if any(topic.name == name for topic in self._topics.values()):
                raise TopicExistsError(name, "in the timelines")
            with transaction(connection):
                connection.execute("UPDATE head SET number = number + 1")
                (number,) = connection.execute("SELECT number FROM head").fetchone()
                topic = TopicRow(number, name, kind, settings)
                connection.execute("INSERT INTO topics VALUES (?, ?, ?, ?)", topic)
            self._topics[number] = topic
            return topic

    @with_reserve
    def delete_topic(self, number: int) -> None:
        """See `Store`."""
        with self._file_open() as connection:
            if number not in self._topics:
                return
            with transaction(connection):
                connection.execute("DELETE FROM topics WHERE number = ?", (number,))
                connection.execute("INSERT INTO remains VALUES (?)", (number,))
            del self._topics[number]
            self._pending_deletes.add(number)

    def apply(self, now_ms: int, work: Sequence[Work]) -> list[Outcomes]:
        """See `Store`. On a full disk, changes that store more get `DiskFullError`."""
        reserve = self._reserve
        # Twice: a file that was opened again has given back the room of its write-ahead log.
        for _ in range(2):
            if not reserve.is_whole:
                self._look_for_room()
            if reserve.is_full:
                break
            try:
                return self._commit(now_ms, work)
            except DiskFullError:
                reserve.is_full, reserve.is_whole = True, False
        commits = FullDiskCommits(
            lambda part: self._commit(now_ms, [part])[0],
            lambda part: self._commit_reserved(now_ms, [part])[0],
            leases=not reserve.refuses_leases,
        )
        return [commits.make(piece) for piece in work]

    @with_reserve
    def _commit_reserved(self, now_ms: int, work: Sequence[Work]) -> list[Outcomes]:
        return self._commit(now_ms, work)

    def _commit(self, now_ms: int, work: Sequence[Work]) -> list[Outcomes]:
        with self._file_open() as connection:
            version, reserved = self._version, self._reserved
            end = version + sum(len(piece.changes) for piece in work)
            with transaction(connection):
                if end > reserved:
                    reserved = end + RESERVED_VERSIONS
                    connection.execute("UPDATE head SET version = ?", (reserved,))
                outcomes = self._make(connection, now_ms, work, version + 1)
                cleared = self._clear(connection)
            self._version, self._reserved = end, reserved
            self._pending_deletes -= cleared
            return outcomes

    @with_reserve
    def _look_for_room(self) -> None:
        """Take messages again, if there is room for them by now."""
        with self._file_open() as connection:
            (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
            self._reserve.find_room(pages * PAGE_BYTES)
            self._set_checkpoints(connection)

    def _make(
        self,
        connection: sqlite3.Connection,
        now_ms: int,
        work: Sequence[Work],
        version: int,
    ) -> list[Outcomes]:
        """Make changes, the first with `version`."""
        change_set = ChangeSet(
            self._topics,
            load=lambda topic, name: self._find(connection, topic, name),
            load_seq=lambda seq: self._find_seq(connection, seq),
        )
        self._read(change_set, connection, work)
        outcomes = apply_changes(change_set, now_ms, work, version)
        write(connection, change_set.writes())
        return outcomes

    @with_reserve
    def scan(
        self, topic: int, level: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[Slot]:
        """See `Store`."""
        with self._file_open() as connection:
            if topic not in self._topics:
                return []
            values = (topic, level, *after, until_ms, limit)
            free, leased = (connection.execute(query, values).fetchall() for query in SCAN)
            slots = [Slot(due_ms, seq, version, due_ms, False) for due_ms, seq, version, _ in free]
            slots += [
                Slot(position_ms, seq, version, due_ms, True)
                for position_ms, seq, version, due_ms in leased
            ]
            if leased:
                slots.sort()
                del slots[limit:]
            return slots

    @with_reserve
    def levels(self, topic: int) -> dict[int, int]:
        """See `Store`."""
        with self._file_open() as connection:
            everything = (*BEFORE_ALL, FAR, 1)
            return {
                level: min(
                    position_ms
                    for query in SCAN
                    for position_ms, *_ in connection.execute(query, (topic, level, *everything))
                )
                for level in self._levels(connection, topic)
            }

    @with_reserve
    def held(self, topic: int, holder: str, after: tuple[int, int], limit: int) -> list[Row]:
        """See `Store`."""
        with self._file_open() as connection:
            if topic not in self._topics:
                return []
            return self._whole(connection.execute(HELD, (topic, holder, *after, limit)))

    @with_reserve
    def get(self, topic: int, id: str) -> Row | None:
        """See `Store`."""
        with self._file_open() as connection:
            if topic not in self._topics:
                return None
            return self._find(connection, topic, id)

    @with_reserve
    def page(
        self, topic: int, start_ms: int, end_ms: int, after: tuple[int, int], limit: int
    ) -> list[Row]:
        """See `Store`."""
        # Of each level as many as are asked for: the levels of a topic are few.
        after = max(after, (start_ms, -1))
        with self._file_open() as connection:
            found: list[Row] = []
            for level in self._levels(connection, topic):
                values = (topic, level, *after, end_ms - 1, limit)
                for query in PAGE:
                    found += self._whole(connection.execute(query, values))
                found.sort(key=lambda row: (row.position_ms, row.seq))
                del found[limit:]
            return found

    @with_reserve
    def count(self, topic: int, start_ms: int, end_ms: int) -> int:
        """See `Store`. Takes longer the more there are: a second for 2 to 5 million."""
        with self._file_open() as connection:
            count = 0
            for level in self._levels(connection, topic):
                values = (topic, level, start_ms, end_ms)
                all_, left, leased = (
                    int(connection.execute(query, values).fetchone()[0])
                    for query in (COUNT, COUNT_LEFT, COUNT_LEASED)
                )
                count += all_ - left + leased
            return count

    def back_up(self, file: Path) -> bool:
        """Write everything into a new file, as it is now; return whether there was something.

        Nothing changes meanwhile: a call is made when the one before it has returned.
        """
        if not self._file.exists():
            return False  # Opening would make it.
        with self._file_open() as connection:
            pass
        # Outside: the file is no worse for an error of its copy.
        with translated(file):
            copy_to(connection, file)
        return True

    @with_reserve
    def close(self) -> None:
        """See `Store`."""
        if self._connection is not None:
            with self._file_open() as connection:
                if self._reserved > self._version:
                    # Versions are lost by a crash alone.
                    connection.execute("UPDATE head SET version = ?", (self._version,))
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with translated(self._file):
                connection.close()

    # Reading

    def _read(
        self, change_set: ChangeSet, connection: sqlite3.Connection, work: Sequence[Work]
    ) -> None:
        """Read the messages that work is about, those to be leased with their payloads."""
        seqs: list[int] = []
        done_seqs: list[int] = []
        ids: dict[int, list[str]] = {}
        for piece in work:
            for change in piece.changes:
                if isinstance(change, Lease | Bury | Redrive):
                    seqs.append(change.seq)
                elif isinstance(change, Done) and change.seq:
                    done_seqs.append(change.seq)
                elif change.topic in ids:
                    ids[change.topic].append(change.id)
                else:
                    ids[change.topic] = [change.id]
        if seqs:
            found = connection.execute(FIND_SEQS, (json_list(seqs),))
            # One that is broken is found so by whoever asks for it, and by nobody else.
            change_set.add([new_row(Row, values[:-1]) for values in found if is_whole(values)])
        if done_seqs:
            change_set.add(self._slim(connection.execute(FIND_SLIM_SEQS, (json_list(done_seqs),))))
        for topic, names in ids.items():
            rows: list[Row] = []
            if topic in self._topics:
                rows = self._slim(connection.execute(FIND_IDS, (topic, json.dumps(names))))
            change_set.add_ids(topic, names, rows)

    def _find(self, connection: sqlite3.Connection, topic: int, id: str) -> Row | None:
        for row in self._whole(connection.execute(FIND, (topic, id))):
            return row
        return None

    def _find_seq(self, connection: sqlite3.Connection, seq: int) -> Row | None:
        for row in self._whole(connection.execute(FIND_SEQ, (seq,))):
            return row
        return None

    def _levels(self, connection: sqlite3.Connection, topic: int) -> Iterator[int]:
        level = -1
        while topic in self._topics:
            found = connection.execute(NEXT_LEVEL, (topic, level)).fetchone()
            if found is None:
                return
            (level,) = found
            yield level

    def _whole(self, found: Iterable[tuple[Any, ...]]) -> list[Row]:
        """Return messages that are what was written, or raise."""
        rows = []
        for values in found:
            if not is_whole(values):
                raise self._damage(f"message {values[2]!r} is not what was written")
            rows.append(new_row(Row, values[:-1]))
        return rows

    def _slim(self, found: Iterable[tuple[Any, ...]]) -> list[Row]:
        """Return messages without what they carry."""
        rows = []
        for values in found:
            if tuple(map(type, values)) != SLIM_KINDS:
                raise self._damage(f"message {values[2]!r} is not what was written")
            rows.append(new_row(Row, (*values, UNREAD, UNREAD)))
        return rows

    # Opening

    @contextmanager
    def _file_open(self) -> Iterator[sqlite3.Connection]:
        with self._closed_on_failure():
            yield self._open()

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            with translated(self._file):
                yield
        except (StorageFailedError, CorruptedError):
            # Not as one that is closed: what the file has by now is not known.
            with suppress(IsterError):
                self._disconnect()
            raise

    def _open(self) -> sqlite3.Connection:
        if self._was_there and not self._file.exists():
            raise StorageFailedError(f"{self._file} is gone: put it back")
        if self._connection is None:
            self._connection = open_file(self._file, busy_timeout_s=self._busy_timeout_s)
            self._on_locked()
            self._was_there = True
            self._begin(self._connection)
        return self._connection

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Read what is known of a file while it is open."""
        checkpoint(connection)
        self._reserve.open()
        self._set_checkpoints(connection)
        topics = connection.execute("SELECT number, name, kind, settings FROM topics")
        self._topics = {row[0]: TopicRow(*row) for row in topics}
        self._pending_deletes = {row[0] for row in connection.execute("SELECT number FROM remains")}
        (newest,) = connection.execute("SELECT coalesce(max(seq), 0) FROM messages").fetchone()
        match connection.execute("SELECT version, logged FROM head").fetchall():
            case [(int(version), int(logged))] if version >= max(newest, logged):
                self._version = self._reserved = version
            case _:
                raise self._damage("the last version is not what was written")
        self._take_put_log(connection, logged)

    def _set_checkpoints(self, connection: sqlite3.Connection) -> None:
        """Say how long the write-ahead log may become before it is copied into the file."""
        pages = FULL_PAGES if self._reserve.is_full else CHECKPOINT_PAGES
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    def _take_put_log(self, connection: sqlite3.Connection, logged: int) -> None:
        """Store the puts that an earlier version has left in a log of its own, and remove that."""
        puts = load_puts(self._disk, self._log_name, after=logged)
        if puts:
            if puts[-1].version > self._version:
                raise self._damage("the log of puts has versions that nobody gave")
            with transaction(connection):
                store_logged(connection, puts)
        with suppress(OSError):  # Then it is found again, and nothing in it is new.
            self._disk.remove(self._log_name)

    def _damage(self, reason: str) -> IsterError:
        return CorruptedError(str(self._file), 0, reason)

    # Removing topics

    def _clear(self, connection: sqlite3.Connection) -> set[int]:
        """Remove some messages of a topic that is gone; return it when it has no more."""
        for number in self._pending_deletes:
            values = (number, PENDING_DELETES_PER_CALL)
            left = [connection.execute(query, values).rowcount for query in (CLEAR, CLEAR_LEASES)]
            if PENDING_DELETES_PER_CALL in left:
                break
            connection.execute("DELETE FROM remains WHERE number = ?", (number,))
            return {number}
        return set()
