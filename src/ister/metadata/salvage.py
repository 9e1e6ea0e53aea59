"""What can still be read of facts, and a new file with them."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from ister import database
from ister.database import Rows
from ister.metadata.facts import Fact
from ister.metadata.sqlite import FILE_NAME
from ister.metadata.table import FORMAT, SETTINGS, checksum

# A revision never comes again: where the last one is lost, more than were ever given since.
REVISIONS_SKIPPED = 1_000_000


class SalvagedFacts(NamedTuple):
    """What was found; `lost` are keys, and `is_whole` tells whether these are all."""

    facts: list[Fact]
    revision: int
    lost: list[str]
    is_whole: bool


def salvage_facts(folder: Path) -> SalvagedFacts:
    """Return the facts in a folder that are as they were written; the folder has to be a copy."""
    connection = database.connect(folder / FILE_NAME, timeout_s=0)
    try:
        facts, seen, is_whole = _read_facts(connection)
        try:
            keys = {key for (key,) in connection.execute("SELECT key FROM facts ORDER BY key")}
        except sqlite3.DatabaseError:
            keys = set()
        try:
            [(revision,)] = connection.execute("SELECT revision FROM head").fetchall()
        except (sqlite3.DatabaseError, ValueError):
            revision = None
    finally:
        connection.close()
    newest = max((fact.revision for fact in facts), default=0)
    if not isinstance(revision, int) or revision < newest:
        revision = newest + REVISIONS_SKIPPED
    known = {fact.key for fact in facts}
    lost = {*seen, *keys} - known
    # The index has the keys of what the table has lost, unless it is damaged itself.
    is_whole = all(isinstance(key, str) and key.isprintable() for key in lost) and (
        (bool(keys) and known <= keys) or (is_whole and not seen)
    )
    return SalvagedFacts(facts, revision, sorted(map(str, lost)), is_whole)


def _read_facts(connection: sqlite3.Connection) -> tuple[list[Fact], list[object], bool]:
    """Return the facts that are intact, the keys of others, and whether these are all."""
    facts: list[Fact] = []
    bad: list[object] = []
    rows = Rows(connection, "SELECT rowid, key, value, revision, crc FROM facts", "rowid")
    for row in rows:
        match row[1:]:
            case (str(key), bytes(value), int(revision), int(crc)) if crc == checksum(
                key, value, revision
            ):
                facts.append(Fact(key, value, revision))
            case _:
                bad.append(row[1])
    return facts, bad, rows.is_whole


def write_facts(folder: Path, facts: list[Fact], revision: int) -> None:
    """Make a new file of facts in a folder, durably; `revision` is the last one given."""
    file = (folder / FILE_NAME).absolute()
    with database.translated(file):
        database.make_file(file, FORMAT)
        connection = database.connect(file, timeout_s=0)
        try:
            for setting in SETTINGS:
                connection.execute(setting)
            with database.transaction(connection):
                connection.executemany(
                    "INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)",
                    [(*fact, checksum(*fact)) for fact in facts],
                )
                connection.execute("UPDATE head SET revision = ?", (revision,))
        finally:
            connection.close()
