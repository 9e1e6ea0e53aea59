"""Payloads to typed columns: text, JSON, Avro, Protobuf.

JSON and text are decoded a column at a time. When something in a block is not as expected, the
block is halved until the rows that are to blame are alone; only those are looked at one by one.
Avro and Protobuf are decoded row by row, each by the schema it was written with, into the shape
of the reader's.

A row that cannot be decoded is all null, with a reason. The caller decides whether that ends the
query.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ister.base.errors import BadRequestError, IsterError
from ister.codec import SchemaRef
from ister.schemas import Codec, Schema, codec_for, parse_schema, parse_type
from ister.spark.source.coercion import converter
from ister.spark.source.layouts import ValueSource

# A block that is not clean is halved down to this, which row by row takes 3 ms.
ROWS_ONE_BY_ONE: Final = 512

# Finds the schema behind a reference; what keeps one from having it is returned, not raised.
Writers = Callable[[SchemaRef], Schema | IsterError]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded columns. `errors` has the reason of each row that failed; `None` when none failed."""

    columns: list[pa.Array]
    errors: pa.Array | None = None

    def first_error(self) -> tuple[int, str] | None:
        """Return the first row that could not be decoded, and why."""
        if self.errors is None:
            return None
        slot = int(np.argmax(pc.is_valid(self.errors).to_numpy(zero_copy_only=False)))
        return slot, self.errors[slot].as_py()


class Decoder(Protocol):
    """Decodes payloads into the fields that it was made for."""

    def decode(self, payload: pa.Array, schema: SchemaRef | None) -> Decoded:
        """Return the columns of a block of payloads that came with the same schema."""
        ...


def decoder_for(source: ValueSource, fields: Sequence[pa.Field], writers: Writers) -> Decoder:
    """Return what decodes payloads into `fields`, by their names; raises `BadRequestError`."""
    wanted = [f.with_name(source.renamed.get(f.name, f.name)) for f in fields]
    if source.format == "string":
        return _TextDecoder(wanted)
    if source.format == "json":
        return _JsonDecoder(wanted)
    return _RowDecoder(wanted, parse_schema(parse_type(source.type), source.definition), writers)


class _TextDecoder:
    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields

    def decode(self, payload: pa.Array, schema: SchemaRef | None) -> Decoded:
        try:
            # A look over the bytes, no copy.
            texts = payload.cast(pa.string())
            errors = None
        except pa.ArrowInvalid:
            rows = [_text_of(one) for one in payload.to_pylist()]
            texts = pa.array([text for text, _ in rows], pa.string())
            errors = pa.array([error for _, error in rows], pa.string())
        return Decoded([texts.cast(field.type) for field in self._fields], errors)


def _text_of(payload: bytes) -> tuple[str | None, str | None]:
    try:
        return payload.decode(), None
    except UnicodeDecodeError as error:
        return None, f"byte {error.start} is not UTF-8"


