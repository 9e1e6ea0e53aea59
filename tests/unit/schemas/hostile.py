"""Hostile schemas and payloads, each played in a process of its own under limits.

`python hostile.py FAMILY` prints a line of JSON for each case: its name, how it ended and what it
said. The limits on time and memory are such that only a hang or an explosion reaches them.
"""

import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

from ister.base.errors import IsterError
from ister.schemas import Mode, Schema, incompatibilities, parse_schema, parse_type

CPU_S_MAX = 5
MEMORY_BYTES_MAX = 4 << 30

Case = Callable[[], str]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def parsed(kind: str, definition: Any) -> Schema:
    text = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    return parse_schema(parse_type(kind), text)


def checked(kind: str, definition: Any, *payloads: bytes) -> str:
    """Return `fine`, or the reason of the first fault."""
    faults = parsed(kind, definition).validator().check(payloads)
    return faults[0].reason if faults else "fine"


def compared(kind: str, one: Any, other: Any) -> str:
    return incompatibilities(Mode.FULL, parsed(kind, one), [parsed(kind, other)])[0]


def nested(key: str, count: int, end: Any) -> Any:
    for _ in range(count):
        end = {key: end}
    return end


# JSON Schema.


@case
def json_brackets() -> str:
    return checked("json", b"[" * 1_000_000)


@case
def json_levels() -> str:
    return checked("json", nested("not", 500, {}))


@case
def json_remote() -> str:
    return checked("json", {"$ref": "http://10.0.0.1/x"}, b"1")


@case
def json_remote_by_base() -> str:
    return checked("json", {"$id": "http://10.0.0.1/", "$ref": "x"}, b"1")


@case
def json_remote_draft() -> str:
    return checked("json", {"$schema": "http://10.0.0.1/x"}, b"1")


@case
def json_file() -> str:
    return checked("json", {"properties": {"a": {"$ref": "file:///dev/zero"}}}, b"{}")


@case
def json_circle() -> str:
    return checked("json", {"allOf": [{"anyOf": [{"$ref": "#"}]}]}, b"1")


@case
def json_long_circle() -> str:
    parts = {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 3_000}"} for i in range(3_000)}
    return checked("json", {"$defs": parts, "$ref": "#/$defs/a0"}, b"1")


@case
def json_enum() -> str:
    return checked("json", {"enum": list(range(15_000))})


@case
def json_enum_of_objects() -> str:
    schema = {"items": {"enum": [{"a": i} for i in range(6_000)]}}
    return checked("json", schema, json.dumps([{"a": 5_999}] * 50_000).encode())


@case
def json_doubling() -> str:
    parts: dict[str, Any] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)
    }
    return checked("json", {"$defs": {**parts, "a60": {}}, "$ref": "#/$defs/a0"}, b"1")


def doubling_with_depth() -> Any:
    return {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["x"]}] * 2}


@case
def json_doubling_with_depth() -> str:
    payload = b"1"
    for _ in range(90):
        payload = b'{"a":' + payload + b"}"
    return checked("json", doubling_with_depth(), payload)


@case
def json_doubling_in_shallow_payloads() -> str:
    return checked("json", doubling_with_depth(), *[b'{"a": {"x": 1}, "x": 1}'] * 1_000)


@case
def json_pattern() -> str:
    text = json.dumps("a" * 5_000 + "b").encode()
    return checked("json", {"type": "string", "pattern": "^(a+)+$"}, text)


@case
def json_pattern_and_long_text() -> str:
    text = json.dumps("a" * 100_000 + "b").encode()
    return checked("json", {"type": "string", "pattern": "^(a+)+$"}, text)


@case
def json_large_pattern() -> str:
    return checked("json", {"pattern": "(((a{1,100}){1,100}){1,100})"})


@case
def json_many_patterns() -> str:
    return checked("json", {"patternProperties": {f"a{{1000}}{i}": {} for i in range(6_000)}})


@case
def json_names_and_patterns() -> str:
    schema = {"patternProperties": {f"[a-z]*{i}$": True for i in range(100)}}
    return checked("json", schema, json.dumps({f"k{i}": 1 for i in range(100_000)}).encode())


@case
def json_unique() -> str:
    items = b",".join(b'{"a":[%d]}' % i for i in range(39_000))
    return checked("json", {"uniqueItems": True}, b"[" + items + b"]")


@case
def json_very_many_values() -> str:
    return checked("json", {"type": "array"}, b"[" + b"[]," * 2_000_000 + b"1]")


@case
def json_bounds_of_large_numbers() -> str:
    schema = {"items": {"allOf": [{"minimum": -i} for i in range(100)]}}
    return checked("json", schema, b"[" + b",".join([b"1e308"] * 9_000) + b"]")


@case
def json_numbers() -> str:
    return checked("json", {"multipleOf": 1e-300}, b"9" * 1_000_000, b"1e300")


