"""The client for threads: the asyncio client on a private event loop, with blocking methods."""

from ister.client.sync.client import Client, connect
from ister.client.sync.producer import BatchFuture, Producer, SendFuture
from ister.client.sync.reader import Reader
from ister.client.sync.service import ServiceInstance
from ister.client.sync.staging import Stage
from ister.client.sync.subscription import Message, Subscription
from ister.client.sync.timeline import (
    Timeline,
    TimelineConsumer,
    TimelineLease,
    TimelineTransaction,
)
from ister.client.sync.transaction import Transaction
from ister.client.sync.view import View

__all__ = [
    "BatchFuture",
    "Client",
    "Message",
    "Producer",
    "Reader",
    "SendFuture",
    "ServiceInstance",
    "Stage",
    "Subscription",
    "Timeline",
    "TimelineConsumer",
    "TimelineLease",
    "TimelineTransaction",
    "Transaction",
    "View",
    "connect",
]
