"""Timelines in the broker: who is handed which message, when, and what owners may change."""

from ister.broker.timelines.committer import Committer
from ister.broker.timelines.consumer import TimelineConsumer, TimelineSink
from ister.broker.timelines.cron import CronRules
from ister.broker.timelines.figures import TimelineFigures
from ister.broker.timelines.holders import HoldersChange, Reject, finish_leases
from ister.broker.timelines.owners import OwnersChange, change_messages
from ister.broker.timelines.redriving import Redriven, RedrivePage
from ister.broker.timelines.timelines import Timelines, check_topics
from ister.broker.timelines.topic import TimelineTopic
from ister.broker.timelines.workers import StoreWorker, WithStore

__all__ = [
    "Committer",
    "CronRules",
    "HoldersChange",
    "OwnersChange",
    "RedrivePage",
    "Redriven",
    "Reject",
    "StoreWorker",
    "TimelineConsumer",
    "TimelineFigures",
    "TimelineSink",
    "TimelineTopic",
    "Timelines",
    "WithStore",
    "change_messages",
    "check_topics",
    "finish_leases",
]
