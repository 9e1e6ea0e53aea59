"""Hostile schemas and payloads end in an error or in bounded time: no hang, no fetch, no crash."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What each case must say, in its first words or somewhere.
EXPECTED = {
    "json_brackets": "nested deeper than 64",
    "json_levels": "nested deeper than 64",
    "json_remote": "leads out of the document",
    "json_remote_by_base": "leads out of the document",
    "json_remote_draft": "none of the drafts",
    "json_file": "leads out of the document",
    "json_circle": "in a circle",
    "json_long_circle": "in a circle",
    "json_enum": "exceeds 10000",
    "json_enum_of_objects": "more than 1000000 steps",
    "json_doubling": "more than 1000000 steps",
    "json_doubling_with_depth": "more than 1000000 steps",
    "json_doubling_in_shallow_payloads": "fine",
    "json_pattern": 'does not match "^(a+)+$"',
    "json_large_pattern": "refused",
    "json_many_patterns": "more than 100 patterns",
    "json_names_and_patterns": "more than 1000000 steps",
    "json_unique": "fine",
    "json_numbers": "not JSON",
    "json_compared_alternatives": "too complex to compare",
    "json_compared_chain": "too complex to compare",
    "json_compared_names": "property 'p0'",
    "avro_levels": "nested deeper than 64",
    "avro_itself": "contains itself",
    "avro_nothings": "take no bytes",
    "avro_recursion": "deeper than 100 levels",
    "avro_steps": "more than 10000000 steps",
    "avro_container_schemas": "not all of them",
    "proto_levels": "nested deeper than 32",
    "proto_fields": "more than 20000",
    "proto_optionals": "fine",
    "proto_comment": "is no word",
    "proto_string": "is no word",
    "proto_number": "a whole number was expected",
    "proto_brackets": "more than 200000 words",
    "proto_import": "is not in it",
    "proto_descriptor": "refused",
}


@pytest.mark.parametrize("family", ["json", "avro", "proto"])
def test_hostile_input_ends_in_an_error_and_in_time(family: str) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hostile.py")), family],
        capture_output=True,
        text=True,
        timeout=55,
        check=True,
    )

    said = dict(json.loads(line) for line in done.stdout.splitlines())
    assert said.keys() == {name for name in EXPECTED if name.startswith(family)}
    assert {n: text for n, text in said.items() if EXPECTED[n] not in text} == {}
