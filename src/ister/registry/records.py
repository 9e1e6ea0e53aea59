"""What the registry tells, and the facts it keeps: their keys, and their bytes.

| key                                  | value                                          |
|---|---|
| `schemas/id`                         | the highest schema id ever given               |
| `schemas/subjects/<subject>`         | `SubjectRecord`                                |
| `schemas/versions/<id>/<version>`    | `SubjectVersion`                               |
| `schemas/bindings/<topic>`           | `Binding`                                      |

Always true: a version lies under the id of its subject, which is never given again. What is left
of a deleted subject can so never be taken for part of a later one of the same name.
"""

from collections.abc import Sequence
from typing import Annotated, TypeVar, assert_never

import msgspec

from ister.base import parse_plain
from ister.base.errors import BadNameError, BadRequestError, CorruptedError
from ister.base.limits import NAME_BYTES_MAX, SCHEMA_DESCRIPTION_BYTES_MAX, SCHEMA_TAGS_MAX
from ister.metadata import Fact
from ister.schemas import Mode, Policy, SchemaType

ID_KEY = "schemas/id"
SUBJECTS_PREFIX = "schemas/subjects/"
VERSIONS_PREFIX = "schemas/versions/"
BINDINGS_PREFIX = "schemas/bindings/"


class SubjectVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a subject: a schema, and what was said about it."""

    subject: str
    # One id for all versions of a subject.
    schema_id: int
    version: int
    type: SchemaType
    definition: bytes
    fingerprint: str
    description: str = ""
    created_by: str = ""
    tags: list[str] = msgspec.field(default_factory=list)
    created_ms: int = 0


class SubjectReport(msgspec.Struct, frozen=True, kw_only=True):
    """One subject. `tags` are those of its latest version; `versions` are in order."""

    subject: str
    schema_id: int
    type: SchemaType
    latest_version: int
    mode: Mode
    tags: list[str]
    versions: list[int]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a registration. Not `is_new`: that definition was a version already."""

    schema_id: int
    version: int
    is_new: bool
    fingerprint: str


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Which schema the messages of a topic follow, and what happens to those that do not.

    `version`: only that one is taken, 0 for any. `min_version`: no version before it is taken.
    """

    topic: str
    subject: str
    policy: Policy
    validate_payload: bool
    version: int
    min_version: int
    schema_id: int


class SubjectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a subject beside its versions."""

    subject: str
    schema_id: int
    type: SchemaType
    mode: Mode
    # The highest number ever given: that of a deleted version is not given again.
    last_version: int
    # In order.
    versions: Annotated[list[int], msgspec.Meta(min_length=1)]


Record = TypeVar("Record", SubjectRecord, SubjectVersion, Binding)


def check_words(description: str, created_by: str, tags: Sequence[str]) -> None:
    """Raise `BadRequestError` when more is said about a version than is kept."""
    if len(description.encode(errors="replace")) > SCHEMA_DESCRIPTION_BYTES_MAX:
        raise BadRequestError(f"`description` is over {SCHEMA_DESCRIPTION_BYTES_MAX} B")
    if len(tags) > SCHEMA_TAGS_MAX:
        raise BadRequestError(f"{len(tags)} tags are more than {SCHEMA_TAGS_MAX}")
    for text in (created_by, *tags):
        if len(text.encode(errors="replace")) > NAME_BYTES_MAX:
            raise BadRequestError(f"`created_by` and tags are at most {NAME_BYTES_MAX} B each")
    try:
        "".join((description, created_by, *tags)).encode()
    except UnicodeEncodeError:
        raise BadRequestError("a description or tag holds half a character") from None


def subject_key(subject: str) -> str:
    """Return the key of a subject."""
    return SUBJECTS_PREFIX + subject


def versions_prefix(schema_id: int) -> str:
    """Return what the keys of all versions of a subject start with."""
    # Zeros, so that the order of the keys is that of the numbers.
    return f"{VERSIONS_PREFIX}{schema_id:010}/"


def version_key(schema_id: int, version: int) -> str:
    """Return the key of a version."""
    return f"{versions_prefix(schema_id)}{version:010}"


def binding_key(topic: str) -> str:
    """Return the key of the binding of a topic."""
    return BINDINGS_PREFIX + topic


def encode_record(record: SubjectRecord | SubjectVersion | Binding) -> bytes:
    """Return the bytes that are kept of a record."""
    return msgspec.msgpack.encode(record)


def decode_record(fact: Fact, kind: type[Record]) -> Record:
    """Return the record in a fact, or raise `CorruptedError`. Unknown fields are let be."""
    try:
        record = msgspec.msgpack.decode(fact.value, type=kind)
        parse_plain(record.subject, "a subject")
    except (msgspec.MsgspecError, UnicodeDecodeError, BadNameError) as error:
        raise CorruptedError(f"fact {fact.key!r} of the metadata", 0, str(error)) from error
    if key_of(record) != fact.key:
        raise CorruptedError(f"fact {fact.key!r} of the metadata", 0, "it is of another key")
    return record


def key_of(record: SubjectRecord | SubjectVersion | Binding) -> str:
    """Return the key that a record is kept under."""
    match record:
        case SubjectRecord():
            return subject_key(record.subject)
        case SubjectVersion():
            return version_key(record.schema_id, record.version)
        case Binding():
            return binding_key(record.topic)
        case _:
            assert_never(record)


def encode_id(schema_id: int) -> bytes:
    """Return the bytes that are kept of the highest id."""
    return b"%d" % schema_id


def decode_id(fact: Fact) -> int:
    """Return the highest id ever given, or raise `CorruptedError`."""
    if not fact.value.isdigit():
        raise CorruptedError(f"fact {fact.key!r} of the metadata", 0, "it is no number")
    return int(fact.value)
