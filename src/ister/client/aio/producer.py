"""The producer of the asyncio client."""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from ister.base import partition_name
from ister.base.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    IsterError,
    MessageTooLargeError,
    WrongKindError,
)
from ister.client.aio.connection.futures import BatchFuture, SendFuture
from ister.client.aio.connection.link import BrokerLink, finish, settler
from ister.client.aio.schemas import Schemas
from ister.client.session import (
    MESSAGE_OVERHEAD_BYTES,
    DeliverAfter,
    DeliverAt,
    Due,
    MessageId,
    MessageIds,
    ProducerChannel,
    SchemaRegistration,
    Sent,
    Values,
    as_bytes,
    check_expected_of_partitions,
    check_extras,
    due_of,
    expected_offset_of,
    not_open,
    places_of,
    registration_of,
    with_ttl,
)
from ister.codec import NO_SCHEMA, Attributes, Codec, ReplyAddress, SchemaRef
from ister.telemetry import library_logger
from ister.topics import Router
from ister.wire import Command, ProducerOpened

if TYPE_CHECKING:
    # With a default, so that `Producer` alone is one of bytes. Python has them from 3.13 on.
    from typing_extensions import TypeVar

    ValueT = TypeVar("ValueT", default=bytes)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")

_T = TypeVar("_T")

logger = library_logger("ister.client")

# Of a topic that a producer has made by its use.
CREATED_HINT = (
    "it did not exist and nobody is subscribed to it; make topics with `create_topic` or start "
    "the broker with `--auto-create off` to have a wrong name refused"
)


@dataclass(frozen=True, slots=True)
class Writing:
    """The values of a producer, and where their schema is registered."""

    values: Values
    subject: str
    register: bool
    schemas: Schemas

    async def reference(self) -> SchemaRef:
        """Return what the producer's batches are to carry."""
        return await self.schemas.reference(self.values, self.subject, register=self.register)

    @property
    def registration(self) -> SchemaRegistration | None:
        """How the schema is registered again, if it is this producer's to register."""
        if not self.register:
            return None
        return registration_of(self.values, self.subject)


