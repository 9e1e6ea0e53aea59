"""A broker whose connections are lists and whose clock stands still until it is moved."""

from collections.abc import Callable, Sequence
from typing import Any

from ister.base import Clock, Timer
from ister.base.errors import IsterError
from ister.base.limits import Limits
from ister.broker import (
    Broker,
    Membership,
    Producer,
    SourceTopic,
    SubscribeOptions,
)
from ister.codec import Batch, Codec, ReplyAddress, encode
from ister.subscriptions import Responder

OWN = "own client"


class FakeTimer:
    """A call that never happens."""

    def cancel(self) -> None:
        """Nothing to undo."""


class FakeClock:
    """Time stands at `ms` until a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def now_us(self) -> int:
        return self.ms * 1000

    def monotonic_ms(self) -> int:
        return self.ms

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        return FakeTimer()


class FakeSink:
    """The outside end of a connection: writes down what it is told."""

    def __init__(self, address: str = "memory") -> None:
        self.writable = True
        self.responder = Responder(lambda: 0)
        self.address = address
        self.batches: list[tuple[int, str, Batch]] = []
        self.slow: list[tuple[int, int]] = []
        self.active: list[tuple[int, bool]] = []
        self.closed: list[tuple[int, str]] = []
        self.replies: list[Batch] = []
        self.unanswered: list[int] = []

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        self.batches.append((channel, topic.name, batch))

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        self.batches.append((channel, topic.name, batch))

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        raise AssertionError("live consumers have no leases")

    def slow_consumer(self, channel: int, dropped: int) -> None:
        self.slow.append((channel, dropped))

    def active_changed(self, channel: int, *, active: bool) -> None:
        self.active.append((channel, active))

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        self.closed.append((channel, reason))

    def reply(self, batch: Batch) -> None:
        self.replies.append(batch)

    def no_responder(self, requests: list[int]) -> None:
        self.unanswered += requests

    @property
    def payloads(self) -> list[bytes]:
        """Everything delivered, in order."""
        return [payload for _, _, batch in self.batches for payload in batch.payloads]

    @property
    def offsets(self) -> list[int]:
        return [offset for _, _, batch in self.batches for offset in batch.offsets]


class Bench:
    """A broker with one line for each thing a test does to it."""

    def __init__(
        self,
        *,
        random_slot: Callable[[int], int] = lambda _: 0,
        clock: Clock | None = None,
        **limits: int,
    ) -> None:
        self.clock = FakeClock()
        self.broker = Broker(
            name="test", limits=Limits(**limits), clock=clock or self.clock, random_slot=random_slot
        )
        self._producers: dict[str, Producer] = {}
        self._channel = 0

    def consume(
        self,
        topic: str = "/default/a",
        subscription: str = "s",
        *,
        credit: int = 1_000_000,
        credit_bytes: int = 1_000_000_000,
        owner: str = OWN,
        sink: FakeSink | None = None,
        **options: Any,
    ) -> "Attached":
        """Attach a consumer with plenty of credit unless told otherwise."""
        self._channel += 1
        sink = sink or FakeSink()
        options = {"consumer": f"c{self._channel}", "filters": {}} | options
        found: list[Membership | IsterError] = []
        self.broker.subscribers.subscribe(
            SubscribeOptions(topic=topic, subscription=subscription, **options),
            found.append,
            owner=owner,
            sink=sink,
            channel=self._channel,
        )
        assert isinstance(found[0], Membership)
        attached = Attached(self.broker, sink, found[0])
        if credit:
            attached.consumer.grant(credit, credit_bytes)
        return attached

    def producer(self, topic: str = "/default/a") -> Producer:
        if topic not in self._producers:
            self._producers[topic] = self.broker.open_producer(topic, "p")
        return self._producers[topic]

    def publish(
        self,
        *payloads: bytes,
        topic: str = "/default/a",
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[dict[str, str] | None] | None = None,
        replies: Sequence[ReplyAddress] | None = None,
        codec: Codec = Codec.NONE,
    ) -> Batch:
        """Publish one batch and return it, stamped."""
        head, body = encode(
            payloads, keys=keys, attributes=attributes, replies=replies, producer=b"p", codec=codec
        )
        batch = Batch(head + body)
        for _ in self.broker.publish(self.producer(topic), batch) or ():
            pass
        return batch

    def topic_report(self, topic: str = "/default/a") -> Any:
        return next(r for r in self.broker.topics("", after="", limit=1000)[0] if r.topic == topic)


class Attached:
    """A consumer with its subscription and its connection."""

    def __init__(self, broker: Broker, sink: FakeSink, membership: Membership) -> None:
        assert membership.live is not None
        self.broker = broker
        self.sink = sink
        self.membership = membership
        self.subscription = membership.live
        self.consumer = membership.consumer
        self.active = membership.active

    def leave(self) -> None:
        self.broker.subscribers.unsubscribe(self.membership)

    @property
    def payloads(self) -> list[bytes]:
        return self.sink.payloads


def numbered(start: int, end: int) -> list[bytes]:
    """Payloads that tell their own order."""
    return [b"%03d" % number for number in range(start, end)]
