"""Ister: messaging and streaming for Python teams.

>>> async with ister.connect(url) as client:
...     async with client.producer("/default/orders") as producer:
...         await producer.send(b"hello")
MessageId(topic='/default/orders', offset=0)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ister import errors
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

if TYPE_CHECKING:
    from ister import sync
    from ister.client import (
        Answer,
        Client,
        CronRule,
        Event,
        Message,
        MessageId,
        MessageIds,
        MessageVersion,
        Producer,
        Promoted,
        Reader,
        Resumed,
        Schema,
        SendFuture,
        ServiceInstance,
        ServiceReport,
        ServiceStats,
        SlowConsumer,
        Subscription,
        Timeline,
        TimelineConsumer,
        TimelineLease,
        TimelineMessage,
        TimelinePut,
        Tls,
        Transaction,
        View,
        ViewChange,
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
    "CronRule",
    "DeniedError",
    "Event",
    "InvalidError",
    "IsterError",
    "Message",
    "MessageId",
    "MessageIds",
    "MessageVersion",
    "MovedError",
    "NotFoundError",
    "Producer",
    "Promoted",
    "Reader",
    "Resumed",
    "Schema",
    "SendFuture",
    "ServiceInstance",
    "ServiceReport",
    "ServiceStats",
    "SlowConsumer",
    "Subscription",
    "Timeline",
    "TimelineConsumer",
    "TimelineLease",
    "TimelineMessage",
    "TimelinePut",
    "Tls",
    "Transaction",
    "View",
    "ViewChange",
    "ViewEntry",
    "connect",
    "errors",
    "sync",
]


def __getattr__(name: str) -> object:
    """Load the client when it is first asked for: a broker starts in half the time without."""
    if name not in __all__:
        raise AttributeError(f"module 'ister' has no attribute {name!r}")
    if name == "sync":
        return import_module("ister.sync")
    source = import_module("ister.codec" if name == "Batch" else "ister.client")
    found = globals()[name] = getattr(source, name)
    return found


def __dir__() -> list[str]:
    # Of modules that happen to be loaded, and of what this file imports, users need nothing.
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