@case
def json_fractions() -> str:
    numbers = b"[" + b",".join([b"1e300"] * 10_000) + b"]"
    return checked("json", {"items": {"multipleOf": 1e-300}}, numbers)


@case
def json_money() -> str:
    schema = {"items": {"properties": {"price": {"multipleOf": 0.01}}}}
    return checked("json", schema, json.dumps([{"price": 19.99}] * 1_000).encode())


@case
def json_simulated_pattern() -> str:
    # Almost every character leads to a new set of states.
    random = Random(1)
    text = "".join(random.choice("ab") for _ in range(100_000))
    return checked("json", {"pattern": "(a|b)*a(a|b){500}c"}, json.dumps(text).encode())


@case
def json_plain_pattern_beside_long_text() -> str:
    schema = {"properties": {"id": {"pattern": "^(a|b)*c?$"}, "day": {"pattern": r"^\d{4}-\d\d$"}}}
    payload = {"id": "ab", "day": "2026-01", "body": "a" * 2_000_000}
    return checked("json", schema, json.dumps(payload).encode())


@case
def json_unevaluated_copies() -> str:
    parts: dict[str, Any] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2, "unevaluatedProperties": False}
        for i in range(60)
    }
    return checked("json", {"$defs": {**parts, "a60": {}}, "$ref": "#/$defs/a0"}, b"{}")


@case
def json_long_names() -> str:
    inner = {"properties": {f"p{i}": {"type": "string"} for i in range(5_000)}}
    return checked("json", {"properties": {"x" * 500_000: inner}}, b"{}")


@case
def json_compared_alternatives() -> str:
    def schema(kind: str) -> Any:
        parts: dict[str, Any] = {}
        for i in range(50):
            inner = {"$ref": f"#/$defs/a{i + 1}"}
            parts[f"a{i}"] = {"anyOf": [inner, {"properties": {"x": inner}}]}
        return {"$defs": {**parts, "a50": {"type": kind}}, "$ref": "#/$defs/a0"}

    return compared("json", schema("string"), schema("integer"))


@case
def json_compared_chain() -> str:
    def schema(kind: str) -> Any:
        parts: dict[str, Any] = {
            f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(1_000)
        }
        return {"$defs": {**parts, "a1000": {"type": kind}}, "$ref": "#/$defs/a0"}

    return compared("json", schema("string"), schema("integer"))


@case
def json_compared_names() -> str:
    def schema(kind: str) -> Any:
        names = [f"p{i}" for i in range(4_000)]
        return {"properties": {n: {"type": kind} for n in names}, "required": names}

    return compared("json", schema("string"), schema("integer"))


# Avro.


def avro_record(**fields: Any) -> Any:
    written = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "R", "fields": written}


@case
def avro_levels() -> str:
    return checked("avro", nested("items", 500, "int"))


@case
def avro_itself() -> str:
    return checked("avro", avro_record(a="R"))


@case
def avro_nothings() -> str:
    return checked("avro", {"type": "array", "items": "null"}, b"\xfe" + b"\xff" * 8 + b"\x01")


@case
def avro_recursion() -> str:
    return checked("avro", avro_record(a=["null", "R"]), b"\x02" * 8_000_000)


@case
def avro_steps() -> str:
    fields = {f"f{i}": ["null", "int"] for i in range(5)}
    schema = {"type": "array", "items": avro_record(**fields)}
    # 3,000,000 records in 15,000,000 bytes.
    return checked("avro", schema, b"\x80\x9b\xee\x02" + bytes(15_000_001))


def avro_doubling(levels: int) -> Any:
    default: Any = 5
    for _ in range(levels):
        default = {"a": default}
    inner = {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["A", "B"]}]}
    fields = [
        {"name": "a", "type": ["A", inner]},
        {"name": "d", "type": ["null", "A", "B"], "default": default},
    ]
    return {"type": "record", "name": "A", "fields": fields}


@case
def avro_doubling_defaults() -> str:
    return checked("avro", avro_doubling(50), b"")


@case
def avro_container_with_doubling_defaults() -> str:
    text = json.dumps(avro_doubling(40)).encode()
    return checked("avro", avro_record(a="int"), container(text))


@case
def avro_large_unions() -> str:
    def union(prefix: str) -> Any:
        return [{"type": "fixed", "name": f"{prefix}{i}", "size": 1} for i in range(4_000)]

    return compared("avro", union("a"), union("b"))


@case
def avro_large_enums() -> str:
    def symbols(prefix: str) -> Any:
        return {"type": "enum", "name": "E", "symbols": [f"{prefix}{i}" for i in range(10_000)]}

    return compared("avro", symbols("a"), symbols("b"))


@case
def avro_same_record_in_many_namespaces() -> str:
    many = [{"type": "record", "name": f"n{i}.R", "fields": []} for i in range(3_000)]
    return compared("avro", [avro_record(**{f"f{i}": "int" for i in range(6_000)})], many)


