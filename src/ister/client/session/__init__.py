"""The client without I/O: what to send, what was promised, what to resume."""

from ister.client.session.calls import OnReply
from ister.client.session.checks import (
    as_bytes,
    attributes_size,
    check_count,
    check_expected_offset,
    check_extras,
    check_text,
    check_timeout,
    with_ttl,
)
from ister.client.session.inbox import Inbox
from ister.client.session.leases import MAX_RENEWAL_MS, Lease, LeasedBatch
from ister.client.session.message import Answer, BaseMessage, Delivery, MessageId
from ister.client.session.options import (
    Place,
    Seconds,
    ack_settings,
    check_receiving,
    milliseconds,
    offset_of,
    position_of,
    stream_settings,
    time_ms,
)
from ister.client.session.pending import Future, PendingBatch, Sent
from ister.client.session.producer import MESSAGE_OVERHEAD_BYTES, ProducerChannel, cut_batches
from ister.client.session.reader import ReaderChannel
from ister.client.session.results import MessageIds, Stored, places_of
from ister.client.session.session import Link, Session
from ister.client.session.subscription import (
    Event,
    Promoted,
    Resumed,
    SlowConsumer,
    SubscriptionChannel,
)
from ister.client.session.transaction import AckRun, Draft, Leased, Staged
from ister.client.session.url import backoff_s, parse_url
from ister.client.session.values import (
    Schema,
    SchemaRegistration,
    Values,
    default_subject,
    definition_of,
    no_schema,
    parsed,
    registration_of,
)

__all__ = [
    "MAX_RENEWAL_MS",
    "MESSAGE_OVERHEAD_BYTES",
    "AckRun",
    "Answer",
    "BaseMessage",
    "Delivery",
    "Draft",
    "Event",
    "Future",
    "Inbox",
    "Lease",
    "Leased",
    "LeasedBatch",
    "Link",
    "MessageId",
    "MessageIds",
    "OnReply",
    "PendingBatch",
    "Place",
    "ProducerChannel",
    "Promoted",
    "ReaderChannel",
    "Resumed",
    "Schema",
    "SchemaRegistration",
    "Seconds",
    "Sent",
    "Session",
    "SlowConsumer",
    "Staged",
    "Stored",
    "SubscriptionChannel",
    "Values",
    "ack_settings",
    "as_bytes",
    "attributes_size",
    "backoff_s",
    "check_count",
    "check_expected_offset",
    "check_extras",
    "check_receiving",
    "check_text",
    "check_timeout",
    "cut_batches",
    "default_subject",
    "definition_of",
    "milliseconds",
    "no_schema",
    "offset_of",
    "parse_url",
    "parsed",
    "places_of",
    "position_of",
    "registration_of",
    "stream_settings",
    "time_ms",
    "with_ttl",
]
