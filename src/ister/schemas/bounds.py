"""How large a schema may be, how much work checking a batch may take, and JSON within those bounds.

A schema comes from whoever may register one, a payload from whoever may send: every walk over
either is bounded here, before a library sees it.
"""

import math
from collections.abc import Iterator

import msgspec

from ister.base.errors import BadSchemaError, SchemaTooComplexError

# Handwritten schemas have a few KiB, generated ones of large companies some 100 KiB.
DEFINITION_BYTES_MAX = 1024 * 1024
# Objects and arrays inside each other. Every walk over a schema may recurse this deep: 64 levels
# of at most 4 Python frames stay far below the interpreter's limit of 1,000.
NESTING_MAX = 64
# Values in a definition, counted with all their parts.
NODES_MAX = 20_000
ENUM_VALUES_MAX = 10_000

# Characters of one name: of a property, a field, a type with its namespace. Every library keeps
# the full name of every part, so that 10,000 fields below one name of 1 MB would take 10 GB.
NAME_CHARS_MAX = 1_000
# Steps of parsing one definition, and of comparing it with one version. A step takes 1 to 3 µs: a
# second at most, in a thread. A definition of 20,000 values takes some 60,000.
PARSE_STEPS_MAX = 300_000
COMPARE_STEPS_MAX = 300_000
# Of one registration: all earlier versions are parsed and compared under the transitive modes. A
# thousand versions of 500 values each.
REGISTER_STEPS_MAX = 3_000_000
# What is told of a comparison; the rest would only fill memory.
BREAKS_MAX = 100
# Levels of a payload: what protobuf allows by itself.
PAYLOAD_NESTING_MAX = 100
# Steps of work for one batch. A step takes 50 to 200 ns, so that no batch holds up the broker
# for more than two seconds. A batch of the largest size a producer makes by itself (512 KiB, at
# least 2 bytes a value) always passes if the schema needs at most 40 steps for each value.
CHECK_STEPS_MAX = 10_000_000
# For one payload: the library checks it in one go, and nobody else has a turn meanwhile. The same
# for decoding it: a number such as 1e308 takes 0.4 µs, an array or a name 0.25 µs: 50 ms in all.
PAYLOAD_STEPS_MAX = 1_000_000
PAYLOAD_VALUES_MAX = 120_000
# More would only repeat what the first ones say.
FAULTS_MAX = 10
REASON_CHARS_MAX = 300
# Of the path to a part, as reasons name it.
PLACE_CHARS_MAX = 200
# Reasons that `incompatibilities` tells.
REASONS_MAX = 20


class Steps:
    """How much work may still be done. Those who work `spend`; any other thread may `stop` them."""

    __slots__ = ("_left", "_limit", "_parent", "_steps_max", "_work")

    def __init__(
        self, work: str, limit: str, steps_max: int, parent: "Steps | None" = None
    ) -> None:
        self._work = work
        self._limit = limit
        self._steps_max = steps_max
        self._left = steps_max
        # What is spent here is spent there, too.
        self._parent = parent

    def spend(self, count: int = 1) -> None:
        """Count steps. Raises `SchemaTooComplexError` when they are too many."""
        self._left -= count
        if self._left < 0:
            raise SchemaTooComplexError(self._work, self._limit, self._steps_max)
        if self._parent is not None:
            self._parent.spend(count)

    def stop(self) -> None:
        """Have the next `spend` raise: nobody waits for the result any more."""
        self._left = -1


def parse_steps(parent: Steps | None = None) -> Steps:
    """Return the budget for parsing one definition."""
    return Steps("parse", "PARSE_STEPS_MAX", PARSE_STEPS_MAX, parent)


def compare_steps(parent: Steps | None = None) -> Steps:
    """Return the budget for comparing two definitions."""
    return Steps("compare", "COMPARE_STEPS_MAX", COMPARE_STEPS_MAX, parent)


def register_steps() -> Steps:
    """Return the budget for everything that one registration takes."""
    return Steps("compare", "REGISTER_STEPS_MAX", REGISTER_STEPS_MAX)


Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number {shortened(text)} is out of range")
    return number


# By itself the library takes 10 µs for a number such as 1e308: 1 MiB of them would take 2 s.
_DEFINITION = msgspec.json.Decoder(float_hook=_finite)


def decode_definition(definition: bytes) -> Json:
    """Return `definition`, which must be JSON, as Python values.

    Raises `BadSchemaError` when it is not JSON or exceeds a bound.
    """
    check_size(definition)
    try:
        value: Json = _DEFINITION.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise BadSchemaError(f"the definition is not JSON: {error}") from None
    except RecursionError:
        raise BadSchemaError(f"the definition is nested deeper than {NESTING_MAX} levels") from None
    for count, (depth, _) in enumerate(walk(value)):
        if depth > NESTING_MAX:
            raise BadSchemaError(f"the definition is nested deeper than {NESTING_MAX} levels")
        if count >= NODES_MAX:
            raise BadSchemaError(f"the definition has more than {NODES_MAX} values")
    return value


def check_size(definition: bytes) -> None:
    """Raise `BadSchemaError` when `definition` is too large to look at."""
    if len(definition) > DEFINITION_BYTES_MAX:
        raise BadSchemaError(
            f"a definition of {len(definition)} B exceeds {DEFINITION_BYTES_MAX} B"
        )


def walk(value: Json) -> Iterator[tuple[int, Json]]:
    """Yield `value` and everything inside it with its depth; `value` itself is at depth 0."""
    stack: list[tuple[int, Json]] = [(0, value)]
    while stack:
        depth, item = stack.pop()
        yield depth, item
        if isinstance(item, dict):
            stack.extend((depth + 1, part) for part in item.values())
        elif isinstance(item, list):
            stack.extend((depth + 1, part) for part in item)


def canonical(value: Json) -> bytes:
    """Return `value` as JSON text that does not depend on spaces or the order of keys."""
    return msgspec.json.encode(value, order="sorted")


def check_name(name: str, place: str) -> None:
    """Raise `BadSchemaError` when a name is too long to be kept for each part that has it."""
    if len(name) > NAME_CHARS_MAX:
        raise BadSchemaError(
            f"{place}: name {shortened(name)!r} has more than {NAME_CHARS_MAX} characters"
        )


def place_below(path: str, part: str) -> str:
    """Return the path to a part, cut in the middle where it is long: it is only for reading."""
    inner = f"{path}{part}"
    if len(inner) <= PLACE_CHARS_MAX:
        return inner
    half = PLACE_CHARS_MAX // 2
    return f"{inner[:half]}…{inner[-half:]}"


def shortened(text: str) -> str:
    """Return `text` as one line that fits into an error."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"
