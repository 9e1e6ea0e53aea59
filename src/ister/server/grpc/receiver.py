"""One consumer of a Danube client: attached to its subscription, and the stream it reads.

    SUBSCRIBED --ReceiveMessages--> STREAMING --stream ends--> gone
    SUBSCRIBED --silent too long--> gone
    STREAMING --same consumer again--> STREAMING, the former stream ends with ABORTED

What is gone is made again when its id is used again.

Always true:
- what the broker hands over is written to the newest stream only, in that order;
- credit comes back when the client has taken a batch, so that a client that does not read gets no
  more than its window;
- a stream that the broker ends, ends with UNAVAILABLE or ABORTED: the end of a stream without an
  error stops some of Danube's clients for ever.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import structlog

from ister.base import AckSettings
from ister.base.errors import IsterError, SubscriptionNotFoundError, TopicNotFoundError
from ister.base.limits import MIB
from ister.broker import Broker, Membership, SourceTopic, StreamTopic, SubscribeOptions
from ister.codec import Batch, Column
from ister.server.grpc.calls.calls import Call
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.leases import Held, Leases
from ister.server.grpc.roll import ConsumerRecord
from ister.server.grpc.translation import DELIVERED_BYTES_MAX, messages_of
from ister.subscriptions import Responder
from ister.telemetry import Occasions
from ister.wire import BACKOFF_DELAY

logger = structlog.get_logger("grpc")

# Who owns consumers that came through this door: one of the same name takes the other's place.
OWNER = "danube"
# What is ahead of a client: enough for a few round trips, little to lose with a live topic.
CREDIT_COUNT = 256
CREDIT_BYTES = 8 * MIB
# What is written at once: more of it would only wait in front of the socket.
WRITE_BYTES = 64 * 1024
# What the loser of a take-over waits for the end of its stream: it comes again at once.
TAKEN_OVER_S = 1.0

# How messages of a new subscription are treated, by topic and subscription.
AcksOf = Callable[[str, str], AckSettings]


@dataclass(slots=True)
class Delivery:
    """A batch as the broker hands it over. The lease is 0 for live topics."""

    topic: SourceTopic
    batch: Batch
    lease: int = 0
    attempt: int = 0
    # When the lease ends, by the monotonic clock; and whether it has been voided.
    due_ms: int = 0
    void: bool = False


class Receiver:
    """One consumer of a Danube client.

    It is the broker's `Sink`; the channel counts how often it was attached.
    """

    writable = True

    def __init__(
        self,
        broker: Broker,
        leases: Leases,
        record: ConsumerRecord,
        *,
        acks_of: AcksOf,
        broker_url: str,
        told: Occasions,
    ) -> None:
        """`told` throttles what all consumers log."""
        self.record = record
        # Danube has no answers: whatever else may answer is asked first.
        self.responder = Responder(broker.clock.monotonic_ms)
        self._told = told
        self.address = ""
        # When it was made, or asked after its health.
        self.seen_ms = broker.clock.monotonic_ms()
        self.streaming = False
        self._broker = broker
        self._leases = leases
        self._acks_of = acks_of
        self._broker_url = broker_url
        self._membership: Membership | None = None
        self._times_attached = 0
        # How many are waiting for a place.
        self._attaching = 0
        self._queue: deque[Delivery] = deque()
        # What is being written, or was last.
        self._writing: Delivery | None = None
        self._wake: asyncio.Future[None] | None = None
        # Why the present stream ends.
        self._end: Refusal | None = None
        self._streams = 0

    @property
    def attached(self) -> bool:
        """Whether it has a place in its subscription."""
        return self._membership is not None

    @property
    def attaching(self) -> bool:
        """Whether it is about to have one."""
        return self._attaching > 0

    async def attach(self) -> None:
        """Take a place in the subscription, making that if it is not there.

        A former place of the same name is taken over, and what was held there is handed out again.
        """
        record, broker = self.record, self._broker
        if record.topic not in broker.catalog.topics:
            raise TopicNotFoundError(record.topic)
        self._times_attached += 1
        channel = self._times_attached
        found: asyncio.Future[Membership] = asyncio.get_running_loop().create_future()

        def done(result: Membership | IsterError) -> None:
            if found.done():
                if not isinstance(result, IsterError):
                    broker.subscribers.unsubscribe(result)
            elif isinstance(result, IsterError):
                found.set_exception(result)
            else:
                found.set_result(result)

        self._attaching += 1
        try:
            broker.subscribers.subscribe(
                self._options(), done, owner=OWNER, sink=self, channel=channel
            )
            membership = await found
            if membership.left and channel == self._times_attached:
                # Deleted in the very turn in which it was given.
                raise SubscriptionNotFoundError(record.topic, record.subscription)
        except BaseException:
            # The client has given up in the very turn in which it got its place.
            if found.done() and not found.cancelled() and found.exception() is None:
                broker.subscribers.unsubscribe(found.result())
            if channel == self._times_attached:
                # Nothing that comes for a former place is taken any more.
                self.detach()
            raise
        finally:
            self._attaching -= 1
        if channel != self._times_attached:
            # The same consumer has come once more, and has the place, or will have it.
            broker.subscribers.unsubscribe(membership)
            return
        self._release()
        self._membership = membership

    def detach(self) -> None:
        """Give the place back: what is held goes to the others, or to whoever comes next."""
        membership = self._membership
        if membership is not None:
            self._release()
            self._broker.subscribers.unsubscribe(membership)

    def end(self, refusal: Refusal) -> None:
        """End the stream, if there is one, with a status."""
        self._end = refusal
        self._wake_up()

    async def stream(self, call: Call) -> None:
        """Write messages to a stream until it is to end; raises the status it ends with."""
        # Also one that comes back: its former stream may not know yet that it is dead.
        was_streaming = self.streaming
        number = self._begin_stream()
        self.streaming = True
        try:
            if was_streaming or self._membership is None:
                await self.attach()
            if self._membership is not None:
                # What a former stream has left, of a live topic, is part of the window.
                count = CREDIT_COUNT - sum(one.batch.count for one in self._queue)
                size_bytes = CREDIT_BYTES - sum(one.batch.size_bytes for one in self._queue)
                self._membership.consumer.grant(max(count, 0), max(size_bytes, 0))
            while True:
                while self._queue and number == self._streams and self._end is None:
                    await self._write(call, self._queue.popleft())
                if number != self._streams:
                    await asyncio.sleep(TAKEN_OVER_S)
                    raise Refusal(StatusCode.ABORTED, "another stream of this consumer was opened")
                if self._end is not None:
                    raise self._end
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
        finally:
            if number == self._streams:
                self.streaming = False
                self.detach()

    def take_over(self) -> None:
        """End the stream, if there is one: the same consumer subscribes again."""
        self._begin_stream()
        self.streaming = False

    def _begin_stream(self) -> int:
        """Have every stream so far end, and return the number of the next."""
        self._streams += 1
        self._end = None
        self._wake_up()
        return self._streams

    # The broker's sink

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        """Queue a batch of a live topic."""
        if batch.columns & Column.REPLY:
            self.responder.on_asked(batch.count)
        self._queue.append(Delivery(topic, batch))
        self._wake_up()

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        """Queue a batch of a stream."""
        if channel == self._times_attached:
            due_ms = self._broker.clock.monotonic_ms() + lease_ms
            self._queue.append(Delivery(topic, batch, lease, attempt, due_ms))
            self._wake_up()

    def slow_consumer(self, channel: int, dropped: int) -> None:
        """Danube has no word for it."""

    def active_changed(self, channel: int, *, active: bool) -> None:
        """Danube's standbys notice when messages come."""

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        """The broker has taken the place away, or has given it to our own successor."""
        if channel == self._times_attached:
            self._release()
            self.end(Refusal(StatusCode.UNAVAILABLE, str(error or reason)))

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        """What was handed out is void: what of it is still here is not sent."""
        for delivery in self._queue:
            delivery.void = delivery.lease != 0
        if self._writing is not None:
            self._writing.void = self._writing.lease != 0
        if self._membership is not None:
            self._leases.leave(self.record.topic, self.record.subscription, self._membership)

    # Inner workings

    def _options(self) -> SubscribeOptions:
        """Return what to ask for: what is in use, whatever the client thinks."""
        record, broker = self.record, self._broker
        by_key = record.type == "key_shared"
        acks = self._acks_of(record.topic, record.subscription)
        options = SubscribeOptions(
            topic=record.topic,
            subscription=record.subscription,
            consumer=record.name,
            type=record.type,
            policy="round_robin" if record.type == "shared" else "least_loaded",
            key_filters=record.key_filters if by_key else (),
            filters={},
            # Of a key, one message at a time.
            acks=replace(acks, ordered=by_key),
            # Nothing: who comes back gets again what it has not acknowledged.
            held=[],
        )
        return joined(broker, options)

    async def _write(self, call: Call, delivery: Delivery) -> None:
        topic, batch, lease = delivery.topic.name, delivery.batch, delivery.lease
        membership, subscription = self._membership, self.record.subscription
        if membership is None:
            return
        self._writing = delivery
        # Before anything is awaited, which may take long.
        count, size_bytes = batch.count, batch.size_bytes
        is_over = self._is_over(delivery)
        messages = [] if is_over else messages_of(batch, topic, self._broker_url)
        for some in _portions(messages):
            await call.drained()
            if membership is not self._membership:
                return
            if self._is_over(delivery):
                # While the client did not read: somebody else may have the rest by now.
                break
            now_ms = self._broker.clock.monotonic_ms()
            encoded = []
            for offset, data in some:
                if len(data) > DELIVERED_BYTES_MAX:
                    self._refuse(membership, lease, topic, offset, len(data))
                    continue
                if lease:
                    held = Held(membership, lease, delivery.attempt, delivery.due_ms)
                    self._leases.add(topic, subscription, offset, held, now_ms=now_ms)
                encoded.append(data)
            call.write(encoded)
        # No credit before the client has taken all of it.
        await call.drained()
        membership.consumer.grant(count, size_bytes)

    def _is_over(self, delivery: Delivery) -> bool:
        """Whether a lease was voided, or has ended."""
        if not delivery.lease:
            return False
        return delivery.void or delivery.due_ms <= self._broker.clock.monotonic_ms()

    def _refuse(
        self, membership: Membership, lease: int, topic: str, offset: int, size_bytes: int
    ) -> None:
        """A message that Danube's clients cannot receive counts as one that went wrong."""
        if times := self._told.times("message_too_large_for_danube"):
            logger.warning(
                "message_too_large_for_danube",
                topic=topic,
                subscription=self.record.subscription,
                offset=offset,
                size_bytes=size_bytes,
                times=times,
            )
        if lease:
            membership.nack([(lease, offset, offset + 1, BACKOFF_DELAY)], BACKOFF_DELAY)

    def _release(self) -> None:
        """Forget the place, and what was held there."""
        membership, self._membership = self._membership, None
        if membership is not None:
            self._leases.leave(self.record.topic, self.record.subscription, membership)
        self._queue = deque(one for one in self._queue if not one.lease)

    def _wake_up(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)


