"""The client for threads: the asyncio client on a private event loop, with blocking methods."""

from ister.client.sync.client import Client, connect
from ister.client.sync.producer import BatchFuture, Producer, SendFuture
from ister.client.sync.subscription import Message, Subscription

__all__ = [
    "BatchFuture",
    "Client",
    "Message",
    "Producer",
    "SendFuture",
    "Subscription",
    "connect",
]
