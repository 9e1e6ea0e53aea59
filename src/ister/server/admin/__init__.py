"""What an operator can ask of a broker: one model, under every door that offers it."""

from ister.server.admin.admin import BROKER_ID, Admin
from ister.server.admin.reports import (
    BalanceReport,
    BrokerRow,
    MessageRow,
    NamespacePolicies,
    NamespaceReport,
    SchemaUse,
    SubscriptionPage,
    TopicDescription,
    TopicPage,
)

__all__ = [
    "BROKER_ID",
    "Admin",
    "BalanceReport",
    "BrokerRow",
    "MessageRow",
    "NamespacePolicies",
    "NamespaceReport",
    "SchemaUse",
    "SubscriptionPage",
    "TopicDescription",
    "TopicPage",
]
