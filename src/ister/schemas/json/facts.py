"""What a JSON Schema says of the values it takes, gathered from all parts that look at a value.

`flattened` follows references and takes `allOf` apart, so that what is left are flat schemas that
must all hold. `Facts` gathers what they say together: the narrowest bound, every required name.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ister.schemas.bounds import Json, canonical
from ister.schemas.json.graph import JsonObject
from ister.schemas.json.model import JsonModel

# An integer is a number too: both words stand for "number".
ALL_TYPES = frozenset({"null", "boolean", "object", "array", "string", "number", "integer"})
Spend = Callable[[int], None]


@dataclass(slots=True)
class Facts:
    """What a writer's values have in common."""

    parts: list[JsonObject]
    draft: int
    types: frozenset[str]
    # Every value that is possible, when there are few.
    values: list[Json] | None

    def largest(self, *keywords: str) -> float | None:
        """Return the highest lower bound that one of the parts sets."""
        return max(self._numbers(keywords), default=None)

    def smallest(self, *keywords: str) -> float | None:
        """Return the lowest upper bound that one of the parts sets."""
        return min(self._numbers(keywords), default=None)

    def says(self, keyword: str, value: Json) -> bool:
        """Return whether one of the parts has `keyword` with the same value."""
        wanted = canonical(value)
        return any(keyword in part and canonical(part[keyword]) == wanted for part in self.parts)

    def required(self) -> set[str]:
        """Return the properties that are always there."""
        return {name for part in self.parts for name in strings(part.get("required"))}

    def names(self) -> dict[str, None]:
        """Return the properties that are declared, in order."""
        return {name: None for part in self.parts for name in mapping(part.get("properties"))}

    def property(self, name: str) -> list[Json]:
        """Return the schemas that a property's value follows, all of them."""
        found: list[Json] = []
        for part in self.parts:
            declared = mapping(part.get("properties"))
            if name in declared:
                found.append(declared[name])
            elif "patternProperties" not in part and "additionalProperties" in part:
                found.append(part["additionalProperties"])
        return found

    def additional(self) -> list[Json]:
        """Return the schemas of undeclared properties; none when nothing is said of them."""
        return [p["additionalProperties"] for p in self.parts if "additionalProperties" in p]

    def item(self, slot: int) -> list[Json]:
        """Return the schemas that the array's item at `slot` follows, all of them."""
        return [item_of(part, slot, self.draft) for part in self.parts]

    def _numbers(self, keywords: Iterable[str]) -> list[float]:
        found = []
        for part in self.parts:
            for keyword in keywords:
                value = part.get(keyword)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found.append(value)
        return found


def flattened(model: JsonModel, schemas: Iterable[Json], spend: Spend) -> list[JsonObject] | None:
    """Return the flat schemas that `schemas` together consist of, or `None` when nothing fits."""
    flat: list[JsonObject] = []
    waiting = deque(schemas)
    while waiting:
        spend(1)
        schema = waiting.popleft()
        if schema is False:
            return None
        if not isinstance(schema, dict) or not schema:
            continue
        if "$ref" in schema:
            waiting.append(model.resolve(schema["$ref"]))
            if model.draft <= 7:
                continue  # What stands beside a reference means nothing there.
        every = schema.get("allOf")
        if isinstance(every, list):
            waiting.extend(every)
        flat.append({k: v for k, v in schema.items() if k not in _TAKEN_APART})
    return [_with_exclusive_numbers(part) for part in flat if part]


def gathered(model: JsonModel, parts: list[JsonObject], spend: Spend) -> Facts:
    """Return what `parts` say together."""
    types, values = ALL_TYPES, None
    for part in parts:
        listed = part.get("enum")
        spend(1 + (len(listed) if isinstance(listed, list) else 0) + len(values or ()))
        types &= types_of(part)
        allowed = values_of(part)
        if allowed is not None:
            texts = {canonical(value) for value in allowed}
            values = [v for v in (allowed if values is None else values) if canonical(v) in texts]
    if values is None and types <= {"null", "boolean"}:
        few: list[Json] = [None, True, False]
        values = [value for value in few if type_of(value) in types]
    elif values is not None:
        values = [value for value in values if type_of(value) in types]
        types &= frozenset(type_of(value) for value in values)
    return Facts(parts, model.draft, types, values)


def types_of(schema: JsonObject) -> frozenset[str]:
    """Return the types that `schema` allows."""
    named = schema.get("type")
    words = {named} if isinstance(named, str) else set(strings(named))
    if not words:
        return ALL_TYPES
    return frozenset(words | ({"integer"} if "number" in words else set()))


def values_of(schema: JsonObject) -> list[Json] | None:
    """Return the only values that `schema` allows, or `None` when it does not list them."""
    values = schema.get("enum")
    if "const" not in schema:
        return values if isinstance(values, list) else None
    only = schema["const"]
    is_listed = not isinstance(values, list) or canonical(only) in map(canonical, values)
    return [only] if is_listed else []


def type_of(value: Json) -> str:
    """Return the type of a value, the narrowest of them."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"


def item_of(schema: JsonObject, slot: int, draft: int) -> Json:
    """Return the schema of an array's item at `slot`."""
    first, rest = ("prefixItems", "items") if draft >= 2020 else ("items", "additionalItems")
    listed = schema.get(first)
    if isinstance(listed, list):
        return listed[slot] if slot < len(listed) else schema.get(rest, True)
    return schema.get("items", True)


def prefix_count(schema: JsonObject, draft: int) -> int:
    """Return how many items have a schema of their own."""
    listed = schema.get("prefixItems" if draft >= 2020 else "items")
    return len(listed) if isinstance(listed, list) else 0


def mapping(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def strings(value: Json) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


# Without a meaning for values, or followed by `flattened`.
_TAKEN_APART = {
    "$ref",
    "allOf",
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
}


def _with_exclusive_numbers(part: JsonObject) -> JsonObject:
    """Return `part` with the bounds of draft 4, where exclusive is a flag, as later ones."""
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = part.get(keyword)
        if isinstance(flag, bool):
            del part[keyword]
            if flag and bound in part:
                part[keyword] = part.pop(bound)
    return part
