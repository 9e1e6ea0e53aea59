"""Which changes of an Avro schema break whom: the specification's rules of resolution."""

from typing import Any

import pytest
from tests.unit.schemas.made import avro, directions, reasons, record

from ister.schemas import Mode, incompatibilities


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def optional(kind: Any) -> dict[str, Any]:
    return {"name": "b", "type": ["null", kind], "default": None}


A = ("a", "int")
B = ("b", "string")
B_DEFAULT = {"name": "b", "type": "string", "default": ""}

CASES: list[tuple[Any, Any, str]] = [
    ("int", "int", "both"),
    # Promotions go one way, but for texts and bytes.
    ("int", "long", "backward"),
    ("int", "float", "backward"),
    ("int", "double", "backward"),
    ("long", "float", "backward"),
    ("long", "double", "backward"),
    ("float", "double", "backward"),
    ("string", "bytes", "both"),
    ("int", "string", "none"),
    ("boolean", "int", "none"),
    ("null", "int", "none"),
    # Fields.
    (record(A), record(A, B), "forward"),
    (record(A), record(A, B_DEFAULT), "both"),
    (record(A, B), record(A), "backward"),
    (record(A, B_DEFAULT), record(A), "both"),
    (record(A), record(A, optional("int")), "both"),
    (record(A, B), record(B, A), "both"),
    (record(A), record(("a", "long")), "backward"),
    (record(("o", record(A, name="O"))), record(("o", record(B, name="O"))), "none"),
    (record(A), record({"name": "c", "type": "int", "aliases": ["a"]}), "backward"),
    (record(A), record(("c", "int")), "none"),
    # Names.
    (record(A), record(A, name="S"), "none"),
    (record(A), {**record(A, name="S"), "aliases": ["R"]}, "backward"),
    (record(A), {**record(A), "namespace": "n"}, "both"),
    # Unions.
    ("int", ["null", "int"], "backward"),
    (["null", "int"], ["null", "int", "string"], "backward"),
    (["null", "int"], ["int", "null"], "both"),
    (["int", "string"], "string", "forward"),
    (["int"], "int", "both"),
    (["int", "long"], "long", "both"),
    (["null", "int"], ["null", "string"], "none"),
    (record(("a", ["null", "int"])), record(("a", ["null", "long"])), "backward"),
    (
        record(("a", ["null", record(A, name="O")])),
        record(("a", ["null", record(A, B_DEFAULT, name="O")])),
        "both",
    ),
    # Enums.
    (enum("A", "B"), enum("A", "B", "C"), "backward"),
    (enum("A", "B"), enum("B", "A"), "both"),
    (enum("A", "B"), enum("A", default="A"), "both"),
    (enum("A"), {**enum("A"), "name": "X"}, "none"),
    # Fixed, arrays and maps.
    (fixed(2), fixed(2), "both"),
    (fixed(2), fixed(3), "none"),
    (fixed(2), fixed(2, "G"), "none"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "backward"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "none"),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "none"),
    # Logical types.
    (decimal(9, 2), decimal(9, 2), "both"),
    (decimal(9, 2), decimal(9, 3), "none"),
    ("long", {"type": "long", "logicalType": "timestamp-millis"}, "both"),
    # Recursion.
    (
        record(("v", "int"), ("n", ["null", "R"])),
        record(("v", "long"), ("n", ["null", "R"])),
        "backward",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_a_change_fits_in_these_directions(old: Any, new: Any, expected: str) -> None:
    assert directions(avro(old), avro(new)) == expected


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            record(("o", record(A, name="O"))),
            record(("o", record(("a", "string"), name="O"))),
            "field 'o.a': int became string, old data cannot be read",
        ),
        (
            record(A),
            record(A, B),
            "field 'b': absent became string without a default, old data cannot be read",
        ),
        (
            enum("A", "B"),
            enum("A"),
            "the schema: enum E with B became one without them, old data cannot be read",
        ),
        (
            {"type": "array", "items": ["null", "int"]},
            {"type": "array", "items": "int"},
            "field '[]': null became int, old data cannot be read",
        ),
    ],
)
def test_a_reason_names_the_place_and_both_sides(old: Any, new: Any, reason: str) -> None:
    assert reasons(Mode.BACKWARD, avro(old), avro(new)) == [reason]


def test_only_a_transitive_mode_looks_beyond_the_last_version() -> None:
    first, second = avro(record(A, ("c", "string"))), avro(record(A))
    third = avro(record(A, {"name": "c", "type": "int", "default": 0}))

    assert incompatibilities(Mode.BACKWARD, third, [first, second]) == []
    assert incompatibilities(Mode.BACKWARD_TRANSITIVE, third, [first, second]) == [
        "field 'c': string became int, old data cannot be read"
    ]
    assert incompatibilities(Mode.FORWARD, third, [first, second]) == []
    assert incompatibilities(Mode.FORWARD_TRANSITIVE, third, [first, second]) == [
        "field 'c': string became int, the old schema cannot read new data"
    ]
