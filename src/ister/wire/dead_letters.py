"""Control commands about dead letters of subscriptions. Spec: docs/protocol.md."""

from typing import TypeAlias

from ister.wire.tagged import Tagged


class RedriveSubscription(Tagged):
    """Publish dead letters of a subscription to their original topics again."""

    topic: str
    subscription: str
    # 0: all that are there now.
    count: int = 0


class SubscriptionRedriven(Tagged):
    """So many dead letters were moved."""

    messages: int


DeadLetterCommand: TypeAlias = RedriveSubscription | SubscriptionRedriven
