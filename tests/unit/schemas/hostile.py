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
from typing import Any, NoReturn

from ister.base.errors import IsterError
from ister.schemas import Mode, Schema, incompatibilities, parse_schema, parse_type

CPU_S_MAX = 15
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
    return checked("json", schema, json.dumps([{"a": 5_999}] * 100_000).encode())


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
    text = json.dumps("a" * 1_000_000 + "b").encode()
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
    return checked("json", schema, json.dumps({f"k{i}": 1 for i in range(200_000)}).encode())


@case
def json_unique() -> str:
    items = b",".join(b'{"a":[%d]}' % i for i in range(100_000))
    return checked("json", {"uniqueItems": True}, b"[" + items + b"]")


@case
def json_numbers() -> str:
    return checked("json", {"multipleOf": 1e-300}, b"9" * 1_000_000, b"1e300")


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
            f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(2_000)
        }
        return {"$defs": {**parts, "a2000": {"type": kind}}, "$ref": "#/$defs/a0"}

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


@case
def avro_container_schemas() -> str:
    def number(value: int) -> bytes:
        value, out = value * 2, b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])

    def container(slot: int) -> bytes:
        text = json.dumps(avro_record(**{f"f{slot}_{i}": "int" for i in range(4_000)})).encode()
        meta = number(1) + number(11) + b"avro.schema" + number(len(text)) + text + b"\x00"
        return b"Obj\x01" + meta + bytes(16)

    good = {**avro_record(), "fields": [{"name": "a", "type": "int", "default": 0}]}
    schema, payloads = parsed("avro", good), [container(slot) for slot in range(60)]
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
