"""A Protobuf schema: the message it describes, built in a pool of its own.

A definition is the text of one `.proto` file, or a serialized `FileDescriptorSet` as
`protoc --include_imports --descriptor_set_out` writes it. The schema is that of the first message
of the file; of a set, of the last file, which is the one that was compiled. Only files of
`google/protobuf/` may be imported without being in the set.

A pool of its own keeps two schemas from colliding by name, with each other and with the messages
that are compiled into the program.
"""

import hashlib
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ister.base.errors import BadSchemaError, ExtraMissingError
from ister.schemas.bounds import (
    NESTING_MAX,
    NODES_MAX,
    Steps,
    canonical,
    check_name,
    parse_steps,
    shortened,
)
from ister.schemas.checking import Fault, Payload, Validator, each

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FileDescriptorProto,
    )
    from google.protobuf.message import Message

# The file that a text becomes. Messages do not show it.
FILE_NAME = "schema.proto"
FILES_MAX = 200
# The runtime lists all that is missing, of any size, in one go: 1 µs for every 2 bytes.
EXPLAINED_BYTES_MAX = 16 * 1024

_WELL_KNOWN = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
}
# Text has none of these; a descriptor has a tag or a length among them in its first bytes.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]")


class ProtobufModel:
    """A message type that was understood."""

    def __init__(self, files: "list[FileDescriptorProto]") -> None:
        # With every file it needs, each behind those it imports.
        self.files = files
        pool = _pool_of(files)
        self.descriptor: Descriptor = _first_message(pool, files[-1])
        self.fingerprint = _fingerprint(pool, files)
        self._class: type[Message] | None = None

    @property
    def message_class(self) -> "type[Message]":
        """The class whose instances are messages of this schema."""
        if self._class is None:
            from google.protobuf import message_factory

            self._class = message_factory.GetMessageClass(self.descriptor)
        return self._class

    def validator(self) -> Validator:
        return ProtobufValidator(self.message_class)


class ProtobufValidator:
    """Checks that payloads are messages of one type; fields it does not know are fine."""

    weight = 1

    def __init__(self, message_class: "type[Message]") -> None:
        from google.protobuf.message import DecodeError

        self._class = message_class
        self._error = DecodeError

    def knows(self, payloads: Sequence[Payload]) -> bool:
        return True

    def check(self, payloads: Sequence[Payload]) -> list[Fault]:
        return each(payloads, self._fault)

    def _fault(self, payload: Payload) -> str | None:
        message = self._class()
        try:
            # Bounds of its own: 100 levels, and one pass over the bytes.
            message.ParseFromString(bytes(payload))
        except (self._error, ValueError) as error:
            return shortened(f"not a {message.DESCRIPTOR.full_name}: {error}")
        if message.IsInitialized():
            return None
        if len(payload) > EXPLAINED_BYTES_MAX:
            return "required fields are missing"
        missing = ", ".join(message.FindInitializationErrors()[:5])
        return shortened(f"required fields are missing: {missing}")


