"""Ister: messaging and streaming for Python teams.

>>> async with ister.connect(url) as client:
...     async with client.producer("/default/orders") as producer:
...         await producer.send(b"hello")
MessageId(topic='/default/orders', offset=0)
"""

from ister import errors, sync
from ister.base.errors import (
    BrokenError,
    BusyError,
    ConflictError,
    DeniedError,
    InvalidError,
    IsterError,
    MovedError,
    NotFoundError,
)
from ister.client import (
    Answer,
    Client,
    Event,
    Message,
    MessageId,
    MessageIds,
    Producer,
    Promoted,
    Reader,
    Resumed,
    SendFuture,
    SlowConsumer,
    Subscription,
    Transaction,
    View,
    ViewEntry,
    connect,
)
from ister.codec import Batch

__all__ = [
    "Answer",
    "Batch",
    "BrokenError",
    "BusyError",
    "Client",
    "ConflictError",
    "DeniedError",
    "Event",
    "InvalidError",
    "IsterError",
    "Message",
    "MessageId",
    "MessageIds",
    "MovedError",
    "NotFoundError",
    "Producer",
    "Promoted",
    "Reader",
    "Resumed",
    "SendFuture",
    "SlowConsumer",
    "Subscription",
    "Transaction",
    "View",
    "ViewEntry",
    "connect",
    "errors",
    "sync",
]
