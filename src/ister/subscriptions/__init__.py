"""Rules of subscriptions: who gets which message. Values in, values out."""

from ister.subscriptions.cursor import Cursor
from ister.subscriptions.deliveries import Deliveries, Expired, NewRun, Redelivery
from ister.subscriptions.filters import Filter, check_globs
from ister.subscriptions.interest import limits_end, settled_end
from ister.subscriptions.kinds import SubscriptionType
from ister.subscriptions.leases import Lease
from ister.subscriptions.offsets import OffsetSet
from ister.subscriptions.ordered import Admission, KeyGate
from ister.subscriptions.ring import KeyMatcher, Ring, keys_of
from ister.subscriptions.sharing import Policy, Share, in_turn, to_least_loaded

__all__ = [
    "Admission",
    "Cursor",
    "Deliveries",
    "Expired",
    "Filter",
    "KeyGate",
    "KeyMatcher",
    "Lease",
    "NewRun",
    "OffsetSet",
    "Policy",
    "Redelivery",
    "Ring",
    "Share",
    "SubscriptionType",
    "check_globs",
    "in_turn",
    "keys_of",
    "limits_end",
    "settled_end",
    "to_least_loaded",
]
