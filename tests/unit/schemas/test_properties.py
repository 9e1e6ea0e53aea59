"""What is called compatible can be read; and no bytes at all break parsing or checking."""

import functools
import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.schemas.made import avro, json_schema, proto, reasons, record

from ister.base.errors import BadRequestError, BadSchemaError
from ister.schemas import Mode, Schema, SchemaType, codec_for, parse_schema

# Two properties, so that schemas and values meet often.
NAMES = ("a", "b")
SCALARS: list[Any] = [None, True, False, -1, 0, 1, 2, 3, 1.5, "", "a", "ab", "abc"]
FLAT: list[Any] = [
    *SCALARS,
    [],
    *([one] for one in SCALARS[3:]),
    ["a", "a"],
    [1, 2],
    ["a", 1],
    {},
    *({"a": one} for one in SCALARS),
    *({"b": one} for one in SCALARS[4:8]),
    *({"a": one, "b": two} for one, two in itertools.product(SCALARS[3:12:3], repeat=2)),
]
# Every value of interest, and objects and arrays of them.
VALUES: list[Any] = [*FLAT, *({"a": one} for one in FLAT[13:]), *([one] for one in FLAT[13:])]

PAYLOADS = [json.dumps(value).encode() for value in VALUES]

small = st.integers(-1, 3)
json_types = st.sampled_from(
    ["null", "boolean", "integer", "number", "string", "array", "object", ["string", "integer"]]
)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    lengths = st.integers(0, 3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": json_types,
            "enum": st.lists(st.sampled_from(SCALARS), min_size=1, max_size=4, unique_by=repr),
            "minimum": small,
            "exclusiveMaximum": small,
            "multipleOf": st.sampled_from([1, 2]),
            "minLength": lengths,
            "maxLength": lengths,
            "pattern": st.sampled_from(["^a", "b$"]),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "maxItems": lengths,
            "uniqueItems": st.booleans(),
            "properties": properties,
            "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
            "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "minProperties": lengths,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    )


# Few keywords each: those with many take no value at all.
json_schemas = st.recursive(
    st.booleans() | st.builds(lambda kind: {"type": kind}, json_types),
    lambda inner: keywords(inner).map(lambda s: dict(list(s.items())[:4])),
    max_leaves=4,
)


def is_declared(schemas: list[Any], value: Any) -> bool:
    """Return whether every property in `value` is one that a schema of its object speaks of.

    Of alternatives, one that takes the value must be such.
    """
    parts: list[dict[str, Any]] = []
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict):
            parts.append(schema)
            waiting += schema.get("allOf", [])
    for slot, part in enumerate(parts):
        for keyword in {"anyOf", "oneOf"} & part.keys():
            rest = [*parts[:slot], {k: v for k, v in part.items() if k != keyword}]
            rest += parts[slot + 1 :]
            return any(
                is_valid(branch, value) and is_declared([*rest, branch], value)
                for branch in part[keyword]
            )
    if isinstance(value, list):
        items = [p["items"] for p in parts if "items" in p]
        items += [item for p in parts for item in p.get("prefixItems", [])]
        return all(is_declared(items, item) for item in value)
    if not isinstance(value, dict):
        return True
    return all(is_declared_property(parts, name, item) for name, item in value.items())


def is_declared_property(parts: list[dict[str, Any]], name: str, value: Any) -> bool:
    found: list[Any] = []
    for part in parts:
        own = [part["properties"][name]] if name in part.get("properties", {}) else []
        patterns = part.get("patternProperties", {}).items()
        own += [schema for pattern, schema in patterns if re.search(pattern, name)]
        more = part.get("additionalProperties", True)
        found += own or ([] if more is True else [more])
    return bool(found) and is_declared(found, value)


def is_valid(schema: Any, value: Any) -> bool:
    return not json_schema(schema).validator().check([json.dumps(value).encode()])


def check_json(old: Any, new: Any) -> bool:
    """Return whether `new` is called compatible, after checking that it is."""
    writer, reader = json_schema(old), json_schema(new)
    if reasons(Mode.BACKWARD, writer, reader):
        return False
    for value, payload in zip(VALUES, PAYLOADS, strict=True):
        if not writer.validator().check([payload]) and reader.validator().check([payload]):
            assert not is_declared([old], value), f"{value} of {old} is not taken by {new}"
    return True


