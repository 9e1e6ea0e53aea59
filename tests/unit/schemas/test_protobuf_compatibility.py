"""Which changes of a Protobuf schema break whom: by field numbers and wire formats."""

import pytest
from tests.unit.schemas.made import directions, proto, reasons

from ister.schemas import Mode, incompatibilities


def m(fields: str) -> str:
    return f"message M {{ {fields} }} message N {{ string s = 1; }} message O {{ int32 s = 1; }}"


CASES = [
    ("int32 a = 1;", "int32 a = 1;", "both"),
    ("int32 a = 1;", "int32 a = 1; string b = 2;", "both"),
    ("int32 a = 1;", "int32 renamed = 1;", "both"),
    ("int32 a = 1;", "int32 a = 2;", "none"),
    # Wire formats.
    ("int32 a = 1;", "int64 a = 1;", "both"),
    ("int32 a = 1;", "bool a = 1;", "both"),
    ("int32 a = 1;", "sint32 a = 1;", "none"),
    ("sint32 a = 1;", "sint64 a = 1;", "both"),
    ("fixed32 a = 1;", "sfixed32 a = 1;", "both"),
    ("fixed32 a = 1;", "fixed64 a = 1;", "none"),
    ("fixed32 a = 1;", "float a = 1;", "none"),
    ("string a = 1;", "bytes a = 1;", "backward"),
    ("N a = 1;", "bytes a = 1;", "backward"),
    ("string a = 1;", "int32 a = 1;", "none"),
    ("int32 a = 1;", "enum E { Z = 0; } E a = 1;", "both"),
    # One or many.
    ("string a = 1;", "repeated string a = 1;", "backward"),
    ("int32 a = 1;", "repeated int32 a = 1;", "backward"),
    ("int32 a = 1;", "optional int32 a = 1;", "both"),
    # Nested.
    ("N a = 1;", "O a = 1;", "none"),
    ("map<string, N> a = 1;", "map<string, O> a = 1;", "none"),
    ("map<string, int32> a = 1;", "map<string, int64> a = 1;", "both"),
    ("M a = 1; int32 b = 2;", "M a = 1; int64 b = 2;", "both"),
    # Reserved numbers.
    ("reserved 5;", "string a = 5;", "forward"),
    ("string a = 5;", "reserved 5;", "both"),
    # Oneofs.
    ("int32 a = 1;", "oneof x { int32 a = 1; }", "both"),
    ("int32 a = 1;", "oneof x { int32 a = 1; int32 b = 2; }", "both"),
    ("int32 a = 1; int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }", "forward"),
    ("oneof x { int32 a = 1; } int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }", "forward"),
    ("oneof x { int32 a = 1; int32 b = 2; }", "oneof y { int32 a = 1; int32 b = 2; }", "both"),
    # Enums of proto3 keep unknown numbers.
    ("enum E { Z = 0; A = 1; } E a = 1;", "enum E { Z = 0; } E a = 1;", "both"),
]
ENUM = "enum E { A = 1;"
CASES_2 = [
    ("required int32 a = 1;", "optional int32 a = 1;", "backward"),
    ("required int32 a = 1;", "", "backward"),
    ("", "required int32 a = 1;", "forward"),
    (
        "enum E { A = 1; B = 2; } optional E e = 1;",
        "enum E { A = 1; } optional E e = 1;",
        "forward",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_a_change_fits_in_these_directions(old: str, new: str, expected: str) -> None:
    assert directions(proto(m(old)), proto(m(new))) == expected


@pytest.mark.parametrize(("old", "new", "expected"), CASES_2)
def test_a_change_of_proto2_fits_in_these_directions(old: str, new: str, expected: str) -> None:
    before, after = (proto(f"message M {{ {fields} }}", "proto2") for fields in (old, new))

    assert directions(before, after) == expected


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("int32 a = 1;", "string a = 1;", "field 'a' (number 1): int32 became string"),
        ("int32 a = 1;", "int32 a = 2;", "field 'a' (number 2): number 1 became number 2"),
        ("N n = 3;", "O n = 3;", "field 'n.s' (number 1): string became int32"),
        ("reserved 5;", "bool a = 5;", "field 'a' (number 5): reserved became bool"),
    ],
)
def test_a_reason_names_the_place_and_both_sides(old: str, new: str, reason: str) -> None:
    (found,) = reasons(Mode.BACKWARD, proto(m(old)), proto(m(new)))

    assert found.startswith(f"{reason}, old data cannot be read")


def test_only_a_transitive_mode_looks_beyond_the_last_version() -> None:
    first, second, third = (proto(m(f)) for f in ("int32 a = 1;", "", "string b = 1;"))

    assert incompatibilities(Mode.FULL, third, [first, second]) == []
    assert len(incompatibilities(Mode.BACKWARD_TRANSITIVE, third, [first, second])) == 1
    assert len(incompatibilities(Mode.FULL_TRANSITIVE, third, [first, second])) == 2
