"""What the commands of the schema registry do, and what they are answered.

What changes something waits for the metadata, so it runs in a task of the door's; what only looks
is answered at once.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ister.base import SchemaBinding, SchemaSubject, SchemaVersion
from ister.base.errors import BadRequestError, IsterError
from ister.base.limits import LISTING_BYTES
from ister.wire import (
    BindSchema,
    CheckSchema,
    Command,
    DeleteSchema,
    DescribeSchema,
    Done,
    GetSchema,
    GetSchemaBinding,
    ListSchemas,
    ListSchemaVersions,
    RegisterSchema,
    SchemaBound,
    SchemaChecked,
    SchemaDescription,
    SchemaFound,
    SchemaRegistered,
    Schemas,
    SchemaVersions,
    SetSchemaMode,
    UnbindSchema,
)

if TYPE_CHECKING:
    from ister.registry import Binding, Registry, SubjectReport, SubjectVersion
    from ister.server.native.session import NativeSession

Reply = Callable[[Command | IsterError], object]

SUBJECTS_PER_PAGE_MAX = 1_000
# What a row of a listing has beside its texts.
ROW_BYTES = 256


def _registry(session: "NativeSession") -> "Registry":
    registry = session.door.registry
    if registry is None:
        raise BadRequestError("this broker keeps no schemas: it was started without a registry")
    return registry


# What changes something


def register(session: "NativeSession", command: RegisterSchema, reply: Reply) -> None:
    """Add a version, or find that it is there."""

    async def work() -> Command:
        done = await registry.register(
            command.subject,
            command.type,
            command.definition,
            description=command.description,
            created_by=command.created_by,
            tags=command.tags,
            mode=command.mode or None,
        )
        return SchemaRegistered(
            schema_id=done.schema_id,
            version=done.version,
            is_new=done.is_new,
            fingerprint=done.fingerprint,
        )

    registry = _registry(session)
    session.door.run(work(), reply, len(command.definition))


def check(session: "NativeSession", command: CheckSchema, reply: Reply) -> None:
    """Tell what would keep a definition from being registered."""

    async def work() -> Command:
        reasons = await registry.check(
            command.subject, command.type, command.definition, mode=command.mode or None
        )
        return SchemaChecked(reasons=reasons)

    registry = _registry(session)
    session.door.run(work(), reply, len(command.definition))


def delete(session: "NativeSession", command: DeleteSchema, reply: Reply) -> None:
    """Delete a version or a subject."""
    registry = _registry(session)
    if command.version:
        work = registry.delete_version(command.subject, command.version)
    else:
        work = registry.delete_subject(command.subject)
    session.door.run(_done(work), reply)


def set_mode(session: "NativeSession", command: SetSchemaMode, reply: Reply) -> None:
    """Set the compatibility mode of a subject."""
    work = _registry(session).set_mode(command.subject, command.mode)
    session.door.run(_done(work), reply)


def bind(session: "NativeSession", command: BindSchema, reply: Reply) -> None:
    """Bind a topic to a subject."""

    async def work() -> Command:
        binding = await registry.bind(
            command.topic,
            command.subject,
            policy=command.policy,
            validate_payload=command.validate_payload,
            version=command.version,
            min_version=command.min_version,
        )
        return SchemaBound(binding=_binding(binding))

    registry = _registry(session)
    session.door.run(work(), reply)


def unbind(session: "NativeSession", command: UnbindSchema, reply: Reply) -> None:
    """Free a topic of its subject."""
    session.door.run(_done(_registry(session).unbind(command.topic)), reply)


# What only looks


def get(session: "NativeSession", command: GetSchema, reply: Reply) -> None:
    """Tell of one version."""
    registry = _registry(session)
    if bool(command.subject) == bool(command.schema_id):
        raise BadRequestError("name a schema by its subject, or by its id")
    if command.subject:
        found = registry.version(command.subject, command.version)
    else:
        found = registry.get(command.schema_id, command.version)
    reply(SchemaFound(schema=_version(found)))


def list_versions(session: "NativeSession", command: ListSchemaVersions, reply: Reply) -> None:
    """Tell of as many versions as fit into an answer, and of one at least."""
    rows: list[SchemaVersion] = []
    size_bytes = after = 0
    for found in _registry(session).versions(command.subject):
        if found.version <= command.after:
            continue
        size_bytes += ROW_BYTES + _size_bytes(found.definition, found.description, *found.tags)
        if rows and size_bytes > LISTING_BYTES:
            after = rows[-1].version
            break
        rows.append(_version(found))
    reply(SchemaVersions(rows=rows, after=after))


def list_subjects(session: "NativeSession", command: ListSchemas, reply: Reply) -> None:
    """Tell of a page of subjects."""
    limit = max(1, min(command.limit, SUBJECTS_PER_PAGE_MAX))
    # One more tells whether there is a next page.
    found = _registry(session).subjects(after=command.after, limit=limit + 1)
    rows: list[SchemaSubject] = []
    size_bytes = 0
    after = ""
    for one in found:
        size_bytes += ROW_BYTES + _size_bytes(one.subject, *one.tags) + 5 * len(one.versions)
        if rows and (len(rows) == limit or size_bytes > LISTING_BYTES):
            after = rows[-1].subject
            break
        rows.append(_subject(one))
    reply(Schemas(rows=rows, after=after))


def describe(session: "NativeSession", command: DescribeSchema, reply: Reply) -> None:
    """Tell of one subject."""
    reply(SchemaDescription(report=_subject(_registry(session).subject(command.subject))))


def get_binding(session: "NativeSession", command: GetSchemaBinding, reply: Reply) -> None:
    """Tell what a topic is bound to."""
    reply(SchemaBound(binding=_binding(_registry(session).binding(command.topic))))


# Each action takes its own command type, which the table's key guarantees.
SCHEMA_ACTIONS: dict[type, Callable[["NativeSession", Any, Reply], None]] = {
    RegisterSchema: register,
    CheckSchema: check,
    DeleteSchema: delete,
    SetSchemaMode: set_mode,
    BindSchema: bind,
    UnbindSchema: unbind,
    GetSchema: get,
    ListSchemaVersions: list_versions,
    ListSchemas: list_subjects,
    DescribeSchema: describe,
    GetSchemaBinding: get_binding,
}


async def _done(work: Coroutine[Any, Any, None]) -> Command:
    await work
    return Done()


def _size_bytes(*texts: str | bytes) -> int:
    # Text has up to four bytes for a character.
    return sum(len(text) * (1 if isinstance(text, bytes) else 4) for text in texts)


def _version(found: "SubjectVersion") -> SchemaVersion:
    return SchemaVersion(
        subject=found.subject,
        schema_id=found.schema_id,
        version=found.version,
        type=found.type,
        definition=found.definition,
        fingerprint=found.fingerprint,
        description=found.description,
        created_by=found.created_by,
        tags=list(found.tags),
        created_ms=found.created_ms,
    )


def _subject(found: "SubjectReport") -> SchemaSubject:
    return SchemaSubject(
        subject=found.subject,
        schema_id=found.schema_id,
        type=found.type,
        mode=found.mode,
        latest_version=found.latest_version,
        versions=list(found.versions),
        tags=list(found.tags),
    )


def _binding(found: "Binding") -> SchemaBinding:
    return SchemaBinding(
        topic=found.topic,
        subject=found.subject,
        schema_id=found.schema_id,
        policy=found.policy,
        validate_payload=found.validate_payload,
        version=found.version,
        min_version=found.min_version,
    )
