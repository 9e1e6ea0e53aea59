"""Checks that payloads are values of an Avro schema.

A payload is one value in binary, or a container file with any number of values, whose own schema
must be one that this schema reads.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ister.base.errors import BadSchemaError, SchemaTooComplexError
from ister.schemas.avro.compatibility import avro_breaks
from ister.schemas.avro.container import MAGIC, read_blocks, read_header
from ister.schemas.avro.walk import BadValueError, Budget, Walker
from ister.schemas.bounds import shortened
from ister.schemas.checking import Fault, Payload, each

if TYPE_CHECKING:
    from ister.schemas.avro.model import AvroModel

# Schemas of containers, which producers repeat in each: as many as a topic may have versions in
# use at once.
_WRITERS_MAX = 32
_WRITER_BYTES_MAX = 256 * 1024
# Reading and comparing a schema takes up to some µs a byte.
_STEPS_PER_BYTE = 10
# Python walks over every value: 0.3 µs a byte, when each byte is one.
_WEIGHT = 64


class AvroValidator:
    """Checks payloads against one schema."""

    weight = _WEIGHT

    def __init__(self, model: "AvroModel") -> None:
        self._model = model
        self._walker = Walker(model)
        # By definition: what walks over a container's values, or why they cannot be read.
        self._writers: OrderedDict[bytes, Walker | str] = OrderedDict()

    def knows(self, payloads: Sequence[Payload]) -> bool:
        return all(self._knows(payload) for payload in payloads if payload[:4] == MAGIC)

    def _knows(self, payload: Payload) -> bool:
        try:
            return read_header(bytes(payload)).definition in self._writers
        except BadValueError:
            return True  # Nothing of it will be parsed.

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        return each(payloads, partial(self._fault, budget=Budget()))

    def _fault(self, payload: Payload, *, budget: Budget) -> str | None:
        data = bytes(payload)
        reason = None
        if data.startswith(MAGIC):
            reason = self._container_fault(data, budget)
            if reason is None:
                return None
        # A value may begin with the same four bytes.
        try:
            end = self._walker.end_of(data, 0, budget)
        except BadValueError as error:
            return shortened(reason or str(error))
        if end != len(data):
            return reason or f"{len(data) - end} B are left behind the value"
        return None

    def _container_fault(self, data: bytes, budget: Budget) -> str | None:
        try:
            container = read_header(data)
            walker = self._walker_of(container.definition, budget)
            for count, block in read_blocks(data, container):
                position = 0
                budget.spend(count + 1)
                for _ in range(count):
                    position = walker.end_of(block, position, budget)
                if position != len(block):
                    return f"{len(block) - position} B are left in a block of the container"
        except BadValueError as error:
            return str(error)
        return None

    def _walker_of(self, definition: bytes, budget: Budget) -> Walker:
        known = self._writers.get(definition)
        if known is None:
            if len(definition) > _WRITER_BYTES_MAX:
                raise BadValueError(f"the container's schema exceeds {_WRITER_BYTES_MAX} B")
            budget.spend(len(definition) * _STEPS_PER_BYTE)
            known = self._writers[definition] = self._understood(definition)
            while len(self._writers) > _WRITERS_MAX:
                self._writers.popitem(last=False)
        if isinstance(known, str):
            raise BadValueError(known)
        return known

    def _understood(self, definition: bytes) -> Walker | str:
        from ister.schemas.avro.model import parse_avro

        try:
            writer = parse_avro(definition)
            if writer.fingerprint == self._model.fingerprint:
                return self._walker
            breaks = avro_breaks(reader=self._model, writer=writer)
        except (BadSchemaError, SchemaTooComplexError, RecursionError) as error:
            return f"the container's schema: {error}"
        if breaks:
            return f"the container has another schema: {breaks[0].backward()}"
        return Walker(writer)
