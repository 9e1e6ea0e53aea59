"""The asyncio client: `ister.connect`."""

import asyncio
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from types import TracebackType
from typing import Any, Literal, Self

from ister.base import (
    BrokerReport,
    Clock,
    SubscriptionReport,
    TopicReport,
)
from ister.base.errors import (
    BadRequestError,
    CodecMissingError,
    IsterError,
    MessageTooLargeError,
    TopicNotFoundError,
)
from ister.base.limits import CREDIT_BYTES, CREDIT_COUNT, CREDIT_MAX
from ister.client.aio.link import BrokerLink, Connector, connect_socket
from ister.client.aio.producer import Producer
from ister.client.aio.subscription import Subscription
from ister.client.session import (
    DEFAULT_URL,
    Answer,
    Event,
    SubscriptionChannel,
    attributes_size,
    check_extras,
    cut_batches,
    parse_url,
)
from ister.codec import (
    Attributes,
    Codec,
    ReplyAddress,
    available,
    encode,
    encode_bare,
    keep_freed_memory,
)
from ister.telemetry import SystemClock
from ister.wire import (
    BrokerDescription,
    CreateNamespace,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    Done,
    ListNamespaces,
    ListSubscriptions,
    ListTopics,
    Namespaces,
    Subscribe,
    Subscriptions,
    Topics,
    reply_frame,
    reply_lone_frame,
)

SubscriptionTypeName = Literal["exclusive", "shared", "failover", "key_shared"]
StartName = Literal["latest", "earliest"]
PolicyName = Literal["least_loaded", "round_robin", "random"]
CompressionName = Literal["none", "lz4", "zstd"]

# Nearly three round trips of a lone message between processes that are awake (54 µs).
BUSY_POLL_S = 0.00015

# Topics that `request` keeps a producer open for; the oldest makes room.
REQUEST_TOPICS_MAX = 256


def connect(
    url: str = DEFAULT_URL,
    *,
    name: str = "",
    timeout: float = 30.0,
    busy_poll: float = BUSY_POLL_S,
    clock: Clock | None = None,
    connector: Connector = connect_socket,
) -> "Client":
    """Return a client of the broker at `url` (`ister://host:port`, several joined by commas).

    Use it with `async with`, or `await` it and call `close()`. The client reconnects by itself;
    `timeout` bounds, in seconds, how long calls wait for a connection and for their answers.
    While the answer to a lone message is due, the client polls for it up to `busy_poll` seconds
    before it sleeps, which halves the round trip; 0 turns that off.

    >>> async with ister.connect(url) as client:
    ...     await client.create_topic("/default/orders")
    """
    return Client(
        url, name=name, timeout=timeout, busy_poll=busy_poll, clock=clock, connector=connector
    )


