"""Objects become payloads and come back, also from payloads of other versions."""

import datetime
import decimal
import io
from dataclasses import dataclass, field
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.struct_pb2 import Struct as ProtobufStruct
from tests.unit.schemas.made import avro, json_schema, proto, record

from ister.base.errors import BadRequestError, BadSchemaError
from ister.schemas import Mode, SchemaType, codec_for, incompatibilities, parse_schema, schema_of


@dataclass
class Address:
    city: str


@dataclass
class User:
    name: str
    age: int
    address: Address
    tags: list[str] = field(default_factory=list)


class Order(msgspec.Struct):
    name: str
    amount: float = 0.0


USER = User("Ann", 30, Address("Wien"), ["a"])
USER_DICT = {"name": "Ann", "age": 30, "address": {"city": "Wien"}, "tags": ["a"]}
USER_AVRO = record(
    ("name", "string"),
    ("age", "int"),
    ("address", record(("city", "string"), name="Address")),
    ("tags", {"type": "array", "items": "string"}),
    name="User",
)
USER_PROTO = """
message User { string name = 1; int32 age = 2; Address address = 3; repeated string tags = 4; }
message Address { string city = 1; }
"""

PLAIN: list[tuple[SchemaType, Any, bytes]] = [
    (SchemaType.BYTES, b"\xff", b"\xff"),
    (SchemaType.STRING, "Käse", "Käse".encode()),
    (SchemaType.INT8, -1, b"\xff"),
    (SchemaType.INT16, 1, b"\x01\x00"),
    (SchemaType.INT32, 1, b"\x01\x00\x00\x00"),
    (SchemaType.INT64, -2, b"\xfe" + b"\xff" * 7),
    (SchemaType.FLOAT, 1.5, b"\x00\x00\xc0\x3f"),
    (SchemaType.DOUBLE, 1.5, b"\x00\x00\x00\x00\x00\x00\xf8\x3f"),
    (SchemaType.NUMBER, 1.5, b"\x00\x00\x00\x00\x00\x00\xf8\x3f"),
]


@pytest.mark.parametrize(("kind", "value", "payload"), PLAIN)
def test_a_plain_value_has_these_bytes(kind: SchemaType, value: Any, payload: bytes) -> None:
    codec = codec_for(parse_schema(kind, b""))

    assert codec.encode(value) == payload
    assert codec.decode(payload) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (SchemaType.BYTES, "text"),
        (SchemaType.STRING, b"bytes"),
        (SchemaType.STRING, "\ud800"),
        (SchemaType.INT8, 128),
        (SchemaType.INT64, 1.5),
        (SchemaType.INT64, "1"),
        (SchemaType.FLOAT, 1e300),
    ],
)
def test_a_plain_value_of_another_type_is_refused(kind: SchemaType, value: Any) -> None:
    with pytest.raises(BadRequestError):
        codec_for(parse_schema(kind, b"")).encode(value)


@pytest.mark.parametrize("kind", [k for k in SchemaType if k.is_plain and k != SchemaType.BYTES])
def test_a_plain_payload_that_is_none_is_refused(kind: SchemaType) -> None:
    with pytest.raises(BadRequestError):
        codec_for(parse_schema(kind, b"")).decode(b"\xff\xff\xff")


def test_a_number_of_four_bytes_is_a_float() -> None:
    assert codec_for(parse_schema(SchemaType.NUMBER, b"")).decode(b"\x00\x00\xc0\x3f") == 1.5


@pytest.mark.parametrize(
    "schema", [schema_of(User), avro(USER_AVRO), proto(USER_PROTO)], ids=["json", "avro", "proto"]
)
def test_a_dict_and_a_dataclass_are_the_same_on_the_wire(schema: Any) -> None:
    plain, typed = codec_for(schema), codec_for(schema, User)

    assert plain.encode(USER_DICT) == typed.encode(USER)
    assert plain.decode(typed.encode(USER)) == USER_DICT
    assert typed.decode(plain.encode(USER_DICT)) == USER


