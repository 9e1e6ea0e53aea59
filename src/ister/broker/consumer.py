"""One consumer: its credit, and the bounded queue of what it cannot take yet.

Always true:
- nothing is sent without message credit; byte credit may be overdrawn by one batch, so that a
  batch larger than the window still passes;
- the queue is within its limits (one batch may be larger than they are), and what overflows is
  the oldest of this consumer alone: a slow consumer slows nobody else;
- messages leave in the order they were offered.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ister.base import ConsumerReport
from ister.base.limits import CREDIT_MAX, Limits
from ister.codec import Batch
from ister.subscriptions import KeyMatcher

if TYPE_CHECKING:
    from ister.broker.topic import Topic


class Sink(Protocol):
    """The way to a consumer: a door implements it for one connection."""

    # False while the connection's own send buffer is full.
    writable: bool
    address: str

    def deliver(self, channel: int, topic: "Topic", batch: Batch) -> None:
        """Send a batch."""

    def slow_consumer(self, channel: int, dropped: int) -> None:
        """Tell the consumer how many messages it has lost so far."""

    def active_changed(self, channel: int, *, active: bool) -> None:
        """Tell a standby that it was promoted."""

    def consumer_closed(self, channel: int, reason: str) -> None:
        """Tell the consumer that the broker closed it."""


@dataclass(slots=True)
class QueueBudget:
    """What all queues of a broker hold together."""

    limits: Limits
    queued_bytes: int = 0


class Consumer:
    """See the module."""

    __slots__ = (
        "_budget",
        "_credit_first",
        "_queue",
        "_told_dropped",
        "channel",
        "credit_bytes",
        "credit_count",
        "delivered",
        "dropped",
        "matcher",
        "name",
        "owner",
        "queued_bytes",
        "queued_count",
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
        self._credit_first = 0
        self._told_dropped = 0
        self._queue: deque[tuple[Topic, Batch]] = deque()

    @property
    def load(self) -> int:
        """Messages sent or queued that the consumer has not yet made room for again."""
        return self._credit_first - self.credit_count + self.queued_count

    def offer(self, topic: "Topic", batch: Batch) -> None:
        """Send `batch` now, or queue it, dropping the oldest when the queue is full."""
        if (
            not self._queue
            and self.credit_count >= batch.count
            and self.credit_bytes > 0
            and self.sink.writable
        ):
            self._send(topic, batch)
            return
        self._enqueue(topic, batch)
        self.pump()

    def grant(self, count: int, size_bytes: int) -> None:
        """Add credit, and use it."""
        if self._credit_first == 0:
            self._credit_first = count
        self.credit_count = min(self.credit_count + count, CREDIT_MAX)
        self.credit_bytes = min(self.credit_bytes + size_bytes, CREDIT_MAX)
        if self._queue:
            self.pump()

    def pump(self) -> None:
        """Send from the queue while credit and connection allow."""
        queue = self._queue
        while queue and self.credit_count > 0 and self.credit_bytes > 0 and self.sink.writable:
            topic, batch = queue.popleft()
            self._unqueue(batch)
            if batch.count > self.credit_count:
                rest = batch.slice(self.credit_count, batch.count)
                batch = batch.slice(0, self.credit_count)
                queue.appendleft((topic, rest))
                self._queued(rest)
            self._send(topic, batch)
        self.tell_dropped()

    def tell_dropped(self) -> None:
        """Tell a slow consumer once that it is slow, and again when it has caught up a bit."""
        if self.dropped != self._told_dropped and self.sink.writable:
            self._told_dropped = self.dropped
            self.sink.slow_consumer(self.channel, self.dropped)

    def take_queue(self) -> "deque[tuple[Topic, Batch]]":
        """Return what was never sent, and forget it."""
        queue, self._queue = self._queue, deque()
        self._budget.queued_bytes -= self.queued_bytes
        self.queued_count = self.queued_bytes = 0
        return queue

    def inherit(self, queue: "deque[tuple[Topic, Batch]]") -> None:
        """Take over what another consumer was not sent, ahead of everything of one's own."""
        for topic, batch in queue:
            self._enqueue(topic, batch)
        self.pump()

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

    def _send(self, topic: "Topic", batch: Batch) -> None:
        count = batch.count
        self.credit_count -= count
        self.credit_bytes -= batch.size_bytes
        self.delivered += count
        topic.messages_out += count
        self.sink.deliver(self.channel, topic, batch)

    def _enqueue(self, topic: "Topic", batch: Batch) -> None:
        batch = batch.detached()
        self._queue.append((topic, batch))
        self._queued(batch)
        limits, budget = self._budget.limits, self._budget
        while len(self._queue) > 1 and (
            self.queued_bytes > limits.queue_bytes_max
            or self.queued_count > limits.queue_count_max
            or budget.queued_bytes > limits.queues_bytes_max
        ):
            oldest_topic, oldest = self._queue.popleft()
            self._unqueue(oldest)
            self.dropped += oldest.count
            oldest_topic.messages_dropped += oldest.count

    def _queued(self, batch: Batch) -> None:
        self.queued_count += batch.count
        self.queued_bytes += batch.size_bytes
        self._budget.queued_bytes += batch.size_bytes

    def _unqueue(self, batch: Batch) -> None:
        self.queued_count -= batch.count
        self.queued_bytes -= batch.size_bytes
        self._budget.queued_bytes -= batch.size_bytes
