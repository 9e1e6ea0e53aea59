"""The running broker without a network: owns state, asks the rules, acts."""

from ister.broker.broker import Broker, Producer, ReplySink, SubscribeOptions
from ister.broker.consumer import Consumer, Sink
from ister.broker.subscription import Subscription
from ister.broker.topic import Topic

__all__ = [
    "Broker",
    "Consumer",
    "Producer",
    "ReplySink",
    "Sink",
    "SubscribeOptions",
    "Subscription",
    "Topic",
]
