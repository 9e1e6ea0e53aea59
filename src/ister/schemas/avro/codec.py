"""Python values to Avro's binary form and back, by fastavro.

Only for payloads that the validator of their schema has passed: fastavro itself can be led to end
the process. What is written with an older or newer schema is read into the shape of this one.
"""

import io
import struct
from functools import lru_cache
from typing import Any

from ister.base.errors import BadRequestError, BadSchemaError
from ister.schemas.avro.container import MAGIC, read_blocks, read_header
from ister.schemas.avro.model import AvroModel, parse_avro
from ister.schemas.avro.walk import BadValueError, Budget, Walker
from ister.schemas.bounds import shortened
from ister.schemas.native import from_builtins, to_builtins

# Whatever fastavro raises for a value that does not fit: it has no error of its own for this.
_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)


# Schemas of containers, which producers repeat in each message.
_WRITERS_MAX = 32


class AvroCodec:
    """Writes values of one schema, and reads those of any that it can be read from."""

    def __init__(self, model: AvroModel, python_type: type | None) -> None:
        import fastavro
        from fastavro.read import SchemaResolutionError

        self._model = model
        self._type = python_type
        self._write = fastavro.schemaless_writer
        self._read = fastavro.schemaless_reader
        self._errors = (*_ERRORS, SchemaResolutionError)
        self._writers = lru_cache(_WRITERS_MAX)(_understood)

    def encode(self, value: Any) -> bytes:
        out = io.BytesIO()
        try:
            self._write(out, self._model.parsed, to_builtins(value))
        except self._errors as error:
            reason = shortened(str(error)) or type(error).__name__
            raise BadRequestError(f"the value does not follow its schema: {reason}") from None
        return out.getvalue()

    def decode(self, payload: bytes, writer: AvroModel) -> Any:
        data = bytes(payload)
        if data.startswith(MAGIC):
            writer, data = self._unpacked(data, writer)
        reader = None if writer.fingerprint == self._model.fingerprint else self._model.parsed
        try:
            value = self._read(io.BytesIO(data), writer.parsed, reader)
        except self._errors as error:
            raise BadRequestError(f"the payload cannot be read: {shortened(str(error))}") from None
        return from_builtins(value, self._type)

    def _unpacked(self, data: bytes, writer: AvroModel) -> tuple[AvroModel, bytes]:
        """Return the schema and the value of a container, or `data` if it is a value itself."""
        try:
            container = read_header(data)
            values = [
                block for count, block in read_blocks(data, container) for _ in range(min(count, 2))
            ]
            own, walker = self._writers(container.definition)
            # The whole payload has passed the validator, as a container or as a value.
            if len(values) == 1:
                walker.end_of(values[0], 0, Budget())
        except (BadValueError, BadSchemaError):
            return writer, data
        if len(values) != 1:
            raise BadRequestError("the payload is a container of none or several values")
        return own, values[0]


def _understood(definition: bytes) -> tuple[AvroModel, Walker]:
    model = parse_avro(definition)
    return model, Walker(model)
