"""Facts in a file of SQLite, in the data folder of a broker.

The work is done by one thread of its own (`executor`), on the table of one file (`table`).
"""

from pathlib import Path

from ister.base.limits import FACTS_PER_PAGE_MAX
from ister.metadata.facts import (
    Change,
    Fact,
    Facts,
    check_changes,
    check_key,
    check_page,
    check_prefix,
)
from ister.metadata.serial_executor import SerialExecutor
from ister.metadata.table import FactTable

FILE_NAME = "metadata.db"
# A write is one sync, mostly below 10 ms; a disk that takes longer than this does not answer.
BUSY_TIMEOUT_S = 5.0


class SqliteMetadata:
    """See `Metadata`. Several processes may share a folder; each sees what the others wrote."""

    def __init__(self, folder: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Nothing is opened before the first call, nor made before the first write.

        `busy_timeout_s`: how long to wait for another process that writes.
        """
        self._executor = SerialExecutor("metadata")
        self._table = FactTable(folder / FILE_NAME, busy_timeout_s=busy_timeout_s)

    async def get(self, key: str) -> Fact | None:
        """See `Metadata`."""
        check_key(key)
        return await self._executor.run(lambda: self._table.get(key))

    async def list(self, prefix: str, *, after: str = "", limit: int = FACTS_PER_PAGE_MAX) -> Facts:
        """See `Metadata`."""
        check_prefix(prefix)
        check_prefix(after)
        check_page(limit)
        return await self._executor.run(lambda: self._table.list(prefix, after, limit))

    async def write(self, *changes: Change) -> int:
        """See `Metadata`. On the disk when this returns."""
        check_changes(changes)
        return await self._executor.run(lambda: self._table.write(changes))

    async def close(self) -> None:
        """See `Metadata`."""
        await self._executor.close(self._table.close)