@given(json_schemas, json_schemas)
def test_a_value_of_a_json_schema_is_taken_by_one_that_is_called_compatible(
    old: Any, new: Any
) -> None:
    check_json(old, new)


@given(json_schemas)
def test_a_json_schema_is_compatible_with_itself_in_other_words(schema: Any) -> None:
    # Another fingerprint, so that it is compared.
    other = {"allOf": [schema]}

    for mode in (Mode.BACKWARD, Mode.FORWARD):
        reasons(mode, json_schema(schema), json_schema(other))
    check_json(schema, other)
    check_json(other, schema)


# Avro.

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


@functools.cache
def avro_types(depth: int) -> st.SearchStrategy[Any]:
    plain = st.sampled_from(PRIMITIVES[1:])
    symbols = st.lists(st.sampled_from("XYZ"), min_size=1, unique=True)
    enums = st.builds(
        lambda s, has: {
            "type": "enum",
            "name": f"E{depth}",
            "symbols": s,
            **({"default": s[0]} if has else {}),
        },
        symbols,
        st.booleans(),
    )
    fixed = st.builds(
        lambda size: {"type": "fixed", "name": f"F{depth}", "size": size}, st.integers(1, 3)
    )
    if depth == 0:
        return plain | enums | fixed
    inner = avro_types(depth - 1)
    return st.one_of(
        plain,
        enums,
        inner.map(lambda t: {"type": "array", "items": t}),
        inner.map(lambda t: {"type": "map", "values": t}),
        inner.filter(lambda t: not isinstance(t, list)).map(lambda t: ["null", t]),
        st.lists(plain, min_size=1, max_size=3, unique=True),
        inner.flatmap(lambda t: avro_records(t, depth)),
    )


def avro_records(inner: Any, depth: int) -> st.SearchStrategy[Any]:
    names = st.lists(st.sampled_from("abc"), unique=True, max_size=3)

    def made(chosen: list[str], kinds: list[str], with_default: set[str]) -> Any:
        fields: list[Any] = [("x", inner)]
        for name, kind in zip(chosen, kinds, strict=False):
            field: dict[str, Any] = {"name": name, "type": kind}
            if name in with_default:
                field["default"] = DEFAULTS[kind]
            fields.append(field)
        return record(*fields, name=f"R{depth}")

    kinds = st.lists(st.sampled_from(sorted(DEFAULTS)), min_size=3, max_size=3)
    return st.builds(made, names, kinds, st.sets(st.sampled_from("abc")))


DEFAULTS: dict[str, Any] = {"int": 1, "long": 2, "double": 1.5, "string": "s", "boolean": True}


def avro_values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([avro_values(branch) for branch in schema])
    if isinstance(schema, str):
        return {
            "null": st.none(),
            "boolean": st.booleans(),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
            "double": st.floats(allow_nan=False, allow_infinity=False),
            "bytes": st.binary(max_size=5).filter(bytes.isascii),
            "string": st.text(max_size=5),
        }[schema]
    match schema["type"]:
        case "array":
            return st.lists(avro_values(schema["items"]), max_size=2)
        case "map":
            return st.dictionaries(st.text(max_size=2), avro_values(schema["values"]), max_size=2)
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "record":
            return st.fixed_dictionaries(
                {f["name"]: avro_values(f["type"]) for f in schema["fields"]}
            )
    raise AssertionError(schema)


@given(st.data())
def test_an_avro_value_is_read_by_a_schema_that_is_called_compatible(data: st.DataObject) -> None:
    inner = data.draw(avro_types(2))
    other = data.draw(st.just(inner) | avro_types(2))
    old, new = data.draw(avro_records(inner, 9)), data.draw(avro_records(other, 9))
    writer, reader = avro(old), avro(new)

    payload = codec_for(writer).encode(data.draw(avro_values(old)))

    assert writer.validator().check([payload]) == []
    if not reasons(Mode.BACKWARD, writer, reader):
        codec_for(reader).decode(payload, writer)


@given(st.data())
def test_an_avro_value_with_a_changed_byte_is_read_or_refused(data: st.DataObject) -> None:
    kind = data.draw(avro_types(2))
    schema = avro(kind)
    codec = codec_for(schema)
    payload = bytearray(codec.encode(data.draw(avro_values(kind))))
    for slot in data.draw(st.lists(st.integers(0, 200), max_size=3)):
        if payload:
            payload[slot % len(payload)] = data.draw(st.integers(0, 255))

    try:
        codec.decode(bytes(payload))
    except BadRequestError:
        return
    assert schema.validator().check([bytes(payload)]) == []


