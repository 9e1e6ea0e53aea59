"""A JSON Schema, and the validator that jsonschema-rs makes of it.

The only file that knows jsonschema-rs. Its regular expressions are those that match in linear
time (no look-around, no back-references); it is given nothing to fetch with. Time is bounded by
the steps that `graph` foresees for a value at each depth.
"""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import msgspec

from ister.base.errors import BadSchemaError, ExtraMissingError
from ister.schemas.bounds import (
    CHECK_STEPS_MAX,
    PAYLOAD_NESTING_MAX,
    PAYLOAD_STEPS_MAX,
    PAYLOAD_VALUES_MAX,
    Json,
    Steps,
    canonical,
    decode_definition,
    parse_steps,
    shortened,
    walk,
)
from ister.schemas.checking import Fault, Payload, Validator, each
from ister.schemas.json.graph import PATTERN_BYTES_MAX, Graph, Work, check_paths, digits_of
from ister.schemas.json.patterns import is_fast

# Drafts by a part of `$schema` that no other has; a document without one is of the newest.
_DRAFTS = {
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "2019-09": 2019,
    "2020-12": 2020,
}
_NEWEST = 2020
# What explaining a fault may take. The library copies the message for that, for each choice that
# does not take it, and for each name that is missing: 0.4 µs a step, 40 ms in all.
EXPLAINED_STEPS_MAX = 100_000
# Digits of a number that take as long as the first ones.
DIGITS_PER_STEP = 10
# Patterns with one way to match, whatever the text: from its start, one part behind the other, each
# as often as it says, the last one perhaps more often. Dates, UUIDs, `^[a-z]+$`.
_PART = r"(?:[\w. :@/#%&=,;'\"!~<>-]|\\[dDsSwW.\-/]|\[[^\[\]\\]*\])"
_TAME = re.compile(
    rf"\^(?:{_PART}(?:\{{\d{{1,3}}\}})?)*(?:{_PART}(?:[*+?]|\{{\d{{1,3}},\d{{0,3}}\}}))?\$?"
)


class JsonModel:
    """A JSON Schema document that was understood."""

    def __init__(self, document: Json, steps: Steps) -> None:
        self.document = document
        self.fingerprint = "sha256:" + hashlib.sha256(canonical(document)).hexdigest()
        self.draft = _draft(document)
        self._graph = None
        self._work = Work([1], [0], [0], [0], frozenset())
        if isinstance(document, dict):
            self._graph = Graph(document, steps, lru_cache(_pattern_steps))
            self._work = self._graph.work()
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
        return JsonValidator(self._compiled, self._work)


