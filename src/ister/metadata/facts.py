"""The port: facts, changes of facts, and what every store of them promises.

Always true of every store:
- a write happens in all its parts or in none, and is durable when `write` returns;
- every write has a revision, higher than that of any write before it, for ever: a fact that was
  deleted and made again is at another revision, so that nobody takes it for the old one;
- a fact is at the revision of the write that put it.

The limits are those of etcd's defaults, so that whatever fits here fits there.
"""

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple, Protocol

from ister.base.errors import BadRequestError
from ister.base.limits import (
    FACT_KEY_BYTES_MAX,
    FACTS_BYTES_MAX,
    FACTS_PER_PAGE_MAX,
    FACTS_PER_WRITE_MAX,
)

# Behind every key that starts with a prefix comes the prefix with this: no key holds it.
LAST_CHARACTER = "\U0010ffff"


class Fact(NamedTuple):
    """One row of the table."""

    key: str
    value: bytes
    revision: int


class Put(NamedTuple):
    """Set a fact. `revision`: `None` whatever is there, 0 only if absent, n only if at n."""

    key: str
    value: bytes
    revision: int | None = None


class Delete(NamedTuple):
    """Remove a fact, which may be absent. `revision` as in `Put`."""

    key: str
    revision: int | None = None


Change = Put | Delete
# Stores have a method `list`, which hides the built-in one from their annotations.
Facts = list[Fact]


class Metadata(Protocol):
    """A store of facts. Calls may be made at once; each sees all writes that have returned.

    Raises `StorageFailedError` while the storage does not answer: a write may have happened then,
    and whoever writes on conditions finds out by the next one. `CorruptedError` when stored bytes
    are not what was written; `ClosedError` after `close`; `LimitReachedError` when too many calls
    wait; `BadRequestError` for what is over the limits.
    """

    async def get(self, key: str) -> Fact | None:
        """Return the fact of that key, if there is one."""

    async def list(self, prefix: str, *, after: str = "", limit: int = FACTS_PER_PAGE_MAX) -> Facts:
        """Return the first `limit` facts whose keys start with `prefix`, by key, behind `after`."""

    async def write(self, *changes: Change) -> int:
        """Make all changes, or raise with none made; return the revision they are at.

        Raises `RevisionMismatchError` for the first change whose condition does not hold.
        """

    async def close(self) -> None:
        """Finish what is under way and let go of the storage."""


async def facts_below(metadata: Metadata, prefix: str, *, page: int) -> AsyncIterator[Fact]:
    """Yield every fact whose key starts with `prefix`, by key; `page` of them are in memory.

    What is written meanwhile may be seen or not.
    """
    after = ""
    while found := await metadata.list(prefix, after=after, limit=page):
        for fact in found:
            yield fact
        after = found[-1].key


def holds(revision: int | None, found: int) -> bool:
    """Whether a condition holds for a fact at revision `found`, 0 for one that is absent."""
    return revision is None or revision == found


def check_key(key: str) -> None:
    """Raise `BadRequestError` for what is no key."""
    if not key:
        raise BadRequestError("the key of a fact is empty")
    check_prefix(key)


def check_prefix(prefix: str) -> None:
    """Raise `BadRequestError` for what no key starts with."""
    # Half a character cannot be stored, and `LAST_CHARACTER` must come behind every key; neither
    # is printable.
    if not prefix.isprintable():
        raise BadRequestError(f"{prefix[:40]!r} is no key of a fact: it cannot be printed")
    if len(prefix.encode()) > FACT_KEY_BYTES_MAX:
        raise BadRequestError(
            f"the key {prefix[:40]!r}... of a fact is over {FACT_KEY_BYTES_MAX} B"
        )


def check_page(limit: int) -> None:
    """Raise `BadRequestError` for what is no size of a page."""
    if not 0 < limit <= FACTS_PER_PAGE_MAX:
        raise BadRequestError(f"a page has 1 to {FACTS_PER_PAGE_MAX} facts, not {limit}")


def check_changes(changes: Iterable[Change]) -> None:
    """Raise `BadRequestError` for changes that cannot be one write."""
    keys = set()
    size_bytes = 0
    for change in changes:
        check_key(change.key)
        if change.key in keys:
            raise BadRequestError(f"fact {change.key!r} is changed twice by one write")
        keys.add(change.key)
        size_bytes += len(change.value) if isinstance(change, Put) else 0
    if len(keys) > FACTS_PER_WRITE_MAX:
        raise BadRequestError(
            f"{len(keys)} facts are too many for one write: at most {FACTS_PER_WRITE_MAX}"
        )
    if size_bytes > FACTS_BYTES_MAX:
        raise BadRequestError(
            f"facts of {size_bytes} B are too large for one write: at most {FACTS_BYTES_MAX} B"
        )
