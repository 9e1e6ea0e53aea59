"""Handing out messages: the window of what is due, consumers, and the leases they have."""

from ister.broker.timelines.leasing.consumer import Held, TimelineConsumer, TimelineSink
from ister.broker.timelines.leasing.dead_letters import REJECTED, cut_reason
from ister.broker.timelines.leasing.figures import TimelineFigures
from ister.broker.timelines.leasing.max_clock import MaxClock
from ister.broker.timelines.leasing.topic import TimelineTopic
from ister.broker.timelines.leasing.wake import Wake
from ister.broker.timelines.leasing.window import Room, free_slot

__all__ = [
    "REJECTED",
    "Held",
    "MaxClock",
    "Room",
    "TimelineConsumer",
    "TimelineFigures",
    "TimelineSink",
    "TimelineTopic",
    "Wake",
    "cut_reason",
    "free_slot",
]
