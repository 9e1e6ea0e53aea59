"""Whether messages of one Protobuf schema can be read with another.

Fields are found by number and read by their wire format, so that a rename breaks nothing and a
field that one side does not know is passed over. What breaks: another wire format under the same
number, a field that moved to another number, a required field that may be missing, a number that
was reserved because older data still has it, a repeated field of which one value would be kept,
and fields that may both be set and would push each other out of a oneof.
"""

from bisect import bisect_right
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ister.schemas.bounds import BREAKS_MAX, Steps, compare_steps, place_below
from ister.schemas.breaks import Break

if TYPE_CHECKING:
    from google.protobuf.descriptor import (
        Descriptor,
        EnumDescriptor,
        FieldDescriptor,
        OneofDescriptor,
    )

    from ister.schemas.protobuf.model import ProtobufModel

# `FieldDescriptor.TYPE_…`, which are part of the format.
_NAMES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    10: "group",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
# Types that read each other's bytes; every other one reads only its own.
_FAMILIES = (
    frozenset({"int32", "int64", "uint32", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
)
# Writer and reader that fit in one direction only: text and messages are bytes.
_ONE_WAY = {("string", "bytes"), ("message", "bytes")}


def protobuf_breaks(
    *,
    reader: "ProtobufModel",
    writer: "ProtobufModel",
    reader_is_newer: bool,
    steps: Steps | None = None,
) -> list[Break]:
    """Return what keeps `reader` from reading messages of `writer`, `BREAKS_MAX` of it at most.

    Raises `SchemaTooComplexError`.
    """
    comparison = _Comparison(reader_is_newer=reader_is_newer, steps=steps or compare_steps())
    with suppress(_EnoughError):
        comparison.compare_all(writer.descriptor, reader.descriptor)
    return comparison.breaks


class _EnoughError(Exception):
    """More breaks would only fill memory."""


class _Comparison:
    """One comparison of two message types and all that they lead to."""

    def __init__(self, *, reader_is_newer: bool, steps: Steps) -> None:
        self._reader_is_newer = reader_is_newer
        self._steps = steps
        self.breaks: list[Break] = []
        self._seen: set[tuple[str, str]] = set()
        self._seen_enums: set[tuple[str, str]] = set()
        self._reserved: dict[str, _Reserved] = {}
        self._waiting: deque[tuple[Descriptor, Descriptor, str]] = deque()

    def compare_all(self, writer: "Descriptor", reader: "Descriptor") -> None:
        # Without recursion: messages may lead to each other as far as there are any.
        self._waiting.append((writer, reader, ""))
        while self._waiting:
            w, r, path = self._waiting.popleft()
            self._steps.spend()
            if (w.full_name, r.full_name) in self._seen:
                continue
            self._seen.add((w.full_name, r.full_name))
            # A field takes about 5 µs.
            self._steps.spend(2 * (len(w.fields) + len(r.fields)))
            self._compare_messages(w, r, path)

    def _add(self, place: str, writer: str, reader: str, why: str = "") -> None:
        self.breaks.append(Break(place, writer, reader, why))
        if len(self.breaks) >= BREAKS_MAX:
            raise _EnoughError

    def _compare_messages(self, writer: "Descriptor", reader: "Descriptor", path: str) -> None:
        written = writer.fields_by_number
        # An older reader has a field that the newer writer has reserved since: that is the rule.
        reserved = self._reserved_of(writer) if self._reader_is_newer else _Reserved([])
        for field in reader.fields:
            inner = place_below(path, f".{field.name}") if path else field.name
            source = written.get(field.number)
            if source is not None:
                self._compare_fields(source, field, inner)
            else:
                self._compare_missing(writer, field, inner, reserved)
        for oneof in reader.oneofs:
            self._compare_oneof(writer, oneof, path)

    def _reserved_of(self, message: "Descriptor") -> "_Reserved":
        from google.protobuf.descriptor_pb2 import DescriptorProto

        known = self._reserved.get(message.full_name)
        if known is None:
            proto = DescriptorProto()
            message.CopyToProto(proto)
            self._steps.spend(len(proto.reserved_range) + len(proto.nested_type))
            ranges = [(part.start, part.end) for part in proto.reserved_range]
            known = self._reserved[message.full_name] = _Reserved(ranges)
        return known

    def _compare_missing(
        self,
        writer: "Descriptor",
        reader: "FieldDescriptor",
        path: str,
        reserved: "_Reserved",
    ) -> None:
        place = _place(path, reader.number)
        namesake = writer.fields_by_name.get(reader.name)
        if reader.is_required:
            self._add(place, "absent", "required")
        elif namesake is not None:
            self._add(place, f"number {namesake.number}", f"number {reader.number}")
        elif reader.number in reserved:
            self._add(place, "reserved", _type(reader), "older data may have the number")

    def _compare_fields(
        self, writer: "FieldDescriptor", reader: "FieldDescriptor", path: str
    ) -> None:
        place = _place(path, reader.number)
        if not _reads(writer, reader):
            self._add(place, _type(writer), _type(reader))
            return
        if writer.is_repeated and not reader.is_repeated:
            self._add(place, "repeated", "a single value", "all but one would be lost")
        if reader.is_required and not writer.is_required:
            was = "repeated" if writer.is_repeated else "optional"
            self._add(place, was, "required")
        if writer.message_type is not None and reader.message_type is not None:
            self._waiting.append((writer.message_type, reader.message_type, path))
        if writer.enum_type is not None and reader.enum_type is not None:
            self._compare_enums(writer.enum_type, reader.enum_type, place)

    def _compare_enums(
        self, writer: "EnumDescriptor", reader: "EnumDescriptor", place: str
    ) -> None:
        pair = (writer.full_name, reader.full_name)
        if not reader.is_closed or pair in self._seen_enums:
            return  # An unknown number stays a number.
        self._seen_enums.add(pair)
        self._steps.spend(len(writer.values))
        missing = [v.name for v in writer.values if v.number not in reader.values_by_number]
        if missing:
            shown = ", ".join(missing[:5]) + ("…" if len(missing) > 5 else "")
            self._add(place, f"enum with {shown}", "one without")

    def _compare_oneof(self, writer: "Descriptor", reader: "OneofDescriptor", path: str) -> None:
        sources = [writer.fields_by_number.get(field.number) for field in reader.fields]
        known = [source for source in sources if source is not None]
        groups = {s.containing_oneof.name if s.containing_oneof else s for s in known}
        if len(known) > 1 and len(groups) > 1:
            name = f"{path}.{reader.name}" if path else reader.name
            fields = ", ".join(source.name for source in known[:5])
            self._add(
                f"oneof {name!r}",
                f"separate fields {fields}",
                "alternatives",
                "where several are set, all but one would be lost",
            )


def _reads(writer: "FieldDescriptor", reader: "FieldDescriptor") -> bool:
    w, r = _NAMES[writer.type], _NAMES[reader.type]
    if w == r or (w, r) in _ONE_WAY:
        return True
    return any(w in family and r in family for family in _FAMILIES)


class _Reserved:
    """The reserved numbers of a message, as ranges that do not overlap, in order."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._ranges = sorted(ranges)

    def __contains__(self, number: int) -> bool:
        slot = bisect_right(self._ranges, number, key=lambda one: one[0]) - 1
        return slot >= 0 and number < self._ranges[slot][1]


def _type(field: "FieldDescriptor") -> str:
    name = _NAMES[field.type]
    target = field.message_type or field.enum_type
    return f"{name} {target.full_name}" if target is not None else name


def _place(path: str, number: int) -> str:
    return f"field {path!r} (number {number})"
