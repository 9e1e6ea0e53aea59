"""A session, and the broker's end of its connection, joined by nothing but bytes."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from ister.base.errors import IsterError
from ister.client.session import Event, ProducerChannel, Sent, Session, SubscriptionChannel
from ister.codec import Batch, Codec, encode
from ister.wire import (
    CREDIT,
    Command,
    Connection,
    Frame,
    Hello,
    Opcode,
    OpenProducer,
    ProducerOpened,
    Subscribe,
    Subscribed,
    TopicNumber,
    Welcome,
    control_frame,
    decode_command,
    deliver_frame,
    leased_frame,
    published_frame,
    runs_of,
    timed_runs_of,
)

TIMEOUT_MS = 30_000
HEARTBEAT_MS = 10_000
MESSAGE_BYTES_MAX = 8_000_000
TOPIC = "/default/orders"
TOPIC_NUMBER = 7
LEASE_MS = 30_000

# Frames that speak of leased messages.
_RUNS: dict[int, Callable[[memoryview], Sequence[tuple[int, ...]]]] = {
    Opcode.ACK: runs_of,
    Opcode.ACK_THROUGH: runs_of,
    Opcode.NACK: timed_runs_of,
    Opcode.EXTEND: timed_runs_of,
}


class Waiter:
    """The least a future is."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = False

    def done(self) -> bool:
        """Whether it has a result or an error."""
        return self._done

    def set_result(self, result: Any, /) -> None:
        """Finish it well."""
        self._done, self.result = True, result

    def set_exception(self, exception: BaseException, /) -> None:
        """Finish it badly."""
        self._done, self.error = True, exception


