"""Which changes of a JSON Schema break whom."""

from typing import Any

import pytest
from tests.unit.schemas.made import directions, json_schema, reasons

from ister.schemas import Mode, incompatibilities

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
UNDECIDED = (
    "the schema: without `not` became with `not`, old data cannot be read: "
    "whether it takes the same values cannot be decided"
)
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def closed(**properties: Any) -> dict[str, Any]:
    return {**obj(**properties), "additionalProperties": False}


def kind(name: str, **properties: Any) -> dict[str, Any]:
    """Return an alternative that says which one it is."""
    return obj(["kind"], kind={"const": name}, **properties)


TREE = {"$ref": "#/$defs/n", "$defs": {"n": obj(v=INTEGER, next={"$ref": "#/$defs/n"})}}
OTHER_TREE = {"$ref": "#/$defs/n", "$defs": {"n": obj(v=STRING, next={"$ref": "#/$defs/n"})}}
WIDER_TREE = {"$ref": "#/$defs/m", "$defs": {"m": obj(v=NUMBER, next={"$ref": "#/$defs/m"})}}

# Old, new, and the directions in which they fit.
CASES: list[tuple[Any, Any, str]] = [
    (obj(a=STRING), obj(a=STRING), "both"),
    (obj(a=STRING), {"title": "Told", "description": "…", **obj(a=STRING)}, "both"),
    (True, {}, "both"),
    (True, STRING, "forward"),
    (False, STRING, "backward"),
    # Types.
    (STRING, INTEGER, "none"),
    (INTEGER, NUMBER, "backward"),
    (STRING, {"type": ["string", "null"]}, "backward"),
    (obj(a=STRING), obj(a=INTEGER), "none"),
    # Properties.
    (obj(a=STRING), obj(a=STRING, b=STRING), "both"),
    (obj(a=STRING), obj(), "both"),
    (obj(a=STRING), obj(["a"], a=STRING), "forward"),
    (obj(a=STRING), obj(["b"], a=STRING, b=STRING), "forward"),
    (obj(["a"], a=STRING), obj(a=STRING), "backward"),
    (obj(["a"], a=STRING), obj(), "backward"),
    (closed(a=STRING), closed(a=STRING, b=STRING), "backward"),
    (obj(a=STRING), closed(a=STRING), "forward"),
    (obj(a=STRING), {**obj(), "additionalProperties": STRING}, "forward"),
    ({**obj(), "additionalProperties": STRING}, {**obj(), "additionalProperties": INTEGER}, "none"),
    ({**obj(), "additionalProperties": STRING}, obj(a=INTEGER), "none"),
    ({**obj(), "additionalProperties": STRING}, obj(a=STRING), "backward"),
    ({"patternProperties": {"^x": STRING}}, {"patternProperties": {"^x": INTEGER}}, "none"),
    (obj(xa=INTEGER), {**obj(xa=INTEGER), "patternProperties": {"^x": NUMBER}}, "both"),
    (obj(xa=INTEGER), {**obj(xa=INTEGER), "patternProperties": {"^x": STRING}}, "forward"),
    ({"type": "object"}, {"type": "object", "maxProperties": 3}, "forward"),
    ({"type": "object"}, {"type": "object", "propertyNames": {"maxLength": 3}}, "forward"),
    (obj(o=obj(i=obj(a=STRING))), obj(o=obj(i=obj(a=INTEGER))), "none"),
    (obj(o=obj(a=STRING)), obj(o=obj(["a"], a=STRING)), "forward"),
    # Numbers.
    (INTEGER, {**INTEGER, "minimum": 0}, "forward"),
    ({**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 1}, "forward"),
    ({**INTEGER, "maximum": 5}, {**INTEGER, "maximum": 9}, "backward"),
    ({**NUMBER, "minimum": 5}, {**NUMBER, "exclusiveMinimum": 5}, "forward"),
    ({**NUMBER, "minimum": 5}, {**NUMBER, "exclusiveMinimum": 4}, "backward"),
    ({"$schema": DRAFT_4, **NUMBER, "minimum": 5}, {**NUMBER, "minimum": 5}, "both"),
    (
        {"$schema": DRAFT_4, **NUMBER, "minimum": 5, "exclusiveMinimum": True},
        {**NUMBER, "exclusiveMinimum": 5},
        "both",
    ),
    ({**INTEGER, "multipleOf": 10}, {**INTEGER, "multipleOf": 5}, "backward"),
    (NUMBER, {**NUMBER, "multipleOf": 1}, "forward"),
    # Texts.
    (STRING, {**STRING, "maxLength": 5}, "forward"),
    ({**STRING, "maxLength": 5}, {**STRING, "maxLength": 9}, "backward"),
    ({**STRING, "minLength": 2}, {**STRING, "minLength": 1}, "backward"),
    (STRING, {**STRING, "minLength": 0}, "both"),
    (STRING, {**STRING, "pattern": "^a"}, "forward"),
    ({**STRING, "pattern": "^a"}, {**STRING, "pattern": "^b"}, "none"),
    (STRING, {**STRING, "format": "date"}, "both"),
    (
        {"$schema": DRAFT_7, **STRING},
        {"$schema": DRAFT_7, **STRING, "format": "date"},
        "forward",
    ),
    # Enumerations.
    ({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}, "backward"),
    ({"enum": ["a"]}, STRING, "backward"),
    ({"enum": ["a", 1]}, STRING, "none"),
    ({"const": "a"}, {"enum": ["a", "b"]}, "backward"),
    ({"enum": ["abc"]}, {**STRING, "maxLength": 3}, "backward"),
    ({"enum": ["abc"]}, {**STRING, "maxLength": 2}, "none"),
    ({"enum": [1, 7]}, {**INTEGER, "maximum": 7}, "backward"),
    ({"enum": [10, 20]}, {**INTEGER, "multipleOf": 10}, "backward"),
    ({"enum": [10, 25]}, {**INTEGER, "multipleOf": 10}, "none"),
    ({"type": "boolean"}, {"enum": [True, False]}, "both"),
    # Arrays.
    ({"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, "backward"),
    ({"type": "array", "items": INTEGER}, {"type": "array", "items": STRING}, "none"),
    ({"type": "array"}, {"type": "array", "items": STRING}, "forward"),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, "forward"),
    ({"type": "array", "maxItems": 3}, {"type": "array", "maxItems": 2}, "forward"),
    (
        {"type": "array", "prefixItems": [STRING, INTEGER], "items": False},
        {"type": "array", "prefixItems": [STRING, NUMBER], "items": False},
        "backward",
    ),
    (
        {"$schema": DRAFT_7, "type": "array", "items": [STRING], "additionalItems": INTEGER},
        {"type": "array", "prefixItems": [STRING], "items": INTEGER},
        "both",
    ),
    ({"type": "array"}, {"type": "array", "contains": STRING}, "forward"),
    # Alternatives.
    (STRING, {"anyOf": [STRING, INTEGER]}, "backward"),
    ({"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER, STRING, {"type": "null"}]}, "backward"),
    ({"anyOf": [STRING, INTEGER]}, {"type": ["string", "integer"]}, "both"),
    (STRING, {"oneOf": [STRING, INTEGER]}, "backward"),
    ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING, NUMBER]}, "backward"),
    # Both alternatives take an integer, so that neither fits alone.
    (INTEGER, {"oneOf": [INTEGER, NUMBER]}, "none"),
    ({"oneOf": [kind("a")]}, {"oneOf": [kind("a"), kind("b", n=INTEGER)]}, "backward"),
    ({"oneOf": [kind("a", n=INTEGER)]}, {"oneOf": [kind("a", n=STRING)]}, "none"),
    ({"allOf": [obj(a=STRING), obj(b=STRING)]}, obj(a=STRING, b=STRING), "both"),
    ({"allOf": [{**NUMBER, "minimum": 3}, {"maximum": 5}]}, {**NUMBER, "minimum": 0}, "backward"),
    # Conditions are only compared as a whole.
    (STRING, {**STRING, "not": {"const": "a"}}, "forward"),
    (
        {**STRING, "not": {"const": "a"}},
        {**STRING, "not": {"const": "a"}, "maxLength": 3},
        "forward",
    ),
    ({"if": STRING, "then": {"maxLength": 3}}, {"if": STRING, "then": {"maxLength": 4}}, "none"),
    # References.
    ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, STRING, "both"),
    (TREE, OTHER_TREE, "none"),
    (TREE, WIDER_TREE, "backward"),
    (
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "unevaluatedProperties": False,
            "$defs": {"a": obj(x={})},
        },
        {"allOf": [{"$ref": "#/$defs/a"}], "unevaluatedProperties": False, "$defs": {"a": obj()}},
        "none",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_a_change_fits_in_these_directions(old: Any, new: Any, expected: str) -> None:
    assert directions(json_schema(old), json_schema(new)) == expected


