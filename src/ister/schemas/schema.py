"""A schema: its type, its definition and what was understood of it.

Always true of a `Schema`: its definition was parsed within the bounds of `bounds`, so comparing
it and checking payloads by it take bounded time; two with the same fingerprint mean the same.
"""

from collections.abc import Sequence
from typing import Protocol

from ister.base.errors import BadSchemaError
from ister.schemas.bounds import Steps, check_size, parse_steps
from ister.schemas.checking import Payload, Validator, plain_validator
from ister.schemas.kinds import SchemaType


class Model(Protocol):
    """What a type of schema has understood of a definition."""

    @property
    def fingerprint(self) -> str: ...

    def validator(self) -> Validator: ...


class Schema:
    """A definition that was understood. Made by `parse_schema`."""

    __slots__ = ("_validator", "definition", "fingerprint", "model", "type")

    def __init__(self, type: SchemaType, definition: bytes, model: Model) -> None:
        self.type = type
        self.definition = definition
        self.model = model
        # `sha256:…` of a form that does not depend on spaces and order; of a plain type its name.
        self.fingerprint = model.fingerprint
        self._validator: Validator | None = None

    def validator(self) -> Validator:
        """Return what checks payloads; made at the first call."""
        if self._validator is None:
            self._validator = self.model.validator()
        return self._validator

    @property
    def weight(self) -> int | None:
        """The weight of its validator; `None` before that is made, which takes a while."""
        return self._validator.weight if self._validator is not None else None

    def knows(self, payloads: Sequence[Payload]) -> bool:
        """Whether payloads can be checked without parsing anything first."""
        return self._validator is not None and self._validator.knows(payloads)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self.type is other.type and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash((self.type, self.fingerprint))

    def __repr__(self) -> str:
        return f"Schema({self.type.value}, {self.fingerprint})"


class PlainModel:
    """Of a plain type: the definition means nothing."""

    def __init__(self, type: SchemaType) -> None:
        self._type = type
        self.fingerprint = type.value

    def validator(self) -> Validator:
        return plain_validator(self._type)


def parse_schema(type: SchemaType, definition: bytes, steps: Steps | None = None) -> Schema:
    """Return the schema that `definition` describes.

    Raises `BadSchemaError` for a definition that is broken or too large, `SchemaTooComplexError`
    for one that takes more than `PARSE_STEPS_MAX` steps, or more than `steps` has left, and
    `ExtraMissingError` when the library for its type is not installed. Nothing outside the
    definition is read or fetched.
    """
    definition = bytes(definition)
    check_size(definition)
    try:
        return Schema(type, definition, _model(type, definition, parse_steps(steps)))
    except RecursionError:
        # Bounds on nesting are checked before this can happen on a default stack; a caller may
        # already be deep in its own.
        raise BadSchemaError("the definition is nested too deeply") from None


def _model(type: SchemaType, definition: bytes, steps: Steps) -> Model:
    # Each type is loaded when it is met: a broker that meets none starts sooner.
    if type is SchemaType.JSON_SCHEMA:
        from ister.schemas.json.model import parse_json_schema

        return parse_json_schema(definition, steps)
    if type is SchemaType.AVRO:
        from ister.schemas.avro.model import parse_avro

        return parse_avro(definition, steps)
    if type is SchemaType.PROTOBUF:
        from ister.schemas.protobuf.model import parse_protobuf

        return parse_protobuf(definition, steps)
    return PlainModel(type)
