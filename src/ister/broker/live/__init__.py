"""Live topics and their subscriptions, which store nothing."""

from ister.broker.live.replies import Replies, ReplySink
from ister.broker.live.subscription import RandomSlot, Subscription
from ister.broker.live.topic import AnyTopic, Pieces, Topic

__all__ = [
    "AnyTopic",
    "Pieces",
    "RandomSlot",
    "Replies",
    "ReplySink",
    "Subscription",
    "Topic",
]
