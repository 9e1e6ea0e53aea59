"""Messages at a point in time: what may be done to them, and the stores that keep them."""

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

__all__ = [
    "Bury",
    "Change",
    "Changed",
    "Delete",
    "Done",
    "Extend",
    "Lease",
    "Move",
    "Outcome",
    "Outcomes",
    "Put",
    "Release",
    "Row",
    "Slot",
    "Store",
    "TopicRow",
    "Update",
    "Work",
    "is_leased",
]
