"""Writing decided changes into the tables of SQLite."""

import sqlite3
from collections.abc import Sequence
from zlib import crc32

from ister.base.errors import StorageFailedError
from ister.timeline.model import Row
from ister.timeline.sqlite.change_set import Writes
from ister.timeline.sqlite.put_log import Logged
from ister.timeline.sqlite.statements import ADD, LEASE, json_list, put_row

CHANGE = "UPDATE messages SET version = ?, due = ?, leases = ? WHERE seq = ?"
UPDATE = "UPDATE messages SET payload = ?, attributes = ?, crc = ? WHERE seq = ?"
MOVE = "UPDATE messages SET topic = ?, id = ?, level = ? WHERE seq = ?"
REMOVE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
FREE_AGAIN = "DELETE FROM leases WHERE seq IN (SELECT value FROM json_each(?))"


def checkpoint(connection: sqlite3.Connection) -> None:
    """Have on the disk what the write-ahead log has, or raise.

    A commit whose sync failed, or that was killed before it, is found there and counts, though
    nobody knows whether it would outlive a power cut. What was only copied into it must not be
    removed elsewhere before that is known.
    """
    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StorageFailedError("the write-ahead log of timelines is in use")


def store_logged(connection: sqlite3.Connection, logged: Sequence[Logged]) -> None:
    """Store the puts of a log, and up to which version that was done."""
    connection.executemany(ADD, [put_row(put, version) for version, put in logged])
    connection.execute("UPDATE head SET logged = ?", (logged[-1].version,))


def write(connection: sqlite3.Connection, writes: Writes) -> None:
    """Do to the file what was decided."""
    if writes.removed:
        connection.execute(REMOVE, (json_list(writes.removed),))
    if writes.freed:
        connection.execute(FREE_AGAIN, (json_list(writes.freed),))
    if writes.moved:
        connection.executemany(
            MOVE, [(row.topic, row.id, row.level, row.seq) for row in writes.moved]
        )
    if writes.changed:
        connection.executemany(
            CHANGE, [(row.version, row.due_ms, row.leases, row.seq) for row in writes.changed]
        )
    if writes.updated:
        connection.executemany(
            UPDATE,
            [(row.payload, row.attributes, checksum(row), row.seq) for row in writes.updated],
        )
    if writes.added:
        connection.executemany(
            ADD, [row[:6] + row[7:8] + row[9:] + (checksum(row),) for row in writes.added]
        )
    if writes.leased:
        connection.executemany(
            LEASE,
            [
                (seq, topic, level, due_ms, position_ms, version, holder, leases)
                for topic, seq, _, version, level, due_ms, position_ms, _, holder, leases, _, _ in (
                    writes.leased
                )
            ],
        )


def checksum(row: Row) -> int:
    """Return the checksum of what a message carries."""
    return crc32(row[11], crc32(row[10]))
