"""Facts in memory: for tests, and for a broker that is to leave nothing behind."""

from bisect import bisect_left, bisect_right, insort

from ister.base.errors import ClosedError, RevisionMismatchError
from ister.base.limits import FACTS_PER_PAGE_MAX
from ister.metadata.facts import (
    LAST_CHARACTER,
    Change,
    Fact,
    Facts,
    Put,
    check_changes,
    check_key,
    check_page,
    check_prefix,
    holds,
)


class MemoryTable:
    """The facts themselves, which several handles may share."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}
        # Sorted. Python compares text by code points, which is the order of its UTF-8 bytes.
        self.keys: list[str] = []
        self.revision = 0

    def put(self, key: str, value: bytes) -> None:
        """Set a fact at the current revision."""
        if key not in self.facts:
            insort(self.keys, key)
        self.facts[key] = Fact(key, bytes(value), self.revision)

    def delete(self, key: str) -> None:
        """Remove a fact, which may be absent."""
        if self.facts.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]


class MemoryMetadata:
    """See `Metadata`."""

    def __init__(self) -> None:
        self._table = MemoryTable()
        self._closed = False

    def reopened(self) -> "MemoryMetadata":
        """Return the same facts again, as after a restart, also when this was closed."""
        again = MemoryMetadata()
        again._table = self._table
        return again

    async def get(self, key: str) -> Fact | None:
        """See `Metadata`."""
        self._check_open()
        check_key(key)
        return self._table.facts.get(key)

    async def list(self, prefix: str, *, after: str = "", limit: int = FACTS_PER_PAGE_MAX) -> Facts:
        """See `Metadata`."""
        self._check_open()
        check_prefix(prefix)
        check_prefix(after)
        check_page(limit)
        keys, facts = self._table.keys, self._table.facts
        start = max(bisect_left(keys, prefix), bisect_right(keys, after))
        end = min(bisect_left(keys, prefix + LAST_CHARACTER), start + limit)
        return [facts[key] for key in keys[start:end]]

    async def write(self, *changes: Change) -> int:
        """See `Metadata`. Durable for as long as the process lives."""
        self._check_open()
        check_changes(changes)
        table = self._table
        for change in changes:
            found = table.facts.get(change.key)
            if not holds(change.revision, found.revision if found else 0):
                raise RevisionMismatchError(change.key)
        table.revision += 1
        for change in changes:
            if isinstance(change, Put):
                table.put(change.key, change.value)
            else:
                table.delete(change.key)
        return table.revision

    async def close(self) -> None:
        """See `Metadata`."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("metadata")
