"""Dataclasses and Structs to the dicts that Avro and Protobuf libraries take, and back."""

import dataclasses
import datetime
import decimal
import uuid
from typing import Any

import msgspec

from ister.base.errors import BadRequestError

# What the libraries take as they are: Avro's logical types.
_KEPT = (
    bytes,
    bytearray,
    datetime.datetime,
    datetime.date,
    datetime.time,
    decimal.Decimal,
    uuid.UUID,
)


def to_builtins(value: Any) -> Any:
    """Return a dataclass or Struct as a dict; any other value as it is.

    Raises `BadRequestError` for one with a part that has no such form.
    """
    if not dataclasses.is_dataclass(value) and not isinstance(value, msgspec.Struct):
        return value
    try:
        return msgspec.to_builtins(value, builtin_types=_KEPT)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the value cannot be written: {error}") from None


def from_builtins(value: Any, python_type: type | None) -> Any:
    """Return `value` as a `python_type`; as it is, without one. Raises `BadRequestError`."""
    if python_type is None or python_type is dict:
        return value
    try:
        return msgspec.convert(value, python_type, builtin_types=_KEPT)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"the payload is no {python_type.__name__}: {error}") from None
