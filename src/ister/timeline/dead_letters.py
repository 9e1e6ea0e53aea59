"""What a dead letter says about where it comes from: the attributes that those of streams have."""

import msgspec

# The topic it comes from, how often it was leased there, and why it is dead.
ORIGIN = "x-original-topic"
ATTEMPT = "x-delivery-attempt"
REASON = "x-failure-reason"


def letter_attributes(packed: bytes, origin: str, attempt: int, reason: str) -> bytes:
    """Return the attributes of a message as a dead letter has them."""
    found = _unpack(packed)
    if found is None:
        return packed
    return _pack(found | {ORIGIN: origin, ATTEMPT: str(attempt), REASON: reason})


def original_attributes(packed: bytes) -> bytes:
    """Return the attributes that a message had before it became a dead letter."""
    found = _unpack(packed)
    if not found:
        return packed
    added = (ORIGIN, ATTEMPT, REASON)
    kept = {name: text for name, text in found.items() if name not in added}
    return _pack(kept) if kept else b""


def find_origin(packed: bytes) -> str | None:
    """Return the topic that a dead letter comes from, if it says so."""
    return (_unpack(packed) or {}).get(ORIGIN)


def _unpack(packed: bytes) -> dict[str, str] | None:
    """Return attributes, or `None` for what are none: those of one message stop no group."""
    try:
        return _decode(packed) if packed else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, str]).decode
