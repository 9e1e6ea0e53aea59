"""Rules of subscriptions: who gets which message. Values in, values out."""

from ister.subscriptions.cursor import Cursor
from ister.subscriptions.deliveries import Deliveries
from ister.subscriptions.fence import Confirmations, LeasedRun
from ister.subscriptions.filters import Filter, check_globs, piece_end
from ister.subscriptions.kinds import SubscriptionType
from ister.subscriptions.leases import Lease
from ister.subscriptions.offsets import OffsetSet
from ister.subscriptions.ordered import Admission, KeyGate
from ister.subscriptions.portions import (
    NEVER_MS,
    UNUSED_MS,
    Expired,
    InCommit,
    NewRun,
    Redelivery,
)
from ister.subscriptions.responders import Responder, loads_of_responders
from ister.subscriptions.ring import OWNER_WEIGHT, KeyMatcher, Ring, keys_of
from ister.subscriptions.sharing import Policy, Share, in_turn, to_least_loaded

__all__ = [
    "NEVER_MS",
    "OWNER_WEIGHT",
    "UNUSED_MS",
    "Admission",
    "Confirmations",
    "Cursor",
    "Deliveries",
    "Expired",
    "Filter",
    "InCommit",
    "KeyGate",
    "KeyMatcher",
    "Lease",
    "LeasedRun",
    "NewRun",
    "OffsetSet",
    "Policy",
    "Redelivery",
    "Responder",
    "Ring",
    "Share",
    "SubscriptionType",
    "check_globs",
    "in_turn",
    "keys_of",
    "loads_of_responders",
    "piece_end",
    "to_least_loaded",
]