# Protobuf.

PROTO_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
    "bool": st.booleans(),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=4),
    "bytes": st.binary(max_size=4),
    "E": st.sampled_from("ZA"),
    "N": st.fixed_dictionaries({"s": st.text(max_size=4)}),
}
proto_fields = st.dictionaries(
    st.integers(1, 3),
    st.tuples(
        st.sampled_from(["", "", "repeated ", "optional "]), st.sampled_from([*PROTO_VALUES])
    ),
)


def proto_of(fields: dict[int, tuple[str, str]]) -> Schema:
    lines = [f"{label}{kind} f{number} = {number};" for number, (label, kind) in fields.items()]
    return proto(f"message M {{ {' '.join(lines)} }} enum E {{ Z = 0; A = 1; }}" + NESTED)


NESTED = " message N { string s = 1; }"


@given(st.data())
def test_a_message_is_read_by_a_schema_that_is_called_compatible(data: st.DataObject) -> None:
    old, new = data.draw(proto_fields), data.draw(proto_fields)
    writer, reader = proto_of(old), proto_of(new)
    value = {}
    for number, (label, kind) in old.items():
        values = PROTO_VALUES[kind]
        value[f"f{number}"] = data.draw(st.lists(values, max_size=3) if "rep" in label else values)

    payload = codec_for(writer).encode(value)

    assert writer.validator().check([payload]) == []
    if not reasons(Mode.BACKWARD, writer, reader):
        found = codec_for(reader).decode(payload, writer)
        for number in old.keys() & new.keys():
            if old[number] == new[number]:
                name = f"f{number}"
                assert found[name] == value[name]


# Any bytes.

MESSAGE = "message M { string a = 1; repeated sint32 b = 2; M c = 3; map<string, bytes> d = 4; }"
SCHEMAS: list[Schema] = [
    *(parse_schema(kind, b"") for kind in SchemaType if kind.is_plain),
    json_schema({"type": "object", "properties": {"a": {"type": "array"}}}),
    avro(record(("a", "string"), ("b", ["null", "R"]), ("c", {"type": "map", "values": "int"}))),
    proto(MESSAGE),
]
WORDS = st.sampled_from(
    """syntax = "proto3" ; message enum { } [ ] < > map oneof optional reserved to max option 1 -5
    0x1F a.b . , "x" string int32 M import package // /* */ : null true "type" "$ref" "#"
    """.split()  # noqa: SIM905 (a list of as many lines as words says less)
)
TEXTS = st.lists(WORDS, max_size=30).map(lambda words: " ".join(words).encode())


@given(st.sampled_from(list(SchemaType)), st.binary(max_size=200) | TEXTS)
def test_any_definition_is_parsed_or_refused(kind: SchemaType, definition: bytes) -> None:
    try:
        schema = parse_schema(kind, definition)
    except BadSchemaError:
        return
    assert parse_schema(kind, definition) == schema
    schema.validator().check([b"", definition])


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.type.value)
@given(st.lists(st.binary(max_size=100), max_size=3))
def test_any_payload_is_checked_and_decoded_or_refused(
    schema: Schema, payloads: list[bytes]
) -> None:
    bad = {fault.slot for fault in schema.validator().check(payloads)}

    codec = codec_for(schema)
    for slot, payload in enumerate(payloads):
        try:
            codec.decode(payload)
        except BadRequestError:
            assert slot in bad


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)
KEYWORDS = st.sampled_from(
    ["type", "name", "fields", "items", "values", "symbols", "size", "$ref", "$defs", "allOf",
     "properties", "enum", "pattern", "default", "aliases", "namespace", "logicalType", "$id"]
)  # fmt: skip
documents = st.recursive(
    json_values | st.sampled_from([*PRIMITIVES, "record", "enum", "array", "#", "#/$defs/a", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=5),
    max_leaves=20,
)


@given(st.sampled_from([SchemaType.JSON_SCHEMA, SchemaType.AVRO]), documents, documents)
def test_any_document_is_parsed_and_compared_or_refused(
    kind: SchemaType, one: Any, two: Any
) -> None:
    try:
        schemas = [parse_schema(kind, json.dumps(document).encode()) for document in (one, two)]
    except BadSchemaError:
        return
    reasons(Mode.FULL, *schemas)
