"""What the schema registry tells. One shape for the registry, the wire, the SDK and the CLI."""

from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """One version of a subject. All versions of a subject share its `schema_id`."""

    subject: str
    schema_id: int
    version: int
    type: str
    definition: bytes
    # Of the meaning: whitespace and the order of keys make no difference.
    fingerprint: str
    description: str = ""
    created_by: str = ""
    tags: list[str] = field(default_factory=list)
    created_ms: int = 0

    @property
    def created(self) -> datetime:
        """When it was registered."""
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSubject:
    """A subject: versions of one schema, each compatible with those before it as `mode` says."""

    subject: str
    schema_id: int
    type: str
    mode: str
    latest_version: int
    versions: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaBinding:
    """What a topic takes: messages of a subject, checked as `policy` says."""

    topic: str
    subject: str
    schema_id: int
    policy: str
    validate_payload: bool
    # The one version that is taken; 0: any.
    version: int = 0
    # The oldest version that is taken; 0: any.
    min_version: int = 0
