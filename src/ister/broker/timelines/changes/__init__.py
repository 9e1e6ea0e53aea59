"""Changes of messages that owners and consumers ask for, and dead letters that go back."""

from ister.broker.timelines.changes.holders import HoldersChange, Reject, finish_leases
from ister.broker.timelines.changes.owners import OwnersChange, change_messages, check_changes
from ister.broker.timelines.changes.redrive import OnRedriven, Redriven, RedrivePage, redrive_page

__all__ = [
    "HoldersChange",
    "OnRedriven",
    "OwnersChange",
    "RedrivePage",
    "Redriven",
    "Reject",
    "change_messages",
    "check_changes",
    "finish_leases",
    "redrive_page",
]
