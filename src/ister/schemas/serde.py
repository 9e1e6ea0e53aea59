"""Python objects to payloads and back, by a schema.

What a schema takes: JSON Schema any value that msgspec writes as JSON (dict, dataclass, Struct);
Avro the same, as fastavro writes it; Protobuf a message object, or a dict, dataclass or Struct
with the fields' names; `string` a str; numbers int or float; `bytes` bytes.

Every payload is checked before it leaves and before it is taken apart: a codec neither sends nor
returns what its schema does not allow.
"""

import struct
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from ister.base.errors import BadRequestError, BadSchemaError
from ister.schemas.checking import NUMBER_LAYOUTS
from ister.schemas.kinds import SchemaType
from ister.schemas.schema import Schema, parse_schema

if TYPE_CHECKING:
    from ister.schemas.avro.model import AvroModel
    from ister.schemas.protobuf.model import ProtobufModel


class Codec(Protocol):
    """Encodes and decodes values of one schema."""

    def encode(self, value: Any) -> bytes:
        """Return the payload of `value`. Raises `BadRequestError` when it does not follow."""
        ...

    def decode(self, payload: bytes, writer: Schema | None = None) -> Any:
        """Return the value of `payload`, which was written with `writer` or this schema.

        Raises `BadRequestError` when it cannot be read.
        """
        ...


def codec_for(schema: Schema, python_type: type | None = None) -> Codec:
    """Return what encodes values by `schema` and decodes them as `python_type`.

    Without a type, objects decode as dicts.
    """
    if schema.type is SchemaType.JSON_SCHEMA:
        return _JsonCodec(schema, python_type)
    if schema.type is SchemaType.AVRO:
        from ister.schemas.avro.codec import AvroCodec

        return _Resolving(schema, AvroCodec(cast("AvroModel", schema.model), python_type))
    if schema.type is SchemaType.PROTOBUF:
        from ister.schemas.protobuf.codec import ProtobufCodec

        return _Resolving(schema, ProtobufCodec(cast("ProtobufModel", schema.model), python_type))
    if schema.type is SchemaType.STRING:
        return _TextCodec()
    if schema.type is SchemaType.BYTES:
        return _BytesCodec()
    return _NumberCodec(schema.type)


def schema_of(python_type: type) -> Schema:
    """Return the schema of a Python type.

    A dataclass, a Struct or a type made of them has a JSON Schema, a generated message class its
    descriptor; str, bytes, int and float are plain. Raises `BadSchemaError` for any other.
    """
    plain = {
        str: SchemaType.STRING,
        bytes: SchemaType.BYTES,
        int: SchemaType.INT64,
        float: SchemaType.DOUBLE,
    }
    if python_type in plain:
        return parse_schema(plain[python_type], b"")
    from ister.schemas.protobuf.codec import definition_of, is_message_class

    if is_message_class(python_type):
        return parse_schema(SchemaType.PROTOBUF, definition_of(python_type))
    try:
        document = msgspec.json.schema(python_type)
    except (TypeError, ValueError) as error:
        raise BadSchemaError(f"{python_type!r} has no schema: {error}") from None
    return parse_schema(SchemaType.JSON_SCHEMA, msgspec.json.encode(document))


class _JsonCodec:
    def __init__(self, schema: Schema, python_type: type | None) -> None:
        self._schema = schema
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(python_type or Any)
        # A type says what may be in a payload; a dict takes everything.
        self._is_untyped = python_type is None
        self._encode = msgspec.json.Encoder().encode
        # The schema of this very type: reading a payload back checks as much as the validator
        # does, in a fifth of the time.
        self._is_own = (
            python_type is not None and schema_of(python_type).fingerprint == schema.fingerprint
        )

    def encode(self, value: Any) -> bytes:
        try:
            payload = self._encode(value)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise BadRequestError(f"the value cannot be written as JSON: {error}") from None
        if not self._is_own:
            _check(self._schema, payload)
            return payload
        try:
            self._decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadRequestError(f"the value does not follow its schema: {error}") from None
        return payload

    def decode(self, payload: bytes, writer: Schema | None = None) -> Any:
        # What the writer promised does not matter: the value is read as it is. The reader's
        # types fill in their defaults and pass over what they do not know.
        if self._is_untyped:
            _check(self._schema, payload)
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadRequestError(f"the payload cannot be read: {error}") from None


class _Inner(Protocol):
    """Writes and reads payloads that were checked, or are about to be."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, payload: bytes, writer: Any) -> Any: ...


class _Resolving:
    """A codec whose payloads are only understood with the schema they were written by."""

    def __init__(self, schema: Schema, inner: _Inner) -> None:
        self._schema = schema
        self._inner = inner

    def encode(self, value: Any) -> bytes:
        payload = self._inner.encode(value)
        _check(self._schema, payload)
        return payload

    def decode(self, payload: bytes, writer: Schema | None = None) -> Any:
        if writer is not None and writer.type is not self._schema.type:
            raise BadRequestError(
                f"the payload is of type {writer.type.value}, not {self._schema.type.value}"
            )
        _check(writer or self._schema, payload)
        return self._inner.decode(payload, (writer or self._schema).model)


class _TextCodec:
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise BadRequestError(f"{type(value).__name__} is no str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"the text cannot be written as UTF-8: {error}") from None

    def decode(self, payload: bytes, writer: Schema | None = None) -> str:
        try:
            return str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRequestError(f"the payload is not UTF-8: {error}") from None


class _BytesCodec:
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise BadRequestError(f"{type(value).__name__} is no bytes")
        return bytes(value)

    def decode(self, payload: bytes, writer: Schema | None = None) -> bytes:
        return bytes(payload)


class _NumberCodec:
    """Numbers, little-endian. `number` is written as a double and read from 4 or 8 bytes."""

    def __init__(self, kind: SchemaType) -> None:
        self._kind = kind
        self._layout = NUMBER_LAYOUTS.get(kind, NUMBER_LAYOUTS[SchemaType.DOUBLE])

    def encode(self, value: Any) -> bytes:
        try:
            return self._layout.pack(value)
        except (struct.error, OverflowError, TypeError) as error:
            raise BadRequestError(f"{value!r:.40} is no {self._kind.value}: {error}") from None

    def decode(self, payload: bytes, writer: Schema | None = None) -> int | float:
        layout = self._layout
        if self._kind is SchemaType.NUMBER and len(payload) == 4:
            layout = NUMBER_LAYOUTS[SchemaType.FLOAT]
        try:
            (value,) = layout.unpack(payload)
        except struct.error as error:
            raise BadRequestError(f"the payload is no {self._kind.value}: {error}") from None
        return value  # type: ignore[no-any-return]


def _check(schema: Schema, payload: bytes) -> None:
    faults = schema.validator().check([payload])
    if faults:
        raise BadRequestError(f"the value does not follow its schema: {faults[0].reason}")
