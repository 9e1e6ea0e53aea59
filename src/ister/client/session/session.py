"""A client's side of its connections, without I/O: survives reconnects, owns every promise.

A driver (asyncio) feeds it bytes and time, sends what `outgoing` returns, and calls `flush` once
after the application has had its turn.

    OFFLINE --connected()--> GREETING --Welcome--> OPEN --GoingAway--> LEAVING
    GREETING, OPEN, LEAVING --disconnected()--> OFFLINE          any --close()--> CLOSED

Always true:
- every request gets an answer or an error, also when the connection is lost;
- on OPEN, producers and subscriptions are opened again before anything else is sent;
- in LEAVING nothing new is published: it waits for the next connection.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from ister.base.errors import (
    BadBatchError,
    BadRequestError,
    ClosedError,
    ConnectionLostError,
    GoingAwayError,
    IsterError,
    LimitReachedError,
    NoResponderError,
    NotConnectedError,
    ProtocolError,
    RequestTimeoutError,
    TopicExistsError,
    VersionError,
)
from ister.base.limits import MIB, PRODUCER_BATCH_BYTES, REQUESTS_MAX, TOPIC_ALIASES_MAX
from ister.client.session.message import Answer
from ister.client.session.pending import Future
from ister.client.session.producer import ProducerChannel
from ister.client.session.subscription import Event, SubscriptionChannel
from ister.codec import Batch, Codec, Column, available
from ister.wire import (
    PUBLISHED,
    SEQUENCE_MASK,
    ActiveChanged,
    CloseConsumer,
    CloseProducer,
    Command,
    Connection,
    ConsumerClosed,
    Done,
    ErrorReply,
    Frame,
    GoingAway,
    Hello,
    NoResponder,
    Opcode,
    OpenProducer,
    ProducerOpened,
    Pulse,
    SlowConsumer,
    Subscribed,
    TopicNumber,
    Welcome,
    control_frame,
    decode_command,
    error_of,
)

# Until the broker has said what it wants.
HEARTBEAT_MS = 10_000
MESSAGE_BYTES_MAX = 8 * MIB
# The client takes whatever batch a broker may be configured to send.
RECEIVE_BATCH_BYTES_MAX = 64 * MIB + 4_096


class Link(Enum):
    """Where the session is."""

    OFFLINE = "offline"
    GREETING = "greeting"
    OPEN = "open"
    LEAVING = "leaving"
    CLOSED = "closed"


class _Asked(NamedTuple):
    """A request to a topic, waiting for the first answer."""

    topic: str
    future: Future
    timeout_s: float
    deadline_ms: float


OnReply = Callable[[Command | IsterError], object]

# With these a connection has ended or is about to: what was being opened is opened on the next.
_COMES_BACK = (ConnectionLostError, GoingAwayError)


def _ignore(_: Command | IsterError) -> None:
    """For requests whose answer changes nothing."""


class Session:
    """See the module."""

    def __init__(
        self,
        *,
        client_id: str,
        agent: str,
        now_ms: Callable[[], int],
        on_dirty: Callable[[], object],
        timeout_ms: int,
    ) -> None:
        self.client_id = client_id
        self.now_ms = now_ms
        # The time of the last `pulse`: exact enough for timeouts, and free.
        self.pulse_ms = now_ms()
        self.link = Link.OFFLINE
        self.welcome: Welcome | None = None
        self.message_bytes_max = MESSAGE_BYTES_MAX
        # What producers fill a batch up to; less than usual when the broker takes less.
        self.batch_bytes = PRODUCER_BATCH_BYTES
        self.connection = Connection(now_ms=now_ms(), heartbeat_ms=HEARTBEAT_MS)
        # Calls to the application, made by the driver after bytes were dealt with.
        self.events: deque[tuple[Callable[[Event], object], Event]] = deque()
        self.producers: dict[int, ProducerChannel] = {}
        self.subscriptions: dict[int, SubscriptionChannel] = {}
        self._hello = Hello(
            client_id=client_id,
            agent=agent,
            codecs=[codec.name.lower() for codec in available()],
        )
        self._on_dirty = on_dirty
        self._timeout_ms = timeout_ms
        self._dirty: list[ProducerChannel] = []
        self._topics: dict[int, str] = {}
        self._waiting: dict[int, tuple[OnReply, int]] = {}
        self._asked: dict[int, _Asked] = {}
        self._sequence = 0
        self._channel = 0
        self._request = 0

    # What the driver calls

    def connected(self) -> None:
        """A transport is open: say hello."""
        self.connection = Connection(now_ms=self.now_ms(), heartbeat_ms=HEARTBEAT_MS)
        self.link = Link.GREETING
        self._topics.clear()
        self.connection.send(control_frame(self._hello))

    def receive(self, data: bytes) -> None:
        """Act on the frames that `data` completes. Raises when the connection must end."""
        self._on_frames(self.connection.receive(data))

    def filled(self, count: int) -> None:
        """The same for `count` bytes that were read into the connection's `space`."""
        self._on_frames(self.connection.filled(count))

    def _on_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            opcode, channel, sequence, body = frame
            if opcode == Opcode.DELIVER:
                self._on_deliver(channel, sequence, body)
            elif opcode == Opcode.PUBLISHED:
                producer = self.producers.get(channel)
                if producer is not None:
                    producer.on_published(sequence, PUBLISHED.unpack(body)[0])
            else:
                self._on_frame(frame)

    def disconnected(self, reason: str) -> None:
        """The transport is gone: fail what cannot be known, keep what can be resumed."""
        if self.link in (Link.OFFLINE, Link.CLOSED):
            return
        self.link = Link.OFFLINE
        self.connection.close()
        error = ConnectionLostError(reason)
        waiting, self._waiting = self._waiting, {}
        for on_reply, _ in waiting.values():
            on_reply(error)
        asked, self._asked = self._asked, {}
        for request in asked.values():
            _fail(request.future, error)
        for producer in list(self.producers.values()):
            producer.on_disconnected(error)
        for subscription in self.subscriptions.values():
            subscription.on_disconnected()

    def flush(self) -> None:
        """Turn everything sent since the last call into frames."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for producer in dirty:
                producer.cut()
                producer.pump()

    def outgoing(self) -> list[bytes | memoryview]:
        """Return what is to be written to the transport."""
        return self.connection.outgoing()

    def pulse(self) -> bool:
        """Look at the clock, about once a second; return whether the broker is dead."""
        now_ms = self.now_ms()
        before_ms, self.pulse_ms = self.pulse_ms, now_ms
        for sequence, (on_reply, asked_ms) in list(self._waiting.items()):
            if now_ms - asked_ms >= self._timeout_ms:
                del self._waiting[sequence]
                on_reply(RequestTimeoutError("the broker", self._timeout_ms / 1000))
        for producer in list(self.producers.values()):
            # A batch is stamped with the pulse before it: by the time of the last one, none is
            # failed early.
            producer.expire(before_ms, self._timeout_ms)
        if self.link in (Link.OFFLINE, Link.CLOSED):
            return False
        return self.connection.pulse(now_ms) is Pulse.DEAD

    def close(self, error: IsterError) -> None:
        """End everything; who waits for something is told why."""
        self.disconnected("closed by the application")
        self.link = Link.CLOSED
        for producer in self.producers.values():
            producer.fail(error)
        for subscription in self.subscriptions.values():
            subscription.fail(error)
        self.producers.clear()
        self.subscriptions.clear()

    # What the application's side calls

    @property
    def link(self) -> Link:
        """Where the session is."""
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        # Whether a batch may be sent now; asked for every batch.
        self.can_publish = link is Link.OPEN
        # A broker that leaves still passes answers on, and no later connection can.
        self.can_answer = link in (Link.OPEN, Link.LEAVING)

    def mark_dirty(self, producer: ProducerChannel) -> None:
        """Have `flush` look at a producer."""
        if not self._dirty:
            self._on_dirty()
        self._dirty.append(producer)

    def send(self, frame: bytes) -> None:
        """Send a frame that makes no sense on a later connection."""
        if self.can_answer:
            self.connection.send(frame)
            self._on_dirty()

    def call(self, command: Command, on_reply: OnReply) -> None:
        """Send a command; `on_reply` gets the answer or an error, once."""
        if self.link is Link.CLOSED:
            on_reply(ClosedError("the client"))
            return
        if self.link is not Link.OPEN:
            on_reply(NotConnectedError("the broker", self.link.value))
            return
        if len(self._waiting) >= REQUESTS_MAX:
            on_reply(LimitReachedError("requests_max", REQUESTS_MAX))
            return
        sequence = (self._sequence % SEQUENCE_MASK) + 1
        try:
            _check_types(command)
            frame = control_frame(command, sequence=sequence)
        except BadRequestError as error:
            on_reply(error)
            return
        self._sequence = sequence
        self._waiting[sequence] = (on_reply, self.now_ms())
        self.connection.send(frame)
        self._on_dirty()

    def new_channel(self) -> int:
        """Return a number no other producer or consumer of this session has."""
        self._channel += 1
        return self._channel

    def open_producer(
        self,
        topic: str,
        *,
        name: str,
        codec: Codec,
        resend: bool,
        on_reply: OnReply,
        partitions: int = 0,
    ) -> ProducerChannel:
        """Open a producer; it takes messages at once and sends them when the broker is ready.

        `partitions` is for one of the partitions of a topic: how many it has.
        """
        channel = self.new_channel()
        producer = ProducerChannel(
            self,
            topic=topic,
            name=name,
            channel=channel,
            codec=codec,
            resend=resend,
            partitions=partitions,
        )
        self._open(producer, on_reply)
        return producer

    def close_producer(self, producer: ProducerChannel) -> None:
        """Give a producer back; what is pending on it fails."""
        producer.fail(ClosedError(f"the producer of {producer.topic!r}"))
        self._let_go(producer)

    def subscribe(self, subscription: SubscriptionChannel, on_reply: OnReply) -> None:
        """Attach a consumer."""
        self._attach(subscription, on_reply)

    def unsubscribe(self, subscription: SubscriptionChannel, on_reply: OnReply) -> None:
        """Detach a consumer for good; `on_reply` is told when the broker has let go of it.

        Until then it takes what the broker has sent before it heard of this: such messages are
        nobody else's, so letting go at once would lose them.
        """

        def on_closed(reply: Command | IsterError) -> None:
            self.subscriptions.pop(subscription.channel, None)
            name = subscription.command.subscription
            subscription.fail(ClosedError(f"the subscription {name!r}"))
            on_reply(reply)

        if subscription.channel not in self.subscriptions:
            on_closed(Done())
            return
        self.call(CloseConsumer(channel=subscription.channel), on_closed)

    def detach(self, subscription: SubscriptionChannel) -> None:
        """Detach a consumer that may be attached again.

        Then under another number: what was said about this one may still be on its way.
        """
        if self.subscriptions.pop(subscription.channel, None) is not None:
            self.call(CloseConsumer(channel=subscription.channel), _ignore)
            subscription.renumber(self.new_channel())

    def ask(self, topic: str, future: Future, timeout_s: float) -> tuple[int, int]:
        """Reserve the number of a new request; returns the address for its answer."""
        if not self.can_publish or self.welcome is None:
            raise NotConnectedError("the broker", self.link.value)
        if len(self._asked) >= REQUESTS_MAX:
            raise LimitReachedError("requests_max", REQUESTS_MAX)
        self._request = request = self._request + 1
        deadline_ms = self.now_ms() + timeout_s * 1000
        self._asked[request] = _Asked(topic, future, timeout_s, deadline_ms)
        return self.welcome.session, request

    @property
    def requests(self) -> int:
        """Requests that wait for their answer."""
        return len(self._asked)

    def expire_requests(self) -> float | None:
        """Fail the requests whose time is over; return the next deadline in ms, if there is one."""
        now_ms = self.now_ms()
        next_ms: float | None = None
        for request, asked in list(self._asked.items()):
            if asked.deadline_ms <= now_ms:
                del self._asked[request]
                what = f"request to {asked.topic!r}"
                _fail(asked.future, RequestTimeoutError(what, asked.timeout_s))
            elif next_ms is None or asked.deadline_ms < next_ms:
                next_ms = asked.deadline_ms
        return next_ms

    def fail_requests(self, requests: list[int], error: IsterError) -> None:
        """Tell who asked that these requests were not sent on."""
        for request in requests:
            asked = self._asked.pop(request, None)
            if asked is not None:
                _fail(asked.future, error)

    def forget(self, request: int) -> None:
        """Drop the answer to a request, should it still come."""
        self._asked.pop(request, None)

    # Frames

    def _on_frame(self, frame: Frame) -> None:
        opcode, channel, sequence, body = frame
        if opcode == Opcode.REPLY:
            self._on_answers(Batch(body))
        elif opcode == Opcode.CONTROL:
            self._on_command(channel, sequence, decode_command(body))
        else:
            raise ProtocolError(f"opcode {opcode} is not for a client")

    def _on_deliver(self, channel: int, number: int, body: memoryview) -> None:
        subscription = self.subscriptions.get(channel)
        if subscription is None:
            return
        topic = self._topics.get(number)
        if topic is None:
            raise ProtocolError(f"topic number {number} was never announced")
        batch = Batch(body)
        batch.topic = topic
        subscription.on_deliver(batch)

    def _on_answers(self, batch: Batch) -> None:
        addresses = batch.replies
        if addresses is None:
            raise BadBatchError("answers without addresses")
        attributes = batch.attributes if batch.columns & Column.ATTRIBUTES else None
        asked = self._asked
        for slot, payload in enumerate(batch.payloads):
            waiting = asked.pop(addresses[slot][1], None)
            if waiting is None or waiting.future.done():
                continue
            answer = Answer(payload)
            if attributes is not None:
                answer.attributes = attributes[slot]
            waiting.future.set_result(answer)

    def _on_command(self, channel: int, sequence: int, command: Command) -> None:
        match command:
            case Welcome():
                self._on_welcome(command)
            case ErrorReply():
                self._on_error(channel, sequence, error_of(command))
            case TopicNumber(number=number, topic=topic):
                if len(self._topics) >= TOPIC_ALIASES_MAX:
                    raise LimitReachedError("topic_aliases_max", TOPIC_ALIASES_MAX)
                self._topics[number] = topic
            case NoResponder(requests=requests):
                for request in requests:
                    asked = self._asked.pop(request, None)
                    if asked is not None:
                        _fail(asked.future, NoResponderError(asked.topic))
            case GoingAway():
                if self.link is Link.OPEN:
                    self.link = Link.LEAVING
            case SlowConsumer() | ActiveChanged() | ConsumerClosed():
                self._on_notice(channel, command)
            case _:
                waiting = self._waiting.pop(sequence, None)
                if waiting is not None:
                    waiting[0](command)

    def _on_notice(
        self, channel: int, command: SlowConsumer | ActiveChanged | ConsumerClosed
    ) -> None:
        subscription = self.subscriptions.get(channel)
        if subscription is None:
            return
        if isinstance(command, SlowConsumer):
            subscription.on_slow(command.dropped)
        elif isinstance(command, ActiveChanged):
            subscription.on_active(active=command.active)
        else:
            del self.subscriptions[channel]
            subscription.fail(
                ClosedError(
                    f"subscription {subscription.command.subscription!r} ({command.reason})"
                )
            )

    def _on_welcome(self, welcome: Welcome) -> None:
        if self.link is not Link.GREETING:
            raise ProtocolError("a second welcome")
        hello = self._hello
        if not hello.version_min <= welcome.version <= hello.version_max:
            raise VersionError(str(welcome.version), f"{hello.version_min}-{hello.version_max}")
        if welcome.heartbeat_ms <= 0 or welcome.message_bytes_max <= 0:
            raise ProtocolError("a welcome with limits below one")
        self.welcome = welcome
        self.message_bytes_max = welcome.message_bytes_max
        # Half of what it takes: text of four bytes a character, names and offsets come on top.
        self.batch_bytes = min(PRODUCER_BATCH_BYTES, max(welcome.batch_bytes_max // 2, 1))
        self.connection.heartbeat_ms = welcome.heartbeat_ms
        self.connection.opened(RECEIVE_BATCH_BYTES_MAX)
        self.link = Link.OPEN
        for producer in list(self.producers.values()):
            self._open(producer, self._fail_producer(producer))
        for subscription in list(self.subscriptions.values()):
            self._attach(subscription, self._fail_subscription(subscription))

    def _on_error(self, channel: int, sequence: int, error: IsterError) -> None:
        if channel:
            producer = self.producers.get(channel)
            if producer is not None:
                producer.on_refused(sequence, error)
        elif sequence:
            waiting = self._waiting.pop(sequence, None)
            if waiting is not None:
                waiting[0](error)
        else:
            raise error

    def _open(self, producer: ProducerChannel, on_reply: OnReply) -> None:
        def on_opened(reply: Command | IsterError) -> None:
            if isinstance(reply, ProducerOpened) and not reply.partitions:
                producer.on_opened(reply.producer_id)
            elif isinstance(reply, ProducerOpened):
                self.producers.pop(producer.channel, None)
            elif not isinstance(reply, _COMES_BACK):
                self._let_go(producer)
            on_reply(reply)

        self.producers[producer.channel] = producer
        command = OpenProducer(
            topic=producer.topic,
            name=producer.name,
            channel=producer.channel,
            partitions=producer.partitions,
        )
        self.call(command, on_opened)

    def _let_go(self, producer: ProducerChannel) -> None:
        if self.producers.pop(producer.channel, None) is not None:
            self.call(CloseProducer(channel=producer.channel), _ignore)

    def _attach(self, subscription: SubscriptionChannel, on_reply: OnReply) -> None:
        channel = subscription.channel

        def on_attached(reply: Command | IsterError) -> None:
            if channel not in self.subscriptions:
                pass  # Detached since.
            elif isinstance(reply, Subscribed):
                subscription.on_subscribed(active=reply.active, partitions=reply.partitions)
            elif not isinstance(reply, _COMES_BACK):
                self.detach(subscription)
            on_reply(reply)

        self.subscriptions[channel] = subscription
        self.call(subscription.command, on_attached)

    def _fail_producer(self, producer: ProducerChannel) -> OnReply:
        def on_reply(reply: Command | IsterError) -> None:
            if isinstance(reply, ProducerOpened) and reply.partitions:
                # Made anew since, with partitions: nothing could ever be sent on this channel.
                reply = TopicExistsError(producer.topic, f"with {reply.partitions} partitions")
            if isinstance(reply, IsterError) and not isinstance(reply, _COMES_BACK):
                producer.fail(reply)

        return on_reply

    def _fail_subscription(self, subscription: SubscriptionChannel) -> OnReply:
        def on_reply(reply: Command | IsterError) -> None:
            if isinstance(reply, IsterError) and not isinstance(reply, _COMES_BACK):
                subscription.fail(reply)

        return on_reply


def _check_types(command: Command) -> None:
    """Raise `BadRequestError` when an argument has a wrong type.

    The broker would take such a frame for that of a broken client and end the connection.
    """
    try:
        decode_command(msgspec.msgpack.encode(command))
    except (ProtocolError, TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"an argument is of the wrong type: {error}") from None


def _fail(future: Future, error: IsterError) -> None:
    if not future.done():
        future.set_exception(error)