class Client:
    """A connection to a broker, shared by any number of producers and subscriptions."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        timeout: float,
        busy_poll: float,
        clock: Clock | None,
        connector: Connector,
    ) -> None:
        self.url = url
        self._addresses = parse_url(url)
        self._name = name
        self._timeout_s = timeout
        self._busy_poll_s = busy_poll
        self._clock = clock
        self._connector = connector
        self._link: BrokerLink | None = None
        self._requesters: dict[str, Producer] = {}
        self._answers: list[tuple[ReplyAddress, bytes, Attributes | None]] = []

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
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._link is not None and self._link.session.can_publish

    async def open(self) -> None:
        """Connect, or raise `NotConnectedError`."""
        if self._link is not None:
            return
        keep_freed_memory()
        clock = self._clock or SystemClock(asyncio.get_running_loop().call_later)
        agent = f"ister-python/{version('ister')} {self._name}".strip()
        link = BrokerLink(
            self._addresses,
            agent=agent,
            timeout_s=self._timeout_s,
            clock=clock,
            connector=self._connector,
            busy_poll_s=self._busy_poll_s,
        )
        await link.open()
        self._link = link

    async def close(self) -> None:
        """Disconnect; open producers and subscriptions end."""
        if self._link is not None:
            self._send_answers()
            await self._link.close()

    # Messages

    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        compression: CompressionName = "none",
        resend: bool = False,
    ) -> Producer:
        """Return a producer for `topic`; the topic is made when it does not exist.

        `resend=True` sends what was in flight again after a lost connection, which may deliver
        it twice; else such sends fail with `ConnectionLostError`.
        """
        codec = Codec.parse(compression)
        if codec not in available():
            raise CodecMissingError(compression)
        return Producer(
            self.link,
            topic,
            name=name or f"producer-{secrets.token_hex(4)}",
            codec=codec,
            resend=resend,
        )

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionTypeName = "exclusive",
        start: StartName = "latest",
        policy: PolicyName = "least_loaded",
        consumer: str | None = None,
        filters: Mapping[str, str] | None = None,
        key_filters: Sequence[str] = (),
        buffer_count: int = CREDIT_COUNT,
        buffer_bytes: int = CREDIT_BYTES,
        on_event: Callable[[Event], object] | None = None,
    ) -> Subscription:
        """Return a consumer of a subscription. `topic` may hold wildcards: `/default/a.*.>`.

        `filters` are attribute globs that must all match, `key_filters` key globs of which one
        must match. At most `buffer_count` messages and about `buffer_bytes` bytes wait here for
        the application. `on_event` is told of slowness, promotion and reconnects. A live topic
        keeps nothing, so `start` makes no difference there: both words mean from now on.
        """
        if start not in ("latest", "earliest"):
            raise BadRequestError(f"start {start!r} is not 'latest' or 'earliest'")
        if isinstance(key_filters, str):
            raise BadRequestError(f"key_filters is a list of globs, as [{key_filters!r}]")
        if not all(isinstance(text, str) for item in (filters or {}).items() for text in item):
            raise BadRequestError(f"filters are text by text, not {filters!r}")
        if not (0 < buffer_count <= CREDIT_MAX and 0 < buffer_bytes <= CREDIT_MAX):
            raise BadRequestError(f"a buffer is 1 to {CREDIT_MAX} messages and bytes")
        session = self.link.session
        command = Subscribe(
            topic=topic,
            subscription=subscription,
            consumer=consumer or f"consumer-{secrets.token_hex(4)}",
            channel=session.new_channel(),
            type=type,
            policy=policy,
            key_filters=list(key_filters),
            filters=dict(filters or {}),
        )
        channel = SubscriptionChannel(
            session,
            command,
            credit_count=buffer_count,
            credit_bytes=buffer_bytes,
            on_event=on_event,
        )
        return Subscription(self, channel)

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
        link = self.link
        if not link.session.can_publish:
            await link.wait_open(timeout)
        requester = self._requesters.get(topic) or await self._open_requester(topic)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = link.session.ask(topic, answer, timeout)
        try:
            requester.send_request(payload, key, attributes, address)
            if link.session.requests == 1:
                link.wakefulness.expect(answer.done)
            link.expire_requests(timeout)
            return await answer
        except IsterError as error:
            if requester.closed or isinstance(error, TopicNotFoundError):
                # The topic was deleted, or not to be had again after a reconnect: the next
                # request tries anew.
                self._requesters.pop(topic, None)
                await requester.close(flush=False)
            raise
        finally:
            link.session.forget(address[1])

    def answer(
        self,
        address: ReplyAddress,
        payload: bytes,
        attributes: Attributes | None,
        *,
        lone: bool = False,
    ) -> None:
        """Send an answer, together with the others of this turn of the event loop.

        The answer to a lone request leaves at once.
        """
        self.check_answer(payload, attributes)
        if lone and not self._answers and not attributes:
            session = self.link.session
            if session.can_answer:
                session.connection.send(reply_lone_frame(encode_bare(payload, reply=address)))
                self.link.write()
            return
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._send_answers)
        self._answers.append((address, payload, attributes and dict(attributes)))

    def check_answer(self, payload: bytes, attributes: Attributes | None) -> None:
        """Raise what is wrong with an answer before it is queued among others."""
        size, most = len(payload), self.link.session.message_bytes_max
        if size > most:
            raise MessageTooLargeError("(reply)", size, most)
        if attributes is not None:
            check_extras(None, attributes, None)

    # Topics and reports

    async def create_topic(self, topic: str, *, kind: str = "live", partitions: int = 0) -> None:
        """Make a topic; nothing happens when it exists with the same settings."""
        command = CreateTopic(topic=topic, kind=kind, partitions=partitions)
        await self.link.call(command, Done)

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its partitions; its consumers are closed."""
        await self.link.call(DeleteTopic(topic=topic), Done)

    async def create_namespace(self, namespace: str) -> None:
        """Make a namespace."""
        await self.link.call(CreateNamespace(namespace=namespace), Done)

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

    async def broker(self) -> BrokerReport:
        """Return the broker's own figures."""
        return (await self.link.call(DescribeBroker(), BrokerDescription)).report

    async def _open_requester(self, topic: str) -> Producer:
        producer = self.producer(topic)
        await producer.open()
        if topic in self._requesters:
            await producer.close(flush=False)
            return self._requesters[topic]
        self._requesters[topic] = producer
        while len(self._requesters) > REQUEST_TOPICS_MAX:
            oldest = self._requesters.pop(next(iter(self._requesters)))
            # With a flush: a request that is under way must not fail because of another topic,
            # nor this one because of that.
            with suppress(IsterError):
                await oldest.close()
        return producer

    def _send_answers(self) -> None:
        answers, self._answers = self._answers, []
        if not answers:
            return
        session = self.link.session
        if not session.can_answer:
            return
        sizes = [len(payload) + attributes_size(a) for _, payload, a in answers]
        for start, end, _ in cut_batches(sizes, session.batch_bytes):
            attributes = [a for _, _, a in answers[start:end]]
            parts = encode(
                [payload for _, payload, _ in answers[start:end]],
                attributes=attributes if any(attributes) else None,
                replies=[address for address, _, _ in answers[start:end]],
            )
            session.connection.send_all(reply_frame(parts))
        self.link.write()