def parse_protobuf(definition: bytes, steps: Steps | None = None) -> ProtobufModel:
    """Return the Protobuf schema that `definition` holds.

    Raises `BadSchemaError` and `SchemaTooComplexError`.
    """
    _check_library()
    steps = steps or parse_steps()
    # All that comes after is linear in the length, with names of bounded length.
    steps.spend(len(definition) // 10)
    if _CONTROL.search(definition):
        return ProtobufModel(_files_of(definition))
    from ister.schemas.protobuf.text import parse_text

    try:
        text = definition.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSchemaError(f"byte {error.start} of the text is not UTF-8") from None
    return ProtobufModel([parse_text(text, FILE_NAME)])


def _check_library() -> None:
    try:
        from google.protobuf import descriptor_pb2  # noqa: F401 (only whether it is there)
    except ImportError:
        raise ExtraMissingError("schemas of type protobuf", "schemas") from None


def _files_of(definition: bytes) -> "list[FileDescriptorProto]":
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = list(FileDescriptorSet.FromString(definition).file)
    except DecodeError as error:
        raise BadSchemaError(f"neither `.proto` text nor a FileDescriptorSet: {error}") from None
    if not 1 <= len(files) <= FILES_MAX:
        raise BadSchemaError(f"a FileDescriptorSet has 1 to {FILES_MAX} files")
    for file in files:
        # Comments, and where each word stood.
        file.ClearField("source_code_info")
    return files


def _pool_of(files: "list[FileDescriptorProto]") -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool

    left = NODES_MAX
    pool = DescriptorPool()
    added: set[str] = set()
    for file in files:
        left = _check_parts(left, file.enum_type, len(file.dependency) + len(file.service))
        for message in file.message_type:
            left = _check_size(message, left, 1, file.package)
        for enum in file.enum_type:
            _check_enum(enum, file.package)
        for name in file.dependency:
            _add_import(pool, name, added)
        if file.name in added or file.name in _WELL_KNOWN:
            raise BadSchemaError(f"file {shortened(file.name)!r} is there twice")
        _add(pool, file)
        added.add(file.name)
    return pool


def _first_message(pool: Any, file: "FileDescriptorProto") -> "Descriptor":
    first = next(iter(file.message_type), None)
    if first is None:
        raise BadSchemaError("there is no message in it")
    name = f"{file.package}.{first.name}" if file.package else first.name
    descriptor: Descriptor = pool.FindMessageTypeByName(name)
    return descriptor


def _check_size(message: "DescriptorProto", left: int, depth: int, outside: str) -> int:
    """Return what of `left` remains after counting the parts of `message`.

    `outside` is the full name of what it is in. Names are checked, since the runtime keeps the full
    name of each part.
    """
    if depth > NESTING_MAX:
        raise BadSchemaError(f"messages are nested deeper than {NESTING_MAX} levels")
    more = 1 + len(message.field) + len(message.extension_range)
    more += len(message.reserved_range) + len(message.reserved_name)
    left = _check_parts(left, message.enum_type, more)
    name = f"{outside}.{message.name}"
    check_name(name, "a message")
    for part in (*message.field, *message.oneof_decl):
        check_name(f"{name}.{part.name}", "a field")
    for enum in message.enum_type:
        _check_enum(enum, name)
    for nested in message.nested_type:
        left = _check_size(nested, left, depth + 1, name)
    return left


def _check_parts(left: int, enums: "Sequence[EnumDescriptorProto]", more: int) -> int:
    left -= more + sum(
        1 + len(enum.value) + len(enum.reserved_range) + len(enum.reserved_name) for enum in enums
    )
    if left < 0:
        raise BadSchemaError(f"it has more than {NODES_MAX} parts")
    return left


def _check_enum(enum: "EnumDescriptorProto", outside: str) -> None:
    for part in enum.value:
        check_name(f"{outside}.{enum.name}.{part.name}", "a value of an enum")


def _add_import(pool: Any, name: str, added: set[str]) -> None:
    if name in added:
        return
    if name not in _WELL_KNOWN:
        raise BadSchemaError(
            f"import {shortened(name)!r} is not in it, nor one of google/protobuf/: "
            "use a FileDescriptorSet with all imports"
        )
    descriptor = importlib.import_module(_WELL_KNOWN[name]).DESCRIPTOR
    for inner in descriptor.dependencies:
        _add_import(pool, inner.name, added)
    pool.AddSerializedFile(descriptor.serialized_pb)
    added.add(name)


def _add(pool: Any, file: "FileDescriptorProto") -> None:
    try:
        pool.AddSerializedFile(file.SerializeToString())
        # Some runtimes build, and complain, at the first use only.
        pool.FindFileByName(file.name)
    except (TypeError, ValueError, KeyError) as error:
        raise BadSchemaError(shortened(str(error))) from None


def _fingerprint(pool: Any, files: "list[FileDescriptorProto]") -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.json_format import MessageToDict

    plain = []
    for file in files:
        # From the pool, where names are resolved: a text and its descriptor are the same.
        normal = FileDescriptorProto()
        pool.FindFileByName(file.name).CopyToProto(normal)
        for unused in ("extension", "options", "service", "source_code_info"):
            normal.ClearField(unused)
        for enum in normal.enum_type:
            _clear_enum(enum)
        for message in normal.message_type:
            _clear_message(message)
        plain.append(MessageToDict(normal, preserving_proto_field_name=True))
    # The name of the last file means nothing: nobody imports it.
    plain[-1].pop("name", None)
    return "sha256:" + hashlib.sha256(canonical(plain)).hexdigest()


def _clear_message(message: "DescriptorProto") -> None:
    """Leave only what has a meaning for the bytes of messages, and names."""
    is_map_entry = message.options.map_entry
    message.ClearField("options")
    message.ClearField("extension")
    if is_map_entry:
        message.options.map_entry = True
    for field in message.field:
        packed = field.options.packed if field.options.HasField("packed") else None
        field.ClearField("options")
        if packed is not None:
            field.options.packed = packed
        if field.json_name == _json_name(field.name):
            field.ClearField("json_name")
    for enum in message.enum_type:
        _clear_enum(enum)
    for nested in message.nested_type:
        _clear_message(nested)


def _clear_enum(enum: "EnumDescriptorProto") -> None:
    enum.ClearField("options")
    for value in enum.value:
        value.ClearField("options")


def _json_name(name: str) -> str:
    """Return the name in JSON that a field has unless it says another."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)
