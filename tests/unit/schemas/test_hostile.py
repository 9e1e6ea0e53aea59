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
    # Refused, too, but what takes long to explain is not explained.
    "json_pattern_and_long_text": "not valid",
    "json_large_pattern": "refused",
    "json_many_patterns": "more than 100 patterns",
    "json_names_and_patterns": "more than 1000000 steps",
    "json_unique": "fine",
    "json_very_many_values": "more than 120000 values",
    "json_bounds_of_large_numbers": "more than 1000000 steps",
    "json_numbers": "not JSON",
    "json_fractions": "more than 1000000 steps",
    "json_money": "fine",
    "json_simulated_pattern": "more than 1000000 steps",
    "json_plain_pattern_beside_long_text": "fine",
    "json_unevaluated_copies": "applies to more than 20000 parts",
    "json_long_names": "the paths of all parts",
    "json_compared_alternatives": "too complex to compare",
    "json_compared_chain": "too complex to compare",
    "json_compared_names": "property 'p0'",
    "avro_levels": "nested deeper than 64",
    "avro_itself": "contains itself",
    "avro_nothings": "take no bytes",
    "avro_recursion": "deeper than 100 levels",
    "avro_steps": "more than 10000000 steps",
    "avro_doubling_defaults": "the default is not a valid",
    "avro_container_with_doubling_defaults": "the default is not a valid",
    "avro_large_unions": "too complex to compare within 300000 steps",
    "avro_large_enums": "with b0, b1",
    "avro_same_record_in_many_namespaces": "absent",
    "avro_circles": "fine",
    "avro_long_names": "more than 1000 characters",
    "avro_container_schemas": "not all of them",
    "proto_levels": "nested deeper than 32",
    "proto_fields": "more than 20000",
    "proto_optionals": "fine",
    "proto_comment": "is no word",
    "proto_string": "is no word",
    "proto_number": "a whole number was expected",
    "proto_brackets": "more than 200000 words",
    "proto_import": "is not in it",
    "proto_long_names": "more than 1000 characters",
    "proto_reserved_numbers": "fine",
    "proto_enum_of_many_fields": "enum with",
    "proto_missing_fields": "required fields are missing",
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
