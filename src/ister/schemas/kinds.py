"""The closed choices of the registry: types of schemas, modes of compatibility, policies of topics.

Every value is the word that users write, that goes over the wire and that is stored.
"""

from enum import StrEnum

from ister.base.errors import BadRequestError, BadSchemaError


class SchemaType(StrEnum):
    """What a schema describes. The plain types are complete without a definition."""

    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    JSON_SCHEMA = "json_schema"
    AVRO = "avro"
    PROTOBUF = "protobuf"

    @property
    def is_plain(self) -> bool:
        """Whether the type says everything, so that the definition means nothing."""
        return self not in _DEFINED


class Mode(StrEnum):
    """Which readers a new version of a schema must not break.

    `backward`: the new schema reads data of the version before it. `forward`: the version before
    reads data of the new one. `full`: both. The transitive modes look at every earlier version.
    """

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL_TRANSITIVE = "full_transitive"

    @property
    def is_transitive(self) -> bool:
        return self.value.endswith("_transitive")

    @property
    def reads_old(self) -> bool:
        """Whether the new schema must read old data."""
        return self.value.startswith(("backward", "full"))

    @property
    def is_read_by_old(self) -> bool:
        """Whether old schemas must read new data."""
        return self.value.startswith(("forward", "full"))


class Policy(StrEnum):
    """What happens to a message that does not follow the schema of its topic."""

    NONE = "none"
    WARN = "warn"
    ENFORCE = "enforce"


_DEFINED = (SchemaType.JSON_SCHEMA, SchemaType.AVRO, SchemaType.PROTOBUF)
_ALIASES = {
    "json": SchemaType.JSON_SCHEMA,
    "jsonschema": SchemaType.JSON_SCHEMA,
    "proto": SchemaType.PROTOBUF,
    "int": SchemaType.INT64,
}


def parse_type(text: str) -> SchemaType:
    """Return the type that `text` names, in any case. Raises `BadSchemaError`."""
    word = _word(text)
    if word in _ALIASES:
        return _ALIASES[word]
    try:
        return SchemaType(word)
    except ValueError:
        raise BadSchemaError(f"type {text[:40]!r} is none of {', '.join(SchemaType)}") from None


def parse_mode(text: str) -> Mode:
    """Return the mode that `text` names, in any case. Raises `BadRequestError`."""
    try:
        return Mode(_word(text))
    except ValueError:
        raise BadRequestError(
            f"compatibility mode {text[:40]!r} is none of {', '.join(Mode)}"
        ) from None


def parse_policy(text: str) -> Policy:
    """Return the policy that `text` names, in any case. Raises `BadRequestError`."""
    try:
        return Policy(_word(text))
    except ValueError:
        raise BadRequestError(
            f"validation policy {text[:40]!r} is none of {', '.join(Policy)}"
        ) from None


def _word(text: str) -> str:
    return text.strip().lower().replace("-", "_")
