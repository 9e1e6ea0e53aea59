"""Protobuf schemas: what is understood, as `protoc` would; what is refused; what payloads pass."""

import importlib.resources
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tests.unit.schemas.made import proto

from ister.base.errors import BadSchemaError
from ister.schemas import Schema, SchemaType, codec_for, parse_schema
from ister.schemas.protobuf.model import ProtobufModel

ORDER = """
package shop.v1;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/any.proto";
option java_package = "com.example";

/* An order. */
message Order {
  option deprecated = true;  // Not for the bytes.
  string id = 1 [deprecated = true, json_name = "identity"];
  repeated int32 numbers = 2 [packed = false];
  map<string, Item> items_by_name = 3;
  oneof payment { int32 cash = 4; string card_no = 5; }
  optional int64 note = 6;
  google.protobuf.Timestamp at = 7;
  Kind kind = 8;
  reserved 9, 11 to 13, 1000 to max;
  reserved "old", 'older';
  enum Kind { option allow_alias = true; NONE = 0; A = 1; B = 1 [deprecated = true]; N = -5; }
  message Item { string name = 1; shop.v1.Order order = 2; .shop.v1.Order.Kind kind = 3; }
  optional bool _odd = 14;
  ;
}
service Shop { rpc Buy(Order) returns (stream Order) { option deprecated = true; } }
enum Top { ZERO = 0; reserved 7 to 9, 20 to max; reserved "X"; }
message Last { Top top = 1; repeated Order orders = 0x10; }
"""
OLD = r"""
package shop;
message Order {
  required string id = 1 [default = "a\n\x41\101'\"" "more"];
  optional int64 hex = 2 [default = -0x10];
  optional uint64 octal = 3 [default = 017];
  optional double d = 4 [default = -inf];
  optional float f = 5 [default = 1.5e3];
  optional bytes data = 6 [default = "\377\000a\"\\"];
  optional Kind kind = 7 [default = B];
  repeated int32 packed = 8 [packed = true, deprecated = false];
  optional bool yes = 9 [default = true];
  enum Kind { A = 1; B = 2; }
  extensions 100 to 199, 500 to max;
  oneof one { int32 x = 10; Order y = 11; }
}
extend Order { optional int32 more = 100; }
"""


def compiled(folder: Path, text: str) -> bytes:
    """Return the descriptor set that `protoc` makes of `text`."""
    (folder / "a.proto").write_text(text)
    standard = importlib.resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{folder}", f"-I{standard}", f"--descriptor_set_out={folder}/a.bin"]
    assert protoc.main([*arguments, str(folder / "a.proto")]) == 0
    return (folder / "a.bin").read_bytes()


def fields_of(schema: Schema) -> list[str]:
    assert isinstance(schema.model, ProtobufModel)
    message = descriptor_pb2.DescriptorProto()
    schema.model.descriptor.CopyToProto(message)
    for field in message.field:
        field.ClearField("options")
        field.ClearField("json_name")
    return [str(field) for field in message.field]


@pytest.mark.parametrize(("syntax", "text"), [("proto3", ORDER), ("proto2", OLD)])
def test_a_text_means_what_protoc_makes_of_it(tmp_path: Path, syntax: str, text: str) -> None:
    own = proto(text, syntax)
    theirs = parse_schema(SchemaType.PROTOBUF, compiled(tmp_path, f'syntax = "{syntax}";\n{text}'))

    assert own.fingerprint == theirs.fingerprint
    assert fields_of(own) == fields_of(theirs)


def test_payloads_are_checked() -> None:
    schema = proto("message M { string a = 1; M inner = 2; }")
    good = codec_for(schema).encode({"a": "x", "inner": {"a": "y"}})

    found = schema.validator().check([b"", good, good + b"\x18\x05", b"\x0a\x05a", b"\x0a\x01\xff"])

    assert [fault.slot for fault in found] == [3, 4]
    assert "not a M" in found[0].reason


def test_a_required_field_must_be_there() -> None:
    schema = proto("message M { required int32 a = 1; optional int32 b = 2; }", "proto2")

    found = schema.validator().check([b"\x08\x01", b"\x10\x01"])

    assert found == [(1, "required fields are missing: a")]


