"""The parts of a JSON Schema document and how they lead to each other, and what checking costs.

A schema leads to others *in place*, looking at the same value (`allOf`, `$ref`, `if`), or to
others for a *child* of the value (`properties`, `items`). From the two follows how often a value
at a given depth may be looked at. That number can grow without end: by references in a circle in
place, which are refused, or exponentially with the depth, which bounds the payloads instead.
"""

from collections.abc import Iterator
from urllib.parse import unquote

from ister.base.errors import BadSchemaError
from ister.schemas.bounds import (
    CHECK_STEPS_MAX,
    ENUM_VALUES_MAX,
    PAYLOAD_NESTING_MAX,
    Json,
    shortened,
)

JsonObject = dict[str, Json]

_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_CHILD = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_CHILD_LISTS = ("items", "prefixItems")
_DEFINITIONS = ("$defs", "definitions")

# Each pattern is compiled into at most 256 KiB, 25 MB for all of them, and matches 500 MB/s: all
# of them on the largest batch take 3 seconds.
PATTERNS_MAX = 100
PATTERN_BYTES_MAX = 256 * 1024
# Names and values of one schema that are compared one by one, in about a tenth of the time of a
# whole step.
_COMPARED_PER_STEP = 10


class Graph:
    """The schemas of one document. Its root must be an object; a boolean leads nowhere."""

    def __init__(self, root: JsonObject) -> None:
        self.root = root
        # By identity: two equal schemas at two places are two.
        self._schemas: dict[int, JsonObject] = {}
        self._anchors: dict[str, JsonObject] = {}
        self._patterns = 0
        self._add_all(root)

    def resolve(self, reference: Json) -> Json:
        """Return the schema that `reference` names, which must be in this document."""
        own_id = self.root.get("$id", self.root.get("id"))
        if isinstance(own_id, str) and isinstance(reference, str):
            # The document may call itself by its name.
            reference = reference.removeprefix(own_id.removesuffix("#"))
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise BadSchemaError(
                f"reference {shortened(str(reference))!r} leads out of the document: "
                "write what it names into `$defs`"
            )
        fragment = unquote(reference[1:])
        if not fragment:
            return self.root
        if not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise BadSchemaError(f"reference {shortened(reference)!r} leads nowhere")
            return self._anchors[fragment]
        target: Json = self.root
        for part in fragment[1:].split("/"):
            target = _step(target, part.replace("~1", "/").replace("~0", "~"), reference)
        return target

    def steps(self) -> list[int]:
        """Return how many steps of work one value takes at most, by its depth.

        The list ends where all deeper values take as many as the last one.
        """
        order = self._in_place_order()
        slots = {key: slot for slot, key in enumerate(order)}
        schemas = [_Costs(self, self._schemas[key], slots) for key in order]
        costs = [0] * len(order)
        steps: list[int] = []
        while len(steps) <= PAYLOAD_NESTING_MAX:
            is_root_level = not steps
            previous, costs = costs, []
            for schema in schemas:
                own = schema.own if is_root_level else schema.for_child(previous)
                if len(steps) == 1:
                    own += schema.matched
                # Those it leads to in place come before it in the order.
                total = own + sum(costs[slot] for slot in schema.in_place)
                # Beyond the limit it does not matter how far.
                costs.append(min(total, CHECK_STEPS_MAX + 1))
            steps.append(costs[slots[id(self.root)]])
            if costs == previous:
                break
        return steps

    def in_place(self, schema: JsonObject) -> Iterator[JsonObject]:
        """Yield the schemas that look at the same value as `schema` does."""
        targets = [*_in_place_parts(schema)]
        if "$ref" in schema:
            targets.append(self.resolve(schema["$ref"]))
        for target in targets:
            if isinstance(target, dict):
                yield target

    def _add_all(self, root: JsonObject) -> None:
        waiting: list[Json] = [root]
        references: list[JsonObject] = []
        while waiting or references:
            if not waiting:
                # Last, so that every anchor is known. What one names may be a place that no
                # keyword leads to.
                waiting.append(self.resolve(references.pop()["$ref"]))
                continue
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self._schemas:
                continue
            self._schemas[id(schema)] = schema
            self._inspect(schema)
            if "$ref" in schema:
                references.append(schema)
            waiting.extend(_parts(schema))

    def _inspect(self, schema: JsonObject) -> None:
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                raise BadSchemaError(f"`{keyword}` is not supported: use `$ref`")
        own_id = schema.get("$id", schema.get("id"))
        if isinstance(own_id, str) and own_id.startswith("#"):
            self._anchors[own_id[1:]] = schema
        elif isinstance(own_id, str) and schema is not self.root:
            raise BadSchemaError(
                f"`$id` {shortened(own_id)!r} inside the document is not supported: "
                "name parts by `$anchor` or their place in `$defs`"
            )
        anchor = schema.get("$anchor", schema.get("$dynamicAnchor"))
        if isinstance(anchor, str):
            self._anchors[anchor] = schema
        values = schema.get("enum")
        if isinstance(values, list) and len(values) > ENUM_VALUES_MAX:
            raise BadSchemaError(f"an enum of {len(values)} values exceeds {ENUM_VALUES_MAX}")
        by_pattern = schema.get("patternProperties")
        self._patterns += len(by_pattern) if isinstance(by_pattern, dict) else 0
        self._patterns += "pattern" in schema
        if self._patterns > PATTERNS_MAX:
            raise BadSchemaError(f"the schema has more than {PATTERNS_MAX} patterns")

    def _in_place_order(self) -> list[int]:
        """Return the schemas such that each comes after all those it leads to in place."""
        order: dict[int, None] = {}
        # Without recursion: the chain may be as long as there are schemas.
        path: dict[int, Iterator[JsonObject]] = {}
        for start in self._schemas.values():
            if id(start) in order:
                continue
            path[id(start)] = self.in_place(start)
            while path:
                key = next(reversed(path))
                target = next(path[key], None)
                if target is None:
                    order[key] = None
                    del path[key]
                elif id(target) in path:
                    raise BadSchemaError("references lead in a circle without looking at a part")
                elif id(target) not in order:
                    path[id(target)] = self.in_place(target)
        return list(order)