def test_a_reason_names_the_place_and_both_sides() -> None:
    old, new = json_schema(obj(user=obj(age=INTEGER))), json_schema(obj(user=obj(age=STRING)))

    assert reasons(Mode.FULL, old, new) == [
        "property 'user.age': integer became string, old data cannot be read",
        "property 'user.age': integer became string, the old schema cannot read new data",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (obj(), obj(["a"]), "property 'a': absent became required, old data cannot be read"),
        (
            obj(tags={"type": "array", "items": STRING}),
            obj(tags={"type": "array", "items": INTEGER}),
            "property 'tags[]': string became integer, old data cannot be read",
        ),
        (
            {"enum": ["a", "b"]},
            {"enum": ["b"]},
            'the schema: with the values "a" became one of "b", old data cannot be read',
        ),
        (
            STRING,
            {**STRING, "not": {"const": "a"}},
            UNDECIDED,
        ),
    ],
)
def test_a_reason_says_what_breaks(old: Any, new: Any, reason: str) -> None:
    assert reasons(Mode.BACKWARD, json_schema(old), json_schema(new)) == [reason]


def test_only_a_transitive_mode_looks_beyond_the_last_version() -> None:
    first, second = json_schema(obj(["a"], a=STRING)), json_schema(obj())
    third = json_schema(obj(a=INTEGER))

    assert incompatibilities(Mode.BACKWARD, third, [first, second]) == []
    assert incompatibilities(Mode.BACKWARD_TRANSITIVE, third, [first, second]) == [
        "property 'a': string became integer, old data cannot be read"
    ]
    assert incompatibilities(Mode.FORWARD, third, [first, second]) == []
    assert len(incompatibilities(Mode.FORWARD_TRANSITIVE, third, [first, second])) == 2
    assert len(incompatibilities(Mode.FULL_TRANSITIVE, third, [first, second])) == 3
    assert incompatibilities(Mode.NONE, third, [first, second]) == []
    assert incompatibilities(Mode.FULL_TRANSITIVE, third, []) == []


