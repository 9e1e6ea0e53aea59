"""Whether every value that one JSON Schema takes is taken by another.

That is what reading means here: data of the writer passes the reader's validation. One thing is
assumed: a writer that neither declares a property nor restricts undeclared ones does not write
it. Otherwise declaring a property would break every schema that is open, as almost all are.

The comparison follows objects, arrays, bounds, enumerations and alternatives. Of conditions and
negations it only knows that the same ones are the same; the rest counts as broken, with a text
that says so.
"""

import sys

from ister.base.errors import SchemaTooComplexError
from ister.schemas.bounds import Json, Steps, canonical, compare_steps, place_below
from ister.schemas.breaks import Break
from ister.schemas.json.facts import (
    Facts,
    flattened,
    gathered,
    item_of,
    mapping,
    prefix_count,
    strings,
    type_of,
    types_of,
    values_of,
)
from ister.schemas.json.graph import JsonObject
from ister.schemas.json.model import JsonModel

# A pair of schemas takes some 30 µs, a name or a value of one of them 1 µs.
_PAIR_STEPS = 10
_UNDECIDED = "whether it takes the same values cannot be decided"
# Keywords that are only compared as a whole, with the types of values they look at.
_OPAQUE: dict[str, set[str]] = {
    "contains": {"array"},
    "dependencies": {"object"},
    "dependentRequired": {"object"},
    "dependentSchemas": {"object"},
    "else": set(),
    "if": set(),
    "maxContains": {"array"},
    "minContains": {"array"},
    "not": set(),
    "propertyNames": {"object"},
    "then": set(),
}
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
# Lower and upper bounds that compare as numbers: keyword, type, whether higher is narrower.
_BOUNDS = (
    ("minLength", "string", True),
    ("maxLength", "string", False),
    ("minItems", "array", True),
    ("maxItems", "array", False),
    ("minProperties", "object", True),
    ("maxProperties", "object", False),
)


def json_breaks(*, reader: JsonModel, writer: JsonModel, steps: Steps | None = None) -> list[Break]:
    """Return what `writer` allows and `reader` does not. Raises `SchemaTooComplexError`."""
    try:
        comparison = _Comparison(reader, writer, steps or compare_steps())
        return comparison.compare([writer.document], reader.document, "")
    except RecursionError:
        raise SchemaTooComplexError("compare", "RECURSION_MAX", sys.getrecursionlimit()) from None


