"""A subscription: its consumers, and the dispatch of batches to them.

One subscription may cover many topics (a pattern, the partitions of a topic). Always true:
- its consumers follow the rules of `roster`;
- what a consumer was never sent goes to the others when it leaves, in order.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ister.base import Pattern, SubscriptionReport
from ister.base.errors import SubscriptionMismatchError
from ister.base.limits import LISTED_CONSUMERS_MAX
from ister.broker.consumer import Consumer
from ister.broker.roster import Roster
from ister.broker.topic import Topic
from ister.codec import Batch
from ister.subscriptions import (
    Filter,
    Policy,
    SubscriptionType,
    in_turn,
    keys_of,
    to_least_loaded,
)

if TYPE_CHECKING:
    from ister.broker.attachments import Attachment

RandomSlot = Callable[[int], int]


class Subscription:
    """See the module."""

    __slots__ = (
        "_direct",
        "_random_slot",
        "_turn",
        "attachments",
        "consumers",
        "filter",
        "messages_dropped",
        "messages_out",
        "name",
        "pattern",
        "policy",
        "roster",
        "topics",
        "type",
    )

    def __init__(
        self,
        *,
        pattern: Pattern,
        name: str,
        type_: SubscriptionType,
        policy: Policy,
        filter_: Filter,
        random_slot: RandomSlot,
    ) -> None:
        self.pattern = pattern
        self.name = name
        self.type = type_
        self.policy = policy
        self.filter = filter_
        self.roster = Roster(type_)
        # Of the roster, for the hot path.
        self.consumers = self.roster.consumers
        self.topics: list[Topic] = []
        # Of the consumers of a pattern, which may come to cover streams as well.
        self.attachments: dict[Consumer, Attachment] = {}
        # Of consumers that have left.
        self.messages_out = 0
        self.messages_dropped = 0
        # One consumer gets everything: nothing to decide on the hot path.
        self._direct = filter_.takes_all and type_ in (
            SubscriptionType.EXCLUSIVE,
            SubscriptionType.FAILOVER,
        )
        self._turn = 0
        self._random_slot = random_slot

    def check_same(self, *, type_: SubscriptionType, policy: Policy, filter_: Filter) -> None:
        """Raise `SubscriptionMismatchError` unless a newcomer asks for what is in use."""
        detail = ""
        if type_ is not self.type:
            detail = f"type {self.type.value!r}"
        elif policy is not self.policy:
            detail = f"policy {self.policy.value!r}"
        elif filter_.attributes != self.filter.attributes:
            detail = f"filters {self.filter.attributes}"
        elif filter_.key_globs != self.filter.key_globs:
            detail = f"key filters {list(self.filter.key_globs)}"
        if detail:
            raise SubscriptionMismatchError(self.pattern, self.name, detail)

    def attach(self, consumer: Consumer, *, consumers_max: int) -> bool:
        """Add a consumer and return whether it is active now.

        The same client coming back under the same name takes the place of its former self.
        """
        former = self.roster.join(
            consumer, of=(self.pattern, self.name), consumers_max=consumers_max
        )
        if former is not None:
            self.messages_out += former.delivered
            self.messages_dropped += former.dropped
            consumer.inherit(former.take_queue())
        return self.roster.is_active(consumer)

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; what it was not sent goes to the others. Harmless if it has left."""
        self.attachments.pop(consumer, None)
        if consumer not in self.roster:
            return
        promoted = self.roster.leave(consumer)
        self.messages_out += consumer.delivered
        self.messages_dropped += consumer.dropped
        left_over = consumer.take_queue()
        if promoted is not None:
            promoted.inherit(left_over)
            return
        for topic, batch in left_over:
            lost = batch.count - (self._hand_out(topic, batch) if self.consumers else 0)
            self.messages_dropped += lost
            topic.messages_dropped += lost

    def dispatch(self, topic: Topic, batch: Batch) -> int:
        """Give a batch to the consumers; return how many of its messages found one."""
        if self._direct:
            self.consumers[0].offer(topic, batch)
            return batch.count
        if not self.filter.takes_all:
            slots = self.filter.select(batch)
            if slots is not None:
                if not slots:
                    return 0
                batch = batch.select(slots)
        return self._hand_out(topic, batch)

    def wanted(self, batch: Batch) -> set[int]:
        """Return the slots that `dispatch` would find a consumer for."""
        slots = self.filter.select(batch)
        wanted = set(range(len(batch)) if slots is None else slots)
        if self.type is SubscriptionType.KEY_SHARED:
            keys = keys_of(batch)
            wanted = {s for s in wanted if self.roster.ring.owner(keys[s]) is not None}
        return wanted if self.consumers else set()

    def report(self) -> SubscriptionReport:
        """Return the figures of this subscription, and of its first consumers."""
        return SubscriptionReport(
            topic=self.pattern,
            subscription=self.name,
            type=self.type.value,
            policy=self.policy.value,
            filters=self.filter.attributes,
            key_filters=list(self.filter.key_globs),
            topics=len(self.topics),
            messages_out=self.messages_out + sum(c.delivered for c in self.consumers),
            messages_dropped=self.messages_dropped + sum(c.dropped for c in self.consumers),
            consumers=[
                c.report(active=self.roster.is_active(c))
                for c in self.consumers[:LISTED_CONSUMERS_MAX]
            ],
        )

    def _hand_out(self, topic: Topic, batch: Batch) -> int:
        consumers = self.consumers
        if self.type is SubscriptionType.KEY_SHARED:
            return self._by_key(topic, batch)
        if self.type is not SubscriptionType.SHARED or len(consumers) == 1:
            consumers[0].offer(topic, batch)
            return batch.count
        if self.policy is Policy.LEAST_LOADED:
            shares = to_least_loaded(batch.count, [c.load for c in consumers])
        elif self.policy is Policy.ROUND_ROBIN:
            shares = in_turn(batch.count, len(consumers), first=self._turn)
            self._turn = (self._turn + batch.count) % len(consumers)
        else:
            shares = in_turn(batch.count, len(consumers), first=self._random_slot(len(consumers)))
        for slot, start, end in shares:
            consumers[slot].offer(topic, batch.slice(start, end))
        return batch.count

    def _by_key(self, topic: Topic, batch: Batch) -> int:
        if batch.keys is None:
            owner = self.roster.ring.owner(batch.producer)
            if owner is None:
                return 0
            self.roster.by_name[owner].offer(topic, batch)
            return batch.count
        # One pass: there may be as many owners as messages.
        slots: dict[str, list[int]] = {}
        for slot, owner in enumerate(map(self.roster.ring.owner, keys_of(batch))):
            if owner is not None:
                slots.setdefault(owner, []).append(slot)
        for owner, its_slots in slots.items():
            self.roster.by_name[owner].offer(topic, batch.select(its_slots))
        return sum(map(len, slots.values()))