def _portions(messages: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Divide messages into what is written at once."""
    some: list[tuple[int, bytes]] = []
    size_bytes = 0
    for one in messages:
        some.append(one)
        size_bytes += len(one[1])
        if size_bytes >= WRITE_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def joined(broker: Broker, options: SubscribeOptions) -> SubscribeOptions:
    """Return `options` as they are for a subscription that exists: it keeps what it was made with.

    A Danube consumer that asks for another type joins what is there; and an operator may have
    changed how failures are treated.
    """
    live = broker.subscribers.find_live(options.topic, options.subscription)
    if live is not None:
        by_key = live.type.value == "key_shared"
        return replace(
            options,
            type=live.type.value,
            policy=live.policy.value,
            filters=live.filter.attributes,
            key_filters=options.key_filters if by_key else live.filter.key_globs,
        )
    topic = broker.catalog.topics.get(options.topic)
    if not isinstance(topic, StreamTopic):
        return options
    durable = broker.durables.find(options.topic, options.subscription, topic.storage)
    if durable is None:
        return options
    created = durable.record.created
    by_key = created.type == "key_shared"
    return replace(
        options,
        type=created.type,
        policy=created.policy,
        filters=created.filters,
        key_filters=options.key_filters if by_key else created.key_filters,
        acks=None,
    )
