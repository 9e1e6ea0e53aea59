"""Rules of subscriptions: who gets which message. Values in, values out."""

from ister.subscriptions.filters import Filter, check_globs
from ister.subscriptions.kinds import SubscriptionType
from ister.subscriptions.ring import KeyMatcher, Ring
from ister.subscriptions.sharing import Policy, Share, in_turn, to_least_loaded

__all__ = [
    "Filter",
    "KeyMatcher",
    "Policy",
    "Ring",
    "Share",
    "SubscriptionType",
    "check_globs",
    "in_turn",
    "to_least_loaded",
]
