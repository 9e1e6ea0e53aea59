"""Control commands of the schema registry. Spec: docs/protocol.md."""

from typing import TypeAlias

import msgspec

from ister.base import SchemaBinding, SchemaSubject, SchemaVersion
from ister.wire.tagged import Listed, Tagged


class RegisterSchema(Tagged):
    """Add a version to a subject, which is made when it does not exist.

    A definition that means the same as a version there is gets that version. `mode` empty: as the
    subject has it, `backward` for a new one.
    """

    subject: str
    type: str
    definition: bytes
    description: str = ""
    created_by: str = ""
    tags: Listed[str] = msgspec.field(default_factory=list)
    mode: str = ""


class SchemaRegistered(Tagged):
    """The number of the subject, and the version in it."""

    schema_id: int
    version: int
    is_new: bool
    fingerprint: str


class CheckSchema(Tagged):
    """Ask whether a definition could be registered; nothing changes."""

    subject: str
    type: str
    definition: bytes
    mode: str = ""


class SchemaChecked(Tagged):
    """What is incompatible, and with which version; empty: nothing."""

    reasons: list[str]


class GetSchema(Tagged):
    """Ask for a version, by its subject or by the number of that. Version 0: the latest."""

    subject: str = ""
    schema_id: int = 0
    version: int = 0


class SchemaFound(Tagged):
    """A version."""

    schema: SchemaVersion


class ListSchemaVersions(Tagged):
    """Ask for the versions of a subject, those behind `after`."""

    subject: str
    after: int = 0


class SchemaVersions(Tagged):
    """Some versions, oldest first. `after` is what to ask with for more, 0 at the end."""

    rows: list[SchemaVersion]
    after: int


class ListSchemas(Tagged):
    """Ask for the subjects, a page at a time."""

    after: str = ""
    limit: int = 1_000


class Schemas(Tagged):
    """A page of subjects, by name. `after` is as that of `Topics`."""

    rows: list[SchemaSubject]
    after: str


class DescribeSchema(Tagged):
    """Ask for one subject."""

    subject: str


class SchemaDescription(Tagged):
    """A subject."""

    report: SchemaSubject


class DeleteSchema(Tagged):
    """Delete a version of a subject, or the subject as a whole when `version` is 0."""

    subject: str
    version: int = 0


class SetSchemaMode(Tagged):
    """Say what a new version of a subject is to be compatible with."""

    subject: str
    mode: str


class BindSchema(Tagged):
    """Let a topic take messages of a subject; an earlier binding of the topic is replaced."""

    topic: str
    subject: str
    policy: str = "enforce"
    validate_payload: bool = True
    version: int = 0
    min_version: int = 0


class UnbindSchema(Tagged):
    """Let a topic take anything again."""

    topic: str


class GetSchemaBinding(Tagged):
    """Ask what a topic is bound to."""

    topic: str


class SchemaBound(Tagged):
    """What a topic is bound to."""

    binding: SchemaBinding


SchemaCommand: TypeAlias = (
    RegisterSchema
    | SchemaRegistered
    | CheckSchema
    | SchemaChecked
    | GetSchema
    | SchemaFound
    | ListSchemaVersions
    | SchemaVersions
    | ListSchemas
    | Schemas
    | DescribeSchema
    | SchemaDescription
    | DeleteSchema
    | SetSchemaMode
    | BindSchema
    | UnbindSchema
    | GetSchemaBinding
    | SchemaBound
)
