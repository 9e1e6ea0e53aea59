"""Schemas that change at random: what is called compatible is, and spoilt ones do no harm.

The normal run plays a few hundred fixed cases. `make fuzz` plays new ones for `FUZZ_SECONDS`; a
failure names its case, and `play(number)` runs that one again.
"""

import copy
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.unit.schemas.made import json_schema, reasons
from tests.unit.schemas.test_properties import NAMES, SCALARS, check_json

from ister.base.errors import BadSchemaError
from ister.schemas import Mode, SchemaType, incompatibilities, parse_schema

TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
LENGTHS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
PROTO = b"""syntax = "proto3"; package a.b; import "google/protobuf/timestamp.proto";
message M { string a = 1 [deprecated = true]; repeated int32 b = 2; map<string, M> c = 3;
oneof d { int32 e = 4; bytes f = 5; } optional E g = 6; reserved 9 to 12; reserved "x";
message N { google.protobuf.Timestamp t = 1; } N n = 7; enum E { Z = 0; A = 1; } }"""
AVRO = b"""{"type": "record", "name": "R", "namespace": "n", "aliases": ["Q"], "fields": [
{"name": "a", "type": ["null", "R"], "default": null}, {"name": "b", "type": {"type": "enum",
"name": "E", "symbols": ["A", "B"], "default": "A"}}, {"name": "c", "type": {"type": "map",
"values": {"type": "fixed", "name": "F", "size": 3}}}, {"name": "d", "type": {"type": "array",
"items": {"type": "long", "logicalType": "timestamp-millis"}}}]}"""


def some_schema(random: Random, depth: int) -> Any:
    if depth == 0 or random.random() < 0.1:
        return random.choice([True, {}, {"type": random.choice(TYPES)}])
    schema: dict[str, Any] = {}
    for _ in range(random.randint(1, 3)):
        keyword, value = some_keyword(random, depth)
        schema[keyword] = value
    return schema


def some_keyword(random: Random, depth: int) -> tuple[str, Any]:
    def inner() -> Any:
        return some_schema(random, depth - 1)

    def properties() -> Any:
        return {name: inner() for name in random.sample(NAMES, random.randint(1, 2))}

    small = random.randint(-1, 3)
    choices: list[tuple[str, Callable[[], Any]]] = [
        ("type", lambda: random.choice(TYPES)),
        ("type", lambda: random.sample(TYPES, 2)),
        ("enum", lambda: random.sample(SCALARS, random.randint(1, 4))),
        ("const", lambda: random.choice(SCALARS)),
        (random.choice(BOUNDS), lambda: small),
        (random.choice(LENGTHS), lambda: abs(small)),
        ("multipleOf", lambda: random.choice([0.5, 1, 2])),
        ("pattern", lambda: random.choice(["^a", "b$"])),
        ("properties", properties),
        ("properties", properties),
        ("required", lambda: random.sample(NAMES, random.randint(1, 2))),
        ("additionalProperties", lambda: random.choice([False, inner()])),
        ("patternProperties", lambda: {random.choice(["^a", "b$", "."]): inner()}),
        ("items", inner),
        ("prefixItems", lambda: [inner() for _ in range(random.randint(1, 2))]),
        (random.choice(["anyOf", "oneOf", "allOf"]), lambda: [inner(), inner()]),
        (random.choice(["not", "if", "then", "contains", "propertyNames"]), inner),
        ("unevaluatedProperties", lambda: False),
        ("$ref", lambda: "#/$defs/d"),
    ]
    keyword, value = random.choice(choices)
    return keyword, value()


def changed(random: Random, schema: Any, depth: int) -> Any:
    """Return `schema` with something in it added, taken away or replaced."""
    if not isinstance(schema, dict) or not schema or random.random() < 0.2:
        return some_schema(random, depth)
    schema = copy.deepcopy(schema)
    keyword = random.choice(sorted(schema))
    value = schema[keyword]
    roll = random.random()
    if roll < 0.25:
        del schema[keyword]
    elif roll < 0.5:
        added, new = some_keyword(random, max(depth - 1, 1))
        schema[added] = new
    elif isinstance(value, dict) and keyword in ("properties", "patternProperties", "$defs"):
        name = random.choice(sorted(value))
        value[name] = changed(random, value[name], depth - 1)
    elif isinstance(value, list) and keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        slot = random.randrange(len(value))
        value[slot] = changed(random, value[slot], depth - 1)
    elif isinstance(value, dict):
        schema[keyword] = changed(random, value, depth - 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        schema[keyword] = value + random.choice([-1, 1])
    return schema


def play(seed: int) -> bool:
    """Play one case, and return whether the schemas were called compatible."""
    random = Random(seed)
    spoil(random)
    old = {**as_object(some_schema(random, 3)), "$defs": {"d": some_schema(random, 1)}}
    new = changed(random, old, 3)
    try:
        if "$ref" in json.dumps(old):
            # What is declared is not followed through references here.
            return not reasons(Mode.BACKWARD, json_schema(old), json_schema(new))
        return check_json(old, new)
    except BadSchemaError:
        return False
    except AssertionError as error:
        raise AssertionError(f"case {seed}") from error


def as_object(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}


def spoil(random: Random) -> None:
    """Parse a definition with some of its bytes changed, and check bytes by what remains."""
    kind, text = random.choice([(SchemaType.PROTOBUF, PROTO), (SchemaType.AVRO, AVRO)])
    data = bytearray(text)
    for _ in range(random.randint(0, 3)):
        start = random.randrange(len(data))
        pieces = [b"", random.randbytes(1), text[start : start + 20], b"{", b'"', b"9"]
        data[start : start + random.randint(0, 5)] = random.choice(pieces)
    try:
        schema = parse_schema(kind, bytes(data))
    except BadSchemaError:
        return
    schema.validator().check([random.randbytes(random.randint(0, 30)) for _ in range(5)])
    incompatibilities(Mode.FULL, schema, [parse_schema(kind, text)])


@pytest.mark.parametrize("start", range(0, 2_000, 500))
def test_changed_schemas_are_taken_for_what_they_are(start: int) -> None:
    compatible = [play(seed) for seed in range(start, start + 500)]

    # Both ways often enough to say something.
    assert 25 < sum(compatible) < 475


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_new_changed_schemas_are_taken_for_what_they_are_for_as_long_as_asked() -> None:
    seed = secrets.randbits(48)
    deadline_s = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60"))
    while time.monotonic() < deadline_s:
        play(seed)
        seed += 1


def slow_calls(first: int, count: int) -> list[str]:
    """Play cases of `schema_costs` in a process of their own; return what took too long."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.schema_costs", str(first), str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    *slow, last = done.stdout.splitlines() or [""]
    assert last == "done", f"cases {first} to {first + count}: {done.stderr[-2_000:]}"
    return slow


def test_no_schema_or_payload_costs_more_than_its_budget() -> None:
    assert slow_calls(0, 60) == []


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_no_new_schema_or_payload_costs_more_than_its_budget_for_as_long_as_asked() -> None:
    first = secrets.randbits(32)
    deadline_s = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60"))
    while time.monotonic() < deadline_s:
        assert slow_calls(first, 20) == []
        first += 20
