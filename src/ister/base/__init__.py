"""Shared words: errors, names, limits, clocks. Imports nothing of ours."""

from ister.base.clock import Clock, Timer
from ister.base.names import (
    DEFAULT_NAMESPACE,
    Pattern,
    TopicName,
    find_partition,
    is_wildcard,
    matches,
    namespace_of,
    parse_pattern,
    parse_plain,
    parse_topic,
    partition_name,
)
from ister.base.reports import BrokerReport, ConsumerReport, SubscriptionReport, TopicReport

__all__ = [
    "DEFAULT_NAMESPACE",
    "BrokerReport",
    "Clock",
    "ConsumerReport",
    "Pattern",
    "SubscriptionReport",
    "Timer",
    "TopicName",
    "TopicReport",
    "find_partition",
    "is_wildcard",
    "matches",
    "namespace_of",
    "parse_pattern",
    "parse_plain",
    "parse_topic",
    "partition_name",
]
