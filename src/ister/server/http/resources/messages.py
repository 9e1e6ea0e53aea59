"""Single messages: published, or looked at by offset."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Annotated
from zlib import crc32

from msgspec import Meta, Struct

from ister.base import partition_name
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    MessageTooLargeError,
    OffsetGoneError,
    SchemaViolationError,
    StorageFailedError,
    StorageUncertainError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import ATTRIBUTES_COUNT_MAX
from ister.server.admin import Admin, MessageRow
from ister.server.http.resources.shapes import COUNT_MAX, Encoding, TopicPath
from ister.server.http.routes import Routes
from ister.topics import Router

MESSAGES = Routes("messages")

PEEK_MAX = 100

# Half of the bytes that the broker takes, as every letter may be two.
Key = Annotated[str, Meta(max_length=1_024)]
Attribute = Annotated[str, Meta(max_length=1_024)]


class NewMessage(Struct, forbid_unknown_fields=True):
    """A message to publish."""

    payload: str = ""
    encoding: Encoding = "text"
    key: Key | None = None
    attributes: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=255)], Attribute],
        Meta(max_length=ATTRIBUTES_COUNT_MAX),
    ] = {}


class Published(Struct):
    """Where a message is now. A message of a live topic is kept nowhere."""

    topic: str
    offset: int


class PeekQuery(Struct, forbid_unknown_fields=True):
    """Which messages."""

    offset: Annotated[int, Meta(ge=0, le=COUNT_MAX, description="The first one.")] = 0
    limit: Annotated[int, Meta(ge=1, le=PEEK_MAX, description="How many at most.")] = 10


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


@MESSAGES.route(
    "POST",
    "/namespaces/{namespace}/topics/{topic}/messages",
    BadNameError,
    TopicNotFoundError,
    MessageTooLargeError,
    SchemaViolationError,
    StorageFailedError,
    StorageUncertainError,
)
async def publish_message(admin: Admin, where: TopicPath, body: NewMessage) -> Published:
    """Publish one message.

    Of a stream, the answer comes when the message is as safe as the stream promises. A partitioned
    topic gets it in the partition of its key.
    """
    if not admin.topics.exists(where.name):
        raise TopicNotFoundError(where.name)
    payload = decode_bytes(body.payload, body.encoding)
    topic = _partition(admin, where.name, body, payload)
    offset = await admin.messages.publish(
        topic, payload, key=body.key, attributes=body.attributes or None
    )
    return Published(topic=topic, offset=offset)


@MESSAGES.route(
    "GET",
    "/namespaces/{namespace}/topics/{topic}/messages",
    BadNameError,
    TopicNotFoundError,
    WrongKindError,
    OffsetGoneError,
)
async def peek_messages(admin: Admin, where: TopicPath, query: PeekQuery) -> PeekedPage:
    """Look at messages of a stream, or of one partition of it.

    Nobody loses them by that, and no subscription is needed.
    """
    rows = await admin.messages.peek(where.name, query.offset, count=query.limit)
    end = rows[-1].offset + 1 if rows else query.offset
    return PeekedPage(rows=[_peeked(row) for row in rows], next_offset=end)


def encode_bytes(data: bytes) -> tuple[str, Encoding]:
    """Return bytes as text if they are text, else in Base64."""
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def decode_bytes(text: str, encoding: Encoding) -> bytes:
    """Return what `text` stands for."""
    if encoding == "text":
        return text.encode()
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise BadRequestError("what is said to be base64 is not") from None


def _partition(admin: Admin, topic: str, body: NewMessage, payload: bytes) -> str:
    """Return the topic or partition that a message goes to."""
    partitions = admin.broker.partition_count(topic)
    if not partitions:
        return topic
    if body.key is not None:
        return partition_name(topic, Router(partitions).route(body.key))
    # Without a key any will do, and nobody who is in turn is remembered between requests.
    return partition_name(topic, crc32(payload, admin.broker.clock.now_ms()) % partitions)


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
