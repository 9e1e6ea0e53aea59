"""JSON Schemas: what is understood, what is refused, and what payloads pass."""

import json
from typing import Any

import pytest
from tests.unit.schemas.made import json_schema

from ister.base.errors import BadSchemaError
from ister.schemas import Fault, SchemaType, parse_schema
from ister.schemas.bounds import PAYLOAD_VALUES_MAX

USER = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def faults(schema: Any, *payloads: bytes) -> list[Fault]:
    return json_schema(schema).validator().check(payloads)


def test_payloads_are_checked_and_the_place_is_named_without_the_value() -> None:
    found = faults(
        USER, b'{"name": "Ann"}', b'{"name": "secret", "age": -1}', b"{", b"{}", b'{"name": 5}'
    )

    assert [slot for slot, _ in found] == [1, 2, 3, 4]
    assert "at /age" in found[0][1]
    assert "not JSON" in found[1][1]
    assert '"name" is a required property' in found[2][1]
    assert not any("secret" in reason or "-1" in reason for _, reason in found)


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_every_draft_is_known(draft: str) -> None:
    assert faults({"$schema": draft, **USER}, b'{"name": "Ann"}', b"[]")[0][0] == 1


def test_a_schema_may_be_a_boolean() -> None:
    assert faults(True, b"1") == []
    assert faults(False, b"1")[0][0] == 0


def test_references_inside_the_document_work_by_pointer_anchor_and_root() -> None:
    schema = {
        "$defs": {"a/b": {"type": "string"}, "c": {"$anchor": "tree", "type": "integer"}},
        "properties": {
            "x": {"$ref": "#/$defs/a~1b"},
            "y": {"$ref": "#tree"},
            "z": {"$ref": "#"},
        },
    }

    good = b'{"x": "a", "y": 1, "z": {"z": {"y": 2}}}'
    assert [slot for slot, _ in faults(schema, good, b'{"z": {"z": {"y": "2"}}}')] == [1]


def test_a_document_may_call_itself_by_its_name() -> None:
    schema = {
        "$id": "https://example.com/user.json",
        "$defs": {"a": {"type": "string"}},
        "properties": {
            "x": {"$ref": "https://example.com/user.json#/$defs/a"},
            "y": {"$ref": "#/$defs/a"},
        },
    }

    assert [slot for slot, _ in faults(schema, b'{"x": "a", "y": "b"}', b'{"x": 1}')] == [1]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("[1]", "an object or a boolean"),
        ("{", "not JSON"),
        ('{"type": "strin"}', "type"),
        ('{"minimum": "5"}', "minimum"),
        ('{"$ref": "http://127.0.0.1:1/x"}', "out of the document"),
        ('{"$ref": "file:///etc/passwd"}', "out of the document"),
        ('{"$ref": "other.json"}', "out of the document"),
        ('{"properties": {"a": {"$ref": "http://json-schema.org/draft-07/schema#"}}}', "out of"),
        ('{"$ref": "#/nope"}', "leads nowhere"),
        ('{"$ref": "#nope"}', "leads nowhere"),
        ('{"$ref": 5}', "out of the document"),
        ('{"$ref": "#"}', "in a circle"),
        ('{"anyOf": [{"$ref": "#"}, {"type": "string"}]}', "in a circle"),
        ('{"$dynamicRef": "#a"}', "not supported"),
        ('{"$schema": "http://127.0.0.1:1/meta"}', "none of the drafts"),
        ('{"$defs": {"a": {"$id": "http://127.0.0.1:1/x"}}}', "not supported"),
        ('{"pattern": "["}', "pattern"),
        ('{"pattern": "(?=a)b"}', "pattern"),
        ('{"pattern": "(a)\\\\1"}', "pattern"),
        ('{"patternProperties": {"(?<!a)": {}}}', "(?<!a)"),
    ],
)
def test_what_is_broken_or_leads_away_is_refused(document: str, reason: str) -> None:
    with pytest.raises(BadSchemaError) as error:
        parse_schema(SchemaType.JSON_SCHEMA, document.encode())

    assert reason in str(error.value)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (nested(64), nested(65)),
        ({"enum": list(range(10_000))}, {"enum": list(range(10_001))}),
        ({"default": [0] * 19_998}, {"default": [0] * 19_999}),
        (
            {"patternProperties": {f"a{i}": {} for i in range(100)}},
            {"patternProperties": {f"a{i}": {} for i in range(101)}},
        ),
    ],
)
def test_limits_hold_at_the_edge(good: Any, bad: Any) -> None:
    json_schema(good)

    with pytest.raises(BadSchemaError):
        json_schema(bad)


def test_a_payload_may_have_a_hundred_levels() -> None:
    found = faults({}, b"[" * 100 + b"1" + b"]" * 100, b"[" * 101 + b"1" + b"]" * 101, b"[" * 10**5)

    assert [slot for slot, _ in found] == [1, 2]
    assert "deeper than 100" in found[0][1]
    assert "deeper than 100" in found[1][1]


def test_a_payload_may_have_so_many_values() -> None:
    most = b"[" + b"1," * (PAYLOAD_VALUES_MAX - 1) + b"1]"

    assert faults({"type": "array"}, most) == []
    ((_, reason),) = faults({"type": "array"}, most[:-1] + b",1]")
    assert f"more than {PAYLOAD_VALUES_MAX} values" in reason


@pytest.mark.parametrize("text", ["a,", "[{,", '\\",', "\\,", '\\\\",[', ',"'])
def test_commas_in_texts_are_not_values(text: str) -> None:
    long = text * (PAYLOAD_VALUES_MAX // 2 + 1) * (1 + (len(text) < 3))
    document = json.dumps({"a": long, "b": [long]}).encode()
    more = json.dumps({"a": long, "b": [0] * PAYLOAD_VALUES_MAX}).encode()

    assert faults({"type": "object"}, document) == []
    assert len(faults({"type": "object"}, more)) == 1


def test_brackets_in_texts_are_no_levels() -> None:
    assert faults({}, json.dumps(["[{" * 200]).encode()) == []


@pytest.mark.parametrize(
    "other",
    [
        json.dumps(dict(reversed(USER.items()))).encode(),
        json.dumps(USER, indent=4).encode(),
    ],
)
def test_a_fingerprint_ignores_spaces_and_the_order_of_keys(other: bytes) -> None:
    same = parse_schema(SchemaType.JSON_SCHEMA, other)

    assert same.fingerprint == json_schema(USER).fingerprint
    assert same.fingerprint.startswith("sha256:")
    assert len(same.fingerprint) == 7 + 64


def test_a_fingerprint_changes_with_the_order_of_values_and_with_values() -> None:
    prints = {json_schema({"enum": values}).fingerprint for values in ([1, 2], [2, 1], [1, 2.5])}

    assert len(prints) == 3