class Producer(Generic[ValueT]):
    """Sends messages to one topic. Use it with `async with client.producer(...)`.

    With a schema it sends values of that, else bytes.

    >>> async with client.producer("/default/orders") as producer:
    ...     await producer.send(b"one", key="k", attributes={"a": "1"})
    MessageId(topic='/default/orders', offset=0)
    """

    def __init__(
        self,
        link: BrokerLink,
        topic: str,
        *,
        name: str,
        codec: Codec,
        resend: bool,
        writing: Writing | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self._link = link
        self._writing = writing
        # What makes payloads of values; `None` when they are payloads.
        self._encode: Callable[[ValueT], bytes] | None = None
        if writing is not None:
            self._encode = writing.values.encode
        self._schema = NO_SCHEMA
        self._codec = codec
        self._resend = resend
        self._channels: list[ProducerChannel] = []
        self._router: Router | None = None
        # What `send_nowait` calls for a topic without partitions; `None` while not open.
        self._channel: ProducerChannel | None = None
        self._opened = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def open(self) -> None:
        """Open the producer, and its topic if that does not exist.

        Its schema, if it has one, is registered first, or looked for. Harmless when open.
        """
        if self._channels:
            return
        if self._writing is not None:
            self._schema = await self._writing.reference()
        partitions = await self._open_channel(self.topic)
        self._opened = True
        if not partitions:
            self._channel = self._channels[0]
            return
        self._router = Router(partitions)
        try:
            for number in range(partitions):
                await self._open_channel(partition_name(self.topic, number), partitions)
        except BaseException:
            await self.close(flush=False)
            raise

    async def close(self, *, flush: bool = True) -> None:
        """Wait for what was sent (unless `flush=False`), then close."""
        try:
            if flush and self._channels:
                await self.flush()
        finally:
            channels, self._channels = self._channels, []
            self._channel = None
            for channel in channels:
                self._link.session.close_producer(channel)

    # The one method whose options are not keyword-only: Python looks up the defaults of those in a
    # dictionary at every call, which was a tenth of what a message costs.
    def send_nowait(
        self,
        payload: ValueT,
        key: str | None = None,
        attributes: Attributes | None = None,
        id: str | None = None,
        ttl: float | None = None,
        deliver_at: DeliverAt | None = None,
        deliver_after: DeliverAfter | None = None,
    ) -> SendFuture:
        """Send without waiting: the message leaves at the end of this turn of the event loop.

        Takes what `send` takes. Raises `ProducerFullError` when too much is unacknowledged;
        `await producer.ready()` between sends keeps clear of that.
        """
        if ttl is not None:
            attributes = self.with_ttl(attributes, ttl)
        if deliver_at is not None or deliver_after is not None:
            due = self.due(deliver_at, deliver_after)
            return self.send_delayed(self.encode(payload), key, attributes, id, due)
        channel = self._channel or self._route(key)
        batch = channel.plain
        if (
            batch is None
            or key is not None
            or attributes is not None
            or id is not None
            or type(payload) is not bytes
            or (size := len(payload)) > channel.message_bytes_max  # type: ignore[arg-type] # bytes
        ):
            return self._send(channel, self.encode(payload), key, attributes, id)
        # The same as `channel.send` does with a bare payload, without the call: a third of what
        # a message costs its producer.
        payloads = batch.payloads
        slot = len(payloads)
        payloads.append(payload)  # type: ignore[arg-type] # bytes: there is no schema
        batch.room_bytes = room = batch.room_bytes - size - MESSAGE_OVERHEAD_BYTES
        if room <= 0:
            channel.close_batch(batch)
        return SendFuture(batch, slot)

    def send_delayed(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        id: str | None,
        due: Due,
    ) -> SendFuture:
        """Send without waiting what is to be published when it is due."""
        channel = self._channel or self._route(key)
        return channel.send_delayed(payload, key, attributes, id, due, SendFuture)

    def due(self, deliver_at: DeliverAt | None, deliver_after: DeliverAfter | None) -> Due:
        """Return when a message is due, as `send_delayed` takes it; one of the two is given."""
        return due_of(deliver_at, deliver_after, self._link.session.now_ms())

    def with_ttl(self, attributes: Attributes | None, ttl: float) -> Attributes:
        """Return the attributes of a message that is not delivered after `ttl` seconds."""
        return with_ttl(attributes, ttl, self.topic, stream=all(c.stream for c in self._channels))

    def send_encoded(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        id: str | None = None,
    ) -> SendFuture:
        """Send without waiting what `check` returned."""
        channel = self._channel or self._route(key)
        return self._send(channel, payload, key, attributes, id)

    def check(
        self, value: ValueT, key: str | None, attributes: Attributes | None, id: str | None
    ) -> bytes:
        """Return `value` as it will be sent, or raise what `send_nowait` would say to these."""
        payload = self.encode(value)
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        size, most = len(payload), self._link.session.message_bytes_max
        if size > most:
            raise MessageTooLargeError(self.topic, size, most)
        if key is not None or attributes is not None or id is not None:
            check_extras(key, attributes, id)
        if (failure := self._failure()) is not None:
            raise failure
        return payload

    async def send(
        self,
        payload: ValueT,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        id: str | None = None,
        ttl: float | None = None,
        expected_offset: int | None = None,
        expected_key_offset: int | None = None,
        deliver_at: DeliverAt | None = None,
        deliver_after: DeliverAfter | None = None,
    ) -> MessageId:
        """Send one message and return its id once the broker has acknowledged it.

        Sends of one turn of the event loop travel together. Waits while the broker is behind.

        On a stream: a message with an `id` that it has had in its dedup window is not stored
        again, and gets the offset of the first (`MessageId.duplicate`). After `ttl` seconds a
        message is not delivered any more. With `expected_offset` the message is stored at that
        offset, or `OffsetMismatchError` says that somebody else was there. With
        `expected_key_offset` it is stored if the newest message of its `key` has that offset (-1:
        there is none), else `KeyOffsetMismatchError`; the topic was created with `key_offsets`.

        With `deliver_at` (a `datetime`, or seconds since 1970) or `deliver_after` (seconds from
        now) the broker keeps the message on its disk and publishes it then. What is returned has
        no offset yet (`MessageId.delayed`).
        """
        if ttl is not None:
            attributes = self.with_ttl(attributes, ttl)
        expected = expected_offset_of(expected_offset, expected_key_offset, key)
        if deliver_at is not None or deliver_after is not None:
            if expected is not None:
                raise BadRequestError(
                    "an expected offset cannot be combined with deliver_at or deliver_after"
                )
            due = self.due(deliver_at, deliver_after)
            await self.ready()
            delayed = self.send_delayed(self.encode(payload), key, attributes, id, due)
            self._link.flush()
            return await delayed
        if expected is not None:
            encoded = self.encode(payload)
            return await self._send_expecting(encoded, key, attributes, id, expected)
        channel = self._channel or self._route(key)
        while channel.full:
            await self._progress(channel)
        idle = not channel.in_flight
        if self._channel is not None:
            sent = self.send_nowait(payload, key=key, attributes=attributes, id=id)
        else:
            # Routed already: `send_nowait` would pick another partition.
            encoded = self.encode(payload)
            sent = channel.send(encoded, key, attributes, id, None, SendFuture)
        if idle:
            # Nothing is under way that others could join: leave at once.
            self._link.flush()
        return await sent

    def send_request(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        address: ReplyAddress,
    ) -> None:
        """Send a request whose answer goes to `address`."""
        channel = self._channel or self._route(key)
        if key is None and attributes is None:
            if channel.send_request(payload, address):
                if not channel.collecting:
                    self._link.write()
                return
            if channel.send_lone(payload, Sent, address) is not None:
                self._link.write()
                return
        idle = not channel.in_flight
        channel.send(payload, key, attributes, None, address, Sent)
        if idle:
            self._link.flush()

    def send_batch_nowait(
        self,
        payloads: Sequence[ValueT],
        *,
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        ids: Sequence[str | None] | None = None,
    ) -> BatchFuture:
        """Send many payloads at once; a good deal quicker than one by one."""
        encoded = self._payloads(payloads)
        extras = _checked_extras(len(encoded), keys, attributes, ids)
        if self._channel is not None:
            return BatchFuture(extras.send(self._channel, encoded))
        router = self._partitions()
        routed: dict[int, list[int]] = {}
        for slot in range(len(encoded)):
            partition = router.route(extras.keys[slot] if extras.keys is not None else None)
            routed.setdefault(partition, []).append(slot)
        sent: list[Sent] = []
        order: list[int] = []
        for partition, slots in routed.items():
            sent += extras.pick(slots).send(
                self._channels[partition], [encoded[slot] for slot in slots]
            )
            order += slots
        return BatchFuture(sent, places_of(order))

    async def send_batch(
        self,
        payloads: Sequence[ValueT],
        *,
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        ids: Sequence[str | None] | None = None,
    ) -> MessageIds:
        """Send many payloads and return their ids, in the same order, once acknowledged.

        Raises the first error, when all of them are done: `send_batch_nowait(...).results()`
        tells of each message.
        """
        await self.ready()
        return await self.send_batch_nowait(payloads, keys=keys, attributes=attributes, ids=ids)

    async def ready(self) -> None:
        """Return when there is room for more: at once, unless the broker is behind."""
        for channel in self._channels:
            while channel.full:
                await self._progress(channel)

    async def flush(self) -> None:
        """Return when everything sent so far is acknowledged.

        Raises the first error since the last flush, unless it was raised by a future already.
        """
        if not self._opened:
            raise self._closed()
        self._link.flush()
        pending = [batch for channel in self._channels for batch in channel.pending()]
        self._link.flush()
        for batch in pending:
            if not batch.done:
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                batch.on_done(partial(finish, done))
                await done
        for channel in self._channels:
            error = channel.unseen_error()
            if error is not None:
                raise error

    def encode(self, value: ValueT) -> bytes:
        """Return the payload of a value, as `send` makes it: for `tx.send`, or to look at it.

        Raises `BadRequestError` for what is no value of the schema.
        """
        return cast("bytes", value) if self._encode is None else self._encode(value)

    @property
    def encodes(self) -> bool:
        """Whether it has a schema, so that values become payloads."""
        return self._encode is not None

    @property
    def schema(self) -> SchemaRef | None:
        """The id and the version of the schema that its messages carry, once open."""
        # A broker that had forgotten it has given it another number.
        schema = self._channels[0].schema if self._channels else self._schema
        return None if schema == NO_SCHEMA else schema

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has ended with an error that no reconnect can mend."""
        return self._failure() is not None

    @property
    def pending_bytes(self) -> int:
        """What is sent and not yet acknowledged, of at most `PRODUCER_PENDING_BYTES_MAX`."""
        return sum(channel.pending_bytes for channel in self._channels)

    def _payloads(self, values: Sequence[ValueT]) -> list[bytes]:
        try:
            # A text is a list of letters, and a dict of its keys: nobody means that.
            given = None if isinstance(values, str | Mapping) else list(values)
        except TypeError:
            given = None
        if given is None:
            what = "bytes" if self._encode is None else "values"
            raise BadRequestError(f"payloads are a list of {what}, not {type(values).__name__}")
        if self._encode is not None:
            return [self._encode(value) for value in given]
        return cast("list[bytes]", given)

    def _send(
        self,
        channel: ProducerChannel,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        id: str | None,
    ) -> SendFuture:
        if key is None and attributes is None and id is None:
            sent = channel.send_lone(payload, SendFuture)
            if sent is not None:
                self._link.write()
                self._link.wakefulness.expect(sent.done)
                return sent
        return channel.send(payload, key, attributes, id, None, SendFuture)

    async def _send_expecting(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        id: str | None,
        expected: int,
    ) -> MessageId:
        channel = self._channel
        if channel is None:
            check_expected_of_partitions(self.topic, self._partitions().partitions, expected)
            channel = self._route(key)
        if not channel.stream:
            raise WrongKindError(self.topic, "live", "only a stream takes an expected offset")
        while channel.full:
            await self._progress(channel)
        sent = channel.send_expecting(payload, key, attributes, id, expected, SendFuture)
        self._link.flush()
        return await sent

    async def _progress(self, channel: ProducerChannel) -> None:
        """Wait for the oldest pending batch, whatever comes of it."""
        self._link.flush()
        batch = next(channel.pending(), None)
        if batch is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.on_done(lambda: finish(waiter))
            await waiter

    async def _open_channel(self, topic: str, partitions: int = 0) -> int:
        link = self._link
        while True:
            await link.wait_open()
            reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            channel = link.session.open_producer(
                topic,
                name=self.name,
                codec=self._codec,
                resend=self._resend,
                partitions=partitions,
                schema=self._schema,
                registration=self._writing.registration if self._writing is not None else None,
                on_reply=settler(reply),
            )
            try:
                opened = await reply
            except BaseException as error:
                link.session.close_producer(channel)
                if isinstance(error, BusyError) and not link.session.can_publish:
                    continue
                raise
            assert isinstance(opened, ProducerOpened)
            if opened.created is True:
                logger.warning("topic_created", topic=topic, kind=opened.kind, hint=CREATED_HINT)
            if opened.partitions == 0:
                self._channels.append(channel)
            return opened.partitions

    def _failure(self) -> IsterError | None:
        if not self._channels:
            return self._closed()
        return next((c.closed for c in self._channels if c.closed is not None), None)

    def _route(self, key: str | None) -> ProducerChannel:
        return self._channels[self._partitions().route(key)]

    def _partitions(self) -> Router:
        if self._router is None or not self._channels:
            raise self._closed()
        return self._router

    def _closed(self) -> IsterError:
        if not self._opened:
            return not_open("producer", "client.producer(...)")
        return ClosedError(f"the producer of {self.topic!r}")


@dataclass(frozen=True, slots=True)
class _Extras:
    """The optional columns of many messages."""

    keys: list[str | None] | None
    attributes: list[Attributes | None] | None
    ids: list[str | None] | None

    def pick(self, slots: list[int]) -> "_Extras":
        """Return the columns of some of the messages."""
        return _Extras(
            _pick(self.keys, slots), _pick(self.attributes, slots), _pick(self.ids, slots)
        )

    def send(self, channel: ProducerChannel, payloads: list[bytes]) -> list[Sent]:
        """Send `payloads` with these columns."""
        return channel.send_batch(payloads, self.keys, attributes=self.attributes, ids=self.ids)


def _checked_extras(
    count: int,
    keys: Sequence[str | None] | None,
    attributes: Sequence[Attributes | None] | None,
    ids: Sequence[str | None] | None,
) -> _Extras:
    """Return copies of the columns, or raise `BadRequestError` unless they fit `count` messages."""
    for name, column in (("keys", keys), ("attributes", attributes), ("ids", ids)):
        if column is None:
            continue
        given: object = column
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise BadRequestError(f"{name} is a list with one for each payload, not {given!r}")
        if len(column) != count:
            raise BadRequestError(f"{len(column)} {name} for {count} payloads")
    for key in keys or ():
        check_extras(key, None, None)
    for one in attributes or ():
        check_extras(None, one, None)
    for id_ in ids or ():
        check_extras(None, None, id_)
    return _Extras(
        None if keys is None else list(keys),
        # Callers fill one dictionary again for the next message.
        None if attributes is None else [one and dict(one) for one in attributes],
        None if ids is None else list(ids),
    )


def _pick(column: list[_T] | None, slots: list[int]) -> list[_T] | None:
    return None if column is None else [column[slot] for slot in slots]
