"""What every validator promises, and the validators of the plain types."""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ister.schemas.bounds import FAULTS_MAX
from ister.schemas.kinds import SchemaType

Payload = bytes | memoryview


class Fault(NamedTuple):
    """Why the payload at `slot` does not follow its schema, without showing the payload."""

    slot: int
    reason: str


class Validator(Protocol):
    """Checks payloads against one schema. Made once, used for every batch, from any thread."""

    @property
    def weight(self) -> int:
        """How many times the work of a simple JSON Schema it may take for each byte, about."""
        ...

    def knows(self, payloads: Sequence[Payload]) -> bool:
        """Whether these can be checked without parsing a schema that one of them brings along."""
        ...

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        """Return the faults of the first bad payloads, at most `FAULTS_MAX`; none if all are good.

        Takes bounded time and raises nothing, whatever the payloads are.
        """
        ...


class AnyBytes:
    """Every payload is good."""

    weight = 1

    def knows(self, payloads: Sequence[Payload]) -> bool:
        return True

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        return []


class Utf8:
    """A payload is text."""

    weight = 1

    def knows(self, payloads: Sequence[Payload]) -> bool:
        return True

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        return each(payloads, _text_fault)


class Sized:
    """A payload has one of a few sizes, as a number without a frame has."""

    weight = 1

    def __init__(self, sizes: tuple[int, ...], what: str) -> None:
        self._sizes = sizes
        self._what = what

    def knows(self, payloads: Sequence[Payload]) -> bool:
        return True

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        return each(payloads, self._fault)

    def _fault(self, payload: Payload) -> str | None:
        if len(payload) in self._sizes:
            return None
        sizes = " or ".join(str(size) for size in self._sizes)
        return f"{len(payload)} B are no {self._what}, which takes {sizes} B, little-endian"


# Layouts of numbers, little-endian. `number` is either a float or a double, as Danube takes it.
NUMBER_LAYOUTS = {
    SchemaType.INT8: struct.Struct("<b"),
    SchemaType.INT16: struct.Struct("<h"),
    SchemaType.INT32: struct.Struct("<i"),
    SchemaType.INT64: struct.Struct("<q"),
    SchemaType.FLOAT: struct.Struct("<f"),
    SchemaType.DOUBLE: struct.Struct("<d"),
}


def plain_validator(type: SchemaType) -> Validator:
    """Return the validator of a plain type."""
    if type is SchemaType.BYTES:
        return AnyBytes()
    if type is SchemaType.STRING:
        return Utf8()
    if type is SchemaType.NUMBER:
        return Sized((4, 8), "number")
    return Sized((NUMBER_LAYOUTS[type].size,), type.value)


def each(payloads: Sequence[Payload], fault_of: Callable[[Payload], str | None]) -> list[Fault]:
    """Return a fault for each payload that `fault_of` finds a reason for, up to the limit."""
    faults = []
    for slot, payload in enumerate(payloads):
        reason = fault_of(payload)
        if reason is not None:
            faults.append(Fault(slot, reason))
            if len(faults) == FAULTS_MAX:
                break
    return faults


def _text_fault(payload: Payload) -> str | None:
    try:
        str(payload, "utf-8")
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    return None
