"""The file of SQLite that timelines are in: its tables, and opening it.

Always true, beside what is true of every file (`database`): one process at a time has it open.
"""

import sqlite3
from pathlib import Path

from ister import database
from ister.base.limits import KIB, MIB

# The pages that a batch of puts, leases and ends touches again and again are those of the last
# few seconds in each index: some megabytes. The operating system has the rest.
CACHE_KIB = 24 * MIB // KIB
# What SQLite takes by itself.
PAGE_BYTES = 4 * KIB
# Whoever fills the write-ahead log copies it into the file, and waits for that: 4 MiB take some
# 5 ms. With 16 MiB nothing was faster, and the longest waits were longer.
CHECKPOINT_PAGES = 4 * MIB // PAGE_BYTES
# The log is cut to this when a long one has been copied into the file.
WAL_BYTES_KEPT = 16 * MIB

COLUMNS = (
    "seq INTEGER PRIMARY KEY, topic INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL,"
    " level INTEGER NOT NULL, due INTEGER NOT NULL, owner TEXT NOT NULL, leases INTEGER NOT NULL,"
    " payload BLOB NOT NULL, attributes BLOB NOT NULL, crc INTEGER NOT NULL"
)
LEASE_COLUMNS = (
    "seq INTEGER PRIMARY KEY, topic INTEGER NOT NULL, level INTEGER NOT NULL, due INTEGER NOT NULL,"
    " position INTEGER NOT NULL, version INTEGER NOT NULL, holder TEXT NOT NULL,"
    " leases INTEGER NOT NULL"
)
TOPIC_COLUMNS = (
    "number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,"
    " settings BLOB NOT NULL"
)
HEAD_COLUMNS = (
    "one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, number INTEGER NOT NULL,"
    " logged INTEGER NOT NULL"
)
TABLES = (
    f"CREATE TABLE messages ({COLUMNS}) STRICT",
    "CREATE UNIQUE INDEX message_ids ON messages (topic, id)",
    # Everything that `scan` returns of messages that nobody has is in it, and in that of leases.
    "CREATE INDEX message_order ON messages (topic, level, due, seq, version)",
    # Of the messages that somebody has or had: what differs from the message as it was put. So a
    # lease is written among the other leases, a few pages, and not where its message is.
    f"CREATE TABLE leases ({LEASE_COLUMNS}) STRICT",
    "CREATE INDEX lease_order ON leases (topic, level, position, seq, version, due)",
    "CREATE INDEX lease_holders ON leases (topic, holder, position)",
    f"CREATE TABLE topics ({TOPIC_COLUMNS}) STRICT",
    # Topics that were deleted, and whose messages are not all gone yet.
    "CREATE TABLE remains (number INTEGER PRIMARY KEY) STRICT",
    # The last version, and the last number of a topic, that were given; and the version of the last
    # put that was stored from a log of puts, which earlier versions had (`put_log.py`).
    f"CREATE TABLE head ({HEAD_COLUMNS}) STRICT",
    "INSERT INTO head VALUES (1, 0, 0, 0)",
)
FORMAT = database.Format(
    application_id=0x69737474,  # "istt"
    number=3,
    tables=TABLES,
    foreign="it has no timelines",
)
SETTINGS = (
    *database.SETTINGS,
    f"PRAGMA cache_size = -{CACHE_KIB}",
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
    f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}",
    # What was deleted is not to be found in the file. It takes nothing that could be measured.
    "PRAGMA secure_delete = ON",
)


def open_file(file: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the file; make it when it is missing."""
    if not file.exists():
        database.make_file(file, FORMAT)
    connection = database.connect(file, timeout_s=busy_timeout_s)
    try:
        # Before anything is read. Nobody else may change the file behind our back, and without
        # memory to share with others a transaction takes less.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.check_format(file, connection, FORMAT)
        for setting in SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection
