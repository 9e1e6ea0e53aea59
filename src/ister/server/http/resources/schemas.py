"""Schemas: subjects with their versions, and which topic is bound to which subject."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ister.base.errors import (
    BadNameError,
    BadRequestError,
    BadSchemaError,
    ExtraMissingError,
    LimitReachedError,
    SchemaBindingNotFoundError,
    SchemaIncompatibleError,
    SchemaMismatchError,
    SchemaNotFoundError,
    StorageFailedError,
)
from ister.registry import Binding, Registry, SubjectReport, SubjectVersion
from ister.server.admin import Admin
from ister.server.http.resources.messages import decode_bytes, encode_bytes
from ister.server.http.resources.shapes import (
    Encoding,
    PageQuery,
    PageSize,
    PlainName,
    TopicPath,
)
from ister.server.http.routes import Made, Routes

SCHEMAS = Routes("schemas")
BINDINGS = Routes("bindings")

_SUBJECT = "/schemas/{subject}"
_BINDING = "/namespaces/{namespace}/topics/{topic}/binding"

VERSION_MAX = 2**31 - 1
# Of definitions on one page, about.
PAGE_BYTES = 4 * 1024 * 1024

TypeName = Annotated[
    Literal[
        "bytes",
        "string",
        "number",
        "int8",
        "int16",
        "int32",
        "int64",
        "float",
        "double",
        "json_schema",
        "avro",
        "protobuf",
    ],
    Meta(description="What language the definition is in; of plain types it is empty."),
]
ModeName = Annotated[
    Literal[
        "none",
        "backward",
        "forward",
        "full",
        "backward_transitive",
        "forward_transitive",
        "full_transitive",
    ],
    Meta(description="What a new version must be compatible with."),
]
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]
AnyVersion = Annotated[int, Meta(ge=0, le=VERSION_MAX, description="0: any.")]
Tags = Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=32)]


class SubjectPath(Struct):
    """A subject."""

    subject: PlainName


class VersionPath(Struct):
    """A version of a subject."""

    subject: PlainName
    version: Version


class SomeVersionPath(Struct):
    """A version of a subject, or the newest one."""

    subject: PlainName
    version: Annotated[
        str,
        Meta(pattern=r"^(latest|[1-9][0-9]{0,8})$", description="A number from 1, or `latest`."),
    ]


class IdPath(Struct):
    """A schema by the id that travels with messages."""

    schema_id: Annotated[int, Meta(ge=1, le=VERSION_MAX)]


class IdQuery(Struct, forbid_unknown_fields=True):
    """Which version."""

    version: Annotated[int, Meta(ge=0, le=VERSION_MAX, description="0: the newest.")] = 0


class VersionQuery(Struct, forbid_unknown_fields=True):
    """Which page of the versions."""

    limit: PageSize = 100
    after: Annotated[
        int, Meta(ge=0, le=VERSION_MAX, description="`next` of the page before; 0 for the first.")
    ] = 0


class NewSchema(Struct, forbid_unknown_fields=True):
    """A schema to register."""

    type: TypeName
    definition: str = ""
    encoding: Encoding = "text"
    description: Annotated[str, Meta(max_length=1_000)] = ""
    created_by: Annotated[str, Meta(max_length=100)] = ""
    tags: Tags = []
    mode: (
        Annotated[ModeName, Meta(description="Of the subject, from now on; as it is if left out.")]
        | None
    ) = None


class SchemaToCheck(Struct, forbid_unknown_fields=True):
    """A schema that is not registered."""

    type: TypeName
    definition: str = ""
    encoding: Encoding = "text"
    mode: ModeName | None = None


class SubjectChanges(Struct, forbid_unknown_fields=True):
    """What to change of a subject."""

    mode: ModeName


class RegisteredSchema(Struct):
    """A schema that is in the registry."""

    schema_id: int
    version: int
    fingerprint: str


class SchemaVersion(Struct):
    """One version of a subject."""

    subject: str
    schema_id: int
    version: int
    type: str
    definition: str
    encoding: Encoding
    fingerprint: str
    description: str
    created_by: str
    tags: list[str]
    created_ms: int


class SchemaVersionPage(Struct):
    """Some versions, oldest first; `next` is 0 at the end."""

    rows: list[SchemaVersion]
    next: int = 0


class SubjectPage(Struct):
    """Some subjects by name."""

    rows: list[SubjectReport]
    next: str = ""


class Compatibility(Struct):
    """Whether a schema may become the next version, and what is in its way."""

    compatible: bool
    reasons: list[str]


class NewBinding(Struct, forbid_unknown_fields=True):
    """Which schema the messages of a topic have."""

    subject: PlainName
    policy: Annotated[
        Literal["none", "warn", "enforce"],
        Meta(description="What becomes of a message that does not follow it."),
    ] = "enforce"
    validate_payload: bool = True
    version: AnyVersion = 0
    min_version: AnyVersion = 0


class BindingPage(Struct):
    """Some bindings by topic."""

    rows: list[Binding]
    next: str = ""


# Subjects


@SCHEMAS.route("GET", "/schemas")
async def list_subjects(admin: Admin, query: PageQuery) -> SubjectPage:
    """List subjects."""
    # One more tells whether there is a next page.
    rows = _registry(admin).subjects(after=query.after, limit=query.limit + 1)
    page = rows[: query.limit]
    more = page[-1].subject if len(rows) > len(page) else ""
    return SubjectPage(rows=page, next=more)


@SCHEMAS.route("GET", _SUBJECT, SchemaNotFoundError)
async def describe_subject(admin: Admin, where: SubjectPath) -> SubjectReport:
    """Describe a subject."""
    return _registry(admin).subject(where.subject)


@SCHEMAS.route("PATCH", _SUBJECT, SchemaNotFoundError, StorageFailedError)
async def change_subject(admin: Admin, where: SubjectPath, body: SubjectChanges) -> SubjectReport:
    """Change what new versions must be compatible with."""
    await _registry(admin).set_mode(where.subject, body.mode)
    return _registry(admin).subject(where.subject)


@SCHEMAS.route("DELETE", _SUBJECT, SchemaNotFoundError, SchemaMismatchError, StorageFailedError)
async def delete_subject(admin: Admin, where: SubjectPath) -> None:
    """Remove a subject with all of its versions, unless a topic is bound to it."""
    await _registry(admin).delete_subject(where.subject)


@SCHEMAS.route("POST", f"{_SUBJECT}/check", BadSchemaError, ExtraMissingError, SchemaNotFoundError)
async def check_schema(admin: Admin, where: SubjectPath, body: SchemaToCheck) -> Compatibility:
    """Tell whether a schema may become the next version of a subject, and what is in its way."""
    definition = decode_bytes(body.definition, body.encoding)
    reasons = await _registry(admin).check(where.subject, body.type, definition, mode=body.mode)
    return Compatibility(compatible=not reasons, reasons=reasons)


# Versions


@SCHEMAS.route("GET", f"{_SUBJECT}/versions", SchemaNotFoundError)
async def list_versions(admin: Admin, where: SubjectPath, query: VersionQuery) -> SchemaVersionPage:
    """List the versions of a subject."""
    found = _registry(admin).versions(where.subject)
    rows = [row for row in found if row.version > query.after]
    page = _fitting(rows[: query.limit])
    more = page[-1].version if len(rows) > len(page) else 0
    return SchemaVersionPage(rows=[_version(row) for row in page], next=more)


@SCHEMAS.route(
    "POST",
    f"{_SUBJECT}/versions",
    BadNameError,
    BadSchemaError,
    ExtraMissingError,
    SchemaIncompatibleError,
    LimitReachedError,
    StorageFailedError,
)
async def register_schema(
    admin: Admin, where: SubjectPath, body: NewSchema
) -> Made[RegisteredSchema]:
    """Register a schema as the next version of a subject, or find it among its versions."""
    found = await _registry(admin).register(
        where.subject,
        body.type,
        decode_bytes(body.definition, body.encoding),
        description=body.description,
        created_by=body.created_by,
        tags=body.tags,
        mode=body.mode,
    )
    report = RegisteredSchema(found.schema_id, found.version, found.fingerprint)
    return Made(report, found.is_new)


@SCHEMAS.route("GET", f"{_SUBJECT}/versions/{{version}}", SchemaNotFoundError)
async def describe_version(admin: Admin, where: SomeVersionPath) -> SchemaVersion:
    """Tell one version of a subject with its definition."""
    number = 0 if where.version == "latest" else int(where.version)
    return _version(_registry(admin).version(where.subject, number))


@SCHEMAS.route(
    "DELETE",
    f"{_SUBJECT}/versions/{{version}}",
    SchemaNotFoundError,
    SchemaMismatchError,
    StorageFailedError,
)
async def delete_version(admin: Admin, where: VersionPath) -> None:
    """Remove one version of a subject, unless a topic needs it; its number is not used again."""
    await _registry(admin).delete_version(where.subject, where.version)


@SCHEMAS.route("GET", "/schema-ids/{schema_id}", SchemaNotFoundError)
async def describe_schema_id(admin: Admin, where: IdPath, query: IdQuery) -> SchemaVersion:
    """Tell a schema by the id that travels with messages."""
    return _version(_registry(admin).get(where.schema_id, query.version))


# Bindings


@BINDINGS.route("GET", "/bindings")
async def list_bindings(admin: Admin, query: PageQuery) -> BindingPage:
    """List which topics are bound to which subjects."""
    rows = [row for row in _registry(admin).bindings() if row.topic > query.after]
    page = rows[: query.limit]
    more = page[-1].topic if len(rows) > len(page) else ""
    return BindingPage(rows=page, next=more)


@BINDINGS.route("GET", _BINDING, BadNameError, SchemaBindingNotFoundError)
async def describe_binding(admin: Admin, where: TopicPath) -> Binding:
    """Tell which subject a topic is bound to."""
    return _registry(admin).binding(where.name)


@BINDINGS.route(
    "PUT", _BINDING, BadNameError, SchemaNotFoundError, SchemaMismatchError, StorageFailedError
)
async def bind_topic(admin: Admin, where: TopicPath, body: NewBinding) -> Binding:
    """Bind a topic to a subject, in place of what it was bound to."""
    return await _registry(admin).bind(
        where.name,
        body.subject,
        policy=body.policy,
        validate_payload=body.validate_payload,
        version=body.version,
        min_version=body.min_version,
    )


@BINDINGS.route("DELETE", _BINDING, BadNameError, SchemaBindingNotFoundError, StorageFailedError)
async def unbind_topic(admin: Admin, where: TopicPath) -> None:
    """Have a topic take messages of any kind again."""
    await _registry(admin).unbind(where.name)


def _registry(admin: Admin) -> Registry:
    if admin.registry is None:
        raise BadRequestError("this broker has no schema registry")
    return admin.registry


def _fitting(rows: list[SubjectVersion]) -> list[SubjectVersion]:
    """Return the rows, at least one, whose definitions fit a page."""
    page: list[SubjectVersion] = []
    left = PAGE_BYTES
    for row in rows:
        left -= len(row.definition)
        if page and left < 0:
            break
        page.append(row)
    return page


def _version(row: SubjectVersion) -> SchemaVersion:
    definition, encoding = encode_bytes(row.definition)
    return SchemaVersion(
        subject=row.subject,
        schema_id=row.schema_id,
        version=row.version,
        type=str(row.type),
        definition=definition,
        encoding=encoding,
        fingerprint=row.fingerprint,
        description=row.description,
        created_by=row.created_by,
        tags=list(row.tags),
        created_ms=row.created_ms,
    )
