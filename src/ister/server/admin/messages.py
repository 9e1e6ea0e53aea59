"""Single messages: published or looked at by an operator, without a client."""

import asyncio
from collections.abc import Mapping
from itertools import count

from ister.base import LATEST, Origin, Position
from ister.base.errors import BadRequestError, IsterError
from ister.base.limits import MIB
from ister.broker import Broker, Reader, StreamTopic, open_reader
from ister.codec import NO_SCHEMA, Batch, encode
from ister.server.admin import waiting
from ister.server.admin.reports import MessageRow

# What the names of producers start with that messages of an operator come from.
PRODUCER = "admin"
_NUMBERS = count(1)

# Messages looked at in one go, and about how large they may be together.
PEEK_MAX = 1_000
PEEK_BYTES = 4 * MIB


class Messages:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        schema: tuple[int, int] = NO_SCHEMA,
    ) -> int:
        """Publish one message to a topic or partition that is there, and return its offset.

        Of a stream, that is when the message is as safe as the stream promises.
        """
        broker = self._broker
        broker.catalog.get(topic)  # Raises, where opening a producer would make the topic.
        # Its own name: one of a stream is taken from whoever has it, a client or another call.
        name = f"{PRODUCER}:{next(_NUMBERS)}"
        head, body = encode(
            [payload],
            keys=None if key is None else [key],
            attributes=[dict(attributes)] if attributes else None,
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
        return batch.base_offset

    async def peek(self, topic: str, offset: int, *, count: int = 10) -> list[MessageRow]:
        """Return stored messages of a stream or partition from an offset on; nobody loses them."""
        if not 0 < count <= PEEK_MAX:
            raise BadRequestError(f"count is 1 to {PEEK_MAX}, not {count}")
        stream = self._broker.streams_of(topic)[0]
        if stream.name != topic:
            raise BadRequestError(f"topic {topic!r} is partitioned: name one of its partitions")
        page = _Page(count)
        reader: Reader = await waiting.result(
            lambda done: open_reader(
                stream,
                Position(origin=Origin.OFFSET, at=offset),
                LATEST,
                done,
                turns=self._broker.turns,
                shared=self._broker.durables.shared,
                sink=page,
                channel=1,
            )
        )
        try:
            reader.grant(count, PEEK_BYTES)
            await page.filled
        finally:
            reader.close()
        return page.rows


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