@pytest.mark.parametrize(
    "schema",
    [
        schema_of(Order),
        avro(record(("name", "string"), ("amount", "double"), name="Order")),
        proto("message Order { string name = 1; double amount = 2; }"),
    ],
    ids=["json", "avro", "proto"],
)
def test_a_struct_comes_back(schema: Any) -> None:
    codec = codec_for(schema, Order)

    assert codec.decode(codec.encode(Order("x", 2.5))) == Order("x", 2.5)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (schema_of(User), {"name": 5}),
        (schema_of(User), object()),
        (avro(USER_AVRO), {"name": "Ann"}),
        (avro(USER_AVRO), {**USER_DICT, "age": "x"}),
        (avro(USER_AVRO), {**USER_DICT, "age": 2**40}),
        (avro("int"), object()),
        (proto(USER_PROTO), {"nope": 1}),
        (proto(USER_PROTO), {"name": 5}),
        (proto(USER_PROTO), {"age": 2**40}),
        (proto(USER_PROTO), 5),
        (proto("message M { required int32 a = 1; }", "proto2"), {}),
    ],
)
def test_a_value_that_does_not_follow_is_not_encoded(schema: Any, value: Any) -> None:
    with pytest.raises(BadRequestError):
        codec_for(schema).encode(value)


@pytest.mark.parametrize("schema", [schema_of(User), avro(USER_AVRO), proto(USER_PROTO)])
@pytest.mark.parametrize("python_type", [None, User])
def test_a_payload_that_does_not_follow_is_not_decoded(schema: Any, python_type: Any) -> None:
    with pytest.raises(BadRequestError):
        codec_for(schema, python_type).decode(b"\xff\xff\xff")


# Other versions.


def test_avro_reads_an_older_version_into_the_shape_of_the_newer() -> None:
    older = avro(record(("a", "int"), ("gone", "string")))
    newer = avro(
        record(
            {"name": "renamed", "type": "long", "aliases": ["a"]},
            {"name": "b", "type": "string", "default": "new"},
        )
    )
    assert incompatibilities(Mode.BACKWARD, newer, [older]) == []

    payload = codec_for(older).encode({"a": 5, "gone": "x"})

    assert codec_for(newer).decode(payload, older) == {"renamed": 5, "b": "new"}


def test_a_default_of_bytes_is_bytes() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 1}
    inner = record(("x", "int"), {"name": "y", "type": fixed, "default": "\u00fe"}, name="I")
    older = avro(record(("i", ["null", record(("x", "int"), name="I")])))
    newer = avro(
        record(("i", ["null", inner]), {"name": "b", "type": "bytes", "default": "\u00ff"})
    )

    payload = codec_for(older).encode({"i": {"x": 1}})

    expected = {"i": {"x": 1, "y": b"\xfe"}, "b": b"\xff"}
    assert codec_for(newer).decode(payload, older) == expected
    assert codec_for(newer).decode(codec_for(newer).encode({"i": {"x": 1}})) == expected


def test_avro_refuses_a_version_that_it_cannot_read() -> None:
    older, newer = avro(record(("a", "string"))), avro(record(("a", "int")))

    with pytest.raises(BadRequestError, match="cannot be read"):
        codec_for(newer).decode(codec_for(older).encode({"a": "x"}), older)


def test_a_payload_of_another_type_of_schema_is_refused() -> None:
    with pytest.raises(BadRequestError, match="of type json_schema"):
        codec_for(avro("int")).decode(b"1", json_schema({}))


def test_json_and_protobuf_read_other_versions_as_they_are() -> None:
    older, newer = json_schema({"required": ["a"]}), json_schema({})
    assert codec_for(newer, Order).decode(b'{"name": "x", "z": 1}', older) == Order("x")

    one, two = (
        proto("message M { int32 a = 1; string b = 2; }"),
        proto("message M { int64 a = 1; }"),
    )
    assert codec_for(two).decode(codec_for(one).encode({"a": 1, "b": "x"}), one) == {"a": 1}


