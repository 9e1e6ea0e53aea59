"""Reading what can still be read of a damaged table."""

import sqlite3
from collections.abc import Iterator
from typing import Any

NUMBER_MAX = 2**63 - 1


class Rows:
    """The rows of a table by rising numbers, around the pages that cannot be read.

    `query` selects the number first, without a condition or an order; it is the row id of the
    table, and above 0. Afterwards `is_whole` tells whether nothing was left out.
    """

    def __init__(self, connection: sqlite3.Connection, query: str, number: str) -> None:
        self._connection = connection
        self._from = f"{query} WHERE {number} > ? AND {number} <= ? ORDER BY {number}"
        self.is_whole = True

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        last = 0
        while True:
            try:
                for row in self._connection.execute(self._from, (last, NUMBER_MAX)):
                    # A damaged page may lead back to what came before.
                    if not isinstance(row[0], int) or row[0] <= last:
                        raise sqlite3.DatabaseError("rows do not rise")
                    last = row[0]
                    yield row
                return
            except sqlite3.DatabaseError:
                self.is_whole = False
            following = self._find_behind(last)
            if following is None:
                return
            yield from self._last_before(last, following)
            last = following - 1

    def _find_behind(self, last: int) -> int | None:
        """Return the number of a row that can be read, some way behind `last`."""
        step = 1
        while last + step < NUMBER_MAX:
            try:
                values = (last + step, NUMBER_MAX)
                row = self._connection.execute(f"{self._from} LIMIT 1", values).fetchone()
            except sqlite3.DatabaseError:
                row = ()
            if row is None:
                return None
            if row and isinstance(row[0], int) and row[0] > last + step:
                return row[0]
            step *= 2
        return None

    def _last_before(self, last: int, end: int) -> list[tuple[Any, ...]]:
        """Return the rows in front of `end` that can be read one after the other."""
        found: list[tuple[Any, ...]] = []
        try:
            for row in self._connection.execute(f"{self._from} DESC", (last, end - 1)):
                if not last < row[0] < end:
                    break
                end = row[0]
                found.append(row)
        except sqlite3.DatabaseError:
            pass
        return found[::-1]


def is_intact(connection: sqlite3.Connection) -> bool:
    """Tell whether SQLite finds nothing wrong with a database."""
    try:
        return connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False
