"""Python values to Protobuf messages and back.

A value is a message object of any class with the same fields, or a dict with their names. A dict
that comes back has every field that is set, and those that are never unset with their defaults:
numbers stay numbers and bytes bytes, unlike in Protobuf's JSON; enums are the names of their
values.
"""

from typing import TYPE_CHECKING, Any

from ister.base.errors import BadRequestError, BadSchemaError
from ister.schemas.bounds import shortened
from ister.schemas.native import from_builtins, to_builtins
from ister.schemas.protobuf.model import FILE_NAME, ProtobufModel

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.message import Message


class ProtobufCodec:
    """Writes and reads messages of one schema. Fields a reader does not know are passed over."""

    def __init__(self, model: ProtobufModel, python_type: type | None) -> None:
        from google.protobuf.message import DecodeError, EncodeError, Message

        self._base = Message
        self._errors = (DecodeError, EncodeError, AttributeError, TypeError, ValueError)
        self._type = python_type
        self._class: Any = model.message_class
        self._is_message = python_type is not None and is_message_class(python_type)
        if self._is_message:
            self._class = python_type

    def encode(self, value: Any) -> bytes:
        try:
            message = value if isinstance(value, self._base) else self._made(value)
            return bytes(message.SerializeToString())
        except self._errors as error:
            raise BadRequestError(
                f"the value does not follow its schema: {shortened(str(error))}"
            ) from None

    def decode(self, payload: bytes, writer: Any) -> Any:
        try:
            message = self._class.FromString(bytes(payload))
        except self._errors as error:
            raise BadRequestError(f"the payload cannot be read: {shortened(str(error))}") from None
        if self._is_message:
            return message
        return from_builtins(_as_dict(message), self._type)

    def _made(self, value: Any) -> "Message":
        fields = to_builtins(value)
        if not isinstance(fields, dict):
            raise BadRequestError(f"{type(value).__name__} is neither a message nor a dict")
        message: Message = self._class(**_without_none(fields))
        return message


def is_message_class(python_type: type) -> bool:
    """Return whether `python_type` is a class that protobuf generated."""
    return hasattr(python_type, "DESCRIPTOR") and hasattr(python_type, "SerializeToString")


def definition_of(message_class: Any) -> bytes:
    """Return a `FileDescriptorSet` that describes `message_class`, a generated class."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    descriptor: Descriptor = message_class.DESCRIPTOR
    if descriptor.containing_type is not None:
        raise BadSchemaError(
            f"{descriptor.full_name} is inside another message: a schema needs one of its own"
        )
    files: dict[str, FileDescriptorProto] = {}
    _collect(descriptor.file, files)
    # The schema is that of the first message of the last file.
    own = files[descriptor.file.name]
    messages = sorted(own.message_type, key=lambda message: message.name != descriptor.name)
    del own.message_type[:]
    own.message_type.extend(messages)
    # It may be a file of protobuf itself, which is known by its name.
    own.name = FILE_NAME
    kept = [file for file in files.values() if not file.name.startswith("google/protobuf/")]
    return bytes(FileDescriptorSet(file=kept).SerializeToString())


def _collect(file: "FileDescriptor", files: dict[str, Any]) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if file.name in files:
        return
    for inner in file.dependencies:
        _collect(inner, files)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    files[file.name] = proto


def _as_dict(message: "Message") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        found[field.name] = _as_value(field, getattr(message, field.name))
    return found


def _as_value(field: "FieldDescriptor", value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: _as_single(inner, value[key]) for key in value}
    if field.is_repeated:
        return [_as_single(field, item) for item in value]
    return _as_single(field, value)


def _as_single(field: "FieldDescriptor", value: Any) -> Any:
    if field.message_type is not None:
        return _as_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def _without_none(value: Any) -> Any:
    """Return `value` without what is `None`, which stands for a field that is not set."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
