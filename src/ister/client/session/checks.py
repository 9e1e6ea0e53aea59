"""What an application gave us to send: checked before it is put among other messages."""

import math
from collections.abc import Mapping

from ister.base import full_name, span_hint, span_text
from ister.base.errors import BadRequestError, WrongKindError
from ister.base.limits import (
    ATTRIBUTE_BYTES_MAX,
    ATTRIBUTES_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    NACK_REASON_BYTES_MAX,
)
from ister.codec import Attributes
from ister.wire import KEY_EXPECTED

# How a message's own time to live travels.
TTL_ATTRIBUTE = "ister-ttl-ms"
# A hundred years.
TTL_S_MAX = 100 * 366 * 86_400
# What every language can count up to.
COUNT_MAX = 2**53


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


def check_text(value: object, what: str) -> str:
    """Return `value`, which has to be text, or raise `BadRequestError`."""
    if not isinstance(value, str):
        raise BadRequestError(f"{what} is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequestError(f"{what} {value!r} is no text that can be sent") from None
    return value


def check_topic(value: object, what: str = "a topic") -> str:
    """Return the full name of a topic or pattern, which has to be text: see `full_name`."""
    return full_name(check_text(value, what))


def check_timeout(timeout: object, what: str = "a timeout") -> float | None:
    """Return a time to wait in seconds, `None` for ever, or raise `BadRequestError`.

    One that has passed already is no mistake: callers count down to a deadline of their own.
    """
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and not math.isnan(timeout):
        return None if timeout > TTL_S_MAX else max(0.0, timeout)
    raise BadRequestError(f"{what} is a number of seconds, not {timeout!r}{span_hint(timeout)}")


def check_count(count: object, what: str, *, least: int = 0, most: int = COUNT_MAX) -> int:
    """Return a whole number, or raise `BadRequestError`."""
    # A bool is an int to Python, but not to the broker.
    if isinstance(count, int) and not isinstance(count, bool) and least <= count <= most:
        return count
    bounds = f"from {least} on" if most >= COUNT_MAX else f"from {least} to {most}"
    raise BadRequestError(f"{what} is a whole number {bounds}, not {count!r}")


def with_ttl(
    attributes: Attributes | None, ttl: object, topic: str = "", *, stream: bool = True
) -> Attributes:
    """Return `attributes` of a message that is not to be delivered after `ttl` seconds.

    Raises `WrongKindError` when its topic is not a stream: a live one keeps no messages.
    """
    if not isinstance(ttl, int | float) or not (0 < ttl <= TTL_S_MAX):
        raise BadRequestError(
            f"a ttl is seconds above 0 and at most {span_text(TTL_S_MAX * 1000)}, "
            f"not {ttl!r}{span_hint(ttl)}"
        )
    if not stream:
        raise WrongKindError(topic, "live", "only a stream takes a ttl")
    # Up: a message must not be gone before its time.
    return {**(attributes or {}), TTL_ATTRIBUTE: str(math.ceil(ttl * 1000))}


def expected_offset_of(
    expected_offset: object, expected_key_offset: object, key: str | None
) -> int | None:
    """Return what a message expects as its frame has it, `None` for nothing.

    Raises `BadRequestError` for what cannot be expected.
    """
    if expected_key_offset is not None:
        if expected_offset is not None:
            raise BadRequestError("give expected_offset or expected_key_offset, not both")
        if key is None:
            raise BadRequestError("expected_key_offset is for a message with a key")
        offset = check_count(expected_key_offset, "expected_key_offset", least=-1)
        return KEY_EXPECTED + offset + 1
    if expected_offset is None:
        return None
    if not isinstance(expected_offset, int) or not 0 <= expected_offset < 2**63:
        raise BadRequestError(f"an expected offset is 0 or more, not {expected_offset!r}")
    return expected_offset


def check_expected_of_partitions(topic: str, partitions: int, expected: int) -> None:
    """Raise `BadRequestError` for an expected offset of a topic with partitions."""
    if 0 <= expected < KEY_EXPECTED:
        raise BadRequestError(
            f"{partitions} partitions of {topic!r} count their offsets each for itself: expect an "
            "offset of one of them, by its own name"
        )


# Streams and timelines are kept in different stores, which cannot be written in one step.


def no_delay_in_transaction() -> BadRequestError:
    """Return the error for a message of a transaction that is to be published later."""
    return BadRequestError(
        "a transaction of streams sends nothing with deliver_at or deliver_after, which is kept in "
        "another store: send it after the commit, with an `id`, which makes it safe to repeat"
    )


def no_lease_in_transaction(msg: object) -> BadRequestError:
    """Return the error for what is not a message of a stream, and so not acknowledged with some."""
    if getattr(msg, "is_timeline", False):
        return BadRequestError(
            "a transaction of streams acknowledges no message of a timeline, which is kept in "
            "another store: call `lease.done()` after the commit, and send with an `id` made of "
            "`lease.id`, so that a repetition is stored once"
        )
    return BadRequestError(f"a message is what a subscription yields, not {msg!r}")


def no_ack_in_timeline(msg: object) -> BadRequestError:
    """Return the error for an acknowledgement in a transaction of a timeline."""
    call = "lease.done()" if getattr(msg, "is_timeline", False) else "msg.ack()"
    return BadRequestError(
        f"a transaction of a timeline acknowledges nothing: call `{call}` after the commit, and "
        "put with an `id` made of that of the message, so that a repetition is refused with "
        "MessageExistsError"
    )


def check_schema(schema: object) -> None:
    """Raise `BadRequestError` unless `schema` can be the id and the version of one."""
    match schema:
        case (int() as schema_id, int() as version):
            if 0 <= schema_id < 2**32 and 0 <= version < 2**32:
                return
    raise BadRequestError(
        f"a message names its schema by id and version, as `producer.schema`, not {schema!r}"
    )


def check_extras(key: str | None, attributes: Attributes | None, message_id: str | None) -> None:
    """Raise `BadRequestError` when a key, id or attribute is of a wrong type or too long."""
    if key is not None and not _is_text(key, KEY_BYTES_MAX):
        raise BadRequestError(f"a key is text of at most {KEY_BYTES_MAX} bytes")
    if message_id is not None and not _is_text(message_id, MESSAGE_ID_BYTES_MAX):
        raise BadRequestError(f"a message id is text of at most {MESSAGE_ID_BYTES_MAX} bytes")
    if attributes is None:
        return
    if not isinstance(attributes, Mapping):
        raise BadRequestError(f"attributes are a mapping of text to text, not {attributes!r}")
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


def reason_of(error: BaseException | None) -> str:
    """Return why messages are given back that were left by an error; not when it is an exit."""
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else ""


def cut_reason(reason: str) -> str:
    """Return as much of a reason as a dead letter has room for."""
    return reason.encode(errors="replace")[:NACK_REASON_BYTES_MAX].decode(errors="ignore")


def not_open(what: str, call: str) -> BadRequestError:
    """Return the error for what is used before it is open."""
    return BadRequestError(
        f"the {what} is not open: `async with {call}`, or `await {call}`; "
        f"with the blocking client, `with {call}`"
    )
