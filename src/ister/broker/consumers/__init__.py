"""Consumers: their credit and queues, and the rules of joining a subscription."""

from ister.broker.consumers.consumer import BATCHES_AT_ONCE, Consumer, QueueBudget, nothing
from ister.broker.consumers.members import Members
from ister.broker.consumers.sink import Sink, SourceTopic

__all__ = [
    "BATCHES_AT_ONCE",
    "Consumer",
    "Members",
    "QueueBudget",
    "Sink",
    "SourceTopic",
    "nothing",
]
