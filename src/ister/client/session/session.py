"""A client's side of its connections, without I/O: survives reconnects, owns every promise.

A driver (asyncio) feeds it bytes and time, sends what `outgoing` returns, and calls `flush` once
after the application has had its turn.

    OFFLINE --connected()--> GREETING --Welcome--> OPEN --GoingAway--> LEAVING
    GREETING, OPEN, LEAVING --disconnected()--> OFFLINE          any --close()--> CLOSED

Always true:
- every request gets an answer or an error, also when the connection is lost;
- on OPEN, producers, subscriptions and readers are opened again before anything else is sent,
  producers with a schema when the broker has said that it knows that;
- in LEAVING nothing new is published: it waits for the next connection.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

import msgspec

from ister.base.errors import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    IsterError,
    LimitReachedError,
    NotConnectedError,
    NotFoundError,
    ProtocolError,
    TopicExistsError,
    VersionError,
)
from ister.base.limits import HEARTBEAT_MS, MIB, PRODUCER_BATCH_BYTES, TOPIC_ALIASES_MAX
from ister.client.session.calls import CALL_HINT, COMES_BACK, Calls, OnReply, ignore
from ister.client.session.consuming.receivers import Receivers
from ister.client.session.events import Event
from ister.client.session.futures import Future
from ister.client.session.port import Sender
from ister.client.session.producing.producer import ProducerChannel
from ister.client.session.requests import Requests
from ister.client.session.timelines.timelines import Timelines
from ister.client.session.values import SchemaRegistration
from ister.codec import NO_SCHEMA, Batch, Codec, SchemaRef, available
from ister.wire import (
    PUBLISHED,
    ActiveChanged,
    CloseProducer,
    Command,
    Connection,
    ConsumerClosed,
    ErrorReply,
    Frame,
    GetSchema,
    GoingAway,
    Hello,
    NoResponder,
    Opcode,
    OpenProducer,
    ProducerOpened,
    PublishedEach,
    Pulse,
    ReaderEnded,
    RevokeLeases,
    SchemaFound,
    SchemaRegistered,
    SlowConsumer,
    Subscribed,
    TimelineDue,
    TopicNumber,
    Welcome,
    control_frame,
    decode_command,
    error_of,
    runs_of,
)

# Until the broker has said what it wants, as also the heartbeat.
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


class Session:
    """The client's side of its connections: it survives reconnects and keeps every promise."""

    def __init__(
        self,
        *,
        client_id: str,
        secret: str,
        agent: str,
        now_ms: Callable[[], int],
        on_dirty: Callable[[], object],
        timeout_ms: int,
        on_lease: Callable[[int], object] = ignore,
        now_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """`on_dirty` has `flush` called soon, `on_lease` `receivers.renew` at a time in ms.

        `now_ms` never goes back, `now_us` is the time in microseconds since 1970.
        """
        self.client_id = client_id
        self.now_ms = now_ms
        # The time of the last `pulse`: exact enough for timeouts, and free.
        self.pulse_ms = now_ms()
        self.link = Link.OFFLINE
        self.welcome: Welcome | None = None
        # How long the broker took to answer the hello of this connection.
        self.round_trip_ms = 0
        self._greeted_ms = self.pulse_ms
        self.message_bytes_max = MESSAGE_BYTES_MAX
        # What producers fill a batch up to; less than usual when the broker takes less.
        self.batch_bytes = PRODUCER_BATCH_BYTES
        self.connection = Connection(now_ms=now_ms(), heartbeat_ms=HEARTBEAT_MS)
        # Calls to the application, made by the driver after bytes were dealt with.
        self.events: deque[tuple[Callable[[Event], object], Event]] = deque()
        self.producers: dict[int, ProducerChannel] = {}
        self.receivers = Receivers(self, on_lease)
        # For the hot path.
        self.subscriptions = self.receivers.subscriptions
        self.requests = Requests(now_ms)
        self.timelines = Timelines(self, now_us)
        self._calls = Calls(now_ms)
        self._hello = Hello(
            client_id=client_id,
            secret=secret,
            agent=agent,
            codecs=[codec.name.lower() for codec in available()],
        )
        self.on_dirty = on_dirty
        self._timeout_ms = timeout_ms
        self._dirty: list[Sender] = []
        self._topics: dict[int, str] = {}
        self._channel = 0

    # What the driver calls

    def connected(self, token: str = "") -> None:
        """A transport is open: say hello, and who it is."""
        self.connection = Connection(now_ms=self.now_ms(), heartbeat_ms=HEARTBEAT_MS)
        self.link = Link.GREETING
        self._greeted_ms = self.now_ms()
        self._topics.clear()
        # Not kept: each connection may have another.
        self.connection.send(control_frame(msgspec.structs.replace(self._hello, token=token)))

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
        self._calls.fail_all(ConnectionLostError(reason, CALL_HINT))
        self.requests.fail_all(error)
        for producer in list(self.producers.values()):
            producer.on_disconnected(error)
        self.receivers.on_disconnected()
        self.timelines.on_disconnected()

    def flush(self) -> None:
        """Turn everything sent since the last call into frames."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for producer in dirty:
                producer.cut()
                producer.pump()
        if self.receivers.acking:
            self.receivers.flush()
        if self.timelines.dirty:
            self.timelines.flush()

    def outgoing(self) -> list[bytes | memoryview]:
        """Return what is to be written to the transport."""
        return self.connection.outgoing()

    def pulse(self) -> bool:
        """Look at the clock, about once a second; return whether the broker is dead."""
        now_ms = self.now_ms()
        before_ms, self.pulse_ms = self.pulse_ms, now_ms
        self._calls.expire(now_ms, self._timeout_ms)
        self.receivers.expire(now_ms, self._timeout_ms)
        self.receivers.give_back(now_ms)
        self.timelines.on_pulse(now_ms, self._timeout_ms)
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
        self.producers.clear()
        self.receivers.fail(error)
        self.timelines.fail(error)

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

    def mark_dirty(self, producer: Sender) -> None:
        """Have `flush` look at a producer."""
        if not self._dirty:
            self.on_dirty()
        self._dirty.append(producer)

    def send(self, frame: bytes) -> None:
        """Send a frame that makes no sense on a later connection."""
        if self.can_answer:
            self.connection.send(frame)
            self.on_dirty()

    def call(self, command: Command, on_reply: OnReply) -> None:
        """Send a command; `on_reply` gets the answer or an error, once."""
        if self.link is Link.CLOSED:
            on_reply(ClosedError("the client"))
            return
        if self.link is not Link.OPEN:
            on_reply(NotConnectedError("the broker", self.link.value))
            return
        if self.receivers.acking:
            # What was acknowledged before counts for what is asked now: a seek, a saved cursor.
            self.receivers.flush()
        frame = self._calls.make(command, on_reply)
        if frame is not None:
            self.connection.send(frame)
            self.on_dirty()

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
        schema: SchemaRef = NO_SCHEMA,
        registration: SchemaRegistration | None = None,
    ) -> ProducerChannel:
        """Open a producer; it takes messages at once and sends them when the broker is ready.

        `partitions` is for one of the partitions of a topic: how many it has. `schema` is what
        its batches are said to be, and `registration` how that is mended after a reconnect to a
        broker that does not know it any more.
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
            schema=schema,
            registration=registration,
            close=self.close_producer,
        )
        self._open(producer, on_reply)
        return producer

    def close_producer(self, producer: ProducerChannel) -> None:
        """Give a producer back; what is pending on it fails."""
        producer.fail(ClosedError(f"the producer of {producer.topic!r}"))
        self._let_go(producer)

    def ask(self, topic: str, future: Future, timeout_s: float) -> tuple[int, int]:
        """Reserve the number of a new request; returns the address for its answer."""
        if not self.can_publish or self.welcome is None:
            raise NotConnectedError("the broker", self.link.value)
        return self.welcome.session, self.requests.ask(topic, future, timeout_s)

    def fail_requests(self, requests: list[int], error: IsterError) -> None:
        """Tell who asked that these requests were not sent on."""
        self.requests.fail(requests, error)

    # Frames

    def _on_frame(self, frame: Frame) -> None:
        opcode, channel, sequence, body = frame
        if opcode == Opcode.REPLY:
            self.requests.on_answers(Batch(body))
        elif opcode == Opcode.DELIVER_LEASED:
            subscription = self.subscriptions.get(channel)
            if subscription is not None:
                subscription.on_leased(self._topic(sequence), body)
        elif opcode == Opcode.ACKED:
            subscription = self.subscriptions.get(channel)
            if subscription is not None:
                subscription.leases.on_acked(sequence, runs_of(body))
        elif opcode == Opcode.CONTROL:
            self._on_command(channel, sequence, decode_command(body))
        else:
            raise ProtocolError(f"opcode {opcode} is not for a client")

    def _on_deliver(self, channel: int, number: int, body: memoryview) -> None:
        subscription = self.subscriptions.get(channel)
        if subscription is None:
            self._on_read(channel, number, body)
            return
        topic = self._topics.get(number)
        if topic is None:
            raise ProtocolError(f"topic number {number} was never announced")
        batch = Batch(body)
        batch.topic = topic
        subscription.inbox.on_deliver(batch)

    def _on_read(self, channel: int, number: int, body: memoryview) -> None:
        reader = self.receivers.readers.get(channel)
        if reader is not None:
            batch = Batch(body)
            batch.topic = self._topic(number)
            reader.on_deliver(batch)

    def _topic(self, number: int) -> str:
        topic = self._topics.get(number)
        if topic is None:
            raise ProtocolError(f"topic number {number} was never announced")
        return topic

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
            case PublishedEach(offsets=offsets):
                producer = self.producers.get(channel)
                if producer is not None:
                    producer.on_published_each(sequence, offsets)
            case NoResponder(requests=requests):
                self.requests.on_no_responder(requests)
            case GoingAway():
                if self.link is Link.OPEN:
                    self.link = Link.LEAVING
            case TimelineDue() | RevokeLeases():
                self.timelines.on_notice(channel, command)
            case ConsumerClosed() if channel in self.timelines.channels:
                self.timelines.on_notice(channel, command)
            case SlowConsumer() | ActiveChanged() | ConsumerClosed() | ReaderEnded():
                self.receivers.on_notice(channel, command)
            case Subscribed() if channel:
                self.receivers.on_notice(channel, command)
            case _:
                self._calls.on_reply(sequence, command)

    def _on_welcome(self, welcome: Welcome) -> None:
        if self.link is not Link.GREETING:
            raise ProtocolError("a second welcome")
        hello = self._hello
        if not hello.version_min <= welcome.version <= hello.version_max:
            raise VersionError(str(welcome.version), f"{hello.version_min}-{hello.version_max}")
        if welcome.heartbeat_ms <= 0 or welcome.message_bytes_max <= 0:
            raise ProtocolError("a welcome with limits below one")
        self.welcome = welcome
        self.round_trip_ms = self.now_ms() - self._greeted_ms
        self.message_bytes_max = welcome.message_bytes_max
        # Half of what it takes: text of four bytes a character, names and offsets come on top.
        self.batch_bytes = min(PRODUCER_BATCH_BYTES, max(welcome.batch_bytes_max // 2, 1))
        self.connection.heartbeat_ms = welcome.heartbeat_ms
        self.connection.opened(RECEIVE_BATCH_BYTES_MAX)
        self.link = Link.OPEN
        for producer in list(self.producers.values()):
            self._open_again(producer)
        self.receivers.on_open()
        self.timelines.on_open()

    def _on_error(self, channel: int, sequence: int, error: IsterError) -> None:
        if channel:
            producer = self.producers.get(channel)
            subscription = self.subscriptions.get(channel)
            if producer is not None:
                producer.on_refused(sequence, error)
            elif subscription is not None:
                subscription.leases.on_error(sequence, error)
        elif sequence:
            self._calls.on_reply(sequence, error)
        else:
            raise error

    def _open(self, producer: ProducerChannel, on_reply: OnReply) -> None:
        def on_opened(reply: Command | IsterError) -> None:
            if isinstance(reply, ProducerOpened) and not reply.partitions:
                producer.on_opened(
                    reply.producer_id, kind=reply.kind, next_sequence=reply.next_sequence
                )
            elif isinstance(reply, ProducerOpened):
                self.producers.pop(producer.channel, None)
            elif not isinstance(reply, COMES_BACK):
                self._let_go(producer)
            on_reply(reply)

        self.producers[producer.channel] = producer
        command = OpenProducer(
            topic=producer.topic,
            name=producer.name,
            channel=producer.channel,
            partitions=producer.partitions,
            kind=producer.kind,
        )
        self.call(command, on_opened)

    def _open_again(self, producer: ProducerChannel) -> None:
        """Open a producer on a new connection, once the broker knows its schema."""
        registration = producer.registration

        def open_now() -> None:
            if self.producers.get(producer.channel) is producer:
                self._open(producer, self._fail_producer(producer))

        def on_found(reply: Command | IsterError) -> None:
            assert registration is not None
            if isinstance(reply, COMES_BACK) or self.link is not Link.OPEN:
                return  # It is opened on the next connection.
            if registration.is_known(reply):
                open_now()
            elif isinstance(reply, SchemaFound | NotFoundError):
                self.call(registration.command, on_registered)
            else:
                open_now()

        def on_registered(reply: Command | IsterError) -> None:
            if isinstance(reply, COMES_BACK) or self.link is not Link.OPEN:
                return
            if isinstance(reply, SchemaRegistered):
                producer.schema = reply.schema_id, reply.version
            elif isinstance(reply, IsterError) and not isinstance(reply, BusyError):
                # Another schema is there that this one cannot follow.
                self.producers.pop(producer.channel, None)
                producer.fail(reply)
            open_now()

        if registration is None:
            open_now()
        else:
            schema_id, version = producer.schema
            self.call(GetSchema(schema_id=schema_id, version=version), on_found)

    def _let_go(self, producer: ProducerChannel) -> None:
        if self.producers.pop(producer.channel, None) is not None:
            self.call(CloseProducer(channel=producer.channel), ignore)

    def _fail_producer(self, producer: ProducerChannel) -> OnReply:
        def on_reply(reply: Command | IsterError) -> None:
            if isinstance(reply, ProducerOpened) and reply.partitions:
                # Made anew since, with partitions: nothing could ever be sent on this channel.
                reply = TopicExistsError(producer.topic, f"with {reply.partitions} partitions")
            if isinstance(reply, IsterError) and not isinstance(reply, COMES_BACK):
                producer.fail(reply)

        return on_reply
