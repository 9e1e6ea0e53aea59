"""Decides what of a partition goes to whom, one strategy for each type of subscription."""

from ister.subscriptions.planning.effects import (
    Deliver,
    Effect,
    Hold,
    KeyOwners,
    Member,
    Plannable,
    Purpose,
    Skip,
    State,
)
from ister.subscriptions.planning.exclusive import Exclusive
from ister.subscriptions.planning.key_shared import KeyShared
from ister.subscriptions.planning.planning import Strategy, Times, cut, plan_again, plan_new
from ister.subscriptions.planning.selection import (
    TTL_ATTRIBUTE,
    Selector,
    fresh,
    runs_between,
    runs_of,
    slots_between,
    slots_of,
)
from ister.subscriptions.planning.shared import Shared

__all__ = [
    "TTL_ATTRIBUTE",
    "Deliver",
    "Effect",
    "Exclusive",
    "Hold",
    "KeyOwners",
    "KeyShared",
    "Member",
    "Plannable",
    "Purpose",
    "Selector",
    "Shared",
    "Skip",
    "State",
    "Strategy",
    "Times",
    "cut",
    "fresh",
    "plan_again",
    "plan_new",
    "runs_between",
    "runs_of",
    "slots_between",
    "slots_of",
]
