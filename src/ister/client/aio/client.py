"""The asyncio client: what `ister.connect` returns."""

import asyncio
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, overload

from ister.base import (
    LATEST,
    BrokerReport,
    Clock,
    Origin,
    Position,
    SubscriptionReport,
    Time,
    TopicReport,
)
from ister.base.errors import BadRequestError, CodecMissingError
from ister.base.limits import CREDIT_BYTES, CREDIT_COUNT, STAGE_KEEP_MS
from ister.client.aio.answers import Answers
from ister.client.aio.layouts import heads, locate
from ister.client.aio.link import BrokerLink
from ister.client.aio.producer import Producer, ValueT, Writing
from ister.client.aio.reader import Reader
from ister.client.aio.reading import Reading
from ister.client.aio.redrive import redrive
from ister.client.aio.requesters import Requesters
from ister.client.aio.schemas import Schemas
from ister.client.aio.sockets import Connector
from ister.client.aio.staging import (
    Encoded,
    Stage,
    drop_stages,
    publish_stages,
    stage_batches,
)
from ister.client.aio.subscription import Subscription
from ister.client.aio.timeline import Timeline
from ister.client.aio.transaction import Routes, Transaction
from ister.client.aio.view import ViewLoading, load_view
from ister.client.session import (
    MAX_RENEWAL_MS,
    Access,
    Answer,
    CompressionName,
    DurabilityName,
    Event,
    Place,
    PoisonName,
    PolicyName,
    RetentionName,
    Schema,
    Seconds,
    SubscriptionChannel,
    SubscriptionTypeName,
    Values,
    ack_settings,
    check_receiving,
    check_text,
    check_timeout,
    default_subject,
    milliseconds,
    offset_of,
    position_of,
    topic_command,
)
from ister.codec import Attributes, Codec, available, keep_freed_memory
from ister.telemetry import SystemClock
from ister.wire import (
    BrokerDescription,
    CreateNamespace,
    DeleteNamespace,
    DeleteSubscription,
    DeleteTopic,
    DescribeBroker,
    Done,
    DropCursor,
    ListNamespaces,
    ListSubscriptions,
    ListTopics,
    Namespaces,
    PauseSubscription,
    Purged,
    PurgeTopic,
    SaveCursor,
    Seek,
    StageClosed,
    StagesPublished,
    StreamHead,
    StreamLocated,
    Subscribe,
    Subscriptions,
    Topics,
)

# For a client that is to wait for ever, or as good as.
TIMEOUT_S_MAX = 366 * 86_400.0


