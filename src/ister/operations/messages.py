"""Single messages: published, or looked at by offset."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from ister.base.errors import (
    BadNameError,
    BadSchemaError,
    ExtraMissingError,
    MessageTooLargeError,
    OffsetGoneError,
    SchemaNotFoundError,
    SchemaViolationError,
    StorageFailedError,
    StorageUncertainError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import ATTRIBUTES_COUNT_MAX
from ister.operations.base import Group, Operation, Right
from ister.operations.reports import MessageRow
from ister.operations.shapes import COUNT_MAX, Encoding, TopicName, decode_bytes, encode_bytes

MESSAGES = Group("messages")

_OF_TOPIC = "/namespaces/{namespace}/topics/{topic}/messages"
PEEK_MAX = 100
VERSION_MAX = 2**31 - 1

# Half of the bytes that the broker takes, as every letter may be two.
Key = Annotated[str, Meta(max_length=1_024)]
Attribute = Annotated[str, Meta(max_length=1_024)]


class NewMessage(Struct, forbid_unknown_fields=True):
    """A message to publish."""

    payload: str = ""
    encoding: Annotated[
        Literal["text", "base64", "schema"],
        Meta(
            description="How `payload` is written: as text (UTF-8), in Base64, or as JSON that the "
            "schema `subject` says how to encode."
        ),
    ] = "text"
    key: Key | None = None
    attributes: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=255)], Attribute],
        Meta(max_length=ATTRIBUTES_COUNT_MAX),
    ] = {}
    subject: Annotated[
        str,
        Meta(
            pattern=r"^[\w.:@-]*$",
            description="The schema that the message names as its own; empty: none, or with "
            "`encoding` `schema` that which the topic is bound to.",
        ),
    ] = ""
    version: Annotated[
        int, Meta(ge=0, le=VERSION_MAX, description="Of the schema; 0: the newest.")
    ] = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of `PublishMessage`."""
        return {
            "payload": decode_bytes(self.payload, self.encoding),
            "key": self.key,
            "attributes": self.attributes,
            "subject": self.subject,
            "version": self.version,
            "encode": self.encoding == "schema",
        }


class Published(Struct):
    """Where a message is now. A message of a live topic is kept nowhere."""

    topic: str
    offset: int


class Peeked(Struct):
    """A message as it is stored."""

    topic: str
    offset: int
    publish_time_ms: int
    payload: str
    encoding: Encoding
    producer: str
    attributes: dict[str, str]
    key: str | None = None
    id: str | None = None
    schema_id: int = 0
    schema_version: int = 0


class PeekedPage(Struct):
    """Some messages by offset; `next_offset` is where to go on."""

    rows: list[Peeked]
    next_offset: int


class MessagePage(Struct):
    """Some messages by offset, and the offset to go on at."""

    rows: list[MessageRow]
    next_offset: int


def _show(page: MessagePage) -> PeekedPage:
    return PeekedPage([_peeked(row) for row in page.rows], page.next_offset)


def _peeked(row: MessageRow) -> Peeked:
    payload, encoding = encode_bytes(row.payload)
    return Peeked(
        topic=row.topic,
        offset=row.offset,
        publish_time_ms=row.publish_time_ms,
        payload=payload,
        encoding=encoding,
        producer=row.producer,
        attributes=row.attributes,
        key=row.key,
        id=row.id,
        schema_id=row.schema_id,
        schema_version=row.schema_version,
    )


@MESSAGES(
    Right.PRODUCE,
    f"POST {_OF_TOPIC}",
    BadNameError,
    BadSchemaError,
    ExtraMissingError,
    TopicNotFoundError,
    SchemaNotFoundError,
    MessageTooLargeError,
    SchemaViolationError,
    StorageFailedError,
    StorageUncertainError,
    body=NewMessage,
)
class PublishMessage(Operation[Published], frozen=True):
    """Publish one message.

    Of a stream, the answer comes when the message is as safe as the stream promises. A partitioned
    topic gets it in the partition of its key.
    """

    topic: TopicName
    payload: bytes = b""
    key: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    # The schema it names, empty for none. With `encode` the payload is JSON, to be encoded by it.
    subject: str = ""
    version: int = 0
    encode: bool = False


@MESSAGES(
    Right.CONSUME,
    f"GET {_OF_TOPIC}",
    BadNameError,
    TopicNotFoundError,
    WrongKindError,
    OffsetGoneError,
    show=_show,
)
class PeekMessages(Operation[MessagePage], frozen=True):
    """Return messages of a stream or of one partition, without a subscription.

    Nobody loses them by that, and no subscription is needed.
    """

    topic: TopicName
    offset: Annotated[int, Meta(ge=0, le=COUNT_MAX, description="The first one.")] = 0
    limit: Annotated[int, Meta(ge=1, le=PEEK_MAX, description="How many at most.")] = 10
