"""One consumer: its credit, and the bounded queue of what it cannot take yet.

Always true:
- nothing is sent without message credit; byte credit may be overdrawn by one batch, so that a
  batch larger than the window still passes;
- the queue is within its limits (one batch may be larger than they are), and what overflows is
  the oldest of this consumer alone: a slow consumer slows nobody else;
- all queues together are within theirs, and the fullest pay for it;
- messages leave in the order they were offered, as many in a turn of the loop as there is time for.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ister.base import ConsumerReport
from ister.base.errors import IsterError
from ister.base.limits import CREDIT_MAX, Limits
from ister.broker.consumers.sink import Sink, SourceTopic
from ister.broker.scheduling import Turns
from ister.codec import Batch, Codec
from ister.subscriptions import KeyMatcher

# Batches sent from a queue, or passed on from it, without a look at the clock: 5 µs each.
BATCHES_AT_ONCE = 64


def nothing() -> None:
    """For what nobody wants to know."""


@dataclass(slots=True)
class QueueBudget:
    """What all queues of a broker hold together."""

    limits: Limits
    turns: Turns
    queued_bytes: int = 0
    holders: "set[Consumer]" = field(default_factory=set)

    def shed(self) -> None:
        """Free an eighth of the budget, by halving the fullest queues.

        An eighth, so that sorting thousands of queues happens once in many megabytes.
        """
        goal_bytes = self.limits.queues_bytes_max * 7 // 8
        for consumer in sorted(self.holders, key=lambda c: c.queued_bytes, reverse=True):
            if self.queued_bytes <= goal_bytes:
                return
            consumer.drop_oldest(consumer.queued_bytes // 2)


class Consumer:
    """One consumer of a subscription: its credit, and the queue of what it cannot take yet."""

    __slots__ = (
        "_budget",
        "_delivered_before",
        "_notified_dropped",
        "_queue",
        "_sent_of_first",
        "_waits",
        "channel",
        "credit_bytes",
        "credit_count",
        "delivered",
        "dropped",
        "held",
        "identity",
        "matcher",
        "name",
        "on_closed",
        "on_credit",
        "on_void",
        "owner",
        "queued_bytes",
        "queued_count",
        "relieve",
        "sink",
    )

    def __init__(
        self,
        *,
        name: str,
        owner: str,
        sink: Sink,
        channel: int,
        matcher: KeyMatcher,
        budget: QueueBudget,
    ) -> None:
        self.name = name
        self.owner = owner
        # Who leases messages of a stream: the same client under the same name.
        self.identity = (owner, name)
        # What else to do when there is credit again: durable subscriptions hand out then.
        self.on_credit: list[Callable[[], object]] = []
        # The same, of a shared subscription on live topics: sends what waits for the others.
        self.relieve: Callable[[Consumer], object] | None = None
        # Of a client that comes back: the leases it still holds, if it says.
        self.held: frozenset[int] | None = None
        # For whoever attached it: it was closed; its leases are void.
        self.on_closed: Callable[[], object] = nothing
        self.on_void: Callable[[], object] = nothing
        self.sink = sink
        self.channel = channel
        self.matcher = matcher
        self.credit_count = 0
        self.credit_bytes = 0
        self.queued_count = 0
        self.queued_bytes = 0
        self.delivered = 0
        self.dropped = 0
        self._budget = budget
        self._delivered_before = 0
        self._notified_dropped = 0
        self._queue: deque[tuple[SourceTopic, Batch]] = deque()
        # How many messages of the queue's first batch have been sent. Cutting off the rest each
        # time instead would copy a large batch once for every small grant of credit.
        self._sent_of_first = 0
        # Whether it goes on sending from the queue in a later turn of the loop.
        self._waits = False

    @property
    def ready(self) -> bool:
        """Whether it can be sent something now."""
        return self.credit_count > 0 and self.credit_bytes > 0 and self.sink.writable

    @property
    def load(self) -> int:
        """Messages queued, or sent since the consumer last made room.

        Not what is missing of its window: a client may change that, and does not say so.
        """
        return self.delivered - self._delivered_before + self.queued_count

    def offer(self, topic: SourceTopic, batch: Batch) -> None:
        """Send `batch` now, or queue it, dropping the oldest when the queue is full."""
        count, sink = batch.count, self.sink
        if (
            not self._queue
            and self.credit_count >= count
            and self.credit_bytes > 0
            and sink.writable
        ):
            # What `_send` does, without the call.
            self.credit_count -= count
            self.credit_bytes -= batch.size_bytes
            self.delivered += count
            topic.messages_out += count
            sink.deliver(self.channel, topic, batch)
            return
        self.enqueue(topic, batch)
        if not self._waits:
            self.send_queued()

    def grant(self, count: int, size_bytes: int) -> None:
        """Add credit, and use it."""
        self._delivered_before = self.delivered
        self.credit_count = min(self.credit_count + count, CREDIT_MAX)
        self.credit_bytes = min(self.credit_bytes + size_bytes, CREDIT_MAX)
        self.resume()

    def withdraw(self) -> None:
        """Take its credit back, until it grants more."""
        self.credit_count = 0

    def resume(self) -> None:
        """Send what there is room for again, of live topics and of streams."""
        self._send_waiting()
        for call in self.on_credit:
            call()

    def close(self, reason: str, *, error: IsterError | None = None) -> None:
        """The broker ends it: tell the consumer, and whoever attached it."""
        self.sink.consumer_closed(self.channel, reason, error=error)
        self.on_closed()

    def send_leased(
        self, topic: SourceTopic, batch: Batch, lease: int, attempt: int, lease_ms: int
    ) -> None:
        """Send a batch of a stream. The caller has looked at the credit."""
        count = batch.count
        self.credit_count -= count
        self.credit_bytes -= batch.size_bytes
        self.delivered += count
        topic.messages_out += count
        self.sink.deliver_leased(self.channel, topic, batch, lease, attempt, lease_ms)

    def send_queued(self) -> None:
        """Send from the queue while credit and connection allow."""
        queue = self._queue
        not_notified = self._notified_dropped == 0
        sent = 0
        while queue and self.credit_count > 0 and self.credit_bytes > 0 and self.sink.writable:
            if sent % BATCHES_AT_ONCE == BATCHES_AT_ONCE - 1 and not self._budget.turns.join():
                self.wait()
                break
            sent += 1
            self._send(*self.take_part(self.credit_count))
        if not queue:
            self._budget.holders.discard(self)
        elif self._budget.queued_bytes > self._budget.limits.queues_bytes_max:
            self._budget.shed()
        if self.dropped != self._notified_dropped and (sent or not_notified):
            self.notify_dropped()

    def send_from(self, other: "Consumer") -> None:
        """Send what waits in the queue of another one, while credit and connection allow."""
        sent = 0
        while other.queued_count and self.ready:
            if sent % BATCHES_AT_ONCE == BATCHES_AT_ONCE - 1 and not self._budget.turns.join():
                self.wait()
                break
            sent += 1
            self._send(*other.take_part(self.credit_count))
        if not other.queued_count:
            self._budget.holders.discard(other)
        if sent:
            other.notify_dropped()

    def wait(self) -> None:
        """Go on sending what waits in a later turn of the loop."""
        if not self._waits:
            self._waits = True
            self._budget.turns.wait(self)

    def go_through(self) -> None:
        """Go on with what an earlier turn was too short for."""
        self._waits = False
        self._send_waiting()

    def _send_waiting(self) -> None:
        if self._queue:
            self.send_queued()
        elif self.relieve is not None:
            self.relieve(self)

    def drop_oldest(self, goal_bytes: int) -> None:
        """Drop from the queue until no more than `goal_bytes` are left in it."""
        while self.queued_bytes > goal_bytes:
            self._drop_first()
        if not self._queue:
            self._budget.holders.discard(self)
        if self._notified_dropped == 0:
            self.notify_dropped()

    def notify_dropped(self) -> None:
        """Tell a slow consumer that it is slow: at the first drop, then as it makes progress.

        One notice for every drop would only make a slow connection slower.
        """
        if self.dropped != self._notified_dropped and self.sink.writable:
            self._notified_dropped = self.dropped
            self.sink.slow_consumer(self.channel, self.dropped)

    def take_first(self) -> tuple[SourceTopic, Batch] | None:
        """Take what was never sent of the first batch out of the queue."""
        if not self._queue:
            self._budget.holders.discard(self)
            return None
        return self.take_part(CREDIT_MAX)

    def inherit(self, former: "Consumer") -> None:
        """Take over what another consumer was not sent; nothing was offered to this one yet."""
        assert not self._queue, "nobody is offered anything before its turn"
        self._queue, self._sent_of_first = former.give_queue()
        self.queued_count, former.queued_count = former.queued_count, 0
        self.queued_bytes, former.queued_bytes = former.queued_bytes, 0
        if self._queue:
            self._budget.holders.add(self)
        self.send_queued()

    def give_queue(self) -> tuple[deque[tuple[SourceTopic, Batch]], int]:
        """Return the queue, and how many messages of its first batch were sent; forget both."""
        given = self._queue, self._sent_of_first
        self._queue, self._sent_of_first = deque(), 0
        self._budget.holders.discard(self)
        return given

    def on_left(self) -> None:
        """It has left: whatever becomes of its queue, it is not told."""
        self._notified_dropped = -1

    def report(self, *, active: bool) -> ConsumerReport:
        """Return the figures of this consumer."""
        return ConsumerReport(
            name=self.name,
            address=self.sink.address,
            active=active,
            credit=self.credit_count,
            queued=self.queued_count,
            queued_bytes=self.queued_bytes,
            delivered=self.delivered,
            dropped=self.dropped,
        )

    def _send(self, topic: SourceTopic, batch: Batch) -> None:
        count = batch.count
        self.credit_count -= count
        self.credit_bytes -= batch.size_bytes
        self.delivered += count
        topic.messages_out += count
        self.sink.deliver(self.channel, topic, batch)

    def take_part(self, count_max: int) -> tuple[SourceTopic, Batch]:
        """Take up to so many messages of the queue's first batch, of those that were not sent."""
        topic, batch = self._queue[0]
        start = self._sent_of_first
        if batch.count - start <= count_max:
            self._pop_first()
            return topic, batch.slice(start, batch.count)
        if batch.codec is not Codec.NONE:
            # Unpacked once and counted as what it takes, not once for each part.
            plain = batch.plain()
            self._queue[0] = (topic, plain)
            self._count_bytes(plain.size_bytes - batch.size_bytes)
            batch = plain
        self._sent_of_first = start + count_max
        self.queued_count -= count_max
        return topic, batch.slice(start, start + count_max)

    def enqueue(self, topic: SourceTopic, batch: Batch) -> None:
        """Queue `batch`, dropping the oldest when the queue is full."""
        batch = batch.detached()
        self._queue.append((topic, batch))
        self.queued_count += batch.count
        self._count_bytes(batch.size_bytes)
        self._budget.holders.add(self)
        limits = self._budget.limits
        while len(self._queue) > 1 and (
            self.queued_bytes > limits.queue_bytes_max or self.queued_count > limits.queue_count_max
        ):
            self._drop_first()

    def _drop_first(self) -> None:
        topic, _ = self._queue[0]
        dropped = self._pop_first()
        self.dropped += dropped
        topic.messages_dropped += dropped

    def _pop_first(self) -> int:
        """Take the first batch out of the queue; return how many of its messages were unsent."""
        _, batch = self._queue.popleft()
        unsent = batch.count - self._sent_of_first
        self.queued_count -= unsent
        self._sent_of_first = 0
        self._count_bytes(-batch.size_bytes)
        return unsent

    def _count_bytes(self, change: int) -> None:
        self.queued_bytes += change
        self._budget.queued_bytes += change
