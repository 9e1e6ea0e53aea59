"""What operations hold: names, pages, places, settings of subscriptions.

Bounds that JSON Schema can say are said here, so that the documentation has them; the broker
checks all of them again, and those it cannot say.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ister.base import Origin, Position, check_milliseconds, full_name
from ister.base.errors import BadRequestError
from ister.base.limits import (
    ACK_TIMEOUT_MS_MAX,
    ACK_TIMEOUT_MS_MIN,
    BACKOFF_STEPS_MAX,
    MAX_DELIVERIES_MAX,
)

# Larger numbers are in no journal.
COUNT_MAX = 2**62 - 1
PAGE_MAX = 1_000

NamespaceName = Annotated[
    str,
    Meta(
        pattern=r"^[\w-]+$",
        description="Letters, digits, `_` and `-`.",
        examples=["default"],
    ),
]
TopicTail = Annotated[
    str,
    Meta(
        pattern=r"^[\w-]+(\.[\w-]+)*$",
        description="The topic without its namespace: tokens of letters, digits, `_` and `-`, "
        "joined by dots. Partition N of it is `<topic>-part-N`. At most 255 bytes with its "
        "namespace.",
        examples=["orders"],
    ),
]
PatternTail = Annotated[
    str,
    Meta(
        pattern=r"^(>|(\*|[\w-]+)(\.(\*|[\w-]+))*(\.>)?)$",
        description="What the subscription was made on: a topic without its namespace, or a "
        "pattern with the wildcards `*` and `>`.",
        examples=["orders"],
    ),
]
# Whole names, as in `/default/orders`. In a path they are a namespace and what follows it.
TopicName = Annotated[str, Meta(extra={"tail": TopicTail})]
PatternName = Annotated[str, Meta(extra={"tail": PatternTail})]
PlainName = Annotated[
    str,
    Meta(
        pattern=r"^[\w.:@-]+$",
        description="Letters, digits and `. _ : @ -`, at most 255 bytes.",
        examples=["billing"],
    ),
]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
PageSize = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Rows of a page.")]
After = Annotated[str, Meta(description="`next` of the page before; empty for the first.")]
ExistOk = Annotated[
    bool,
    Meta(
        description="Whether it is fine to find it there already, with the same settings.",
        extra={"in": "query"},
    ),
]
Encoding = Annotated[
    Literal["text", "base64"],
    Meta(description="How bytes are written: as text (UTF-8), or in Base64."),
]


def encode_bytes(data: bytes) -> tuple[str, Encoding]:
    """Return bytes as text if they are text, else in Base64."""
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def decode_bytes(text: str, encoding: str) -> bytes:
    """Return what `text` stands for."""
    if encoding != "base64":
        return text.encode()
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise BadRequestError("what is said to be base64 is not") from None


class Latest(Struct, frozen=True, forbid_unknown_fields=True, tag_field="origin", tag="latest"):
    """After the newest message."""


class Earliest(Struct, frozen=True, forbid_unknown_fields=True, tag_field="origin", tag="earliest"):
    """At the oldest message that is kept."""


class AtOffset(Struct, frozen=True, forbid_unknown_fields=True, tag_field="origin", tag="offset"):
    """At an offset."""

    at: Count


class AtTime(Struct, frozen=True, forbid_unknown_fields=True, tag_field="origin", tag="time"):
    """At the first message published at a time or later, in milliseconds since 1970."""

    at: Milliseconds


class AtCursor(Struct, frozen=True, forbid_unknown_fields=True, tag_field="origin", tag="snapshot"):
    """Where a saved cursor of the subscription stands."""

    name: PlainName


Start = Latest | Earliest | AtOffset | AtTime
Place = Latest | Earliest | AtOffset | AtTime | AtCursor


def position_of(place: Place) -> Position:
    """Return a place as the broker knows it."""
    match place:
        case Latest():
            return Position(origin=Origin.LATEST)
        case Earliest():
            return Position(origin=Origin.EARLIEST)
        case AtOffset(at):
            return Position(origin=Origin.OFFSET, at=at)
        case AtTime(at):
            check_milliseconds(at, "`at`")
            return Position(origin=Origin.TIME, at=at)
        case AtCursor(name):
            return Position(origin=Origin.SNAPSHOT, name=name)


class AckChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """How a durable subscription treats messages; what is left out stays as it is."""

    ack_timeout_ms: Annotated[int, Meta(ge=ACK_TIMEOUT_MS_MIN, le=ACK_TIMEOUT_MS_MAX)] | None = None
    max_deliveries: (
        Annotated[int, Meta(ge=0, le=MAX_DELIVERIES_MAX, description="0: no end.")] | None
    ) = None
    backoff_ms: (
        Annotated[
            list[Annotated[int, Meta(ge=0, le=ACK_TIMEOUT_MS_MAX)]],
            Meta(
                max_length=BACKOFF_STEPS_MAX,
                description="Delay before delivery 2, 3, …; the last one repeats.",
            ),
        ]
        | None
    ) = None
    dead_letter_topic: (
        Annotated[
            str,
            Meta(
                pattern=r"^((/[\w-]+/)?[\w-]+(\.[\w-]+)*)?$",
                description="Empty: `<topic>-<subscription>-dlq`.",
            ),
        ]
        | None
    ) = None
    poison: (
        Annotated[
            Literal["dead_letter", "block", "drop"],
            Meta(description="What becomes of a message after its last delivery."),
        ]
        | None
    ) = None
    ordered: (
        Annotated[bool, Meta(description="At most one message of a key is in flight.")] | None
    ) = None
    in_flight_max: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    in_flight_bytes_max: Annotated[int, Meta(ge=1, le=2**40)] | None = None

    def changed(self) -> dict[str, Any]:
        """Return the settings that are to change."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        steps = found["backoff_ms"]
        if steps is not None:
            found["backoff_ms"] = tuple(steps)
        if self.dead_letter_topic is not None:
            found["dead_letter_topic"] = full_name(self.dead_letter_topic)
        return {name: value for name, value in found.items() if value is not None}

    def fields(self) -> dict[str, Any]:
        """Return the fields of `ChangeSettings`."""
        return {"changes": self.changed()}
