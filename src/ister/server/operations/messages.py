"""Single messages: published or looked at without a client."""

import asyncio
from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from ister.base import LATEST, Origin, Position, partition_name
from ister.base.errors import BadRequestError, IsterError, TopicNotFoundError
from ister.base.limits import MIB
from ister.broker import Reader, StreamTopic, open_reader
from ister.codec import NO_SCHEMA, Batch, encode
from ister.operations import MessagePage, MessageRow, PeekMessages, Published, PublishMessage
from ister.server.operations import waiting
from ister.server.operations.node import Node
from ister.server.operations.topics import topic_exists
from ister.topics import Router

if TYPE_CHECKING:
    from ister.schemas import SchemaType

# What the names of producers start with that messages of an operator come from.
PRODUCER = "admin"
_NUMBERS = count(1)

# Messages looked at in one go, and about how large they may be together.
PEEK_MAX = 1_000
PEEK_BYTES = 4 * MIB


async def publish_message(node: Node, asked: PublishMessage) -> Published:
    """Publish one message to a topic that is there, and return its offset.

    Of a stream, that is when the message is as safe as the stream promises.
    """
    broker = node.broker
    if not topic_exists(node, asked.topic):  # Opening a producer would make the topic.
        raise TopicNotFoundError(asked.topic)
    payload, schema = await _encoded(node, asked)
    topic = _partition(node, asked)
    # Its own name: one of a stream is taken from whoever has it, a client or another call.
    name = f"{PRODUCER}:{next(_NUMBERS)}"
    head, body = encode(
        [payload],
        keys=None if asked.key is None else [asked.key],
        attributes=[asked.attributes] if asked.attributes else None,
        producer=name.encode(),
        numbered=False,
        schema=schema,
    )
    batch = Batch(head + body)
    producer = broker.open_producer(topic, name)
    try:
        checked = await waiting.checked(broker.long_check(producer, batch))
        if producer.stream is None:
            for _ in broker.publish(producer, batch, checked=checked) or ():
                await asyncio.sleep(0)
        else:
            await waiting.done(
                lambda done: broker.store(
                    producer, batch, lambda error, _: done(error), checked=checked
                )
            )
    finally:
        broker.close_producer(producer)
    return Published(topic=topic, offset=batch.base_offset)


async def _encoded(node: Node, asked: PublishMessage) -> tuple[bytes, tuple[int, int]]:
    """Return the payload as its schema says, and what the batch names as that."""
    subject, version = asked.subject, asked.version
    if asked.encode and not subject:
        binding = node.registry.binding(asked.topic)
        subject, version = binding.subject, version or binding.version
    if not subject:
        return asked.payload, NO_SCHEMA
    found = node.registry.version(subject, version)
    if not asked.encode:
        return asked.payload, (found.schema_id, found.version)
    # In a thread: a definition has up to 1 MiB, and takes as long as that to parse.
    payload = await asyncio.to_thread(_encode, found.type, found.definition, asked.payload)
    return payload, (found.schema_id, found.version)


def _encode(type_: "SchemaType", definition: bytes, payload: bytes) -> bytes:
    from ister.schemas import codec_for, parse_schema

    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"payload is no JSON: {error}") from None
    return codec_for(parse_schema(type_, definition)).encode(value)


def _partition(node: Node, asked: PublishMessage) -> str:
    """Return the topic or partition that a message goes to."""
    partitions = node.broker.partition_count(asked.topic)
    if not partitions:
        return asked.topic
    if asked.key is not None:
        return partition_name(asked.topic, Router(partitions).route(asked.key))
    # Without a key any will do, and nobody who is in turn is remembered between requests.
    slot = crc32(asked.payload, node.broker.clock.now_ms()) % partitions
    return partition_name(asked.topic, slot)


async def peek_messages(node: Node, asked: PeekMessages) -> MessagePage:
    """Return stored messages of a stream or partition from an offset on; nobody loses them."""
    topic, limit = asked.topic, asked.limit
    if not 0 < limit <= PEEK_MAX:
        raise BadRequestError(f"count is 1 to {PEEK_MAX}, not {limit}")
    stream = node.broker.streams_of(topic)[0]
    if stream.name != topic:
        raise BadRequestError(f"topic {topic!r} is partitioned: name one of its partitions")
    page = _Page(limit)
    reader: Reader = await waiting.result(
        lambda done: open_reader(
            stream,
            Position(origin=Origin.OFFSET, at=asked.offset),
            LATEST,
            done,
            turns=node.broker.turns,
            shared=node.broker.durables.shared,
            sink=page,
            channel=1,
        )
    )
    try:
        reader.grant(limit, PEEK_BYTES)
        await page.filled
    finally:
        reader.close()
    end = page.rows[-1].offset + 1 if page.rows else asked.offset
    return MessagePage(rows=page.rows, next_offset=end)


class _Page:
    """A `ReaderSink` that is full after some messages, or after some bytes."""

    writable = True

    def __init__(self, count: int) -> None:
        self.rows: list[MessageRow] = []
        self.filled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left_count = count
        self._left_bytes = PEEK_BYTES

    def deliver(self, channel: int, topic: StreamTopic, batch: Batch) -> None:
        """Take some messages."""
        self.rows += _rows(topic.name, batch)
        self._left_count -= batch.count
        self._left_bytes -= batch.size_bytes
        if self._left_count <= 0 or self._left_bytes <= 0:
            self.reader_ended(channel, None)

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        """There is no more, or nothing can be read."""
        if self.filled.done():
            return
        if error is None:
            self.filled.set_result(None)
        else:
            self.filled.set_exception(error)


def _rows(topic: str, batch: Batch) -> list[MessageRow]:
    schema_id, schema_version = batch.schema or NO_SCHEMA
    keys, ids, attributes = batch.keys, batch.ids, batch.attributes
    return [
        MessageRow(
            topic=topic,
            offset=offset,
            publish_time_ms=batch.timestamps_ms[slot],
            payload=batch.payloads[slot],
            key=None if keys is None else keys[slot],
            attributes={} if attributes is None else dict(attributes[slot]),
            id=None if ids is None else ids[slot],
            producer=batch.producer,
            schema_id=schema_id,
            schema_version=schema_version,
        )
        for slot, offset in enumerate(batch.offsets)
    ]
