"""Timelines in the broker: who is handed which message, when, and what owners may change."""

from ister.broker.timelines.committer import Committer
from ister.broker.timelines.consumer import HoldersChange, TimelineConsumer, TimelineSink
from ister.broker.timelines.figures import TimelineFigures
from ister.broker.timelines.owners import OwnersChange
from ister.broker.timelines.timelines import Timelines
from ister.broker.timelines.topic import TimelineTopic

__all__ = [
    "Committer",
    "HoldersChange",
    "OwnersChange",
    "TimelineConsumer",
    "TimelineFigures",
    "TimelineSink",
    "TimelineTopic",
    "Timelines",
]
