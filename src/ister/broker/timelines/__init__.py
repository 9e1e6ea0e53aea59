"""Timelines in the broker: who is handed which message, when, and what owners may change."""

from ister.broker.timelines.changes import (
    HoldersChange,
    OwnersChange,
    Redriven,
    RedrivePage,
    Reject,
    change_messages,
    finish_leases,
)
from ister.broker.timelines.cron import CronRules
from ister.broker.timelines.leasing import (
    TimelineConsumer,
    TimelineFigures,
    TimelineSink,
    TimelineTopic,
)
from ister.broker.timelines.settings import check_topics
from ister.broker.timelines.store import Committer, StoreWorker, WithStore
from ister.broker.timelines.timelines import Timelines

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