class Client:
    """A connection to a broker, shared by any number of producers and subscriptions."""

    def __init__(
        self,
        access: Access,
        *,
        name: str,
        timeout: float,
        busy_poll: float,
        clock: Clock | None,
        connector: Connector,
    ) -> None:
        self.url = access.url
        self._access = access
        self._name = name
        self._timeout_s = TIMEOUT_S_MAX if check_timeout(timeout) is None else timeout
        self._busy_poll_s = busy_poll
        self._clock = clock
        self._connector = connector
        self._link: BrokerLink | None = None
        self._requesters = Requesters(lambda: self.link, self.producer)
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
        """Connect, or raise `NotConnectedError`; `UnauthenticatedError` without a good token."""
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
        await link.open()
        self._link = link
        self._answers = Answers(link)

    async def close(self) -> None:
        """Disconnect; open producers and subscriptions end."""
        if self._link is not None:
            self.answers.flush()
            await self._link.close()

    # Messages

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
        codec = Codec.parse(check_text(compression, "compression"))
        if codec not in available():
            raise CodecMissingError(compression)
        writing = None
        if schema is not None:
            subject = subject or default_subject(check_text(topic, "a topic"))
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
        subscription: str,
        *,
        type: SubscriptionTypeName = "exclusive",
        start: Place = "latest",
        policy: PolicyName = "least_loaded",
        consumer: str | None = None,
        filters: Mapping[str, str] | None = None,
        key_filters: Sequence[str] = (),
        buffer_count: int = CREDIT_COUNT,
        buffer_bytes: int = CREDIT_BYTES,
        pull: bool = False,
        ack_timeout: Seconds | None = None,
        max_deliveries: int | None = None,
        backoff: Sequence[Seconds] | None = None,
        dead_letter_topic: str | None = None,
        poison: PoisonName | None = None,
        ordered: bool | None = None,
        in_flight_max: int | None = None,
        in_flight_bytes_max: int | None = None,
        max_renewal: Seconds = MAX_RENEWAL_MS / 1000,
        schema: type[Any] | Schema | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> Subscription:
        """Return a consumer of a subscription. `topic` may hold wildcards: `/default/a.*.>`.

        `filters` are attribute globs that must all match, `key_filters` key globs, one of which
        must. At most `buffer_count` messages and about `buffer_bytes` bytes wait here; with `pull`
        only what was asked for. `on_event` is told of slowness, promotion and reconnects. With a
        `schema`, see `producer`, messages have a `value`. On streams a subscription is durable: it
        begins at `start` ('latest', 'earliest', an offset, a time) when made. A message comes again
        unless it is acknowledged within `ack_timeout` (30 s), after each delay of `backoff`,
        `max_deliveries` times (5; 0: for ever). Then it goes to `dead_letter_topic`, with `poison`
        'drop' nowhere; with 'block' it holds up the others. `ordered`: one message of a key is in
        flight. The `in_flight` limits bound all; `max_renewal` ends the renewal of ack timeouts.
        """
        check_receiving(filters, key_filters, buffer_count, buffer_bytes)
        command = Subscribe(
            topic=topic,
            subscription=subscription,
            consumer=consumer or f"consumer-{secrets.token_hex(4)}",
            channel=self.link.session.new_channel(),
            type=type,
            policy=policy,
            key_filters=list(key_filters),
            filters=dict(filters or {}),
            start=position_of(start),
            acks=ack_settings(
                ack_timeout=ack_timeout,
                max_deliveries=max_deliveries,
                backoff=backoff,
                dead_letter_topic=dead_letter_topic,
                poison=poison,
                ordered=ordered,
                in_flight_max=in_flight_max,
                in_flight_bytes_max=in_flight_bytes_max,
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
        return Reader(self.link, topic, start=position_of(start), end=until, reading=reading)

    def view(self, topic: str, *, at: int | Time | None = None) -> ViewLoading:
        """Return the last payload of every key of a stream: `await` it, or use `async with`.

        As of now; or as it was when the message at offset `at` was the last; or at the time `at`,
        with what was published in that very millisecond. Raises `CompactedError` when compaction
        has dropped some of what the stream held then.
        """
        return ViewLoading(partial(load_view, self.link, topic, at))

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
    ) -> Answer:
        """Send a request and return the first answer.

        Raises `NoResponderError` at once when nobody is subscribed to `topic`, and
        `RequestTimeoutError` when no answer comes within `timeout` seconds.
        """
        return await self._requesters.request(
            topic, payload, timeout_s=timeout, key=key, attributes=attributes
        )

    # Topics and reports

    async def create_topic(
        self,
        topic: str,
        *,
        kind: str = "live",
        partitions: int = 0,
        durability: DurabilityName | None = None,
        retention: RetentionName | None = None,
        max_age: Seconds | None = None,
        max_bytes: int | None = None,
        max_messages: int | None = None,
        ttl: Seconds | None = None,
        dedup_window: Seconds | None = None,
        min_compaction_lag: Seconds | None = None,
        max_lease: Seconds | None = None,
        max_leases: int | None = None,
        dead_letter_topic: str | None = None,
    ) -> None:
        """Make a topic; nothing happens when it exists with the same settings.

        Most is for `kind="stream"`. `durability` says what an acknowledgement means: 'fsync'
        (the default), 'memory', 'os' or 'object'. `retention` says what is kept: 'limits' (the
        default: everything within `max_age`, `max_bytes` and `max_messages`), 'interest',
        'workqueue' or 'compact' (which drops nothing younger than `min_compaction_lag`). A message
        older than `ttl` is not delivered any more. Message ids are remembered for `dedup_window`
        (2 minutes). Of the kinds 'timeline', 'priority' and 'cron', no lease is longer than
        `max_lease`, and a message that was leased `max_leases` times goes to `dead_letter_topic`.
        """
        command = topic_command(
            topic,
            kind,
            partitions,
            durability=durability,
            retention=retention,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            ttl=ttl,
            dedup_window=dedup_window,
            min_compaction_lag=min_compaction_lag,
            max_lease=max_lease,
            max_leases=max_leases,
            dead_letter_topic=dead_letter_topic,
        )
        await self.link.call(command, Done)

    async def purge(self, topic: str, *, before: int | None = None) -> int:
        """Drop the messages of a stream before an offset, or all; return how many it were."""
        at = -1 if before is None else offset_of(before, "before")
        return (await self.link.call(PurgeTopic(topic=topic, before=at), Purged)).messages

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its partitions; its consumers are closed."""
        await self.link.call(DeleteTopic(topic=topic), Done)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Remove a durable subscription with its position; its consumers are closed."""
        command = DeleteSubscription(topic=topic, subscription=subscription)
        await self.link.call(command, Done)

    async def pause_subscription(self, topic: str, subscription: str) -> None:
        """Let the deliveries of a durable subscription rest, to all of its consumers."""
        command = PauseSubscription(topic=topic, subscription=subscription, paused=True)
        await self.link.call(command, Done)

    async def resume_subscription(self, topic: str, subscription: str) -> None:
        """Let the deliveries of a durable subscription go on."""
        command = PauseSubscription(topic=topic, subscription=subscription, paused=False)
        await self.link.call(command, Done)

    async def seek(
        self,
        topic: str,
        subscription: str,
        to: Place | None = None,
        *,
        snapshot: str | None = None,
    ) -> None:
        """Move a durable subscription: see `Subscription.seek`."""
        if (to is None) == (snapshot is None):
            raise BadRequestError("seek to a place, or to a saved cursor by its name")
        if snapshot is not None:
            place = Position(origin=Origin.SNAPSHOT, name=snapshot)
        else:
            place = position_of(to, "seek") if to is not None else LATEST
        await self.link.call(Seek(topic=topic, subscription=subscription, to=place), Done)

    async def save_cursor(self, topic: str, subscription: str, name: str) -> None:
        """Keep the place of a durable subscription under a name, to seek to it later."""
        command = SaveCursor(topic=topic, subscription=subscription, name=name)
        await self.link.call(command, Done)

    async def drop_cursor(self, topic: str, subscription: str, name: str) -> None:
        """Forget a saved cursor."""
        command = DropCursor(topic=topic, subscription=subscription, name=name)
        await self.link.call(command, Done)

    async def redrive(self, topic: str, subscription: str, *, count: int | None = None) -> int:
        """Move dead letters of a subscription back to where they came from: all, or `count`.

        Returns how many it were. Each is sent back and taken from the dead letters in one step.
        """
        return await redrive(self, topic, subscription, count)

    async def create_namespace(self, namespace: str) -> None:
        """Make a namespace."""
        await self.link.call(CreateNamespace(namespace=namespace), Done)

    async def delete_namespace(self, namespace: str) -> None:
        """Remove a namespace; raise `NamespaceNotEmptyError` while it has topics."""
        await self.link.call(DeleteNamespace(namespace=namespace), Done)

    async def namespaces(self) -> list[str]:
        """Return the namespaces."""
        return (await self.link.call(ListNamespaces(), Namespaces)).rows

    async def topics(self, pattern: str = "") -> list[TopicReport]:
        """Return the topics that match `pattern`, all by default."""
        rows: list[TopicReport] = []
        after = ""
        while True:
            page = await self.link.call(ListTopics(pattern=pattern, after=after), Topics)
            rows += page.rows
            after = page.after
            if not after:
                return rows

    async def subscriptions(self, topic: str = "") -> list[SubscriptionReport]:
        """Return the subscriptions of `topic`, all by default."""
        rows: list[SubscriptionReport] = []
        after = ""
        while True:
            command = ListSubscriptions(topic=topic, after=after)
            page = await self.link.call(command, Subscriptions)
            rows += page.rows
            after = page.after
            if not after:
                return rows

    async def heads(
        self,
        topics: Sequence[str],
        beyond: Mapping[str, int] | None = None,
        timeout: Seconds = 0.0,
    ) -> list[StreamHead]:
        """Return where streams begin and end; of a partitioned topic, its partitions one by one.

        With a `timeout` it waits that long for messages beyond what is known: `beyond` has the
        next offset by the name of a stream or partition, and one that is missing is new.
        """
        return await heads(self.link, topics, beyond, timeout)

    async def locate(self, topic: str, start: int, end: int) -> StreamLocated:
        """Return which sealed segments have the messages `start` to `end` of a stream.

        Of a partitioned topic, ask for one partition. A segment may be gone by the time somebody
        reads it; what no segment has is to be had from a reader.
        """
        return await locate(self.link, topic, start, end)

    async def broker(self) -> BrokerReport:
        """Return the broker's own figures."""
        return (await self.link.call(DescribeBroker(), BrokerDescription)).report
