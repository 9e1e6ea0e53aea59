"""A JSON Schema, and the validator that jsonschema-rs makes of it.

The only file that knows jsonschema-rs. Its regular expressions are those that match in linear
time (no look-around, no back-references); it is given nothing to fetch with. Time is bounded by
the steps that `graph` foresees for a value at each depth.
"""

import hashlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec

from ister.base.errors import BadSchemaError, ExtraMissingError
from ister.schemas.bounds import (
    CHECK_STEPS_MAX,
    PAYLOAD_NESTING_MAX,
    PAYLOAD_STEPS_MAX,
    Json,
    canonical,
    decode_definition,
    shortened,
    walk,
)
from ister.schemas.checking import Fault, Payload, Validator, each
from ister.schemas.json.graph import PATTERN_BYTES_MAX, Graph

# Drafts by a part of `$schema` that no other has; a document without one is of the newest.
_DRAFTS = {
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "2019-09": 2019,
    "2020-12": 2020,
}
_NEWEST = 2020


class JsonModel:
    """A JSON Schema document that was understood."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.fingerprint = "sha256:" + hashlib.sha256(canonical(document)).hexdigest()
        self.draft = _draft(document)
        self._graph = Graph(document) if isinstance(document, dict) else None
        self._steps = self._graph.steps() if self._graph else [1]
        self._compiled = _compile(document)
        self._patterns: dict[str, Any] = {}

    @property
    def asserts_formats(self) -> bool:
        """Whether `format` is checked, not only told; newer drafts leave it at that."""
        return self.draft <= 7

    def resolve(self, reference: Json) -> Json:
        """Return the schema that `reference` names."""
        assert self._graph is not None  # A boolean has no references.
        return self._graph.resolve(reference)

    def matches(self, pattern: str, name: str) -> bool:
        """Return whether `pattern`, which is one of the document's, takes a property's name."""
        if pattern not in self._patterns:
            self._patterns[pattern] = _compile({"pattern": pattern})
        return bool(self._patterns[pattern].is_valid(name))

    def validator(self) -> Validator:
        return JsonValidator(self._compiled, self._steps)


class JsonValidator:
    """Checks that payloads are JSON and follow a schema."""

    def __init__(self, compiled: Any, steps: list[int]) -> None:
        self._compiled = compiled
        self._decode = msgspec.json.Decoder().decode
        self._steps = steps
        self._steps_max = max(steps)

    @property
    def weight(self) -> int:
        return self._steps_max

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        # A value takes two bytes or more with what parts it from the next, which the last of a
        # payload does not have.
        values_max = (sum(map(len, payloads)) + len(payloads)) // 2
        longest = (max(map(len, payloads), default=0) + 1) // 2
        if (
            values_max * self._steps_max <= CHECK_STEPS_MAX
            and longest * self._steps_max <= PAYLOAD_STEPS_MAX
        ):
            return each(payloads, self._fault)
        left = CHECK_STEPS_MAX

        def fault(payload: Payload) -> str | None:
            nonlocal left
            try:
                steps = self._steps_of(self._decode(payload))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return self._fault(payload)
            if steps > PAYLOAD_STEPS_MAX:
                return (
                    f"checking takes more than {PAYLOAD_STEPS_MAX} steps: send smaller messages, "
                    "or use a schema with fewer choices"
                )
            left -= steps
            if left < 0:
                return (
                    f"checking takes more than {CHECK_STEPS_MAX} steps for one batch: "
                    "send smaller batches, or a message with fewer levels"
                )
            return self._fault(payload)

        return each(payloads, fault)

    def _fault(self, payload: Payload) -> str | None:
        try:
            value = self._decode(payload)
            # Each level takes an opening bracket: most payloads need no walk to see their depth.
            data = bytes(payload)
            if data.count(b"[") + data.count(b"{") > PAYLOAD_NESTING_MAX and any(
                depth > PAYLOAD_NESTING_MAX for depth, _ in walk(value)
            ):
                return f"nested deeper than {PAYLOAD_NESTING_MAX} levels"
            if self._compiled.is_valid(value):
                return None
            self._compiled.validate(value)
        except RecursionError:
            return f"nested deeper than {PAYLOAD_NESTING_MAX} levels"
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return shortened(f"not JSON: {error}")
        except ValueError as error:
            return _explained(error)
        except BaseException as error:
            # A panic inside the library is no `Exception`, and must not end the broker.
            if type(error).__module__ != "pyo3_runtime":
                raise
            return "the library that checks it has failed"
        return "not valid"

    def _steps_of(self, value: Json) -> int:
        deepest = len(self._steps) - 1
        return sum(self._steps[min(depth, deepest)] for depth, _ in walk(value))


def parse_json_schema(definition: bytes) -> JsonModel:
    """Return the JSON Schema that `definition` holds. Raises `BadSchemaError`."""
    document = decode_definition(definition)
    if not isinstance(document, dict | bool):
        raise BadSchemaError("a JSON Schema is an object or a boolean")
    return JsonModel(document)


def _draft(document: Json) -> int:
    named = document.get("$schema") if isinstance(document, dict) else None
    if named is None:
        return _NEWEST
    if isinstance(named, str) and "json-schema.org/" in named:
        for part, draft in _DRAFTS.items():
            if part in named:
                return draft
    raise BadSchemaError(
        f"`$schema` {shortened(str(named))!r} is none of the drafts 4, 6, 7, 2019-09 and 2020-12"
    )


def _compile(document: Json) -> Any:
    library = _library()
    try:
        return library.validator_for(
            document,
            retriever=_refuse,
            pattern_options=library.RegexOptions(
                size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX
            ),
            # Errors go into logs and to other clients; payloads do not.
            mask="the value",
        )
    except library.ValidationError as error:
        place = "/".join(str(part) for part in error.instance_path)
        raise BadSchemaError(shortened(f"at /{place}: {error.message}")) from None
    except (library.ReferencingError, ValueError, TypeError, OverflowError) as error:
        raise BadSchemaError(shortened(str(error))) from None


def _library() -> ModuleType:
    try:
        import jsonschema_rs
    except ImportError:
        raise ExtraMissingError("schemas of type json_schema", "schemas") from None
    return jsonschema_rs


def _refuse(uri: str) -> Any:
    raise BadSchemaError(f"reference {shortened(uri)!r} leads out of the document")


def _explained(error: ValueError) -> str:
    path = getattr(error, "instance_path", None)
    if path is None:
        return shortened(str(error))
    place = "/".join(str(part) for part in path)
    return shortened(f"at /{place}: {getattr(error, 'message', error)}")
