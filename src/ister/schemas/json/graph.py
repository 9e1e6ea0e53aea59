"""The parts of a JSON Schema document and how they lead to each other, and what checking costs.

A schema leads to others *in place*, looking at the same value (`allOf`, `$ref`, `if`), or to
others for a *child* of the value (`properties`, `items`). From the two follows how often a value
at a given depth may be looked at. That number can grow without end: by references in a circle in
place, which are refused, or exponentially with the depth, which bounds the payloads instead.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from ister.base.errors import BadSchemaError
from ister.schemas.bounds import (
    CHECK_STEPS_MAX,
    ENUM_VALUES_MAX,
    PAYLOAD_NESTING_MAX,
    Json,
    Steps,
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
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DEFINITIONS = ("$defs", "definitions")

# Each pattern is compiled into at most 256 KiB, 25 MB for all of them. Most match 500 MB/s; what
# the worst of a size take is counted, see `model`.
PATTERNS_MAX = 100
PATTERN_BYTES_MAX = 256 * 1024
# The library compiles each in about 10 µs, and nobody else has a turn meanwhile.
REFERENCES_MAX = 4_000
# The library keeps the whole path to each part: 20,000 of 64 names of 1,000 characters would be
# 1 GB.
PATHS_CHARS_MAX = 16 * 1024 * 1024
# Of `unevaluated…` the library makes a copy of everything that looks at the same value, of what is
# referred to twice two: without a bound 3 KB of references would take all memory.
UNEVALUATED_PARTS_MAX = 20_000
# Names and values of one schema that are compared one by one, in about a tenth of the time of a
# whole step.
_COMPARED_PER_STEP = 10


@dataclass(frozen=True, slots=True)
class Work:
    """How many steps checking a value takes at most, by its depth.

    Each list ends where all deeper values take as many as the last one.
    """

    # Of any value.
    value: list[int]
    # More for a number, if bounds or multiples are asked for; also by how large it is.
    number: list[int]
    # More for each character of a text and of its name, if patterns are; and the same for a text
    # whose name is not in `patterned`.
    text: list[int]
    other_text: list[int]
    # Names of properties that have a pattern.
    patterned: frozenset[str]


class Graph:
    """The schemas of one document. Its root must be an object; a boolean leads nowhere.

    `pattern_steps` tells what a pattern costs for each character. Raises `BadSchemaError` and
    `SchemaTooComplexError`.
    """

    def __init__(self, root: JsonObject, steps: Steps, pattern_steps: Callable[[str], int]) -> None:
        self.root = root
        self._steps = steps
        self._pattern_steps = pattern_steps
        self._resolved: dict[str, Json] = {}
        self._references = 0
        # By identity: two equal schemas at two places are two.
        self._schemas: dict[int, JsonObject] = {}
        self._anchors: dict[str, JsonObject] = {}
        self._patterns = 0
        self._add_all(root)

    def resolve(self, reference: Json) -> Json:
        """Return the schema that `reference` names, which must be in this document."""
        if not isinstance(reference, str):
            return self._resolve(reference)
        if reference not in self._resolved:
            self._resolved[reference] = self._resolve(reference)
        return self._resolved[reference]

    def _resolve(self, reference: Json) -> Json:
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

    def work(self) -> Work:
        """Return what checking a value takes, by its depth."""
        order = self._in_place_order()
        slots = {key: slot for slot, key in enumerate(order)}
        schemas = [_Costs(self, self._schemas[key], slots) for key in order]
        self._check_unevaluated(order, schemas)
        numbers = [_number_steps(self._schemas[key]) for key in order]
        texts = [self._text_steps(self._schemas[key]) for key in order]
        names = [self._name_steps(self._schemas[key]) for key in order]
        # Each child's name is matched with every pattern.
        matched = [len(mapping_of(self._schemas[key], "patternProperties")) for key in order]
        nothing = [0] * len(order)
        own = [schema.own for schema in schemas]
        text, other_text, patterned = [0], [0], frozenset[str]()
        if any(texts) or any(names):
            text = self._by_depth(schemas, slots, texts, names)
            other_text = self._by_depth(schemas, slots, texts, names, named=False)
            patterned = self._patterned(schemas, slots, texts)
        return Work(
            value=self._by_depth(schemas, slots, own, matched),
            number=self._by_depth(schemas, slots, numbers, nothing) if any(numbers) else [0],
            text=text,
            other_text=other_text,
            patterned=patterned,
        )

    def _by_depth(
        self,
        schemas: "list[_Costs]",
        slots: dict[int, int],
        own: list[int],
        for_child: list[int],
        *,
        named: bool = True,
    ) -> list[int]:
        """Return the most that a value costs at each depth, given what each schema costs itself.

        `for_child` is what it costs more for each child of the value. Without `named`, of values
        that are not reached by the name of a property.
        """
        costs = [0] * len(schemas)
        steps: list[int] = []
        while len(steps) <= PAYLOAD_NESTING_MAX:
            self._steps.spend(len(schemas))
            previous, costs = costs, []
            for slot, schema in enumerate(schemas):
                if not steps:
                    total = own[slot]
                else:
                    total = schema.for_child(previous, named=named or len(steps) > 1)
                    total += for_child[slot] if len(steps) == 1 else 0
                # Those it leads to in place come before it in the order.
                total += sum([costs[target] for target in schema.in_place])
                # Beyond the limit it does not matter how far.
                costs.append(min(total, CHECK_STEPS_MAX + 1))
            steps.append(costs[slots[id(self.root)]])
            if costs == previous:
                break
        return steps

    def _patterned(
        self, schemas: "list[_Costs]", slots: dict[int, int], texts: list[int]
    ) -> frozenset[str]:
        costs: list[int] = []
        for slot, schema in enumerate(schemas):
            total = texts[slot] + sum([costs[target] for target in schema.in_place])
            costs.append(min(total, CHECK_STEPS_MAX + 1))
        return frozenset(
            name
            for schema in self._schemas.values()
            for name, part in mapping_of(schema, "properties").items()
            if isinstance(part, dict) and costs[slots[id(part)]]
        )

    def _check_unevaluated(self, order: list[int], schemas: "list[_Costs]") -> None:
        """Refuse what the library would make too many copies of."""
        sizes: list[int] = []
        total = 0
        for key, schema in zip(order, schemas, strict=True):
            size = schema.parts + sum([sizes[target] for target in schema.in_place])
            sizes.append(min(size, UNEVALUATED_PARTS_MAX + 1))
            if any(keyword in self._schemas[key] for keyword in _UNEVALUATED):
                total += sizes[-1]
                if total > UNEVALUATED_PARTS_MAX:
                    raise BadSchemaError(
                        f"`unevaluated…` applies to more than {UNEVALUATED_PARTS_MAX} parts; "
                        "a part counts once for each reference to it"
                    )

    def _text_steps(self, schema: JsonObject) -> int:
        pattern = schema.get("pattern")
        return self._pattern_steps(pattern) if isinstance(pattern, str) else 0

    def _name_steps(self, schema: JsonObject) -> int:
        return sum(map(self._pattern_steps, mapping_of(schema, "patternProperties")))

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
            self._steps.spend()
            if "$ref" in schema:
                references.append(schema)
                self._references += 1
                if self._references > REFERENCES_MAX:
                    raise BadSchemaError(f"the schema has more than {REFERENCES_MAX} references")
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

    __slots__ = ("_always", "_listed", "_named", "in_place", "own", "parts")

    def __init__(self, graph: Graph, schema: JsonObject, slots: dict[int, int]) -> None:
        self.own = _own_steps(schema)
        self.in_place = [slots[id(target)] for target in graph.in_place(schema)]
        named = [*_schemas_in(schema.get("properties"))]
        listed: list[Json] = []
        for keyword in _CHILD_LISTS:
            value = schema.get(keyword)
            listed += value if isinstance(value, list) else []
        always = [*_schemas_in(schema.get("patternProperties"))]
        always += [schema[keyword] for keyword in _CHILD if keyword in schema]
        self._named = [slots[id(part)] for part in named if isinstance(part, dict)]
        self._listed = [slots[id(part)] for part in listed if isinstance(part, dict)]
        # What the library copies of it.
        self.parts = 1 + len(named) + len(listed) + len(always)
        self._always = [slots[id(part)] for part in always if isinstance(part, dict)]

    def for_child(self, costs: list[int], *, named: bool) -> int:
        """Return the steps it causes for one child, given those of each schema.

        Without `named`, for a child whose name is not one of its properties.
        """
        choices = [*self._named, *self._listed] if named else self._listed
        # A child has one name or one slot, so that only one of the choices looks at it.
        steps = max([costs[slot] for slot in choices], default=0)
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


def mapping_of(schema: JsonObject, keyword: str) -> JsonObject:
    """Return what a schema has by names under `keyword`; empty when it has nothing."""
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def check_paths(document: Json) -> None:
    """Raise `BadSchemaError` when the paths to all parts are too long together."""
    total = 0
    waiting: list[tuple[int, Json]] = [(0, document)]
    while waiting:
        size, item = waiting.pop()
        total += size
        if total > PATHS_CHARS_MAX:
            raise BadSchemaError(
                f"the paths of all parts have more than {PATHS_CHARS_MAX} characters in total: "
                "use shorter names or fewer levels"
            )
        if isinstance(item, dict):
            waiting.extend((size + len(name) + 1, part) for name, part in item.items())
        elif isinstance(item, list):
            waiting.extend((size + 6, part) for part in item)


def _number_steps(schema: JsonObject) -> int:
    values = schema.get("enum")
    numbers = values if isinstance(values, list) else [schema.get("const")]
    # A number with a point, or a long one, is compared with each by itself, in 1.5 µs.
    steps = 30 * sum(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)
    # One beyond 64 bits is compared with a bound in 0.7 µs or more, by how long it is.
    steps += sum(keyword in schema for keyword in _BOUNDS)
    factor = schema.get("multipleOf")
    if isinstance(factor, int | float) and not isinstance(factor, bool) and factor:
        # The library calculates with fractions as long as both numbers, 4 µs and more.
        steps += 80 + 4 * digits_of(factor)
    return steps


def digits_of(number: float) -> int:
    """Return about how many digits a number has in full, before or behind the point."""
    if isinstance(number, int):
        return number.bit_length() * 3 // 10
    return int(abs(math.log10(abs(number)))) if number and math.isfinite(number) else 0


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
