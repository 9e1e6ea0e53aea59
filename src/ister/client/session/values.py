"""Values instead of bytes: what an application gives as `schema=`, and what is made of it.

Encoding is done once for each message, before it is put into a batch. Decoding waits until the
application asks for a value, and knows the version that the message was written with.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ister.base import find_partition
from ister.base.errors import BadRequestError, SchemaViolationError
from ister.wire import RegisterSchema, SchemaFound

if TYPE_CHECKING:
    from ister import schemas


# Types of readers and of writers. JSON is text; a `number` is any float.
_ALIKE = {("string", "json_schema"), ("number", "float"), ("number", "double")}


class Schema:
    """A schema by its definition. Values are dictionaries then, or what the plain types say.

    `type` is 'json_schema', 'avro', 'protobuf', 'string', 'bytes', 'int64' or another number.
    The definition is text, bytes, or JSON as dictionaries and lists.
    """

    __slots__ = ("definition", "type")

    def __init__(self, type: str, definition: object = b"") -> None:
        if not isinstance(type, str):
            raise BadRequestError(f"the type of a schema is text, as 'avro', not {type!r}")
        self.type = type
        self.definition = _definition(definition)

    def __repr__(self) -> str:
        return f"Schema({self.type!r}, {self.definition[:60]!r})"


class Values:
    """How values of one schema become payloads, and payloads of any version of it values."""

    __slots__ = ("_decode", "_name", "encode", "schema")

    def __init__(self, given: object) -> None:
        """Raises `BadSchemaError` for what is no schema and has none."""
        # When it is first needed: a client without schemas does not load it.
        from ister.schemas import codec_for, schema_of

        if isinstance(given, Schema):
            self.schema = parsed(given.type, given.definition)
            codec = codec_for(self.schema)
            self._name = given.type
        elif isinstance(given, type):
            self.schema = schema_of(given)
            codec = codec_for(self.schema, given)
            self._name = given.__name__
        else:
            raise BadRequestError(
                f"schema={given!r} is no schema: give a class (a dataclass, a msgspec Struct, a "
                "protobuf message, str, int, float) or `ister.Schema(type, definition)`"
            )
        self.encode: Callable[[Any], bytes] = codec.encode
        self._decode = codec.decode

    def decode(self, payload: bytes, *, topic: str, writer: "schemas.Schema | None") -> Any:
        """Return the value of a payload that was written with `writer`.

        `None`: nobody said what it was written with, so it is taken to be this very schema.
        Raises `SchemaViolationError` for a payload that is no value.
        """
        if writer is not None and not _reads(self.schema.type.value, writer.type.value):
            # Eight bytes are an int64 as well as a double: only the type tells them apart.
            reason = f"the message is of type {writer.type.value}, not {self.schema.type.value}"
            raise SchemaViolationError(topic, self._name, reason)
        try:
            return self._decode(payload, writer)
        except BadRequestError as error:
            raise SchemaViolationError(topic, self._name, error.reason) from None


def _reads(reader: str, writer: str) -> bool:
    """Whether what was written with one type of schema means the same, read with another."""
    return reader in (writer, "bytes") or (reader, writer) in _ALIKE


class SchemaRegistration(NamedTuple):
    """A schema that a producer has registered, to be registered again should it be forgotten."""

    command: RegisterSchema
    fingerprint: str

    def is_known(self, answer: object) -> bool:
        """Whether the broker's answer to `GetSchema` is this very schema."""
        return (
            isinstance(answer, SchemaFound)
            and answer.schema.subject == self.command.subject
            and answer.schema.fingerprint == self.fingerprint
        )


def registration_of(values: Values, subject: str) -> SchemaRegistration:
    """Return how the schema of `values` is registered under `subject`."""
    schema = values.schema
    command = RegisterSchema(subject=subject, type=schema.type.value, definition=schema.definition)
    return SchemaRegistration(command, schema.fingerprint)


def parsed(type: str, definition: bytes) -> "schemas.Schema":
    """Return a schema by its type and definition, or raise `BadSchemaError`."""
    from ister.schemas import parse_schema, parse_type

    return parse_schema(parse_type(type), definition)


def definition_of(given: object) -> tuple[str, bytes]:
    """Return type and definition of what an application gives as a schema, unchecked."""
    if isinstance(given, Schema):
        return given.type, given.definition
    schema = Values(given).schema
    return schema.type.value, schema.definition


def no_schema(what: str, topic: str, method: str) -> BadRequestError:
    """Return what to tell somebody who wants values where there are only payloads."""
    return BadRequestError(
        f"the {what} {topic!r} was given no schema: say `client.{method}(..., schema=...)`, or "
        "decode the payload yourself"
    )


def default_subject(topic: str) -> str:
    """Return the subject of a topic's messages: `default.orders-value` for `/default/orders`."""
    found = find_partition(topic)
    name = str(found[0]) if found else topic
    return name.strip("/").replace("/", ".") + "-value"


def _definition(definition: object) -> bytes:
    if isinstance(definition, bytes | bytearray | memoryview):
        return bytes(definition)
    if isinstance(definition, str):
        return definition.encode(errors="replace")
    if isinstance(definition, Mapping | list):
        try:
            return msgspec.json.encode(definition)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequestError(f"the definition of a schema is no JSON: {error}") from None
    kind = type(definition).__name__
    raise BadRequestError(f"the definition of a schema is text, bytes or JSON, not {kind}")
