"""The client for asyncio."""

from ister.client.aio.client import (
    Client,
    CompressionName,
    DurabilityName,
    PolicyName,
    RetentionName,
    SubscriptionTypeName,
    connect,
)
from ister.client.aio.futures import BatchFuture, SendFuture
from ister.client.aio.link import Connector, connect_socket
from ister.client.aio.producer import Producer
from ister.client.aio.reader import Reader
from ister.client.aio.schemas import Registration, Schemas
from ister.client.aio.staging import Stage
from ister.client.aio.subscription import Message, Subscription
from ister.client.aio.timeline import (
    MessageVersion,
    Timeline,
    TimelineMessage,
    TimelinePut,
    TimelineTransaction,
)
from ister.client.aio.timeline_consumer import TimelineConsumer, TimelineLease
from ister.client.aio.timeline_cron import CronRule
from ister.client.aio.transaction import Transaction
from ister.client.aio.view import View, ViewEntry

__all__ = [
    "BatchFuture",
    "Client",
    "CompressionName",
    "Connector",
    "CronRule",
    "DurabilityName",
    "Message",
    "MessageVersion",
    "PolicyName",
    "Producer",
    "Reader",
    "Registration",
    "RetentionName",
    "Schemas",
    "SendFuture",
    "Stage",
    "Subscription",
    "SubscriptionTypeName",
    "Timeline",
    "TimelineConsumer",
    "TimelineLease",
    "TimelineMessage",
    "TimelinePut",
    "TimelineTransaction",
    "Transaction",
    "View",
    "ViewEntry",
    "connect",
    "connect_socket",
]