class _Comparison:
    """One comparison of two documents."""

    def __init__(self, reader: JsonModel, writer: JsonModel, steps: Steps) -> None:
        self._reader = reader
        self._writer = writer
        # Pairs under comparison further up: taken to fit, since what breaks is found up there.
        self._assumed: set[tuple[tuple[int, ...], int]] = set()
        self._spend = steps.spend
        # Whether a reference that is written alike also means the same on both sides.
        self._same_references = reader.draft == writer.draft and (
            _definitions(reader) == _definitions(writer) and _is_closed(_definitions(reader))
        )

    def compare(self, writer: list[Json], reader: Json, path: str) -> list[Break]:
        """Return what keeps `reader` from taking values that follow all of `writer`."""
        self._spend(_PAIR_STEPS)
        if reader is True or reader == {}:
            return []
        parts = flattened(self._writer, writer, self._spend)
        if parts is None:
            return []  # Nothing is written.
        # By identity: what recurs does so through the children of schemas, which are the same
        # objects each time.
        pair = (tuple(dict.fromkeys(map(id, writer))), id(reader))
        if pair in self._assumed:
            return []
        self._assumed.add(pair)
        try:
            return self._compare_parts(parts, reader, path)
        finally:
            self._assumed.discard(pair)

    def _compare_parts(self, parts: list[JsonObject], reader: Json, path: str) -> list[Break]:
        wanted = flattened(self._reader, [reader], self._spend)
        if wanted is None:
            return [Break(_place(path), "it", "refused in every case")]
        if any(keyword in part for part in wanted for keyword in _UNEVALUATED):
            return self._compare_whole(parts, wanted, path)
        for slot, part in enumerate(parts):
            for keyword in ("anyOf", "oneOf"):
                branches = part.get(keyword)
                if isinstance(branches, list):
                    rest: list[Json] = [*parts[:slot], _without(part, keyword), *parts[slot + 1 :]]
                    target = self._without_same(reader, wanted, part, keyword)
                    found = [self.compare([*rest, b], target, path) for b in branches]
                    return [one for breaks in found for one in breaks]
        facts = gathered(self._writer, parts, self._spend)
        if not facts.types:
            return []
        return [one for part in wanted for one in self._compare_flat(facts, part, path)]

    def _compare_flat(self, facts: Facts, reader: JsonObject, path: str) -> list[Break]:
        self._spend(sum(map(_size, facts.parts)) + _size(reader))
        place = _place(path)
        missing = facts.types - types_of(reader)
        if missing:
            return [Break(place, _words(facts.types), _words(types_of(reader)))]
        found = self._compare_values(facts, reader, place)
        if facts.values is None or any(isinstance(v, dict | list) for v in facts.values):
            found += _compare_scalars(
                facts, reader, place, asserts_formats=self._reader.asserts_formats
            )
            if "array" in facts.types:
                found += self._compare_items(facts, reader, path)
            if "object" in facts.types:
                found += self._compare_properties(facts, reader, path)
        for keyword, types in _OPAQUE.items():
            if keyword in reader and (not types or types & facts.types):
                found += self._compare_opaque(facts, reader, keyword, place)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(reader.get(keyword), list):
                found += self._compare_branches(facts, reader, keyword, path)
        return found

    def _compare_values(self, facts: Facts, reader: JsonObject, place: str) -> list[Break]:
        allowed = values_of(reader)
        if facts.values is None:
            if allowed is None:
                return []
            return [Break(place, f"any {_words(facts.types)}", f"one of {_listed(allowed)}")]
        texts = None if allowed is None else {canonical(value) for value in allowed}
        refused = [
            value
            for value in facts.values
            if (texts is not None and canonical(value) not in texts)
            or not _admits(reader, value, facts, asserts_formats=self._reader.asserts_formats)
        ]
        if not refused:
            return []
        now = f"one of {_listed(allowed)}" if allowed is not None else "without them"
        return [Break(place, f"with the values {_listed(refused)}", now)]

    def _compare_items(self, facts: Facts, reader: JsonObject, path: str) -> list[Break]:
        found = []
        if reader.get("uniqueItems") is True and not facts.says("uniqueItems", True):
            found.append(Break(_place(path), "items that may repeat", "unique items"))
        draft = self._reader.draft
        count = max(
            prefix_count(reader, draft), *(prefix_count(p, facts.draft) for p in facts.parts), 0
        )
        written = facts.smallest("maxItems")
        # The slot behind the last one of its own stands for all further items.
        for slot in range(count + 1):
            if written is not None and slot >= written:
                break
            inner = place_below(path, f"[{slot}]" if slot < count else "[]")
            found += self.compare(facts.item(slot), item_of(reader, slot, draft), inner)
        return found

    def _compare_properties(self, facts: Facts, reader: JsonObject, path: str) -> list[Break]:
        found = []
        names, always = facts.names(), facts.required()
        self._spend(len(names) * len(facts.parts))
        for name in strings(reader.get("required")):
            if name not in always:
                was = "optional" if name in names else "absent"
                found.append(Break(_place(_inner(path, name)), was, "required"))
        declared = mapping(reader.get("properties"))
        for name in names:
            schemas = facts.property(name)
            if any(schema is False for schema in schemas):
                continue
            for schema in self._schemas_for(reader, name):
                if schema is False:
                    found.append(Break(_place(_inner(path, name)), "allowed", "not allowed"))
                else:
                    found += self.compare(schemas, schema, _inner(path, name))
        more = facts.additional()
        if any(isinstance(schema, dict) for schema in more):
            for name in declared.keys() - names.keys():
                found += self.compare(more, declared[name], _inner(path, name))
        return (
            found
            + self._compare_patterns(facts, reader, path)
            + self._compare_additional(more, reader, path)
        )

    def _compare_patterns(self, facts: Facts, reader: JsonObject, path: str) -> list[Break]:
        found = []
        names = facts.names()
        taken = mapping(reader.get("patternProperties"))
        for part in facts.parts:
            for pattern, schema in mapping(part.get("patternProperties")).items():
                inner = _inner(path, f"/{pattern}/")
                if pattern not in taken:
                    found += self.compare([schema], reader.get("additionalProperties", True), inner)
                # A name may match two patterns: which ones do cannot be decided.
                for target in taken.values():
                    found += self.compare([schema], target, inner)
                for name, wanted in mapping(reader.get("properties")).items():
                    self._spend(1 + len(name) // 10)
                    # Those that are declared follow their own schema too, which is compared.
                    if name not in names and self._writer.matches(pattern, name):
                        found += self.compare([schema], wanted, _inner(path, name))
        return found

    def _compare_additional(self, more: list[Json], reader: JsonObject, path: str) -> list[Break]:
        target = reader.get("additionalProperties", True)
        if any(schema is False for schema in more):
            return []
        if target is False:
            return [Break(_place(path), "open to more properties", "closed to them")]
        found = self.compare(more, target, _inner(path, "*"))
        if any(isinstance(schema, dict) for schema in more):
            for pattern, schema in mapping(reader.get("patternProperties")).items():
                found += self.compare(more, schema, _inner(path, f"/{pattern}/"))
        return found

    def _schemas_for(self, reader: JsonObject, name: str) -> list[Json]:
        """Return every schema of `reader` that looks at the property `name`."""
        declared = mapping(reader.get("properties"))
        found = [declared[name]] if name in declared else []
        for pattern, schema in mapping(reader.get("patternProperties")).items():
            self._spend(1 + len(name) // 10)
            if self._reader.matches(pattern, name):
                found.append(schema)
        return found or [reader.get("additionalProperties", True)]

    def _compare_branches(
        self, facts: Facts, reader: JsonObject, keyword: str, path: str
    ) -> list[Break]:
        branches = reader[keyword]
        assert isinstance(branches, list)
        if self._is_same(branches, facts.parts, keyword):
            return []
        writer: list[Json] = [_without(part, keyword) for part in facts.parts]
        results = [self.compare(writer, branch, path) for branch in branches]
        fitting = [slot for slot, breaks in enumerate(results) if not breaks]
        kinds = sorted(facts.types - {"integer"} if "number" in facts.types else facts.types)
        if not fitting and 1 < len(kinds) < 6:
            # Each type by itself may have an alternative.
            alone: JsonObject = {keyword: branches}
            found = [self.compare([*writer, {"type": kind}], alone, path) for kind in kinds]
            return [one for breaks in found for one in breaks]
        if not fitting:
            # When one alternative is of the right type, what it refuses says most.
            near = [r for b, r in zip(branches, results, strict=True) if self._is_near(facts, b)]
            if len(near) == 1:
                return near[0]
            return [
                Break(_place(path), _words(facts.types), f"`{keyword}`", "no alternative takes it")
            ]
        if keyword == "oneOf" and not self._is_apart(facts, branches, fitting[0]):
            return [
                Break(
                    _place(path),
                    _words(facts.types),
                    "`oneOf`",
                    "whether exactly one alternative takes it cannot be decided",
                )
            ]
        return []

    def _is_near(self, facts: Facts, branch: Json) -> bool:
        flat = flattened(self._reader, [branch], self._spend)
        return flat is not None and facts.types <= gathered(self._reader, flat, self._spend).types

    def _is_apart(self, facts: Facts, branches: list[Json], chosen: int) -> bool:
        """Return whether no other alternative takes what the writer writes."""
        for slot, branch in enumerate(branches):
            flat = None if slot == chosen else flattened(self._reader, [branch], self._spend)
            if flat is None:
                continue
            other = gathered(self._reader, flat, self._spend)
            if other.types & facts.types and not self._told_apart(facts, other):
                return False
        return True

    def _told_apart(self, facts: Facts, other: Facts) -> bool:
        """Return whether lists of values, their own or of a property, keep them apart."""
        if facts.values is not None and other.values is not None:
            return not _texts(facts.values) & _texts(other.values)
        always = facts.required()
        for name in other.names():
            if name in always:
                mine = self._values(self._writer, facts.property(name))
                others = self._values(self._reader, other.property(name))
                if mine is not None and others is not None and not mine & others:
                    return True
        # Not an object without it, and the writer never writes it.
        return (
            facts.types == {"object"}
            and not any(isinstance(schema, dict) for schema in facts.additional())
            and not any("patternProperties" in part for part in facts.parts)
            and not other.required() <= facts.names().keys()
        )

    def _values(self, model: JsonModel, schemas: list[Json]) -> set[bytes] | None:
        flat = flattened(model, schemas, self._spend)
        if flat is None:
            return set()
        values = gathered(model, flat, self._spend).values
        return None if values is None else _texts(values)

    def _compare_opaque(
        self, facts: Facts, reader: JsonObject, keyword: str, place: str
    ) -> list[Break]:
        if self._is_same(reader[keyword], facts.parts, keyword):
            return []
        had = any(keyword in part for part in facts.parts)
        was = f"another `{keyword}`" if had else f"without `{keyword}`"
        return [Break(place, was, f"with `{keyword}`", _UNDECIDED)]

    def _compare_whole(
        self, parts: list[JsonObject], wanted: list[JsonObject], path: str
    ) -> list[Break]:
        """Compare schemas in which one keyword depends on what all the others have looked at."""
        text = canonical([*parts])
        self._spend(len(text) // 100)
        if text == canonical([*wanted]) and self._means_same(text):
            return []
        place = _place(path)
        return [Break(place, "another schema", "one with `unevaluated…`", _UNDECIDED)]

    def _without_same(
        self, reader: Json, wanted: list[JsonObject], part: JsonObject, keyword: str
    ) -> Json:
        """Return `reader` without the alternatives that the writer has too, if there are any."""
        if not self._is_same(part[keyword], wanted, keyword):
            return reader
        text = canonical(part[keyword])
        kept: list[Json] = [
            _without(one, keyword) if keyword in one and canonical(one[keyword]) == text else one
            for one in wanted
        ]
        return {"allOf": kept}

    def _is_same(self, value: Json, others: list[JsonObject], keyword: str) -> bool:
        """Return whether one of `others` has `keyword` with the same value and meaning."""
        text = canonical(value)
        self._spend(len(text) // 100)
        return self._means_same(text) and any(
            keyword in part and canonical(part[keyword]) == text for part in others
        )

    def _means_same(self, text: bytes) -> bool:
        """Return whether what is written alike on both sides is alike."""
        return b'"$ref"' not in text or (self._same_references and _is_closed(text))


def _compare_scalars(
    facts: Facts, reader: JsonObject, place: str, *, asserts_formats: bool
) -> list[Break]:
    found = []
    if facts.types & {"number", "integer"}:
        found += _compare_ranges(facts, reader, place)
        factor = reader.get("multipleOf")
        if isinstance(factor, int | float) and not _is_multiple(facts, factor):
            found.append(Break(place, "any number", f"multiples of {factor}"))
    for keyword, kind, higher_is_narrower in _BOUNDS:
        bound = reader.get(keyword)
        if kind in facts.types and isinstance(bound, int | float):
            own = facts.largest(keyword) if higher_is_narrower else facts.smallest(keyword)
            if higher_is_narrower and bound <= 0:
                continue
            if own is None or (own < bound if higher_is_narrower else own > bound):
                was = f"without `{keyword}`" if own is None else f"`{keyword}` {own}"
                found.append(Break(place, was, f"`{keyword}` {bound}"))
    if "string" in facts.types:
        keywords = ["pattern", "contentEncoding", "contentMediaType"]
        for keyword in [*keywords, "format"] if asserts_formats else keywords[:1]:
            if keyword in reader and not facts.says(keyword, reader[keyword]):
                was = f"another `{keyword}`" if any(keyword in p for p in facts.parts) else "text"
                found.append(Break(place, was, f"`{keyword}` {reader[keyword]!r}"))
    return found


def _compare_ranges(facts: Facts, reader: JsonObject, place: str) -> list[Break]:
    found = []
    for is_lower, kind in ((True, "inimum"), (False, "aximum")):
        plain, exclusive = f"m{kind}", f"exclusiveM{kind}"
        sign = 1 if is_lower else -1
        pick = facts.largest if is_lower else facts.smallest
        own = [
            (sign * value, is_exclusive)
            for value, is_exclusive in ((pick(plain), False), (pick(exclusive), True))
            if value is not None
        ]
        for keyword, is_exclusive in ((plain, False), (exclusive, True)):
            bound = reader.get(keyword)
            if not isinstance(bound, int | float):
                continue
            # As pairs the narrower bound is the larger one: 5 exclusive is narrower than 5.
            if not own or max(own) < (sign * bound, is_exclusive):
                was = f"a bound of {sign * max(own)[0]}" if own else f"without `{plain}`"
                found.append(Break(place, was, f"`{keyword}` {bound}"))
    return found


def _is_multiple(facts: Facts, factor: float) -> bool:
    if factor == 1 and "number" not in facts.types:
        return True
    own = [part.get("multipleOf") for part in facts.parts]
    return any(
        value == factor
        or (isinstance(value, int) and isinstance(factor, int) and factor and value % factor == 0)
        for value in own
        if isinstance(value, int | float)
    )


def _admits(reader: JsonObject, value: Json, facts: Facts, *, asserts_formats: bool) -> bool:
    """Return whether `reader` takes a single value, as far as bounds of scalars say."""
    single = Facts(
        [{"minimum": value, "maximum": value}] if isinstance(value, int | float) else [],
        facts.draft,
        frozenset({type_of(value)}),
        None,
    )
    if isinstance(value, str):
        single.parts = [{"minLength": len(value), "maxLength": len(value)}]
        single.parts += facts.parts  # Their patterns and formats.
    if isinstance(value, dict | list):
        return True
    found = _compare_scalars(single, reader, "", asserts_formats=asserts_formats)
    if isinstance(value, int) and isinstance(factor := reader.get("multipleOf"), int) and factor:
        found = [one for one in found if one.writer != "any number"]
        return not found and value % factor == 0
    return not found


def _definitions(model: JsonModel) -> bytes:
    document = mapping(model.document)
    return canonical([document.get("$defs"), document.get("definitions")])


def _is_closed(text: bytes) -> bool:
    """Return whether every reference in `text` leads to a definition."""
    inner = text.count(b'"$ref":"#/$defs/') + text.count(b'"$ref":"#/definitions/')
    return inner == text.count(b'"$ref"')


def _size(schema: JsonObject) -> int:
    """Return how many names and values a comparison looks at."""
    return sum(len(value) for value in schema.values() if isinstance(value, dict | list))


def _texts(values: list[Json]) -> set[bytes]:
    return {canonical(value) for value in values}


def _without(part: JsonObject, keyword: str) -> JsonObject:
    return {name: value for name, value in part.items() if name != keyword}


def _inner(path: str, name: str) -> str:
    return place_below(path, f".{name}") if path else place_below("", name)


def _place(path: str) -> str:
    return f"property {path!r}" if path else "the schema"


def _words(types: frozenset[str]) -> str:
    names = types - {"integer"} if "number" in types else types
    return "anything" if len(names) >= 6 else " or ".join(sorted(names))


def _listed(values: list[Json]) -> str:
    shown = ", ".join(canonical(value).decode()[:40] for value in values[:5])
    return f"{shown} and {len(values) - 5} more" if len(values) > 5 else shown
