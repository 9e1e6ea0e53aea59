"""What a dead letter says about where it comes from: the attributes that those of streams have."""

import msgspec

from ister.base import ATTEMPT_ATTRIBUTE, ORIGIN_ATTRIBUTE, REASON_ATTRIBUTE


def letter_attributes(packed: bytes, origin: str, attempt: int, reason: str) -> bytes:
    """Return the attributes of a message as a dead letter has them."""
    found = _unpack(packed)
    if found is None:
        return packed
    return _pack(
        found
        | {ORIGIN_ATTRIBUTE: origin, ATTEMPT_ATTRIBUTE: str(attempt), REASON_ATTRIBUTE: reason}
    )


def original_attributes(packed: bytes) -> bytes:
    """Return the attributes that a message had before it became a dead letter."""
    found = _unpack(packed)
    if not found:
        return packed
    added = (ORIGIN_ATTRIBUTE, ATTEMPT_ATTRIBUTE, REASON_ATTRIBUTE)
    kept = {name: text for name, text in found.items() if name not in added}
    return _pack(kept) if kept else b""


def find_origin(packed: bytes) -> str | None:
    """Return the topic that a dead letter comes from, if it says so."""
    return (_unpack(packed) or {}).get(ORIGIN_ATTRIBUTE)


def _unpack(packed: bytes) -> dict[str, str] | None:
    """Return attributes, or `None` for what are none: those of one message stop no group."""
    try:
        return _decode(packed) if packed else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, str]).decode
