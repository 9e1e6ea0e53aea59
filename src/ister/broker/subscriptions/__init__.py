"""The durable subscriptions of a broker: made, found, changed, moved and ended."""

from ister.broker.subscriptions.durables import Durables
from ister.broker.subscriptions.wanted import Wanted, check_expire_after

__all__ = [
    "Durables",
    "Wanted",
    "check_expire_after",
]
