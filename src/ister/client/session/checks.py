"""What an application gave us to send: checked before it is put among other messages."""

from ister.base.errors import BadRequestError
from ister.base.limits import (
    ATTRIBUTE_BYTES_MAX,
    ATTRIBUTES_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
)
from ister.codec import Attributes


def attributes_size(attributes: Attributes | None) -> int:
    """Return about how many bytes attributes add to a batch."""
    if not attributes:
        return 0
    return sum(len(name) + len(value) for name, value in attributes.items())


def as_bytes(payload: object) -> bytes:
    """Return a copy of a bytes-like payload, or raise `BadRequestError`."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    kind = type(payload).__name__
    raise BadRequestError(f"a payload is bytes, not {kind}: encode it first, as `text.encode()`")


def check_extras(key: str | None, attributes: Attributes | None, message_id: str | None) -> None:
    """Raise `BadRequestError` when a key, id or attribute is of a wrong type or too long."""
    if key is not None and not _is_text(key, KEY_BYTES_MAX):
        raise BadRequestError(f"a key is text of at most {KEY_BYTES_MAX} bytes")
    if message_id is not None and not _is_text(message_id, MESSAGE_ID_BYTES_MAX):
        raise BadRequestError(f"a message id is text of at most {MESSAGE_ID_BYTES_MAX} bytes")
    if attributes is None:
        return
    if len(attributes) > ATTRIBUTES_COUNT_MAX:
        raise BadRequestError(f"a message has at most {ATTRIBUTES_COUNT_MAX} attributes")
    for name, value in attributes.items():
        if not (_is_text(name, ATTRIBUTE_BYTES_MAX) and _is_text(value, ATTRIBUTE_BYTES_MAX)):
            raise BadRequestError(
                f"attributes are text of at most {ATTRIBUTE_BYTES_MAX} bytes, both name and value"
            )


def _is_text(value: object, size_bytes_max: int) -> bool:
    if not isinstance(value, str):
        return False
    if value.isascii():
        return len(value) <= size_bytes_max
    try:
        return len(value.encode()) <= size_bytes_max
    except UnicodeEncodeError:
        return False
