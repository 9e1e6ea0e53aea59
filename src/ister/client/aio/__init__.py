"""The client for asyncio."""

from ister.client.aio.client import (
    Client,
    CompressionName,
    PolicyName,
    SubscriptionTypeName,
    connect,
)
from ister.client.aio.link import Connector, connect_socket
from ister.client.aio.producer import BatchFuture, Producer, SendFuture
from ister.client.aio.subscription import Message, Subscription

__all__ = [
    "BatchFuture",
    "Client",
    "CompressionName",
    "Connector",
    "Message",
    "PolicyName",
    "Producer",
    "SendFuture",
    "Subscription",
    "SubscriptionTypeName",
    "connect",
    "connect_socket",
]
