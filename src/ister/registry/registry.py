"""The registry: every subject and binding in memory, every change in the metadata first.

Always true:
- what a call returned for is durable, and only then seen by others;
- an id is given to one subject for ever, a number to one version of it, also when they are deleted;
- parsing and comparing schemas, which may take a while, is done in threads.

What another broker changes is seen when something is changed here that it touches, or at the next
start.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import structlog

from ister.base import check_not_reserved, parse_topic
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    SchemaBindingNotFoundError,
    SchemaIncompatibleError,
    SchemaMismatchError,
    SchemaNotFoundError,
    StorageFailedError,
)
from ister.metadata import Metadata
from ister.registry.binding_check import BindingCheck, Tally
from ister.registry.bindings import is_satisfiable
from ister.registry.executor import SchemaExecutor, breaks, prepare, warm, warm_in_background
from ister.registry.records import (
    Binding,
    Registered,
    SubjectRecord,
    SubjectReport,
    SubjectVersion,
    check_words,
)
from ister.registry.repository import SchemaRepository
from ister.registry.subject import Subject, SubjectContents
from ister.registry.subject_store import RegistryLimits, SubjectStore, retried
from ister.schemas import (
    Mode,
    Policy,
    Schema,
    SchemaType,
    parse_mode,
    parse_policy,
    parse_schema,
    parse_type,
)

logger = structlog.get_logger("schemas")


class Registry:
    """The schemas of a broker. Reads are plain calls; `open` makes one.

    Every write raises `StorageFailedError` while the metadata cannot be written, and then nothing
    has changed that anybody sees.
    """

    def __init__(self, subjects: SubjectStore, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._subjects = subjects
        self._executor = SchemaExecutor()

    @classmethod
    async def open(
        cls,
        metadata: Metadata,
        *,
        now_ms: Callable[[], int],
        limits: RegistryLimits | None = None,
    ) -> "Registry":
        """Return a registry with everything that is in `metadata`, which stays the caller's.

        Raises `CorruptedError` and `StorageFailedError`.
        """
        subjects = SubjectStore(
            SchemaRepository(metadata), now_ms=now_ms, limits=limits or RegistryLimits()
        )
        await retried(subjects.load)
        warm_in_background([entry for entry in subjects.entries.values() if entry.topics])
        return cls(subjects, now_ms=now_ms)

    @property
    def on_bound(self) -> list[Callable[[str], object]]:
        """Called with a topic's name after its binding, or a schema it uses, has changed."""
        return self._subjects.on_bound

    # Reading subjects.

    def get(self, schema_id: int, version: int = 0) -> SubjectVersion:
        """Return a version, 0 for the latest, by the id of its subject."""
        entry = self._subjects.by_id.get(schema_id)
        if entry is None:
            raise SchemaNotFoundError(str(schema_id), version)
        return entry.contents.get(version)

    def version(self, subject: str, version: int = 0) -> SubjectVersion:
        """Return a version of a subject, 0 for the latest."""
        return self._subjects.get(subject).contents.get(version)

    def versions(self, subject: str) -> list[SubjectVersion]:
        """Return every version of a subject, oldest first."""
        return list(self._subjects.get(subject).contents.versions.values())

    def subject(self, subject: str) -> SubjectReport:
        """Tell about a subject."""
        return self._subjects.get(subject).report()

    def subjects(self, *, after: str = "", limit: int | None = None) -> list[SubjectReport]:
        """Tell about every subject, by name; or about some of those behind `after`."""
        entries = self._subjects.entries
        names = sorted(name for name in entries if name > after)
        return [entries[name].report() for name in names[:limit]]

    async def check(
        self,
        subject: str,
        type: str,
        definition: bytes,
        *,
        mode: str | None = None,
        keep_required: bool = False,
    ) -> list[str]:
        """Return what a definition would break as the next version; empty when nothing.

        `mode` is asked for instead of the subject's own; `keep_required` as in `register`.
        """
        wanted = None if mode is None else parse_mode(mode)
        schema = await self._parse(parse_type(type), definition)

        async def step() -> list[str]:
            entry = self._subjects.get(subject)
            asked = wanted or entry.contents.record.mode
            return await self._breaks(entry, schema, asked, keep_required=keep_required)

        return await self._subjects.change(subject, step)

    # Changing subjects.

    async def register(
        self,
        subject: str,
        type: str,
        definition: bytes,
        *,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
        mode: str | None = None,
        keep_required: bool = False,
    ) -> Registered:
        """Make `definition` the next version of a subject, and the subject if need be.

        A definition that means the same as some version is that version. `mode` is the subject's
        from now on; `None` leaves it as it is, which is `backward` for a new one. `keep_required`
        asks for Danube's rule about required properties of a JSON Schema, this time.

        Raises `BadSchemaError`, `SchemaIncompatibleError`, `LimitReachedError`.
        """
        check_words(description, created_by, tags)
        wanted = None if mode is None else parse_mode(mode)
        same = self._find_same(subject, parse_type(type), definition)
        if same is not None and wanted is None:
            return registered(same, is_new=False)
        schema = await self._parse(parse_type(type), definition)
        draft = SubjectVersion(
            subject=subject,
            schema_id=0,
            version=0,
            type=schema.type,
            definition=definition,
            fingerprint=schema.fingerprint,
            description=description,
            created_by=created_by,
            tags=list(tags),
            created_ms=self._now_ms(),
        )
        return await self._subjects.change(
            subject, lambda: self._register(draft, schema, wanted, keep_required=keep_required)
        )

    async def set_mode(self, subject: str, mode: str) -> None:
        """Set which readers the next versions of a subject must not break."""
        wanted = parse_mode(mode)
        await self._subjects.change(
            subject, lambda: self._set_mode(self._subjects.get(subject), wanted)
        )

    async def delete_version(self, subject: str, version: int) -> None:
        """Remove a version; its number is not given again. With its last one, a subject goes.

        Raises `SchemaMismatchError` when a topic is bound so that it needs that version.
        """
        await self._subjects.change(subject, lambda: self._delete_version(subject, version))

    async def delete_subject(self, subject: str) -> None:
        """Remove a subject with all its versions; its id is not given again.

        Raises `SchemaMismatchError` when a topic is bound to it.
        """
        await self._subjects.change(subject, lambda: self._delete_subject(subject))

    # Topics that are bound.

    def binding(self, topic: str) -> Binding:
        """Return the binding of a topic, or of the topic it is a partition of."""
        return self._subjects.bindings.get(topic).binding

    def find_binding(self, topic: str) -> Binding | None:
        """Return the binding of a topic itself, not that of which it is a partition, if any."""
        bound = self._subjects.bindings.find(topic)
        return bound.binding if bound is not None else None

    def bindings(self) -> list[Binding]:
        """Return every binding, by topic."""
        return self._subjects.bindings.all()

    def find_check(self, topic: str) -> BindingCheck | None:
        """Return what checks the batches of a topic or a partition; `None` when nothing is to be.

        Ask again after `on_bound` was called for the topic.
        """
        return self._subjects.bindings.find_check(topic)

    def tallies(self) -> dict[str, Tally]:
        """Return what the checks have counted since the start, by bound topic."""
        return self._subjects.bindings.tallies()

    async def bind(
        self,
        topic: str,
        subject: str,
        *,
        policy: str = "enforce",
        validate_payload: bool = True,
        version: int = 0,
        min_version: int = 0,
        replace: bool = True,
    ) -> Binding:
        """Have the messages of a topic, and of its partitions, follow a subject.

        Without `replace`, a topic that is bound stays as it is: its binding is returned, or
        `SchemaMismatchError` raised when that is to another subject.

        Raises `SchemaNotFoundError` when the subject, or a version that is asked for, is not there.
        """
        name = parse_topic(topic)
        check_not_reserved(name)
        wanted = parse_policy(policy)
        if version < 0 or min_version < 0 or (version and min_version):
            raise BadRequestError("give one of `version` and `min_version`, 0 or more")

        async def step() -> Binding:
            entry = self._subjects.get(subject)
            binding = Binding(
                topic=name,
                subject=subject,
                policy=wanted,
                validate_payload=validate_payload,
                version=version,
                min_version=min_version,
                schema_id=entry.contents.record.schema_id,
            )
            if replace or self.find_binding(name) is None:
                await self._prepare(entry, binding)
            async with self._subjects.bindings_lock:
                return await self._bind(binding, entry, replace=replace)

        return await self._subjects.change(subject, step)

    async def set_policy(self, topic: str, policy: str, *, validate_payload: bool) -> Binding:
        """Change what happens to messages that do not follow the subject of a topic.

        Raises `SchemaBindingNotFoundError`; `SchemaMismatchError` when the topic was bound to
        another subject meanwhile.
        """
        wanted = parse_policy(policy)
        subject = self.binding(topic).subject

        async def step() -> Binding:
            entry = self._subjects.get(subject)
            await self._prepare(
                entry, self._with_policy(topic, subject, wanted, validate_payload=validate_payload)
            )
            async with self._subjects.bindings_lock:
                binding = self._with_policy(
                    topic, subject, wanted, validate_payload=validate_payload
                )
                return await self._bind(binding, entry, replace=True)

        return await self._subjects.change(subject, step)

    def _with_policy(
        self, topic: str, subject: str, policy: Policy, *, validate_payload: bool
    ) -> Binding:
        former = self.binding(topic)
        if former.subject != subject:
            raise SchemaMismatchError(former.topic, former.subject)
        return msgspec.structs.replace(former, policy=policy, validate_payload=validate_payload)

    async def unbind(self, topic: str) -> None:
        """Let any message into a topic that is bound itself, not as a partition of another.

        Raises `SchemaBindingNotFoundError`.
        """
        binding = self.find_binding(topic)
        if binding is None:
            raise SchemaBindingNotFoundError(topic)
        await self._remove(binding, only_if_same=False)

    async def on_topic_deleted(self, binding: Binding) -> None:
        """Unbind a topic that is gone and was bound so, unless it was bound anew since.

        Never raises for want of storage: the topic is gone all the same.
        """
        try:
            await self._remove(binding, only_if_same=True)
        except SchemaBindingNotFoundError:
            pass
        except IsterError as error:
            # A new topic of its name will be bound as it was.
            logger.warning("binding_left", topic=binding.topic, reason=str(error))

    async def _remove(self, binding: Binding, *, only_if_same: bool) -> None:
        async def step() -> None:
            async with self._subjects.bindings_lock:
                if only_if_same and self.find_binding(binding.topic) != binding:
                    raise SchemaBindingNotFoundError(binding.topic)
                await self._unbind(binding.topic, self._subjects.get(binding.subject))

        await self._subjects.change(binding.subject, step)

    def _find_same(
        self, subject: str, type: SchemaType, definition: bytes
    ) -> SubjectVersion | None:
        """Return the version with this very text: producers that start say it over and over."""
        entry = self._subjects.entries.get(subject)
        if entry is None or entry.contents.record.type is not type:
            return None
        versions = entry.contents.versions.values()
        return next((one for one in versions if one.definition == definition), None)

    async def _parse(self, type: SchemaType, definition: bytes) -> Schema:
        return await self._executor.run(
            lambda steps: parse_schema(type, definition, steps), size_bytes=len(definition)
        )

    async def _breaks(
        self, entry: Subject, schema: Schema, mode: Mode, *, keep_required: bool
    ) -> list[str]:
        contents = entry.contents
        return await self._executor.run(
            lambda steps: breaks(entry, contents, schema, mode, steps, keep_required=keep_required),
            size_bytes=len(schema.definition),
        )

    async def _prepare(self, entry: Subject, binding: Binding) -> None:
        """Have the payloads of a topic ready to be checked: who binds it hears if they cannot be.

        Not with the lock of the bindings held, for which everybody would wait.
        """
        if binding.policy is Policy.NONE or not binding.validate_payload:
            return
        if not is_satisfiable(binding, entry.contents.record.versions):
            raise SchemaNotFoundError(binding.subject, binding.version or binding.min_version)
        version = entry.contents.get(binding.version)
        await self._executor.run(
            lambda steps: prepare(entry, version, steps), size_bytes=len(version.definition)
        )

    # How subjects change. These are called with the subject's lock held.

    async def _register(
        self, draft: SubjectVersion, schema: Schema, mode: Mode | None, *, keep_required: bool
    ) -> Registered:
        entry = self._subjects.entries.get(draft.subject)
        if entry is None:
            async with self._subjects.ids_lock:
                return await self._add_subject(draft, mode or Mode.BACKWARD)
        record = entry.contents.record
        found = entry.contents.find(draft.type, draft.fingerprint)
        if found is not None:
            await self._set_mode(entry, mode or record.mode)
            return registered(found, is_new=False)
        wanted = mode or record.mode
        reasons = await self._breaks(entry, schema, wanted, keep_required=keep_required)
        if reasons:
            raise SchemaIncompatibleError(draft.subject, wanted.value, reasons)
        if entry.topics:
            await self._executor.run(lambda _: warm(schema), size_bytes=len(draft.definition))
        return await self._add_version(entry, draft, schema, wanted)

    async def _add_subject(self, draft: SubjectVersion, mode: Mode) -> Registered:
        self._subjects.check_room(len(draft.definition))
        subjects_max = self._subjects.limits.subjects_max
        if len(self._subjects.entries) >= subjects_max:
            raise LimitReachedError("schemas", subjects_max)
        version = msgspec.structs.replace(draft, schema_id=self._subjects.last_id + 1, version=1)
        record = SubjectRecord(
            subject=version.subject,
            schema_id=version.schema_id,
            type=version.type,
            mode=mode,
            last_version=1,
            versions=[1],
        )

        def on_written(revision: int) -> None:
            self._subjects.last_id, self._subjects.id_revision = record.schema_id, revision
            self._subjects.place(SubjectContents(record, revision, {1: version}))

        await self._subjects.commit(
            self._subjects.repository.add_subject(
                version, record, id_revision=self._subjects.id_revision
            ),
            on_written,
        )
        return registered(version, is_new=True)

    async def _add_version(
        self, entry: Subject, draft: SubjectVersion, schema: Schema, mode: Mode
    ) -> Registered:
        contents = entry.contents
        self._subjects.check_room(len(draft.definition))
        versions_max = self._subjects.limits.versions_max
        if len(contents.versions) >= versions_max:
            raise LimitReachedError("versions of a schema", versions_max)
        number = contents.record.last_version + 1
        version = msgspec.structs.replace(
            draft, schema_id=contents.record.schema_id, version=number
        )
        record = msgspec.structs.replace(
            contents.record,
            mode=mode,
            last_version=number,
            versions=[*contents.record.versions, number],
        )

        def on_written(revision: int) -> None:
            if entry.topics:
                entry.keep(number, schema)
            self._subjects.place(
                SubjectContents(record, revision, {**contents.versions, number: version})
            )
            self._subjects.tell(entry.topics)

        await self._subjects.commit(
            self._subjects.repository.add_version(version, record, revision=contents.revision),
            on_written,
        )
        return registered(version, is_new=True)

    async def _set_mode(self, entry: Subject, mode: Mode) -> None:
        contents = entry.contents
        if contents.record.mode is mode:
            return
        record = msgspec.structs.replace(contents.record, mode=mode)
        await self._subjects.commit(
            self._subjects.repository.set_subject(record, revision=contents.revision),
            lambda revision: self._subjects.place(
                SubjectContents(record, revision, contents.versions)
            ),
        )

    async def _delete_version(self, subject: str, number: int) -> None:
        entry = self._subjects.get(subject)
        contents = entry.contents
        if number not in contents.versions:
            raise SchemaNotFoundError(subject, number)
        await self._check_spares(entry, number)
        if len(contents.versions) == 1:
            await self._delete_subject(subject)
            return
        versions = {one: kept for one, kept in contents.versions.items() if one != number}
        record = msgspec.structs.replace(contents.record, versions=list(versions))

        def on_written(revision: int) -> None:
            self._subjects.place(SubjectContents(record, revision, versions))
            self._subjects.tell(entry.topics)

        await self._subjects.commit(
            self._subjects.repository.delete_version(record, number, revision=contents.revision),
            on_written,
        )

    async def _delete_subject(self, subject: str) -> None:
        entry = self._subjects.get(subject)
        await self._check_spares(entry, *entry.contents.versions)
        contents = entry.contents
        await self._subjects.commit(
            self._subjects.repository.delete_subject(contents.record, revision=contents.revision),
            lambda _: self._subjects.remove(subject),
        )
        with suppress(StorageFailedError):
            await self._subjects.repository.remove_versions(contents.versions.values())

    async def _check_spares(self, entry: Subject, *numbers: int) -> None:
        """Raise `SchemaMismatchError` for a topic that cannot do without these versions."""
        if entry.topics:
            # Another broker may have bound them to something else since.
            await self._subjects.reload_bindings()
            self._subjects.bindings.check_spares(entry, numbers)

    # How bindings change. Called with the locks of the subject and of the bindings held.

    async def _bind(self, binding: Binding, entry: Subject, *, replace: bool) -> Binding:
        contents, topic = entry.contents, binding.topic
        bound = self._subjects.bindings.find(topic)
        if bound is not None and not replace:
            if bound.binding.subject != binding.subject:
                raise SchemaMismatchError(topic, bound.binding.subject)
            return bound.binding
        if bound is not None and bound.binding == binding:
            return binding
        if not is_satisfiable(binding, contents.record.versions):
            raise SchemaNotFoundError(binding.subject, binding.version or binding.min_version)
        bindings_max = self._subjects.limits.bindings_max
        if bound is None and len(self._subjects.bindings) >= bindings_max:
            raise LimitReachedError("topics bound to schemas", bindings_max)

        def on_written(revision: int) -> None:
            self._subjects.place(SubjectContents(contents.record, revision, contents.versions))
            self._subjects.bindings.set(binding, revision, entry)
            self._subjects.tell([topic])

        await self._subjects.commit(
            self._subjects.repository.bind(
                binding,
                contents.record,
                binding_revision=bound.revision if bound else 0,
                revision=contents.revision,
            ),
            on_written,
        )
        return binding

    async def _unbind(self, topic: str, entry: Subject) -> None:
        contents, bound = entry.contents, self._subjects.bindings.find(topic)
        if bound is None or bound.entry is not entry:
            # Somebody was faster: what was to be removed is not there any more.
            raise SchemaBindingNotFoundError(topic)

        def on_written(revision: int) -> None:
            self._subjects.place(SubjectContents(contents.record, revision, contents.versions))
            self._subjects.bindings.drop(topic)
            self._subjects.tell([topic])

        await self._subjects.commit(
            self._subjects.repository.unbind(
                topic,
                contents.record,
                binding_revision=bound.revision,
                revision=contents.revision,
            ),
            on_written,
        )


def registered(version: SubjectVersion, *, is_new: bool) -> Registered:
    """Tell what came of a registration."""
    return Registered(
        schema_id=version.schema_id,
        version=version.version,
        is_new=is_new,
        fingerprint=version.fingerprint,
    )
