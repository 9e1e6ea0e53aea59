"""Which patterns of JSON Schemas read every text at full speed, and schemas with patterns."""

import json
from typing import Any

import pytest

from ister.schemas import SchemaType, parse_schema
from ister.schemas.json.patterns import is_fast

DATE_TIME = (
    r"^([0-9]([0-9]([0-9][1-9]|[1-9]0)|[1-9]00)|[1-9]000)(-(0[1-9]|1[0-2])(-(0[1-9]|[1-2][0-9]|"
    r"3[0-1])(T([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?(Z|(\+|-)((0[0-9]|1[0-3]):"
    r"[0-5][0-9]|14:00)))?)?)?$"
)
SEMVER = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^$",
        "^[a-z]+$",
        r"^[A-Za-z0-9\-\.]{1,64}$",
        r"^[ \r\n\t\S]+$",
        r"^[^\s]+(\s[^\s]+)*$",
        DATE_TIME,
        SEMVER,
        r"^[a-zA-Z0-9_.+-]+@[a-zA-Z0-9-]+\.[a-zA-Z0-9-.]+$",
        r"^\S+@\S+$",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$",
        r"^https?://",
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        r"^(?:(?:25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(?:25[0-5]|2[0-4]\d|[01]?\d\d?)$",
        r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$",
        "[A-Z]{3}",
        "^a|b$",
        "foo.*?bar",
    ],
)
def test_patterns_that_people_write_are_fast(pattern: str) -> None:
    assert is_fast(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        # States that double with each place.
        "^(a|b)*a(a|b){12}$",
        "(a|b)*a(a|b){12}",
        "[01]*1[01]{9}",
        # Written out it is too long.
        "^((a{1,30}){1,30}){1,30}$",
        "^[a-z]{1,5000}$",
        # Not understood by everybody in the same way.
        r"\bword\b",
        "^(?=a)",
        r"(a)\1",
        r"^\p{L}+$",
        "^[a-z&&[b]]$",
        "^ä$",
        "a{",
        "a**",
        "a(^b)",
        "(a",
        "a)",
        "[]a]",
        "[z-a]",
        "\\",
        "(" * 30 + ")" * 30,
        "a" * 2_001,
    ],
)
def test_patterns_that_may_be_slow_count_as_slow(pattern: str) -> None:
    assert not is_fast(pattern)


def event_types(count: int) -> dict[str, Any]:
    """A union of events, as of a company that has one topic for all."""
    return {
        "oneOf": [
            {
                "type": "object",
                "required": ["kind", "at"],
                "properties": {
                    "kind": {"const": f"event-{number}"},
                    "at": {"type": "string", "pattern": DATE_TIME},
                    "id": {"type": "string", "pattern": r"^[A-Za-z0-9\-\.]{1,64}$"},
                    "mail": {"type": "string", "pattern": r"^\S+@\S+$"},
                    "text": {"type": "string", "pattern": r"^[ \r\n\t\S]+$"},
                },
            }
            for number in range(count)
        ]
    }


def test_a_batch_of_a_union_with_patterns_passes() -> None:
    schema = parse_schema(SchemaType.JSON_SCHEMA, json.dumps(event_types(20)).encode())
    payloads = [
        json.dumps(
            {
                "kind": f"event-{number % 20}",
                "at": "2026-11-18T15:45:24.123Z",
                "id": f"order-{number}",
                "mail": "somebody@example.com",
                "text": "What somebody has to say about this, in a sentence or two. " * 2,
            }
        ).encode()
        for number in range(2_000)
    ]
    # About what a producer puts into one batch by itself.
    assert sum(map(len, payloads)) > 400_000

    assert schema.validator().check(payloads) == []


def test_a_message_of_a_union_with_patterns_passes() -> None:
    schema = parse_schema(SchemaType.JSON_SCHEMA, json.dumps(event_types(20)).encode())
    message = {"kind": "event-3", "at": "2026-11-18", "text": "Words. " * 20_000}

    assert schema.validator().check([json.dumps(message).encode()]) == []
