"""The consumers of one subscription: who may join, who is active, who owns which key.

Always true:
- an exclusive subscription has at most one consumer;
- the first consumer of a failover subscription is the active one, the others wait in the order
  they came.
"""

from ister.base.errors import (
    ConsumerNameTakenError,
    LimitReachedError,
    SubscriptionTakenError,
)
from ister.base.limits import KEY_GLOBS_MAX
from ister.broker.consumers.consumer import Consumer
from ister.subscriptions import Ring, SubscriptionType


class Members:
    """The consumers of one subscription."""

    __slots__ = ("away", "by_name", "consumers", "delivered_before", "ring", "type")

    def __init__(self, type_: SubscriptionType) -> None:
        self.type = type_
        self.consumers: list[Consumer] = []
        self.by_name: dict[str, Consumer] = {}
        self.ring = Ring()
        # Those whose connection broke, and for whom leases are kept for a while.
        self.away: set[tuple[str, str]] = set()
        # Messages delivered to those that have left.
        self.delivered_before = 0

    def join(
        self, consumer: Consumer, *, of: tuple[str, str], consumers_max: int
    ) -> Consumer | None:
        """Add a consumer to the subscription `of` (topic and name).

        The same client coming back under the same name takes the place of its former self, which
        is returned.
        """
        self.check(consumer, of=of, consumers_max=consumers_max)
        former = self.by_name.get(consumer.name)
        if former is not None:
            former.sink.consumer_closed(former.channel, "the same consumer connected again")
            self.consumers[self.consumers.index(former)] = consumer
            self.delivered_before += former.delivered
        else:
            self.consumers.append(consumer)
        self.by_name[consumer.name] = consumer
        self.away.discard(consumer.identity)
        if self.type is SubscriptionType.KEY_SHARED:
            if former is not None:
                self.ring.leave(consumer.name)
            self.ring.join(consumer.name, consumer.matcher)
        return former

    def check(self, consumer: Consumer, *, of: tuple[str, str], consumers_max: int) -> None:
        """Raise why a consumer cannot join the subscription `of` (topic and name)."""
        topic, name = of
        former = self.by_name.get(consumer.name)
        if former is not None:
            if former.owner != consumer.owner:
                raise ConsumerNameTakenError(name, consumer.name)
            return
        if self.type is SubscriptionType.EXCLUSIVE and self.consumers:
            raise SubscriptionTakenError(topic, name, self.consumers[0].name)
        if len(self.consumers) >= consumers_max:
            raise LimitReachedError("consumers_per_subscription_max", consumers_max)
        if self.ring.globs_with(consumer.matcher) > KEY_GLOBS_MAX:
            raise LimitReachedError("key_globs_max", KEY_GLOBS_MAX)

    @property
    def delivered(self) -> int:
        """Messages delivered to all consumers, those included that have left."""
        return self.delivered_before + sum(consumer.delivered for consumer in self.consumers)

    def leave(self, consumer: Consumer) -> Consumer | None:
        """Remove a consumer; returns the one that is promoted by that, after telling it."""
        was_active = self.is_active(consumer)
        self.consumers.remove(consumer)
        self.delivered_before += consumer.delivered
        del self.by_name[consumer.name]
        if self.type is SubscriptionType.KEY_SHARED:
            self.ring.leave(consumer.name)
        if self.type is SubscriptionType.FAILOVER and was_active and self.consumers:
            promoted = self.consumers[0]
            promoted.sink.active_changed(promoted.channel, active=True)
            return promoted
        return None

    def is_active(self, consumer: Consumer) -> bool:
        """Whether a consumer is sent messages now."""
        return self.type is not SubscriptionType.FAILOVER or self.consumers[0] is consumer

    def __contains__(self, consumer: Consumer) -> bool:
        return self.by_name.get(consumer.name) is consumer