def test_avro_reads_the_value_of_a_container_by_its_own_schema() -> None:
    older, newer = record(("a", "int")), avro(record(("a", "long")))
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(older), [{"a": 7}], codec="deflate")

    assert codec_for(newer).decode(out.getvalue()) == {"a": 7}


@pytest.mark.parametrize("count", [0, 2])
def test_a_container_of_none_or_several_values_is_no_value(count: int) -> None:
    out = io.BytesIO()
    fastavro.writer(out, "int", [1] * count)

    with pytest.raises(BadRequestError, match="none or several"):
        codec_for(avro("int")).decode(out.getvalue())


def test_avro_keeps_logical_types() -> None:
    schema = avro(
        record(
            ("t", {"type": "long", "logicalType": "timestamp-millis"}),
            ("d", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
        )
    )
    value = {
        "t": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "d": decimal.Decimal("1.25"),
    }

    assert codec_for(schema).decode(codec_for(schema).encode(value)) == value


def test_a_deeply_nested_avro_payload_is_an_error_and_not_the_end() -> None:
    schema = avro(record(("v", "int"), ("n", ["null", "R"])))

    with pytest.raises(BadRequestError, match="deeper"):
        codec_for(schema).decode(b"\x00\x02" * 1_000_000)


# Protobuf.


def test_a_dict_of_a_message_has_numbers_bytes_names_and_what_is_set() -> None:
    schema = proto(
        """message M { int64 big = 1; bytes data = 2; E kind = 3; optional int32 maybe = 4;
        M inner = 5; map<string, E> kinds = 6; repeated M many = 7; oneof x { int32 y = 8; } }
        enum E { Z = 0; A = 1; }"""
    )
    value = {
        "big": 2**60,
        "data": b"\xff",
        "kind": "A",
        "kinds": {"k": "A"},
        "many": [],
        "inner": {"big": 0, "data": b"", "kind": "Z", "kinds": {}, "many": []},
    }
    codec = codec_for(schema)

    assert codec.decode(codec.encode(value)) == value
    assert codec.decode(codec.encode({"maybe": None, "y": 0}))["y"] == 0
    assert codec.decode(b"\x18\x07")["kind"] == 7


def test_a_generated_class_gives_a_schema_and_comes_back() -> None:
    schema = schema_of(timestamp_pb2.Timestamp)
    codec = codec_for(schema, timestamp_pb2.Timestamp)
    value = timestamp_pb2.Timestamp(seconds=5, nanos=7)

    assert schema.type is SchemaType.PROTOBUF
    assert codec.decode(codec.encode(value)) == value
    assert codec_for(schema).decode(codec.encode(value)) == {"seconds": 5, "nanos": 7}


# Schemas of types.


@pytest.mark.parametrize(
    ("python_type", "kind"),
    [
        (str, SchemaType.STRING),
        (bytes, SchemaType.BYTES),
        (int, SchemaType.INT64),
        (float, SchemaType.DOUBLE),
        (User, SchemaType.JSON_SCHEMA),
        (Order, SchemaType.JSON_SCHEMA),
        (list[User], SchemaType.JSON_SCHEMA),
        (ProtobufStruct, SchemaType.PROTOBUF),
    ],
)
def test_a_type_has_a_schema(python_type: Any, kind: SchemaType) -> None:
    assert schema_of(python_type).type is kind


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(BadSchemaError):
        schema_of(io.BytesIO)
    with pytest.raises(BadSchemaError, match="inside another message"):
        schema_of(ProtobufStruct.FieldsEntry)


def test_a_new_field_with_a_default_is_compatible_with_the_type_before_it() -> None:
    class Before(msgspec.Struct):
        name: str

    class After(msgspec.Struct):
        name: str
        age: int | None = None

    assert incompatibilities(Mode.FULL, schema_of(After), [schema_of(Before)]) == []