class JsonValidator:
    """Checks that payloads are JSON and follow a schema."""

    def __init__(self, compiled: Any, work: Work) -> None:
        self._compiled = compiled
        # By itself the library takes 10 µs for a number such as 1e308, and so does a payload of
        # 64 KiB 100 ms; Python's own takes 0.2 µs for any.
        self._decode = msgspec.json.Decoder(float_hook=float).decode
        self._work = work
        # For each two bytes: at most a value, or a part of a text or of a number. The costliest
        # number for its length is `1e308`.
        numbers = max(work.number) * (1 + 308 // DIGITS_PER_STEP) // 2
        # Values below are not looked at.
        self._depth_max = max(map(_depth_of, (work.value, work.number, work.text, work.other_text)))
        self._steps_max = max(work.value) + 2 * max(work.text) + numbers

    @property
    def weight(self) -> int:
        return self._steps_max

    def knows(self, payloads: Sequence[Payload]) -> bool:
        return True

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

        def spend(value: Json) -> str | None:
            nonlocal left
            steps = self._steps_of(value)
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
            return None

        return each(payloads, lambda payload: self._fault(payload, spend))

    def _fault(
        self, payload: Payload, spend: Callable[[Json], str | None] | None = None
    ) -> str | None:
        """Return what is wrong with a payload; `spend` says what would take too long."""
        data = bytes(payload)
        if _has_too_many_values(data):
            return (
                f"more than {PAYLOAD_VALUES_MAX} values: send smaller messages, "
                "or bind the topic without checking payloads"
            )
        try:
            value = self._decode(data)
            reason = spend(value) if spend is not None else None
            if reason is not None:
                return reason
            # Each level takes an opening bracket: most payloads need no walk to see their depth.
            if data.count(b"[") + data.count(b"{") > PAYLOAD_NESTING_MAX and any(
                depth > PAYLOAD_NESTING_MAX for depth, _ in walk(value)
            ):
                return f"nested deeper than {PAYLOAD_NESTING_MAX} levels"
            if self._compiled.is_valid(value):
                return None
            if len(data) * self._steps_max > EXPLAINED_STEPS_MAX:
                return "not valid; the reason is given only for smaller messages or simpler schemas"
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

    def _steps_of(self, payload: Json) -> int:
        work, total = self._work, 0
        waiting: list[tuple[int, str, Json]] = [(0, "", payload)]
        while waiting:
            depth, name, value = waiting.pop()
            total += _at(work.value, depth)
            if depth > self._depth_max or total > PAYLOAD_STEPS_MAX:
                continue
            if isinstance(value, dict):
                waiting.extend((depth + 1, key, part) for key, part in value.items())
                total += _at(work.other_text, depth + 1) * sum(map(len, value))
            elif isinstance(value, list):
                waiting.extend((depth + 1, name, part) for part in value)
            elif isinstance(value, str):
                texts = work.text if name in work.patterned else work.other_text
                total += _at(texts, depth) * len(value)
            elif value is not None and not isinstance(value, bool):
                # Small whole numbers are calculated with and compared at once.
                is_small = isinstance(value, int) and -(2**63) <= value < 2**63
                times = 1 + digits_of(value) // DIGITS_PER_STEP
                total += _at(work.number, depth) * times // (8 if is_small else 1)
        return total


def _has_too_many_values(data: bytes) -> bool:
    """Whether JSON takes too long to decode, as far as it is JSON: each value has a mark before it.

    Several short calls, between which others have their turn.
    """
    if len(data) <= PAYLOAD_VALUES_MAX or _count_marks(data) <= PAYLOAD_VALUES_MAX:
        return False
    # Marks in texts do not count. A value has two quotes at most, and so has its name.
    data = data.replace(rb"\\", b"")
    data = data.replace(rb"\"", b"")
    if data.count(b'"') > 4 * PAYLOAD_VALUES_MAX:
        return True
    parts = data.split(b'"')
    return _count_marks(b"".join(parts[::2])) > PAYLOAD_VALUES_MAX


def _count_marks(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{") + data.count(b",")


def _depth_of(steps: list[int]) -> float:
    """Return the depth from which on nothing is to be done; infinity when there is always more."""
    if steps[-1]:
        return math.inf
    return max((depth for depth, count in enumerate(steps) if count), default=0)


def _at(steps: list[int], depth: int) -> int:
    return steps[depth] if depth < len(steps) else steps[-1]


def parse_json_schema(definition: bytes, steps: Steps | None = None) -> JsonModel:
    """Return the JSON Schema that `definition` holds.

    Raises `BadSchemaError` and `SchemaTooComplexError`.
    """
    document = decode_definition(definition)
    if not isinstance(document, dict | bool):
        raise BadSchemaError("a JSON Schema is an object or a boolean")
    check_paths(document)
    return JsonModel(document, steps or parse_steps())


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


def _pattern_steps(pattern: str) -> int:
    """Return what matching a pattern costs at worst for each character of a text.

    Most patterns match 500 MB/s. But a text may be chosen such that the library has to simulate
    the pattern with all its states: 0.2 µs and 50 ns for each KiB that it is compiled to. Its size
    is found by trying.
    """
    if _TAME.fullmatch(pattern) or is_fast(pattern):
        return 0
    library = _library()
    size_bytes = 1024
    while size_bytes < PATTERN_BYTES_MAX:
        options = library.RegexOptions(size_limit=size_bytes, dfa_size_limit=size_bytes)
        try:
            library.validator_for({"pattern": pattern}, pattern_options=options)
            break
        except (library.ValidationError, ValueError):
            size_bytes *= 4
    return 4 + size_bytes // 512


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
