"""Time of the event loop: turns, chores in steps, threads for what blocks, and how work ends."""

from ister.broker.scheduling.chores import Chores, Steps
from ister.broker.scheduling.completion import Done, Latch, after_all, ignore
from ister.broker.scheduling.end_of_turn import EndOfTurn
from ister.broker.scheduling.turns import Turns
from ister.broker.scheduling.workers import InlineWorker, ThreadWorker, Worker

__all__ = [
    "Chores",
    "Done",
    "EndOfTurn",
    "InlineWorker",
    "Latch",
    "Steps",
    "ThreadWorker",
    "Turns",
    "Worker",
    "after_all",
    "ignore",
]
