"""How large a schema may be, how much work checking a batch may take, and JSON within those bounds.

A schema comes from whoever may register one, a payload from whoever may send: every walk over
either is bounded here, before a library sees it.
"""

from collections.abc import Iterator

import msgspec

from ister.base.errors import BadSchemaError

# Handwritten schemas have a few KiB, generated ones of large companies some 100 KiB.
DEFINITION_BYTES_MAX = 1024 * 1024
# Objects and arrays inside each other. Every walk over a schema may recurse this deep: 64 levels
# of at most 4 Python frames stay far below the interpreter's limit of 1,000.
NESTING_MAX = 64
# Values in a definition, counted with all their parts.
NODES_MAX = 20_000
ENUM_VALUES_MAX = 10_000

# Levels of a payload: what protobuf allows by itself.
PAYLOAD_NESTING_MAX = 100
# Steps of work for one batch. A step takes 50 to 200 ns, so that no batch holds up the broker
# for more than two seconds. A batch of the largest size a producer makes by itself (512 KiB, at
# least 2 bytes a value) always passes if the schema needs at most 40 steps for each value.
CHECK_STEPS_MAX = 10_000_000
# For one payload: the library checks it in one go, and nobody else has a turn meanwhile.
PAYLOAD_STEPS_MAX = 1_000_000
# More would only repeat what the first ones say.
FAULTS_MAX = 10
REASON_CHARS_MAX = 300
# Reasons that `incompatibilities` tells.
REASONS_MAX = 20

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


def decode_definition(definition: bytes) -> Json:
    """Return `definition`, which must be JSON, as Python values.

    Raises `BadSchemaError` when it is not JSON or exceeds a bound.
    """
    check_size(definition)
    try:
        value: Json = msgspec.json.decode(definition)
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


def shortened(text: str) -> str:
    """Return `text` as one line that fits into an error."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"
