"""Avro schemas: what is understood, what is refused, and what payloads pass."""

import io
import json
import zlib
from typing import Any

import fastavro
import pytest
from tests.unit.schemas.made import avro, record

from ister.base.errors import BadSchemaError
from ister.schemas import Fault, SchemaType, parse_schema

NODE = record(("value", "int"), ("next", ["null", "R"]))


def faults(schema: Any, *payloads: bytes) -> list[Fault]:
    return avro(schema).validator().check(payloads)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def contained(schema: Any, *values: Any, codec: str = "null") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), values, codec=codec)
    return out.getvalue()


ALL = record(
    ("n", "null"),
    ("b", "boolean"),
    ("i", "int"),
    ("l", "long"),
    ("f", "float"),
    ("d", "double"),
    ("by", "bytes"),
    ("s", "string"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("x", {"type": "fixed", "name": "F", "size": 3}),
    ("a", {"type": "array", "items": "E"}),
    ("m", {"type": "map", "values": ["null", "F"]}),
    ("t", {"type": "long", "logicalType": "timestamp-millis"}),
    ("r", ["null", "R"]),
)
VALUE = {
    "n": None,
    "b": True,
    "i": -(2**31),
    "l": 2**63 - 1,
    "f": 1.5,
    "d": -2.5,
    "by": b"\xff" * 100,
    "s": "Käse" * 50,
    "e": "B",
    "x": b"abc",
    "a": ["A"] * 70,
    "m": {"k": b"xyz", "o": None},
    "t": 2**62,
    "r": None,
}


def test_what_fastavro_writes_passes() -> None:
    value = written(ALL, {**VALUE, "r": VALUE})

    assert faults(ALL, value) == []


def test_a_value_that_is_cut_off_or_too_long_does_not_pass() -> None:
    value = written(ALL, VALUE)
    cut = [value[:end] for end in range(len(value))]

    validator = avro(ALL).validator()
    assert all(validator.check([part]) for part in cut)
    assert faults(ALL, value + b"\x00") == [(0, "1 B are left behind the value")]


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("boolean", b"\x02", "byte 2 is no boolean"),
        ("int", b"\xff\xff\xff\xff\x7f", "more than 32 bits"),
        ("long", b"\xff" * 10 + b"\x01", "more than 64 bits"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("string", b"\x04a", "2 B does not fit"),
        ("string", b"\x01", "-1 B does not fit"),
        ("bytes", b"\xfe\xff\xff\xff\x0f", "does not fit"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "slot -1 is none of the 1"),
        (["null", "int"], b"\x01", "slot -1 is none of the 2"),
        (["null", "int"], b"\x04", "slot 2 is none of the 2"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f", "do not fit"),
        (record(("o", record(("i", "int"), name="O"))), b"", "field o.i: the payload ends"),
        (NODE, b"\x00\x02" * 200_000, "deeper than 100 levels"),
    ],
)
def test_a_bad_value_is_explained(schema: Any, payload: bytes, reason: str) -> None:
    ((slot, text),) = faults(schema, payload)

    assert slot == 0
    assert reason in text


def test_a_block_of_an_array_may_tell_its_size() -> None:
    assert faults({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x00") == []


# Container files.


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_container_passes_with_any_number_of_values(codec: str) -> None:
    schema = record(("a", "int"))
    payloads = [contained(schema, *[{"a": 1}] * count, codec=codec) for count in (0, 1, 100)]

    assert faults(schema, *payloads) == []


def test_a_container_of_an_older_version_passes_if_the_schema_reads_it() -> None:
    older, other = record(("a", "int")), record(("a", "string"))
    schema = record(("a", "long"), {"name": "b", "type": "int", "default": 1})

    found = faults(schema, contained(older, {"a": 1}), contained(other, {"a": "x"}))

    assert [slot for slot, _ in found] == [1]
    assert "another schema: field 'a': string became long" in found[0][1]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_container_that_is_cut_off_or_changed_does_not_pass(codec: str) -> None:
    schema = record(("a", "string"))
    data = contained(schema, {"a": "text " * 20}, codec=codec)
    validator = avro(schema).validator()

    # What is cut off behind the header is a container without values.
    header = data.index(data[-16:]) + 16
    assert all(validator.check([data[:end]]) for end in range(len(data)) if end != header)
    assert validator.check([data[:-1] + bytes([data[-1] ^ 1])])


def test_a_container_with_a_bad_schema_or_codec_does_not_pass() -> None:
    data = contained("int", 1)

    found = faults("int", data.replace(b'"int"', b'"inx"'), data.replace(b"null", b"xxxx"))

    assert "there is no type 'inx'" in found[0][1]
    assert "codec" in found[1][1]


def test_a_container_does_not_unpack_to_any_size() -> None:
    schema = {"type": "bytes"}
    small = contained(schema, b"", codec="deflate")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(64 * 1024 * 1024)) + packer.flush()
    sync = small[-16:]
    header = small[: small.index(sync) + 16]
    size = io.BytesIO()
    fastavro.schemaless_writer(size, "long", len(bomb))

    found = faults(schema, header + b"\x02" + size.getvalue() + bomb + sync)

    assert "larger than" in found[0][1]


def test_a_value_that_begins_like_a_container_passes_as_a_value() -> None:
    schema = record(("a", "int"), ("b", "int"), ("c", "int"), ("d", "int"))

    assert faults(schema, b"Obj\x01") == []


# Definitions.


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("5", "a type is"),
        ("{", "not JSON"),
        ("[]", "a union needs a type"),
        ('["int", "int"]', "int twice"),
        ('[["int"], "string"]', "a union is in a union"),
        ('"nope"', "no type 'nope'"),
        ('{"type": "array"}', "no `items`"),
        ('{"type": "record", "name": "A"}', "no list of `fields`"),
        ('{"type": "record", "fields": []}', "has no name"),
        ('{"type": "record", "name": "A b", "fields": []}', "is no name"),
        ('{"type": "record", "name": "A", "fields": [{"name": "1"}]}', "no word"),
        ('{"type": "record", "name": "A", "fields": [{"name": "a"}]}', "has no type"),
        ('{"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}', "itself"),
        ('{"type": "enum", "name": "E", "symbols": []}', "different words"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "different words"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "is no symbol"),
        ('{"type": "fixed", "name": "F", "size": -1}', "a fixed has"),
        ('{"type": "fixed", "name": "F", "size": 99999999}', "a fixed has"),
        ('{"type": "array", "items": "null"}', "take no bytes"),
        ('{"type": "record", "name": "A", "aliases": "B", "fields": []}', "`aliases`"),
    ],
)
def test_what_is_broken_is_refused(document: str, reason: str) -> None:
    with pytest.raises(BadSchemaError) as error:
        parse_schema(SchemaType.AVRO, document.encode())

    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("kind", "default", "is_good"),
    [
        ("int", 1, True),
        ("int", 2**31, False),
        ("int", "1", False),
        ("int", True, False),
        ("double", 1, True),
        ("bytes", "\u00ff", True),
        ("bytes", "\u0100", False),
        (["null", "int"], None, True),
        (["int", "null"], None, True),
        (["null", "int"], "x", False),
        ({"type": "array", "items": "int"}, [1, 2], True),
        ({"type": "array", "items": "int"}, ["x"], False),
        ({"type": "map", "values": "int"}, {"a": 1}, True),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", False),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", True),
        ({"type": "fixed", "name": "F", "size": 2}, "abc", False),
        (record(("a", "int"), name="I"), {"a": 1}, True),
        (record(("a", "int"), name="I"), {}, False),
    ],
)
def test_a_default_must_be_of_its_type(kind: Any, default: Any, is_good: bool) -> None:
    schema = record({"name": "a", "type": kind, "default": default})

    if is_good:
        assert avro(schema).type is SchemaType.AVRO
    else:
        with pytest.raises(BadSchemaError, match="the default is not a valid"):
            avro(schema)