class _JsonDecoder:
    """By pyarrow, a block at a time.

    Each payload is put into an object of its own, `{"r":…}`. A payload that is empty, or several
    values, then breaks the block instead of shifting the rows behind it.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._rows = _Rows(fields)
        self._types = [field.type for field in fields]
        loose = [_loose(field) for field in fields]
        # Without one for every field there is no fast way.
        self._shape: pa.StructType | None = None
        if fields and all(one is not None for one in loose):
            self._shape = pa.struct(loose)

    def decode(self, payload: pa.Array, schema: SchemaRef | None) -> Decoded:
        if self._shape is not None and len(payload):
            try:
                return Decoded(self._at_once(payload, self._shape))
            except (pa.ArrowException, UnicodeDecodeError):
                pass
            if len(payload) > ROWS_ONE_BY_ONE:
                half = len(payload) // 2
                return _concat(
                    self.decode(payload[:half], schema), self.decode(payload[half:], schema)
                )
        return self._rows.decode(payload, _json_value)

    def _at_once(self, payload: pa.Array, shape: pa.StructType) -> list[pa.Array]:
        payload.cast(pa.string())  # Raises for what is not UTF-8: the parser does not look.
        lines = pc.binary_join_element_wise(_OPENING, payload, _CLOSING, _NOTHING)
        size = int(np.frombuffer(lines.buffers()[1], np.int32)[lines.offset + len(lines)])
        table = pj.read_json(
            pa.BufferReader(lines.buffers()[2].slice(0, size)),
            read_options=pj.ReadOptions(use_threads=False, block_size=size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([("r", shape)]), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(payload):
            raise pa.ArrowInvalid("several values in one payload")
        columns = table.column(0).combine_chunks().flatten()
        if not all(_is_finite(column) for column in columns):
            raise pa.ArrowInvalid("NaN and Infinity are no JSON, although the parser takes them")
        return [_cast_loose(*pair) for pair in zip(columns, self._types, strict=True)]


_OPENING = pa.scalar(b'{"r":', pa.binary())
_CLOSING = pa.scalar(b"}\n", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())


def _loose(field: pa.Field) -> pa.Field | None:
    """Return what the parser is asked for in place of `field`; `None` when it cannot have it."""
    type_ = field.type
    if pa.types.is_struct(type_):
        inner = [_loose(one) for one in type_]
        return pa.field(field.name, pa.struct(inner)) if inner and all(inner) else None
    if pa.types.is_list(type_):
        item = _loose(type_.value_field)
        return pa.field(field.name, pa.list_(item)) if item is not None else None
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        # Its own reading of times is narrower than that of `cast`.
        return pa.field(field.name, pa.string())
    if (
        pa.types.is_signed_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_string(type_)
    ):
        return pa.field(field.name, type_)
    return None


def _cast_loose(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_) and type_.tz:
        try:
            return array.cast(type_)
        except pa.ArrowInvalid:
            # Times without a zone are UTC.
            return array.cast(pa.timestamp(type_.unit)).cast(type_)
    return array if array.type == type_ else array.cast(type_)


def _is_finite(array: pa.Array) -> bool:
    type_ = array.type
    if pa.types.is_floating(type_):
        return pc.all(pc.is_finite(array)).as_py() is not False
    if pa.types.is_struct(type_):
        return all(_is_finite(inner) for inner in array.flatten())
    return not pa.types.is_list(type_) or _is_finite(array.flatten())


# Numbers with a point keep all their digits: a column may be a decimal.
_JSON: Final = msgspec.json.Decoder(float_hook=Decimal)


def _json_value(payload: bytes) -> Any:
    try:
        return _JSON.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    except InvalidOperation:
        raise ValueError("a number has too many digits in its exponent") from None


class _RowDecoder:
    """Avro and Protobuf, by the schemas' own codecs, which check every payload first."""

    def __init__(self, fields: Sequence[pa.Field], schema: Schema, writers: Writers) -> None:
        self._rows = _Rows(fields)
        self._codec: Codec = codec_for(schema)
        self._writers = writers

    def decode(self, payload: pa.Array, schema: SchemaRef | None) -> Decoded:
        writer = None if schema is None else self._writers(schema)
        if isinstance(writer, IsterError):
            return self._rows.all_failed(len(payload), str(writer))

        def value_of(one: bytes) -> Any:
            try:
                return self._codec.decode(one, writer)
            except BadRequestError as error:
                raise ValueError(error.reason) from None

        return self._rows.decode(payload, value_of)


class _Rows:
    """Rows, one by one, to columns."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields
        self._convert = converter(pa.struct(list(fields)))

    def decode(self, payload: pa.Array, value_of: Callable[[bytes], Any]) -> Decoded:
        """Return the columns of payloads whose values `value_of` returns."""
        rows: list[dict[str, Any]] = []
        errors: list[str | None] = []
        is_clean = True
        for one in payload.to_pylist():
            try:
                value = value_of(one)
                rows.append({} if value is None else self._convert(value))
                errors.append(None)
            except ValueError as error:
                is_clean = False
                rows.append({})
                errors.append(str(error))
        columns = [
            pa.array([row.get(field.name) for row in rows], field.type) for field in self._fields
        ]
        return Decoded(columns, None if is_clean else pa.array(errors, pa.string()))

    def all_failed(self, count: int, reason: str) -> Decoded:
        """Return so many rows that could not be decoded, all for the same reason."""
        columns = [pa.nulls(count, field.type) for field in self._fields]
        return Decoded(columns, pa.repeat(pa.scalar(reason, pa.string()), count))


def _concat(first: Decoded, second: Decoded) -> Decoded:
    columns = [pa.concat_arrays(pair) for pair in zip(first.columns, second.columns, strict=True)]
    if first.errors is None and second.errors is None:
        return Decoded(columns)
    parts = [
        one.errors if one.errors is not None else pa.nulls(_length(one), pa.string())
        for one in (first, second)
    ]
    return Decoded(columns, pa.concat_arrays(parts))


def _length(decoded: Decoded) -> int:
    return len(decoded.columns[0])
