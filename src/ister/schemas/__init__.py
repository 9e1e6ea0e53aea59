"""Schemas as values: parse and compare them, check payloads, encode and decode objects.

Pure: nothing here reads a file, fetches, or keeps state between calls but what it has parsed. The
libraries behind it (extra `schemas`) are imported at first use.
"""

from ister.schemas.bounds import REASONS_MAX, Steps, register_steps
from ister.schemas.checking import Fault, Validator
from ister.schemas.compatibility import incompatibilities
from ister.schemas.kinds import Mode, Policy, SchemaType, parse_mode, parse_policy, parse_type
from ister.schemas.schema import Schema, parse_schema
from ister.schemas.serde import Codec, codec_for, schema_of

__all__ = [
    "REASONS_MAX",
    "Codec",
    "Fault",
    "Mode",
    "Policy",
    "Schema",
    "SchemaType",
    "Steps",
    "Validator",
    "codec_for",
    "incompatibilities",
    "parse_mode",
    "parse_policy",
    "parse_schema",
    "parse_type",
    "register_steps",
    "schema_of",
]
