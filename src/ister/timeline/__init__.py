"""Messages at a point in time: what may be done to them, and the stores that keep them."""

from ister.timeline.memory import MemoryStore
from ister.timeline.model import (
    Bury,
    Change,
    Changed,
    Delete,
    Done,
    Extend,
    Lease,
    Move,
    Put,
    Release,
    Row,
    Slot,
    Update,
    Work,
    is_leased,
)
from ister.timeline.port import Outcome, Outcomes, Store, TopicRow
from ister.timeline.sqlite import FILE_NAME, SqliteStore

__all__ = [
    "FILE_NAME",
    "Bury",
    "Change",
    "Changed",
    "Delete",
    "Done",
    "Extend",
    "Lease",
    "MemoryStore",
    "Move",
    "Outcome",
    "Outcomes",
    "Put",
    "Release",
    "Row",
    "Slot",
    "SqliteStore",
    "Store",
    "TopicRow",
    "Update",
    "Work",
    "is_leased",
]