def test_at_most_twenty_reasons_are_told() -> None:
    names = [f"p{slot}" for slot in range(100)]
    old = json_schema({"properties": dict.fromkeys(names, STRING)})
    new = json_schema({"properties": dict.fromkeys(names, INTEGER)})

    assert len(reasons(Mode.FULL, old, new)) == 20


REF = {"$ref": "#/$defs/top", "$defs": {"top": obj(["a"], a=STRING)}}
ALL = {"allOf": [obj(["a"], a=STRING), obj(b=STRING)]}
# Old, new, and the directions in which they fit by Danube's rule about required properties.
DANUBE_CASES: list[tuple[Any, Any, str]] = [
    (obj(["a"], a=STRING), obj(a=STRING), "backward"),
    (obj(["a"], a=STRING), obj(), "none"),
    (obj(["a"], a=STRING), {"required": ["a"], **obj()}, "both"),
    (obj(a=STRING), obj(), "both"),
    (obj(), obj(["a"], a=STRING), "none"),
    (obj(a=STRING), obj(["a"], a=STRING), "forward"),
    (REF, obj(), "none"),
    (REF, obj(["a"], a=STRING), "both"),
    (ALL, obj(b=STRING), "none"),
    (obj(b=STRING), ALL, "none"),
    # Only the top is looked at.
    (obj(o=obj(["a"], a=STRING)), obj(o=obj()), "backward"),
    (False, obj(["a"], a=STRING), "backward"),
]


@pytest.mark.parametrize(("old", "new", "fits"), DANUBE_CASES)
def test_required_properties_are_kept_where_that_is_asked_for(
    old: Any, new: Any, fits: str
) -> None:
    found = {
        mode: not incompatibilities(mode, json_schema(new), [json_schema(old)], keep_required=True)
        for mode in (Mode.BACKWARD, Mode.FORWARD, Mode.FULL)
    }

    assert found == {
        Mode.BACKWARD: fits in ("backward", "both"),
        Mode.FORWARD: fits in ("forward", "both"),
        Mode.FULL: fits == "both",
    }


def test_a_required_property_that_is_removed_or_added_is_named() -> None:
    with_a, without = json_schema(obj(["a"], a=STRING)), json_schema(obj())

    assert incompatibilities(Mode.BACKWARD, without, [with_a], keep_required=True) == [
        "required property 'a' is removed"
    ]
    assert incompatibilities(Mode.FORWARD, with_a, [without], keep_required=True) == [
        "required property 'a' is added"
    ]