def test_a_payload_has_at_most_a_hundred_levels() -> None:
    schema = proto("message M { M m = 1; }")
    deep = b""
    for _ in range(500):
        size = len(deep)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        deep = b"\x0a" + length + deep

    assert schema.validator().check([deep])[0].slot == 0


def test_the_schema_is_that_of_the_first_message() -> None:
    schema = proto("message A { int32 a = 1; } message B { string b = 1; }")

    assert codec_for(schema).decode(b"\x08\x05") == {"a": 5}


def test_a_descriptor_set_may_have_several_files() -> None:
    inner = descriptor_pb2.FileDescriptorProto(name="i.proto", syntax="proto3")
    inner.message_type.add(name="Inner")
    outer = descriptor_pb2.FileDescriptorProto(name="o.proto", syntax="proto3")
    outer.dependency.append("i.proto")
    message = outer.message_type.add(name="Outer")
    message.field.add(name="f", number=1, type_name=".Inner", label=1)

    both = descriptor_pb2.FileDescriptorSet(file=[inner, outer]).SerializeToString()
    alone = descriptor_pb2.FileDescriptorSet(file=[outer]).SerializeToString()

    assert codec_for(parse_schema(SchemaType.PROTOBUF, both)).decode(b"\x0a\x00") == {"f": {}}
    with pytest.raises(BadSchemaError, match=r"import 'i\.proto' is not in it"):
        parse_schema(SchemaType.PROTOBUF, alone)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no message"),
        ("import 'other.proto'; message M {}", "import 'other.proto'"),
        ("import '/etc/passwd'; message M {}", "import '/etc/passwd'"),
        ("message M { string a = 1 }", "`;` was expected"),
        ("message M { string a = 0; }", "not from 1"),
        ("message M { string a = 536870912; }", "not from 1"),
        ("message M { string a = 1; string b = 1; }", "number"),
        ("message M { string a = 1; string a = 2; }", "a"),
        ("message M { Nope a = 1; }", "Nope"),
        ("message M { required string a = 1; }", "no `required`"),
        ("message M { string a = 1 [default = 'x']; }", "no defaults"),
        ("message M { optional group G = 1 { } }", "groups"),
        ("message M {", "at the end"),
        ("message M { string a = 1; } }", "a statement of a file"),
        ("message M { string a = 1; /* }", "is no word"),
        ('message M { string a = 1 [json_name = "x]; }', "is no word"),
        ("this is no text of a schema", "a statement of a file"),
        ("enum E { A = 1; }", ""),
        ("message M { reserved 5 to 2; }", "not from 5"),
        ("message M { map<double, string> m = 1; }", ""),
    ],
)
def test_what_is_broken_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadSchemaError) as error:
        proto(text)

    assert reason in str(error.value)


def test_an_error_names_its_line() -> None:
    with pytest.raises(BadSchemaError, match="line 4, at '5'"):
        proto("message M {\n\n 5 }")


@pytest.mark.parametrize(
    "definition", [b"edition = '2023';", b"syntax = 'x';", b"\x00\x01", b"\xff"]
)
def test_other_languages_are_refused(definition: bytes) -> None:
    with pytest.raises(BadSchemaError):
        parse_schema(SchemaType.PROTOBUF, definition)


def test_a_fingerprint_ignores_spaces_comments_and_options() -> None:
    one = proto("message M { string a = 1; }")
    same = proto("option x = 1;\n// c\nmessage M {\n  string a = 1 [deprecated = true]; /* d */ }")

    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != proto("message M { string b = 1; }").fingerprint
    assert one.fingerprint != proto("message M { string a = 2; }").fingerprint


def test_two_schemas_may_use_the_same_names() -> None:
    one, two = proto("message M { string a = 1; }"), proto("message M { int32 a = 1; }")

    assert codec_for(one).decode(codec_for(one).encode({"a": "x"})) == {"a": "x"}
    assert codec_for(two).decode(codec_for(two).encode({"a": 5})) == {"a": 5}
