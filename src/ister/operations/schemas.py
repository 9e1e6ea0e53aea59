"""Schemas: subjects with their versions, and which topic is bound to which subject."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from ister.base import SchemaBinding, SchemaSubject, SchemaVersion
from ister.base.errors import (
    BadNameError,
    BadSchemaError,
    ExtraMissingError,
    LimitReachedError,
    SchemaBindingNotFoundError,
    SchemaIncompatibleError,
    SchemaMismatchError,
    SchemaNotFoundError,
    StorageFailedError,
)
from ister.operations.base import Group, Made, Operation, Right
from ister.operations.shapes import (
    After,
    Encoding,
    PageSize,
    PlainName,
    TopicName,
    decode_bytes,
    encode_bytes,
)

SCHEMAS = Group("schemas")
BINDINGS = Group("bindings")

_SUBJECT = "/schemas/{subject}"
_BINDING = "/namespaces/{namespace}/topics/{topic}/binding"

VERSION_MAX = 2**31 - 1

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


class _Definition(Struct, forbid_unknown_fields=True):
    """A schema as JSON writes it."""

    type: TypeName
    definition: str = ""
    encoding: Encoding = "text"
    mode: Annotated[ModeName, Meta(description="Of the subject; as it is if left out.")] | None = (
        None
    )

    def fields(self) -> dict[str, Any]:
        """Return the fields of the operation."""
        found = asdict(self)
        found["definition"] = decode_bytes(self.definition, found.pop("encoding"))
        return found


class NewSchema(_Definition):
    """A schema to register; `mode` is that of the subject from now on."""

    description: Annotated[str, Meta(max_length=1_000)] = ""
    created_by: Annotated[str, Meta(max_length=100)] = ""
    tags: Tags = []


class SchemaToCheck(_Definition):
    """A schema that is not registered."""


class RegisteredSchema(Struct):
    """A schema that is in the registry."""

    schema_id: int
    version: int
    fingerprint: str


class SchemaVersionText(Struct):
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


class VersionPage(Struct):
    """Some versions, oldest first; `next` is 0 at the end."""

    rows: list[SchemaVersion]
    next: int = 0


class SchemaVersionPage(Struct):
    """Some versions, oldest first; `next` is 0 at the end."""

    rows: list[SchemaVersionText]
    next: int = 0


class SubjectPage(Struct):
    """Some subjects by name."""

    rows: list[SchemaSubject]
    next: str = ""


class Compatibility(Struct):
    """Whether a schema may become the next version, and what is in its way."""

    compatible: bool
    reasons: list[str]


class BindingPage(Struct):
    """Some bindings by topic."""

    rows: list[SchemaBinding]
    next: str = ""


def _show_version(row: SchemaVersion) -> SchemaVersionText:
    definition, encoding = encode_bytes(row.definition)
    return SchemaVersionText(
        subject=row.subject,
        schema_id=row.schema_id,
        version=row.version,
        type=row.type,
        definition=definition,
        encoding=encoding,
        fingerprint=row.fingerprint,
        description=row.description,
        created_by=row.created_by,
        tags=row.tags,
        created_ms=row.created_ms,
    )


def _show_page(page: VersionPage) -> SchemaVersionPage:
    return SchemaVersionPage([_show_version(row) for row in page.rows], page.next)


# Subjects


@SCHEMAS(Right.LOOKUP, "GET /schemas")
class ListSubjects(Operation[SubjectPage], frozen=True):
    """List subjects."""

    limit: PageSize = 100
    after: After = ""


@SCHEMAS(Right.LOOKUP, f"GET {_SUBJECT}", SchemaNotFoundError)
class DescribeSubject(Operation[SchemaSubject], frozen=True):
    """Describe a subject."""

    subject: PlainName


@SCHEMAS(Right.MANAGE, f"PATCH {_SUBJECT}", SchemaNotFoundError, StorageFailedError)
class ChangeSubject(Operation[SchemaSubject], frozen=True):
    """Set the compatibility mode of a subject."""

    subject: PlainName
    mode: ModeName


@SCHEMAS(
    Right.MANAGE, f"DELETE {_SUBJECT}", SchemaNotFoundError, SchemaMismatchError, StorageFailedError
)
class DeleteSubject(Operation[None], frozen=True):
    """Delete a subject with all its versions, unless a topic is bound to it."""

    subject: PlainName


@SCHEMAS(
    Right.LOOKUP,
    f"POST {_SUBJECT}/check",
    BadSchemaError,
    ExtraMissingError,
    SchemaNotFoundError,
    body=SchemaToCheck,
)
class CheckSchema(Operation[Compatibility], frozen=True):
    """Check whether a schema can become the next version of a subject, with reasons."""

    subject: PlainName
    type: str
    definition: bytes = b""
    mode: str | None = None


# Versions


@SCHEMAS(Right.LOOKUP, f"GET {_SUBJECT}/versions", SchemaNotFoundError, show=_show_page)
class ListVersions(Operation[VersionPage], frozen=True):
    """List the versions of a subject."""

    subject: PlainName
    limit: PageSize = 100
    after: Annotated[
        int, Meta(ge=0, le=VERSION_MAX, description="`next` of the page before; 0 for the first.")
    ] = 0


@SCHEMAS(
    Right.MANAGE,
    f"POST {_SUBJECT}/versions",
    BadNameError,
    BadSchemaError,
    ExtraMissingError,
    SchemaIncompatibleError,
    LimitReachedError,
    StorageFailedError,
    body=NewSchema,
)
class RegisterSchema(Operation[Made[RegisteredSchema]], frozen=True):
    """Register a schema as the next version of a subject, or find its version."""

    subject: PlainName
    type: str
    definition: bytes = b""
    description: str = ""
    created_by: str = ""
    tags: Sequence[str] = ()
    mode: str | None = None


@SCHEMAS(
    Right.LOOKUP, f"GET {_SUBJECT}/versions/{{version}}", SchemaNotFoundError, show=_show_version
)
class DescribeVersion(Operation[SchemaVersion], frozen=True):
    """Return one version of a subject with its definition."""

    subject: PlainName
    version: Annotated[
        str,
        Meta(pattern=r"^(latest|[1-9][0-9]{0,8})$", description="A number from 1, or `latest`."),
    ] = "latest"


@SCHEMAS(
    Right.MANAGE,
    f"DELETE {_SUBJECT}/versions/{{version}}",
    SchemaNotFoundError,
    SchemaMismatchError,
    StorageFailedError,
)
class DeleteVersion(Operation[None], frozen=True):
    """Delete one version of a subject, unless a topic needs it; its number is not used again."""

    subject: PlainName
    version: Version


@SCHEMAS(Right.LOOKUP, "GET /schema-ids/{schema_id}", SchemaNotFoundError, show=_show_version)
class DescribeSchemaId(Operation[SchemaVersion], frozen=True):
    """Return a schema by the id that messages carry."""

    schema_id: Version
    version: Annotated[int, Meta(ge=0, le=VERSION_MAX, description="0: the newest.")] = 0


# Bindings


@BINDINGS(Right.LOOKUP, "GET /bindings")
class ListBindings(Operation[BindingPage], frozen=True):
    """List the topics that are bound to subjects."""

    limit: PageSize = 100
    after: After = ""


@BINDINGS(Right.LOOKUP, f"GET {_BINDING}", BadNameError, SchemaBindingNotFoundError)
class DescribeBinding(Operation[SchemaBinding], frozen=True):
    """Return the subject that a topic is bound to."""

    topic: TopicName


@BINDINGS(
    Right.MANAGE,
    f"PUT {_BINDING}",
    BadNameError,
    SchemaNotFoundError,
    SchemaMismatchError,
    StorageFailedError,
)
class BindTopic(Operation[SchemaBinding], frozen=True):
    """Bind a topic to a subject, replacing its former binding."""

    topic: TopicName
    subject: PlainName
    policy: Annotated[
        Literal["none", "warn", "enforce"],
        Meta(description="What becomes of a message that does not follow it."),
    ] = "enforce"
    validate_payload: bool = True
    version: AnyVersion = 0
    min_version: AnyVersion = 0


@BINDINGS(
    Right.MANAGE, f"DELETE {_BINDING}", BadNameError, SchemaBindingNotFoundError, StorageFailedError
)
class UnbindTopic(Operation[None], frozen=True):
    """Unbind a topic: it accepts any payload again."""

    topic: TopicName
