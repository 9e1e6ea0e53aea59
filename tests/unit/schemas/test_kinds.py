"""Words for types, modes and policies, and the plain types."""

import struct
import subprocess
import sys

import pytest

from ister.base.errors import BadRequestError, BadSchemaError
from ister.schemas import (
    Mode,
    Policy,
    SchemaType,
    incompatibilities,
    parse_mode,
    parse_policy,
    parse_schema,
    parse_type,
)

PLAIN = [kind for kind in SchemaType if kind.is_plain]


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("JSON", SchemaType.JSON_SCHEMA),
        ("JsonSchema", SchemaType.JSON_SCHEMA),
        ("json_schema", SchemaType.JSON_SCHEMA),
        (" Avro ", SchemaType.AVRO),
        ("proto", SchemaType.PROTOBUF),
        ("int", SchemaType.INT64),
        ("Bytes", SchemaType.BYTES),
    ],
)
def test_a_type_is_known_by_its_names_in_any_case(text: str, type: SchemaType) -> None:
    assert parse_type(text) is type


def test_every_value_is_its_own_name() -> None:
    assert [parse_type(kind.value) for kind in SchemaType] == list(SchemaType)
    assert [parse_mode(mode.value) for mode in Mode] == list(Mode)
    assert [parse_policy(policy.value) for policy in Policy] == list(Policy)


def test_unknown_words_are_refused_with_the_known_ones() -> None:
    with pytest.raises(BadSchemaError, match="bytes, string"):
        parse_type("xml")
    with pytest.raises(BadRequestError, match="backward_transitive"):
        parse_mode("sideways")
    with pytest.raises(BadRequestError, match="none, warn, enforce"):
        parse_policy("panic")


@pytest.mark.parametrize("type", PLAIN)
def test_a_plain_schema_is_its_type_whatever_the_definition(type: SchemaType) -> None:
    schema = parse_schema(type, b"\xff anything")

    assert schema.fingerprint == type.value
    assert schema.definition == b"\xff anything"
    assert schema == parse_schema(type, b"")
    assert incompatibilities(Mode.FULL_TRANSITIVE, schema, [parse_schema(type, b"")]) == []


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        (SchemaType.BYTES, [b"", b"\xff"], []),
        (SchemaType.STRING, [b"", "Käse".encode()], [b"\xff", b"a\xc3"]),
        (SchemaType.NUMBER, [bytes(4), bytes(8)], [b"", bytes(5)]),
        (SchemaType.INT8, [b"\x80"], [b"", bytes(2)]),
        (SchemaType.INT16, [bytes(2)], [bytes(1), bytes(3)]),
        (SchemaType.INT32, [bytes(4)], [bytes(8)]),
        (SchemaType.INT64, [struct.pack("<q", -1)], [bytes(4), b"1"]),
        (SchemaType.FLOAT, [bytes(4)], [bytes(8)]),
        (SchemaType.DOUBLE, [bytes(8)], [bytes(4)]),
    ],
)
def test_a_plain_validator_finds_the_bad_payloads(
    type: SchemaType, good: list[bytes], bad: list[bytes]
) -> None:
    faults = parse_schema(type, b"").validator().check([*good, *bad])

    assert [fault.slot for fault in faults] == list(range(len(good), len(good) + len(bad)))


def test_a_validator_is_made_once_and_takes_memoryviews() -> None:
    schema = parse_schema(SchemaType.STRING, b"")

    assert schema.validator() is schema.validator()
    assert schema.validator().check([memoryview(b"good"), memoryview(b"\xff")])[0].slot == 1


def test_at_most_ten_faults_are_told() -> None:
    assert len(parse_schema(SchemaType.INT8, b"").validator().check([b""] * 1_000)) == 10


@pytest.mark.parametrize("mode", list(Mode))
def test_another_type_is_incompatible_in_every_mode(mode: Mode) -> None:
    old, new = parse_schema(SchemaType.INT32, b""), parse_schema(SchemaType.INT64, b"")

    reasons = incompatibilities(mode, new, [old])

    assert reasons == ["the type changed from int32 to int64"]


def test_a_definition_over_a_mebibyte_is_refused() -> None:
    for kind in SchemaType:
        with pytest.raises(BadSchemaError, match="exceeds"):
            parse_schema(kind, b" " * (1024 * 1024 + 1))


def test_importing_schemas_loads_none_of_its_libraries() -> None:
    code = "import sys, ister.schemas; print({'fastavro', 'jsonschema_rs'} & sys.modules.keys())"
    # The interpreter itself may know the namespace `google`, but not a module of protobuf.
    code += "; print([m for m in sys.modules if m.startswith('google.protobuf')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )

    assert done.stdout.split("\n")[:2] == ["set()", "[]"]


@pytest.mark.parametrize(
    ("kind", "module", "definition"),
    [
        ("json_schema", "jsonschema_rs", "{}"),
        ("avro", "fastavro", '"int"'),
        ("protobuf", "google.protobuf", "message M {}"),
    ],
)
def test_a_missing_library_is_an_error_that_names_the_extra(
    kind: str, module: str, definition: str
) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
from ister.base.errors import ExtraMissingError
from ister.schemas import parse_schema, parse_type
try:
    parse_schema(parse_type({kind!r}), {definition.encode()!r})
except ExtraMissingError as error:
    print(error.what, error.extra)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )

    assert done.stdout == f"schemas of type {kind} schemas\n"
