"""Decode what a client asks of a broker, in a time that does not depend on the client.

A list of 2 MiB takes up to 0.2 s to decode. So of a large command
- no list or map has more than a named number of items, which is checked before they are decoded;
- no field is large, except those that may be: a nested value could repeat a field many times;
- no field is there twice, because each would be decoded.

A small command needs no such check. Spec: docs/protocol.md.
"""

from typing import Annotated, TypeAlias

import msgspec

from ister.base.errors import ProtocolError
from ister.base.limits import FIELD_BYTES_MAX
from ister.wire.commands import Command, decode_command

# 128 KiB of the items that take longest, maps in a map, are decoded in 15 ms.
SMALL_BYTES_MAX = 2 * FIELD_BYTES_MAX
# The largest command has 15 fields.
FIELDS_MAX = 64

# The fields that may be larger than `FIELD_BYTES_MAX`, by the name of the command.
LARGE_FIELDS = {
    "change_cron": {"payload", "attributes"},
    "change_timeline": {"ids", "payloads", "attributes"},
    "check_schema": {"definition"},
    "close_consumer": {"kept"},
    "close_stage": {"topics"},
    "commit_transaction": {"topics", "acks"},
    "drop_stages": {"stages"},
    "finish_leases": {"ids"},
    "leases_revoked": {"ids"},
    "publish_stages": {"stages"},
    "register_schema": {"definition"},
    "send_delayed": {"batch", "due_ms", "delays_ms"},
    "subscribe": {"held"},
    "watch_streams": {"topics", "beyond"},
}

_Fields: TypeAlias = Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=FIELDS_MAX)]
_fields = msgspec.msgpack.Decoder(_Fields)
_name = msgspec.msgpack.Decoder(str)


def decode_request(body: bytes | memoryview) -> Command:
    """Return the command in the body of a client's CONTROL frame, or raise `ProtocolError`."""
    if len(body) > SMALL_BYTES_MAX:
        _check_large(body)
    return decode_command(body)


def _check_large(body: bytes | memoryview) -> None:
    """Raise `ProtocolError` if a large command could take long to decode."""
    try:
        fields = _fields.decode(body)
        name = _name.decode(fields.get("op", b""))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError("control frame is not a known command") from error
    if len(fields) != _fields_count(body):
        raise ProtocolError("control frame has a field twice")
    large = LARGE_FIELDS.get(name, set())
    for field, value in fields.items():
        if field not in large and len(value) > FIELD_BYTES_MAX:
            raise ProtocolError(
                f"a field of a control frame has {len(value)} B, at most {FIELD_BYTES_MAX} B "
                "are accepted"
            )


def _fields_count(body: bytes | memoryview) -> int:
    """Return how many fields a map has, as its first bytes say."""
    first = body[0]
    if first == 0xDE:
        return int.from_bytes(body[1:3], "big")
    if first == 0xDF:
        return int.from_bytes(body[1:5], "big")
    return first & 0x0F
