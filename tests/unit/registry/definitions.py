"""Definitions of schemas to register, and stores of facts that are not as they should be."""

import json
from collections.abc import Awaitable, Callable

from ister.base.errors import RevisionMismatchError, StorageFailedError
from ister.base.limits import FACTS_PER_PAGE_MAX
from ister.metadata import Change, Fact, MemoryMetadata


def record(optional: tuple[str, ...] = (), /, **required: str) -> bytes:
    """Return a JSON Schema of an object: its properties by name and type, and optional texts."""
    properties = {name: {"type": kind} for name, kind in required.items()}
    properties |= {name: {"type": "string"} for name in optional}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return json.dumps(schema).encode()


# `list` is a method of stores.
Facts = list[Fact]

# Each reads what the ones before it wrote.
V1 = record(id="integer")
V2 = record(("name",), id="integer")
V3 = record(("name", "city"), id="integer")
# Reads nothing of theirs.
OTHER = record(id="string")


class Contended(MemoryMetadata):
    """Facts that somebody else changes before each of the next `times` writes."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def write(self, *changes: Change) -> int:
        if self.times:
            self.times -= 1
            raise RevisionMismatchError(changes[0].key)
        return await super().write(*changes)


class Interrupted(MemoryMetadata):
    """Facts that somebody else changes just before something is read."""

    def __init__(self) -> None:
        super().__init__()
        # What is done, by the key or prefix that is read next; once.
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}

    async def get(self, key: str) -> Fact | None:
        await self._interrupt(key)
        return await super().get(key)

    async def list(self, prefix: str, *, after: str = "", limit: int = FACTS_PER_PAGE_MAX) -> Facts:
        await self._interrupt(prefix)
        return await super().list(prefix, after=after, limit=limit)

    async def _interrupt(self, key: str) -> None:
        call = self.before.pop(key, None)
        if call is not None:
            await call()


class Failing(MemoryMetadata):
    """Facts on a disk that fails when told to, before a write or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[], bool] = lambda: False
        self.loses_answers = False

    async def write(self, *changes: Change) -> int:
        if self.loses_answers:
            await super().write(*changes)
        if self.loses_answers or self.fails():
            raise StorageFailedError("the disk is on fire")
        return await super().write(*changes)