@case
def avro_circles() -> str:
    def circle(count: int) -> Any:
        node: Any = "R0"
        for i in reversed(range(count)):
            name = "R0" if i == 0 else f"n{i}.R0"
            fields = [{"name": "a", "type": ["null", node]}]
            node = {"type": "record", "name": name, "fields": fields}
        return node

    schemas = [parsed("avro", circle(count)) for count in (13, 14)]
    return "fine" if not incompatibilities(Mode.FULL, schemas[0], schemas[1:]) else "broken"


@case
def avro_long_names() -> str:
    fields = {f"f{i}": {"type": "fixed", "name": f"x{i}", "size": 1} for i in range(2_000)}
    return checked("avro", {**avro_record(**fields), "namespace": "a" * 500_000})


def container(text: bytes) -> bytes:
    meta = number(1) + number(11) + b"avro.schema" + number(len(text)) + text + b"\x00"
    return b"Obj\x01" + meta + bytes(16)


def number(value: int) -> bytes:
    value, out = value * 2, b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


@case
def avro_container_schemas() -> str:
    def schema_of(slot: int) -> bytes:
        return json.dumps(avro_record(**{f"f{slot}_{i}": "int" for i in range(4_000)})).encode()

    good = {**avro_record(), "fields": [{"name": "a", "type": "int", "default": 0}]}
    schema, payloads = parsed("avro", good), [container(schema_of(i)) for i in range(60)]
    return "fine" if not schema.validator().check(payloads) else "not all of them"


# Protobuf.


@case
def proto_levels() -> str:
    return checked("proto", b"message A {" * 10_000)


@case
def proto_fields() -> str:
    fields = b"".join(b"optional int32 a%d=%d;" % (i, i + 1) for i in range(30_000))
    return checked("proto", b"message A {" + fields + b"}")


@case
def proto_optionals() -> str:
    fields = b"".join(b"optional int32 a%d=%d;" % (i, i + 1) for i in range(15_000))
    return checked("proto", b"syntax='proto3'; message A {" + fields + b"}", b"")


@case
def proto_comment() -> str:
    return checked("proto", b"/*" * 500_000)


@case
def proto_string() -> str:
    return checked("proto", b'option a = "' + b"\\" * 900_001)


@case
def proto_number() -> str:
    return checked("proto", b"message A { optional int32 a = " + b"1" * 900_000)


@case
def proto_brackets() -> str:
    return checked("proto", b"option a = " + b"{" * 900_000)


@case
def proto_import() -> str:
    return checked("proto", b"import '/dev/zero'; message A {}")


@case
def proto_long_names() -> str:
    fields = b"".join(b"int32 a%d=%d;" % (i, i + 1) for i in range(5_000))
    return checked(
        "proto", b"syntax='proto3'; package " + b"a" * 500_000 + b"; message M {" + fields + b"}"
    )


@case
def proto_reserved_numbers() -> str:
    def schema(parts: list[bytes]) -> bytes:
        return b"syntax='proto3'; message M {" + b"".join(parts) + b"}"

    fields = schema([b"int32 a%d=%d;" % (i, i + 1) for i in range(15_000)])
    reserved = schema([b"reserved %d;" % (2 * i + 20_000) for i in range(15_000)])
    schemas = [parsed("proto", text) for text in (fields, reserved)]
    return "fine" if not incompatibilities(Mode.BACKWARD, schemas[0], schemas[1:]) else "broken"


@case
def proto_enum_of_many_fields() -> str:
    def schema(prefix: bytes) -> bytes:
        values = b"".join(b"%s%d=%d;" % (prefix, i, i + len(prefix)) for i in range(9_000))
        fields = b"".join(b"optional E a%d=%d;" % (i, i + 1) for i in range(9_000))
        return b"enum E {" + values + b"} message M {" + fields + b"}"

    return compared("proto", schema(b"A"), schema(b"BB"))


@case
def proto_missing_fields() -> str:
    schema = b"message M { repeated N n = 1; } message N { required int32 a = 1; }"
    return checked("proto", schema, b"\x0a\x00" * 2_000_000)


@case
def proto_descriptor() -> str:
    value = b""
    for _ in range(3_000):
        size = len(value)
        length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
        value = b"\x1a" + length + value
    return checked("proto", value)


def refuse(*_: object) -> NoReturn:
    raise SystemExit("something was fetched")


def play(run: Case) -> str:
    """Return what `run` says, played in a process of its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
        socket.socket.connect = socket.getaddrinfo = refuse  # type: ignore[assignment]
        try:
            text = run()
        except IsterError as error:
            text = f"refused: {error}"
        os.write(write_end, text.encode()[:1_000])
        os._exit(0)
    os.close(write_end)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    return text if status == 0 else f"ended with status {status}"


if __name__ == "__main__":
    for name, function in CASES.items():
        if name.startswith(sys.argv[1]):
            print(json.dumps([name, play(function)]), flush=True)
