"""A live topic: stamps batches and hands them to its subscriptions. Stores nothing."""

from typing import TYPE_CHECKING, TypeAlias

from ister.base import TopicName, TopicReport
from ister.broker.guarding import Guard
from ister.codec import Batch

if TYPE_CHECKING:
    from ister.broker.stream import StreamTopic
    from ister.broker.subscription import Subscription

AnyTopic: TypeAlias = "Topic | StreamTopic"


class Topic:
    """One non-partitioned topic, or one partition.

    Always true: offsets rise by one per message, and every subscription sees batches in the
    order of their offsets.
    """

    kind = "live"

    __slots__ = (
        "bytes_in",
        "deleted",
        "guard",
        "messages_dropped",
        "messages_in",
        "messages_out",
        "name",
        "next_offset",
        "number",
        "producers",
        "subscriptions",
    )

    def __init__(self, name: TopicName, number: int) -> None:
        self.name = name
        # What deliver frames call this topic; never used again after the topic is deleted.
        self.number = number
        self.next_offset = 0
        self.subscriptions: list[Subscription] = []
        self.producers = 0
        self.deleted = False
        self.guard: Guard | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.messages_dropped = 0

    def publish(self, batch: Batch, now_ms: int) -> int:
        """Give `batch` its offsets and send it on.

        Returns how many of its messages at least one consumer was sent or has queued.
        """
        count = batch.count
        batch.base_offset = self.next_offset
        batch.publish_time_ms = now_ms
        self.next_offset += count
        self.messages_in += count
        self.bytes_in += batch.size_bytes
        reached = 0
        for subscription in self.subscriptions:
            taken = subscription.dispatch(self, batch)
            reached = max(reached, taken)
        if reached < count:
            if reached and len(self.subscriptions) > 1:
                # Filters may have given each subscription other messages of the batch.
                reached = len(set().union(*(s.wanted(batch) for s in self.subscriptions)))
            self.messages_dropped += count - reached
        return reached

    def report(self) -> TopicReport:
        """Return the figures of this topic."""
        return TopicReport(
            topic=self.name,
            kind="live",
            partitions=0,
            producers=self.producers,
            subscriptions=len(self.subscriptions),
            messages_in=self.messages_in,
            bytes_in=self.bytes_in,
            messages_out=self.messages_out,
            messages_dropped=self.messages_dropped,
            next_offset=self.next_offset,
        )