def test_marks_of_fastavro_in_a_definition_mean_nothing() -> None:
    marked = {**record(("a", "int")), "__fastavro_parsed": True, "__named_schemas": {}}

    assert avro(marked) == avro(record(("a", "int")))


def test_types_are_nested_at_most_sixty_four_deep_also_by_name() -> None:
    def chain(levels: int) -> dict[str, Any]:
        fields: list[Any] = [("f0", record(("x", "int"), name="R0"))]
        fields += [(f"f{n}", record(("x", f"R{n - 1}"), name=f"R{n}")) for n in range(1, levels)]
        return record(*fields, name="Root")

    avro(chain(62))
    with pytest.raises(BadSchemaError, match="nested deeper than 64"):
        avro(chain(63))


@pytest.mark.parametrize(
    "same",
    [
        {"name": "R", "fields": [{"type": "int", "name": "a"}], "type": "record"},
        {**record(("a", {"type": "int"})), "doc": "Explains."},
        {**record({"name": "a", "type": "int", "doc": "x"}), "custom": 5},
    ],
)
def test_a_fingerprint_ignores_order_comments_and_unknown_attributes(same: Any) -> None:
    assert avro(same).fingerprint == avro(record(("a", "int"))).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        record({"name": "a", "type": "int", "default": 0}),
        record(("a", {"type": "int", "logicalType": "date"})),
        record({"name": "a", "type": "int", "aliases": ["b"]}),
        {**record(("a", "int")), "namespace": "n"},
    ],
)
def test_a_fingerprint_knows_defaults_logical_types_aliases_and_names(other: Any) -> None:
    assert avro(other).fingerprint != avro(record(("a", "int"))).fingerprint


def test_a_namespace_is_part_of_a_name_however_it_is_written() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    one = {**record(("a", inner), ("b", "E")), "namespace": "n.m"}
    full = record(("a", {**inner, "name": "n.m.E"}), ("b", "n.m.E"), name="n.m.R")

    assert json.dumps(one) != json.dumps(full)
    assert avro(one) == avro(full)
