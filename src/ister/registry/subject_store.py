"""Everything the registry has, in memory as it is in the metadata.

Always true:
- memory follows the metadata: a change is written first, and seen when it is durable;
- changes of one subject are made one after the other here, and by revision among brokers: a change
  that another broker overtook is decided anew, on what is there by then.

Lock order: a subject's, then that of the ids or of the bindings.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from ister.base import parse_plain
from ister.base.errors import LimitReachedError, RevisionMismatchError, SchemaNotFoundError
from ister.base.limits import BINDINGS_MAX, SCHEMA_VERSIONS_MAX, SCHEMAS_BYTES_MAX, SUBJECTS_MAX
from ister.registry.bindings import Bindings
from ister.registry.repository import KeptBinding, SchemaRepository
from ister.registry.subject import Subject, SubjectContents

logger = structlog.get_logger("schemas")

# Each try is overtaken only by another broker's success: more than a few in a row are a fault.
ATTEMPTS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """How much a registry holds."""

    subjects_max: int = SUBJECTS_MAX
    # Of one subject.
    versions_max: int = SCHEMA_VERSIONS_MAX
    # Of all subjects together.
    definitions_bytes_max: int = SCHEMAS_BYTES_MAX
    bindings_max: int = BINDINGS_MAX


class SubjectStore:
    """Subjects, bindings, and the highest id ever given."""

    def __init__(
        self, repository: SchemaRepository, *, now_ms: Callable[[], int], limits: RegistryLimits
    ) -> None:
        self.repository = repository
        self.limits = limits
        self.entries: dict[str, Subject] = {}
        self.by_id: dict[int, Subject] = {}
        self.bindings = Bindings(now_ms)
        # Called with a topic's name after its binding, or a schema it uses, has changed.
        self.on_bound: list[Callable[[str], object]] = []
        self.last_id, self.id_revision = 0, 0
        self.ids_lock = asyncio.Lock()
        self.bindings_lock = asyncio.Lock()
        self._definitions_bytes = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._writes: set[asyncio.Task[None]] = set()

    def get(self, subject: str) -> Subject:
        """Return a subject, or raise `SchemaNotFoundError`."""
        entry = self.entries.get(subject)
        if entry is None:
            raise SchemaNotFoundError(subject, 0)
        return entry

    def check_room(self, size_bytes: int) -> None:
        """Raise `LimitReachedError` when a definition of that size is too much."""
        size_bytes_max = self.limits.definitions_bytes_max
        if self._definitions_bytes + size_bytes > size_bytes_max:
            raise LimitReachedError("bytes of all schemas", size_bytes_max)

    def tell(self, topics: Iterable[str]) -> None:
        """Tell whoever wants to know that something has changed for these topics."""
        for topic in sorted(topics):
            for call in self.on_bound:
                call(topic)

    # Changing

    async def change(self, subject: str, step: Callable[[], Awaitable[T]]) -> T:
        """Take a step with a subject; again, with what is there by then, if it was overtaken."""
        parse_plain(subject, "a subject")
        lock = self._locks.get(subject)
        if lock is None:
            lock = self._locks[subject] = asyncio.Lock()

        async def reload() -> None:
            async with self.ids_lock:
                self.last_id, self.id_revision = await self.repository.load_id()
            await self._load_subject(subject)
            await self.reload_bindings()

        async with lock:
            entry = self.entries.get(subject)
            known = entry.contents.revision if entry is not None else 0
            # Else we would refuse by what another broker has changed, and never find out.
            if await self.repository.load_revision(subject) != known:
                await reload()
            return await retried(step, before_next=reload)

    async def commit(
        self, write: Coroutine[Any, Any, int], on_written: Callable[[int], None]
    ) -> None:
        """Write, and have memory follow, also when the caller is cancelled meanwhile."""

        async def work() -> None:
            on_written(await write)

        task = asyncio.create_task(work())
        self._writes.add(task)
        task.add_done_callback(self._on_done)
        await asyncio.shield(task)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            # Asked for, so that nobody complains when the caller was cancelled.
            task.exception()

    def place(self, contents: SubjectContents) -> None:
        """Have a subject in memory as it is in the metadata by now."""
        record = contents.record
        entry = self.entries.get(record.subject)
        if entry is None or entry.contents.record.schema_id != record.schema_id:
            self.remove(record.subject)
            self.entries[record.subject] = self.by_id[record.schema_id] = Subject(contents)
        elif entry.contents.revision <= contents.revision:
            self._definitions_bytes -= entry.contents.definitions_bytes
            entry.contents = contents
        else:
            return  # Read before what we know was written.
        self._definitions_bytes += contents.definitions_bytes

    def remove(self, subject: str) -> None:
        """Have no such subject in memory."""
        entry = self.entries.pop(subject, None)
        if entry is not None:
            self._definitions_bytes -= entry.contents.definitions_bytes
            del self.by_id[entry.contents.record.schema_id]

    # Loading

    async def load(self) -> None:
        """Take in everything there is, and nothing else."""
        self.last_id, self.id_revision = await self.repository.load_id()
        loaded = await self.repository.load_subjects()
        # Of a first try that another broker disturbed.
        for gone in self.entries.keys() - {contents.record.subject for contents in loaded}:
            self.remove(gone)
        for contents in loaded:
            self.place(contents)
        await self._load_bindings()

    async def reload_bindings(self) -> None:
        """Take in what other brokers have bound and unbound."""
        async with self.bindings_lock:
            await self._load_bindings()

    async def _load_bindings(self) -> None:
        """Have the bindings in memory as they are in the metadata."""
        loaded = {kept.binding.topic: kept for kept in await self.repository.load_bindings()}
        gone = [one.topic for one in self.bindings.all() if one.topic not in loaded]
        for topic in gone:
            self.bindings.drop(topic)
        changed = [kept for kept in loaded.values() if not self._is_known(kept)]
        for kept in changed:
            subject = kept.binding.subject
            if subject not in self.entries:
                await self._load_subject(subject)
            entry = self.entries.get(subject)
            if entry is None:
                raise await self.repository.why_unbound(kept)
            self.bindings.set(kept.binding, kept.revision, entry)
        self.tell([*gone, *(kept.binding.topic for kept in changed)])

    async def _load_subject(self, subject: str) -> None:
        contents = await self.repository.load_subject(subject)
        if contents is not None:
            self.place(contents)
        else:
            self.remove(subject)

    def _is_known(self, kept: KeptBinding) -> bool:
        bound = self.bindings.find(kept.binding.topic)
        return (
            bound is not None
            and bound.revision == kept.revision
            and bound.entry is self.entries.get(kept.binding.subject)
        )


async def retried(
    step: Callable[[], Awaitable[T]], *, before_next: Callable[[], Awaitable[None]] | None = None
) -> T:
    """Return what `step` returns; take it again, a few times, when another broker was faster."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await step()
        except RevisionMismatchError as error:
            logger.info("schema_changed_elsewhere", key=error.key)
        if before_next is not None:
            await before_next()
    return await step()
