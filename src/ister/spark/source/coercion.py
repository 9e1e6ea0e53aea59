"""Converters of Python values to Arrow types: made once for a type, called for each value.

The same rules for JSON, Avro and Protobuf. What does not fit is an error with a reason, never a
value that means something else. `None` is null everywhere.
"""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from ister.base.errors import BadRequestError

# Takes a value that is not `None`; raises `ValueError`.
Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
# Python's own context has room for 28 digits; Spark's decimals have up to 38, and it rounds so.
_DIGITS = Context(prec=2 * 38, rounding=ROUND_HALF_UP)
# The largest finite number of 32 bits.
_FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def converter(type_: pa.DataType) -> Convert:
    """Return what makes values for `type_`, or raise `BadRequestError` when nothing can."""
    if pa.types.is_struct(type_):
        return _struct(type_)
    if pa.types.is_map(type_):
        return _map(type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list(type_)
    if pa.types.is_signed_integer(type_):
        return _integer(type_)
    if pa.types.is_decimal(type_):
        return _decimal(type_)
    if pa.types.is_timestamp(type_):
        return _timestamp_in_zone if type_.tz else _timestamp
    if pa.types.is_float32(type_):
        return _float32
    for test, convert in _PLAIN:
        if test(type_):
            return convert
    raise BadRequestError(f"a value cannot be decoded as {type_}: choose another type for it")


def nullable(convert: Convert) -> Convert:
    """Return `convert` for values that may be `None`."""
    return lambda value: None if value is None else convert(value)


def _struct(type_: pa.StructType) -> Convert:
    fields = [(field.name, converter(field.type)) for field in type_]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{_display(value)} is no object")
        found: dict[str, Any] = {}
        for name, inner in fields:
            item = value.get(name)
            if item is None:
                found[name] = None
                continue
            try:
                found[name] = inner(item)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    return convert


def _map(type_: pa.MapType) -> Convert:
    key, item = converter(type_.key_type), nullable(converter(type_.item_type))

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{_display(value)} is no object")
        return [(key(name), item(inner)) for name, inner in value.items()]

    return convert


def _list(type_: pa.ListType) -> Convert:
    inner = nullable(converter(type_.value_type))

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{_display(value)} is no list")
        return [inner(item) for item in value]

    return convert


def _integer(type_: pa.DataType) -> Convert:
    end = 1 << (type_.bit_width - 1)

    def convert(value: Any) -> int:
        if isinstance(value, time):
            return _time_of_day(value, millis=type_.bit_width == 32)
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueError(f"{_display(value)} is no whole number")
        # First: written out, a number like 1e999999 would take a while.
        if not -end <= value < end:
            raise ValueError(f"{_display(value)} does not fit {type_}")
        if value != int(value):
            raise ValueError(f"{_display(value)} is no whole number")
        return int(value)

    return convert


def _time_of_day(value: time, *, millis: bool) -> int:
    """As Spark reads Avro: milliseconds in 32 bits, microseconds in 64."""
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return micros // 1_000 if millis else micros


def _decimal(type_: pa.DataType) -> Convert:
    step = Decimal(1).scaleb(-type_.scale)
    end = Decimal(10) ** (type_.precision - type_.scale)

    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise ValueError(f"{_display(value)} is no number")
        try:
            rounded = Decimal(str(value)).quantize(step, context=_DIGITS)
        except InvalidOperation:
            raise ValueError(f"{_display(value)} does not fit {type_}") from None
        if rounded.is_nan() or abs(rounded) >= end:
            raise ValueError(f"{_display(value)} does not fit {type_}")
        return rounded

    return convert


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"{_display(value)} is no number")
    if isinstance(value, float):
        return value
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise ValueError(f"{_display(value)} does not fit a double")
    return found


def _float32(value: Any) -> float:
    found = _float(value)
    if abs(found) > _FLOAT32_MAX and not math.isinf(found):
        raise ValueError(f"{_display(value)} does not fit a float")
    return found


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_display(value)} is neither true nor false")
    return value


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    try:
        # Anything else as the JSON it is, as Spark's own `from_json` does.
        return _ENCODER.encode(value).decode()
    except (TypeError, ValueError):
        return str(value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise ValueError(f"{_display(value)} is no text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError(f"{_display(value)} is no base64") from None


def _timestamp_in_zone(value: Any) -> datetime:
    return _timestamp(value).replace(tzinfo=UTC)


def _timestamp(value: Any) -> datetime:
    """Return a time in UTC, without its zone."""
    try:
        found = _time_of(value)
        return found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found
    except OverflowError:
        raise ValueError(f"{_display(value)} is no time between the years 1 and 9999") from None


def _time_of(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{_display(value)} is no time as 2026-01-31T12:00:00Z") from None
    # As `google.protobuf.Timestamp` comes.
    if isinstance(value, Mapping) and isinstance(value.get("seconds"), int):
        nanos = value.get("nanos", 0)
        if not isinstance(nanos, int):
            raise ValueError(f"{_display(nanos)} is no number of nanoseconds")
        return _EPOCH + timedelta(seconds=value["seconds"], microseconds=nanos // 1_000)
    raise ValueError(f"{_display(value)} is no time: it is text as 2026-01-31T12:00:00Z")


def _date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return _EPOCH_DAY + timedelta(days=value)
        except OverflowError:
            pass
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError(f"{_display(value)} is no date as 2026-01-31")


def _null(value: Any) -> None:
    raise ValueError(f"{_display(value)} is not null")


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_date, _date),
    (pa.types.is_null, _null),
)


def _display(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
