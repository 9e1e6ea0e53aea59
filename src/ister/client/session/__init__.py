"""The client without I/O: what to send, what was promised, what to resume."""

from ister.client.session.checks import as_bytes, attributes_size, check_extras
from ister.client.session.message import Answer, BaseMessage, Delivery, MessageId
from ister.client.session.pending import Future, PendingBatch, Sent
from ister.client.session.producer import MESSAGE_OVERHEAD_BYTES, ProducerChannel, cut_batches
from ister.client.session.session import Link, OnReply, Session
from ister.client.session.subscription import (
    Event,
    Promoted,
    Resumed,
    SlowConsumer,
    SubscriptionChannel,
)
from ister.client.session.url import DEFAULT_PORT, DEFAULT_URL, backoff_s, parse_url

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_URL",
    "MESSAGE_OVERHEAD_BYTES",
    "Answer",
    "BaseMessage",
    "Delivery",
    "Event",
    "Future",
    "Link",
    "MessageId",
    "OnReply",
    "PendingBatch",
    "ProducerChannel",
    "Promoted",
    "Resumed",
    "Sent",
    "Session",
    "SlowConsumer",
    "SubscriptionChannel",
    "as_bytes",
    "attributes_size",
    "backoff_s",
    "check_extras",
    "cut_batches",
    "parse_url",
]
