"""The SDK: `aio` for asyncio, `sync` for threads, both over `session`, which does no I/O."""

from ister.client.aio import (
    BatchFuture,
    Client,
    CompressionName,
    Connector,
    Message,
    PolicyName,
    Producer,
    SendFuture,
    Subscription,
    SubscriptionTypeName,
    connect,
)
from ister.client.session import (
    DEFAULT_PORT,
    DEFAULT_URL,
    Answer,
    Event,
    MessageId,
    Promoted,
    Resumed,
    SlowConsumer,
)

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_URL",
    "Answer",
    "BatchFuture",
    "Client",
    "CompressionName",
    "Connector",
    "Event",
    "Message",
    "MessageId",
    "PolicyName",
    "Producer",
    "Promoted",
    "Resumed",
    "SendFuture",
    "SlowConsumer",
    "Subscription",
    "SubscriptionTypeName",
    "connect",
]
