"""The asyncio client: what `ister.connect` returns."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, Unpack, overload

from ister.base import (
    Clock,
    Time,
)
from ister.base.errors import BadRequestError, CodecMissingError
from ister.base.limits import CREDIT_BYTES, STAGE_KEEP_MS
from ister.client.aio.administration import Administration
from ister.client.aio.connection.link import BrokerLink
from ister.client.aio.connection.sockets import Connector
from ister.client.aio.pool import ProducerPool
from ister.client.aio.producer import Producer, ValueT, Writing
from ister.client.aio.reader import Reader
from ister.client.aio.reading import Reading
from ister.client.aio.requests.answers import Answers
from ister.client.aio.requests.requesters import Requesters
from ister.client.aio.schemas import Schemas
from ister.client.aio.service import (
    CONCURRENCY,
    Handler,
    Health,
    ServiceInstance,
    ServiceReport,
    find_services,
)
from ister.client.aio.staging import (
    Encoded,
    Stage,
    drop_stages,
    publish_stages,
    stage_batches,
)
from ister.client.aio.subscription import Subscription
from ister.client.aio.timelines.timeline import Timeline
from ister.client.aio.transaction import Routes, Transaction
from ister.client.aio.view import ViewEntry, ViewLoading, load_view, read_history
from ister.client.session import (
    MAX_RENEWAL_MS,
    Access,
    Answer,
    CompressionName,
    DeliverAfter,
    DeliverAt,
    Event,
    MessageId,
    Place,
    PolicyName,
    Schema,
    Seconds,
    SubscriptionChannel,
    SubscriptionSettings,
    SubscriptionTypeName,
    Values,
    check_buffer,
    check_extras,
    check_text,
    check_timeout,
    check_topic,
    chosen_settings,
    default_subject,
    milliseconds,
    position_of,
)
from ister.codec import Attributes, Codec, available, keep_freed_memory
from ister.telemetry import SystemClock
from ister.wire import (
    StageClosed,
    StagesPublished,
    Subscribe,
)

# For a client that is to wait for ever, or as good as.
TIMEOUT_S_MAX = 366 * 86_400.0


class Client(Administration):
    """A connection to a broker, shared by any number of producers and subscriptions."""

    def __init__(
        self,
        access: Access,
        *,
        name: str,
        timeout: float,
        connect_timeout: float | None,
        busy_poll: float,
        clock: Clock | None,
        connector: Connector,
    ) -> None:
        self.url = access.url
        self._access = access
        self._name = name
        self._timeout_s = TIMEOUT_S_MAX if check_timeout(timeout) is None else timeout
        self._connect_timeout_s = self._timeout_s
        if (first := check_timeout(connect_timeout, "a connect_timeout")) is not None:
            self._connect_timeout_s = first
        self._busy_poll_s = busy_poll
        self._clock = clock
        self._connector = connector
        self._link: BrokerLink | None = None
        self._pool = ProducerPool(self.producer)
        self._requesters = Requesters(lambda: self.link, self._pool)
        self._routes = Routes(self.topics)
        self._answers: Answers | None = None
        self.schemas = Schemas(lambda: self.link)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, "Client"]:
        return self.__aenter__().__await__()

    @property
    def link(self) -> BrokerLink:
        """The connection, once open."""
        if self._link is None:
            raise BadRequestError("the client is not open: `async with ister.connect(...)`")
        return self._link

    @property
    def answers(self) -> Answers:
        """What goes back to those who asked, once open."""
        if self._answers is None:
            raise BadRequestError("the client is not open: `async with ister.connect(...)`")
        return self._answers

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._link is not None and self._link.session.can_publish

    async def open(self) -> None:
        """Connect, or raise `NotConnectedError`; `UnauthenticatedError` without a good token.

        `UntrustedBrokerError` says that the certificate of the broker is not to be trusted.

        A broker that is not there yet is waited for: see `ister.connect`.
        """
        if self._link is not None:
            return
        keep_freed_memory()
        clock = self._clock or SystemClock(asyncio.get_running_loop().call_later)
        agent = f"ister-python/{version('ister')} {self._name}".strip()
        link = BrokerLink(
            self._access,
            agent=agent,
            timeout_s=self._timeout_s,
            clock=clock,
            connector=self._connector,
            busy_poll_s=self._busy_poll_s,
        )
        await link.open(self._connect_timeout_s)
        self._link = link
        self._answers = Answers(link)

    async def close(self) -> None:
        """Disconnect; open producers and subscriptions end."""
        if self._link is not None:
            self.answers.flush()
            await self._link.close()

    # Messages

    async def publish(
        self,
        topic: str,
        payload: bytes,
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
        """Send one message to `topic` and return its id once the broker has acknowledged it.

        The client keeps a producer open for each of the last 256 topics. The options are those of
        `Producer.send`. For very many messages to one topic a producer of your own is quicker.
        """

        def send(producer: Producer) -> Awaitable[MessageId]:
            return producer.send(
                payload,
                key=key,
                attributes=attributes,
                id=id,
                ttl=ttl,
                expected_offset=expected_offset,
                expected_key_offset=expected_key_offset,
                deliver_at=deliver_at,
                deliver_after=deliver_after,
            )

        return await self._pool.send(check_topic(topic), send)

    @overload
    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        compression: CompressionName = "none",
        resend: bool = False,
    ) -> Producer: ...
    @overload
    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        schema: type[ValueT],
        subject: str | None = None,
        register: bool = True,
        compression: CompressionName = "none",
        resend: bool = False,
    ) -> Producer[ValueT]: ...
    @overload
    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        schema: Schema | None,
        subject: str | None = None,
        register: bool = True,
        compression: CompressionName = "none",
        resend: bool = False,
    ) -> Producer[Any]: ...
    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        schema: type[Any] | Schema | None = None,
        subject: str | None = None,
        register: bool = True,
        compression: CompressionName = "none",
        resend: bool = False,
    ) -> Producer[Any]:
        """Return a producer for `topic`; the topic is made when it does not exist.

        `resend=True` sends what was in flight again after a lost connection, which may deliver
        it twice; else such sends fail with `ConnectionLostError`.

        With a `schema` it sends values instead of bytes: objects of a dataclass, a msgspec Struct
        or a protobuf message class, `str`, `int`, `float`; or dictionaries, when it is an
        `ister.Schema`. The schema is registered under `subject`, by default that of the topic
        (`default.orders-value` for /default/orders); with `register=False` it must be there.
        """
        topic = check_topic(topic)
        codec = Codec.parse(check_text(compression, "compression"))
        if codec not in available():
            raise CodecMissingError(compression)
        writing = None
        if schema is not None:
            subject = subject or default_subject(topic)
            writing = Writing(Values(schema), subject, register, self.schemas)
        return Producer(
            self.link,
            topic,
            name=check_text(name or f"producer-{secrets.token_hex(4)}", "a name"),
            codec=codec,
            resend=resend,
            writing=writing,
        )

    def subscribe(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        type: SubscriptionTypeName | None = None,
        durable: bool | None = None,
        start: Place = "latest",
        policy: PolicyName | None = None,
        consumer: str | None = None,
        filters: Mapping[str, str] | None = None,
        key_filters: Sequence[str] | None = None,
        work_queues: bool = False,
        buffer_count: int | None = None,
        buffer_bytes: int = CREDIT_BYTES,
        pull: bool = False,
        max_renewal: Seconds = MAX_RENEWAL_MS / 1000,
        schema: type[Any] | Schema | None = None,
        on_event: Callable[[Event], object] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> Subscription:
        """Return a consumer of a subscription. `topic` may hold wildcards: `/default/a.*.>`.

        They cover work queues, which have one subscription each, only with `work_queues`. `filters`
        are attribute globs that must all match, `key_filters` key globs, one of which must. At most
        `buffer_count` messages (`shared`: few at first) and `buffer_bytes` wait here; with `pull`
        only what was asked for. `on_event` is told of slowness, promotion, reconnects. With a
        `schema`, see `producer`, messages have a `value`. On streams a subscription with a name is
        durable: it begins at `start` ('latest', 'earliest', an offset, a time). A message comes
        again unless acknowledged within `ack_timeout` (30 s), after each delay of `backoff`,
        `max_deliveries` times (5; 0: for ever). Then it goes to `dead_letter_topic`, with `poison`
        'drop' nowhere; with 'block' it holds up the others. `ordered`: one message of a key is in
        flight. The `in_flight` limits bound all; `max_renewal` ends the renewal of ack timeouts.

        With `durable=False`, or without a name, it ends with its last consumer; a durable one with
        `expire_after` when it has had none for so long. An existing subscription gets the settings
        that are given, and keeps its others. A new one is `exclusive` unless a type is given.
        """
        check_buffer(buffer_count, buffer_bytes)
        if subscription is None:
            if durable:
                raise BadRequestError("a durable subscription needs a name")
            subscription, durable = f"ephemeral-{secrets.token_hex(4)}", False
        command = Subscribe(
            topic=check_topic(topic),
            subscription=subscription,
            consumer=consumer or f"consumer-{secrets.token_hex(4)}",
            channel=self.link.session.new_channel(),
            start=position_of(start),
            **chosen_settings(
                type=type,
                policy=policy,
                filters=filters,
                key_filters=key_filters,
                work_queues=work_queues,
                durable=durable,
                **settings,
            ),
        )
        channel = SubscriptionChannel(
            self.link.session,
            command,
            credit_count=buffer_count,
            credit_bytes=buffer_bytes,
            max_renewal_ms=milliseconds(max_renewal, "max_renewal"),
            pull=pull,
            on_event=on_event,
        )
        return Subscription(self, channel, Reading.of(schema, self.schemas))

    def reader(
        self,
        topic: str,
        *,
        start: Place = "earliest",
        end: Place | None = "latest",
        schema: type[Any] | Schema | None = None,
    ) -> Reader:
        """Return a reader of a stream, from `start` up to `end`, which is not read itself.

        Both are 'earliest', 'latest', an offset or a time. With `end=None` it has none, and goes
        on with what is published. With a `schema`, see `producer`, it has `values(batch)`.
        """
        until = None if end is None else position_of(end, "end")
        reading = Reading.of(schema, self.schemas)
        name, begin = check_topic(topic), position_of(start)
        return Reader(self.link, name, start=begin, end=until, reading=reading)

    def view(self, topic: str, *, at: int | Time | None = None) -> ViewLoading:
        """Return the last payload of every key of a stream: `await` it, or use `async with`.

        As of now; or as it was when the message at offset `at` was the last; or at the time `at`,
        with what was published in that very millisecond. Raises `CompactedError` when compaction
        has dropped some of what the stream held then. `view.watch()` goes on from there.
        """
        return ViewLoading(partial(load_view, self.link, check_topic(topic), at))

    def history(
        self, topic: str, key: str, *, start: Place = "earliest", end: Place | None = "latest"
    ) -> AsyncIterator[ViewEntry]:
        """Yield the messages of one key of a stream, the oldest first: use it with `async for`.

        `start` and `end` are those of `reader`. The whole range is read and what has other keys
        is left out here: to look at very many keys, read it once.
        """
        check_extras(key, None, None)
        until = None if end is None else position_of(end, "end")
        return read_history(self.link, check_topic(topic), key, position_of(start), until)

    def transaction(self) -> Transaction:
        """Return a transaction: messages and acknowledgements, all or nothing."""
        return Transaction(self.link, self._routes)

    def timeline(self, topic: str, *, group: str = "default") -> Timeline:
        """Return a timeline topic, whose messages belong to a group of producers."""
        return Timeline(self.link, topic, group)

    def stage(self, word: str, *, keep: Seconds = STAGE_KEEP_MS / 1000) -> Stage:
        """Return a stage, kept for so many seconds after it is closed: see `Stage`."""
        return Stage(self.link, word, keep)

    async def stage_batches(
        self,
        word: str,
        batches: Sequence[tuple[str, Encoded]],
        *,
        keep: Seconds = STAGE_KEEP_MS / 1000,
    ) -> StageClosed:
        """Stage a few batches, each with its topic, in one round trip: see `Stage`."""
        return await stage_batches(Stage(self.link, word, keep), batches)

    async def publish_stages(
        self, stages: Sequence[str], *, series: str, number: int
    ) -> StagesPublished:
        """Publish all of some stages or nothing, once for each number of a series, which rises.

        Repeated after a lost connection. Raises `StageNotFoundError` when one is not there.
        """
        return await publish_stages(self.link, stages, series, number)

    async def drop_stages(self, stages: Sequence[str]) -> None:
        """Forget stages; those that do not exist do not matter."""
        await drop_stages(self.link, stages)

    async def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout: float = 5.0,
        key: str | None = None,
        attributes: Attributes | None = None,
        retries: int = 0,
        hedge_after: float | None = None,
    ) -> Answer:
        """Send a request and return the first answer.

        Raises `NoResponderError` at once when nobody is subscribed to `topic`,
        `RequestTimeoutError` when no answer comes within `timeout` seconds, and
        `ResponderFailedError` when the handler of a service has raised an error.

        With `retries` the request is sent again, up to so many times within `timeout`, when no
        answer came in its part of that time, when nobody is subscribed, and when the connection was
        lost. With `hedge_after` it is sent a second time when there is no answer after so many
        seconds; the first answer counts. A responder may get such a request more than once.
        """
        return await self._requesters.request(
            topic,
            payload,
            timeout_s=timeout,
            key=key,
            attributes=attributes,
            retries=retries,
            hedge_after=hedge_after,
        )

    def service(
        self,
        topic: str,
        handler: Handler,
        *,
        name: str = "service",
        concurrency: int = CONCURRENCY,
        health: Health | None = None,
    ) -> ServiceInstance:
        """Return a service: `handler` answers the requests to a topic, `concurrency` at once.

        The handler is a function or a coroutine function. It is given the message and returns the
        payload of the answer. When it raises an error, whoever asked has `ResponderFailedError`.
        Services of one `name` share the requests. `health` returns whether this instance can do its
        work, for `services`.
        """
        return ServiceInstance(
            self, topic, handler, name=name, concurrency=concurrency, health=health
        )

    async def services(
        self, pattern: str = "/default/>", *, timeout: float = 1.0
    ) -> list[ServiceReport]:
        """Return the instances of services that run on the topics of a pattern, with their figures.

        Those that do not answer within `timeout` seconds are left out.
        """
        return await find_services(self, pattern, timeout)