class _Costs:
    """What one schema costs by itself, and through which others, by their slots."""

    __slots__ = ("_always", "_choices", "in_place", "matched", "own")

    def __init__(self, graph: Graph, schema: JsonObject, slots: dict[int, int]) -> None:
        self.own = _own_steps(schema)
        # Each child's name is matched with every pattern.
        self.matched = len([*_schemas_in(schema.get("patternProperties"))])
        self.in_place = [slots[id(target)] for target in graph.in_place(schema)]
        choices = [*_schemas_in(schema.get("properties"))]
        for keyword in _CHILD_LISTS:
            value = schema.get(keyword)
            choices += value if isinstance(value, list) else []
        always = [*_schemas_in(schema.get("patternProperties"))]
        always += [schema[keyword] for keyword in _CHILD if keyword in schema]
        self._choices = [slots[id(part)] for part in choices if isinstance(part, dict)]
        self._always = [slots[id(part)] for part in always if isinstance(part, dict)]

    def for_child(self, costs: list[int]) -> int:
        """Return the steps it causes for one child, given those of each schema."""
        # A child has one name or one slot, so that only one of the choices looks at it.
        steps = max([costs[slot] for slot in self._choices], default=0)
        return steps + sum([costs[slot] for slot in self._always])


def _parts(schema: JsonObject) -> Iterator[Json]:
    """Yield every schema that is written inside `schema`."""
    yield from _in_place_parts(schema)
    for keyword in ("properties", "patternProperties", *_DEFINITIONS):
        yield from _schemas_in(schema.get(keyword))
    for keyword in _CHILD:
        yield schema.get(keyword)
    for keyword in _CHILD_LISTS:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from value


def _in_place_parts(schema: JsonObject) -> Iterator[Json]:
    for keyword in _IN_PLACE:
        yield schema.get(keyword)
    for keyword in _IN_PLACE_LISTS:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from value
    for keyword in _IN_PLACE_MAPS:
        yield from _schemas_in(schema.get(keyword))


def _schemas_in(value: Json) -> Iterator[Json]:
    if isinstance(value, dict):
        yield from value.values()


def _own_steps(schema: JsonObject) -> int:
    compared = sum(
        len(value)
        for keyword in ("enum", "required", "properties")
        if isinstance(value := schema.get(keyword), dict | list)
    )
    values = schema.get("enum")
    # Words and numbers are compared at once, objects and arrays one by one.
    large = sum(isinstance(v, dict | list) for v in values) if isinstance(values, list) else 0
    return 1 + compared // _COMPARED_PER_STEP + large


def _step(target: Json, part: str, reference: str) -> Json:
    if isinstance(target, dict) and part in target:
        return target[part]
    if isinstance(target, list) and part.isascii() and part.isdigit() and int(part) < len(target):
        return target[int(part)]
    raise BadSchemaError(f"reference {shortened(reference)!r} leads nowhere")
