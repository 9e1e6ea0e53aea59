"""A live topic: stamps batches and hands them to its subscriptions. Stores nothing."""

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias

from ister.base import TopicName, TopicReport
from ister.base.limits import KIB, MIB
from ister.broker.schema_checks import SchemaCheck
from ister.codec import Batch

if TYPE_CHECKING:
    from ister.broker.live.subscription import Subscription
    from ister.broker.streams import StreamTopic

# What is published in one go when messages have to be looked at, as far as that can be told.
AT_ONCE_US = 4_000
# Subscriptions that are given a batch in one go, 5 µs each; and between two looks at the clock.
SUBSCRIPTIONS_AT_ONCE = 256
SUBSCRIPTIONS_PER_STEP = 32
# The same for batches that take long to be written: up to 1 ms for each MiB.
AT_ONCE_BYTES = 16 * MIB
STEP_BYTES = 32 * KIB
# Messages that are divided among very many consumers in one go: 10 µs for each that gets some.
SHARED_AT_ONCE = 1_024

# `True` when nothing could be done: another batch is being published.
Pieces = Generator[bool | None, None, None]

AnyTopic: TypeAlias = "Topic | StreamTopic"


class Topic:
    """One non-partitioned topic, or one partition.

    Always true: offsets rise by one per message, and every subscription sees batches in the
    order of their offsets.
    """

    kind = "live"

    __slots__ = (
        "busy",
        "bytes_in",
        "deleted",
        "messages_dropped",
        "messages_in",
        "messages_out",
        "name",
        "next_offset",
        "number",
        "producers",
        "schema_check",
        "subscriptions",
        "weight",
    )

    def __init__(self, name: TopicName, number: int) -> None:
        self.name = name
        # What deliver frames call this topic; never used again after the topic is deleted.
        self.number = number
        self.next_offset = 0
        self.subscriptions: list[Subscription] = []
        # What its subscriptions look at for each message: filters, and owners of keys.
        self.weight = 0
        # Whether a batch is being published in steps: others wait, for the order of offsets.
        self.busy = False
        self.producers = 0
        self.deleted = False
        self.schema_check: SchemaCheck | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.messages_dropped = 0

    def attach(self, subscription: "Subscription") -> None:
        """Have a subscription get what is published from now on."""
        self.subscriptions.append(subscription)
        self.weight += subscription.weight

    def detach(self, subscription: "Subscription") -> None:
        """Have a subscription get nothing more."""
        self.subscriptions.remove(subscription)
        self.weight -= subscription.weight

    def is_long(self, batch: Batch) -> bool:
        """Whether a batch takes so long that it has to be published in steps."""
        subscriptions, count = self.subscriptions, batch.count
        if len(subscriptions) > SUBSCRIPTIONS_AT_ONCE:
            return True
        if len(subscriptions) * batch.size_bytes > AT_ONCE_BYTES:
            return True
        # A glob takes 1 µs, and a long value up to 60 ns a byte.
        if self.weight and self.weight * (count + batch.columns_bytes // 16) > AT_ONCE_US:
            return True
        return count > SHARED_AT_ONCE and any(s.is_crowded for s in subscriptions)

    def publish(self, batch: Batch, now_ms: int) -> int:
        """Give `batch` its offsets and send it on.

        Returns how many of its messages at least one consumer was sent or has queued.
        """
        count = batch.count
        self._stamp(batch, now_ms)
        reached = 0
        for subscription in self.subscriptions:
            taken = subscription.dispatch(self, batch)
            reached = max(reached, taken)
        if reached < count:
            if reached and len(self.subscriptions) > 1:
                # Filters may have given each subscription other messages of the batch.
                reached = len(self.wanted(batch))
            self.messages_dropped += count - reached
        return reached

    def publish_in_steps(
        self, batch: Batch, now_ms: int
    ) -> Generator[bool | None, None, bytearray]:
        """As `publish`, with others having their turn between two steps.

        Returns for each message whether any consumer was sent or has queued it. Who subscribes
        meanwhile does not get the batch. Until it is done the topic is `busy`.
        """
        self._stamp(batch, now_ms)
        self.busy = True
        reached = bytearray(batch.count)
        each = SUBSCRIPTIONS_PER_STEP if batch.size_bytes <= STEP_BYTES else 1
        try:
            for slot, subscription in enumerate(tuple(self.subscriptions)):
                yield from subscription.dispatch_in_steps(self, batch, reached)
                if slot % each == 0:
                    yield None
        finally:
            self.busy = False
            self.messages_dropped += reached.count(0)
        return reached

    def wanted(self, batch: Batch) -> set[int]:
        """Return the slots of a batch that some subscription has a consumer for."""
        return set().union(*(s.wanted(batch) for s in self.subscriptions))

    def _stamp(self, batch: Batch, now_ms: int) -> None:
        batch.base_offset = self.next_offset
        batch.publish_time_ms = now_ms
        self.next_offset += batch.count
        self.messages_in += batch.count
        self.bytes_in += batch.size_bytes

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
