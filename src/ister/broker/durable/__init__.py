"""A durable subscription: what it hands out, what is acknowledged, and what goes wrong."""

from ister.broker.durable.ack_journal import AckJournal
from ister.broker.durable.dead_letters import (
    DeadLetters,
    OnTopic,
    dead_letter_name,
    default_dead_letter_topic,
    holds_own_dead_letters,
    takes_dead_letters,
)
from ister.broker.durable.lease_numbers import slot_of
from ister.broker.durable.partition import Partition
from ister.broker.durable.poison import DeadLetterSink
from ister.broker.durable.subscription import DurableSubscription, Run, TimedRun

__all__ = [
    "AckJournal",
    "DeadLetterSink",
    "DeadLetters",
    "DurableSubscription",
    "OnTopic",
    "Partition",
    "Run",
    "TimedRun",
    "dead_letter_name",
    "default_dead_letter_topic",
    "holds_own_dead_letters",
    "slot_of",
    "takes_dead_letters",
]
