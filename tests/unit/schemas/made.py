"""Schemas for tests, short to write."""

import json
from typing import Any

from ister.schemas import Mode, Schema, SchemaType, incompatibilities, parse_schema


def json_schema(document: Any) -> Schema:
    return parse_schema(SchemaType.JSON_SCHEMA, json.dumps(document).encode())


def avro(document: Any) -> Schema:
    return parse_schema(SchemaType.AVRO, json.dumps(document).encode())


def proto(text: str, syntax: str = "proto3") -> Schema:
    return parse_schema(SchemaType.PROTOBUF, f'syntax = "{syntax}";\n{text}'.encode())


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """Return an Avro record; a field is a pair of name and type, or written out."""
    written = [
        field if isinstance(field, dict) else {"name": field[0], "type": field[1]}
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": written}


def reasons(mode: Mode, old: Schema, new: Schema) -> list[str]:
    return incompatibilities(mode, new, [old])


def directions(old: Schema, new: Schema) -> str:
    """Return which way two versions are compatible: `both`, `backward`, `forward` or `none`."""
    backward = not reasons(Mode.BACKWARD, old, new)
    forward = not reasons(Mode.FORWARD, old, new)
    assert (not reasons(Mode.FULL, old, new)) == (backward and forward)
    return {(True, True): "both", (True, False): "backward", (False, True): "forward"}.get(
        (backward, forward), "none"
    )
