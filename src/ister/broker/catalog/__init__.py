"""Topics and namespaces of a broker, and who is subscribed to what."""

from ister.broker.catalog.catalog import Catalog
from ister.broker.catalog.memberships import Membership, SubscribeOptions
from ister.broker.catalog.reports import (
    Steps,
    Totals,
    run_through,
    subscription_page,
    timeline_report,
    topic_page,
)
from ister.broker.catalog.subscribers import Subscribers

__all__ = [
    "Catalog",
    "Membership",
    "Steps",
    "SubscribeOptions",
    "Subscribers",
    "Totals",
    "run_through",
    "subscription_page",
    "timeline_report",
    "topic_page",
]
