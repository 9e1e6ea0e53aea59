"""Ister for code that blocks: the same names as `ister`, without `await`.

>>> with ister.sync.connect(url) as client:
...     with client.producer("/default/orders") as producer:
...         producer.send(b"hello")
MessageId(topic='/default/orders', offset=0)
"""

from ister.client.sync import (
    BatchFuture,
    Client,
    Message,
    Producer,
    Reader,
    SendFuture,
    Subscription,
    Transaction,
    View,
    connect,
)

__all__ = [
    "BatchFuture",
    "Client",
    "Message",
    "Producer",
    "Reader",
    "SendFuture",
    "Subscription",
    "Transaction",
    "View",
    "connect",
]