class WireEnd:
    """The broker's part, played by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.session = Session(
            client_id="client-1",
            secret="a secret of client 1",
            agent="test",
            now_ms=lambda: self.now_ms,
            on_dirty=lambda: None,
            timeout_ms=TIMEOUT_MS,
        )
        self._far = Connection(now_ms=0, heartbeat_ms=HEARTBEAT_MS)

    def dial(self, token: str = "") -> Hello:
        """Connect, and return what the client says first."""
        self._far = Connection(now_ms=0, heartbeat_ms=HEARTBEAT_MS)
        self.session.connected(token)
        [(_, hello)] = self.commands()
        assert isinstance(hello, Hello)
        self._far.opened(64 * 1024 * 1024)
        return hello

    def connect(self, **changes: Any) -> None:
        """Connect and welcome the client, with changes to the usual welcome."""
        self.dial()
        self.tell(welcome(**changes))

    def frames(self) -> list[Frame]:
        """Return what the client has sent since the last call."""
        self.session.flush()
        return self._far.receive(b"".join(self.session.outgoing()))

    def commands(self) -> list[tuple[int, Command]]:
        """Return the commands the client has sent, each with its sequence number."""
        return [
            (sequence, decode_command(body))
            for opcode, _, sequence, body in self.frames()
            if opcode == Opcode.CONTROL
        ]

    def published(self) -> list[tuple[int, int, list[bytes]]]:
        """Return channel, sequence and payloads of the batches the client has sent."""
        return [
            (channel, sequence, Batch(body).payloads)
            for opcode, channel, sequence, body in self.frames()
            if opcode in (Opcode.PUBLISH, Opcode.PUBLISH_BULK)
        ]

    def credit(self) -> list[tuple[int, int]]:
        """Return the credit the client has given, in messages and bytes."""
        return [CREDIT.unpack(body) for opcode, _, _, body in self.frames() if opcode == 4]

    def tell(self, command: Command, *, channel: int = 0, sequence: int = 0) -> None:
        """Send a command to the client."""
        self.session.receive(control_frame(command, channel=channel, sequence=sequence))

    def acknowledge(self, producer: ProducerChannel, sequence: int, offset: int) -> None:
        """Acknowledge a batch."""
        self.session.receive(published_frame(producer.channel, sequence, offset, 0))

    def deliver(self, subscription: SubscriptionChannel, payloads: Sequence[bytes]) -> None:
        """Send messages to a consumer."""
        batch = Batch(b"".join(encode(payloads)))
        self.session.receive(b"".join(deliver_frame(subscription.channel, TOPIC_NUMBER, batch)))

    def deliver_leased(
        self,
        subscription: SubscriptionChannel,
        payloads: Sequence[bytes],
        *,
        lease: int = 1,
        attempt: int = 1,
        base_offset: int = 0,
        offsets: Sequence[int] | None = None,
        lease_ms: int = LEASE_MS,
    ) -> None:
        """Send messages of a stream to a consumer."""
        batch = Batch(b"".join(encode(payloads, offsets=offsets)))
        batch.stamp(base_offset, 1)
        frame = leased_frame(subscription.channel, TOPIC_NUMBER, batch, lease, attempt, lease_ms)
        self.session.receive(b"".join(frame))

    def said(self) -> list[tuple[int, int, Sequence[tuple[int, ...]]]]:
        """Return what the client has said about leases: opcode, sequence and runs."""
        return [
            (opcode, sequence, _RUNS[opcode](body))
            for opcode, _, sequence, body in self.frames()
            if opcode in _RUNS
        ]

    def open_producer(self, *, resend: bool = False) -> ProducerChannel:
        """Open a producer, both ends of it."""
        replies: list[Command | IsterError] = []
        producer = self.session.open_producer(
            TOPIC, name="shop", codec=Codec.NONE, resend=resend, on_reply=replies.append
        )
        [(sequence, command)] = self.commands()
        assert isinstance(command, OpenProducer)
        self.tell(opened(), sequence=sequence)
        assert replies == [opened()]
        return producer

    def subscribe(
        self,
        *,
        count: int | None = 100,
        size_bytes: int = 1_000_000,
        type: str = "exclusive",
        policy: str = "least_loaded",
        found_type: str | UnsetType = UNSET,
        events: list[Event] | None = None,
        pull: bool = False,
        max_renewal_ms: int = 600_000,
    ) -> SubscriptionChannel:
        """Attach a consumer, both ends of it, and announce the topic."""
        told = [] if events is None else events
        subscription = SubscriptionChannel(
            self.session,
            Subscribe(
                topic=TOPIC,
                subscription="billing",
                consumer="me",
                channel=self.session.new_channel(),
                type=type,
                policy=policy,
            ),
            credit_count=count,
            credit_bytes=size_bytes,
            on_event=told.append,
            pull=pull,
            max_renewal_ms=max_renewal_ms,
        )
        self.session.receivers.subscribe(subscription, lambda _: None)
        [(sequence, _)] = self.commands()
        self.tell(Subscribed(active=True, type=found_type), sequence=sequence)
        self.tell(TopicNumber(number=TOPIC_NUMBER, topic=TOPIC))
        return subscription

    def resume(self, *, leases: int = 0) -> list[Command]:
        """Lose the connection, make a new one, and say yes to everything the client asks.

        `leases` is what the broker calls the life that its leases belong to.
        """
        self.session.disconnected("test")
        self.connect()
        asked = self.commands()
        for sequence, command in asked:
            subscribed = Subscribed(active=True, leases=leases)
            reply = opened() if isinstance(command, OpenProducer) else subscribed
            self.tell(reply, sequence=sequence)
        self.tell(TopicNumber(number=TOPIC_NUMBER, topic=TOPIC))
        return [command for _, command in asked]

    def events(self) -> None:
        """Make the calls to the application that are due."""
        while self.session.events:
            call, event = self.session.events.popleft()
            call(event)


def welcome(**changes: Any) -> Welcome:
    """Return the welcome of an ordinary broker."""
    fields: dict[str, Any] = {
        "version": 1,
        "broker": "test",
        "session": 99,
        "codecs": ["none"],
        "message_bytes_max": MESSAGE_BYTES_MAX,
        "batch_bytes_max": 2 * MESSAGE_BYTES_MAX,
        "heartbeat_ms": HEARTBEAT_MS,
    }
    return Welcome(**(fields | changes))


def opened() -> ProducerOpened:
    """Return the reply to a producer that was opened."""
    return ProducerOpened(topic=TOPIC, producer_id=1, partitions=0)


def send(producer: ProducerChannel, payload: bytes) -> Sent:
    """Send a bare payload."""
    return producer.send(payload, None, None, None, None, Sent)
