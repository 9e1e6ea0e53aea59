"""What a broker tells about itself. One shape for the broker, the wire, the SDK and the CLI."""

from dataclasses import dataclass, field

from ister.base.streams import CursorReport, StreamReport
from ister.base.timelines import TimelineReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """One topic, and what has happened on it since the broker started."""

    topic: str
    kind: str
    partitions: int
    producers: int
    subscriptions: int
    messages_in: int
    bytes_in: int
    messages_out: int
    messages_dropped: int
    next_offset: int
    # Only of a stream topic.
    stream: StreamReport | None = None
    # Only of a timeline or priority topic.
    timeline: TimelineReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerReport:
    """One consumer of a subscription."""

    name: str
    address: str
    active: bool
    credit: int
    queued: int
    queued_bytes: int
    delivered: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionReport:
    """One subscription with its consumers."""

    topic: str
    subscription: str
    type: str
    policy: str
    filters: dict[str, str]
    key_filters: list[str]
    topics: int
    messages_out: int
    messages_dropped: int
    consumers: list[ConsumerReport] = field(default_factory=list)
    # Only of a subscription that covers stream topics.
    cursor: CursorReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayReport:
    """Messages that are published later; but for `waiting`, since the broker started."""

    waiting: int = 0
    published: int = 0
    # How often a stream did not take one that was due: it is tried again.
    refused: int = 0
    # Due when their topic was gone.
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """The broker as a whole."""

    broker: str
    version: str
    uptime_s: float
    connections: int
    topics: int
    subscriptions: int
    messages_in: int
    bytes_in: int
    messages_out: int
    messages_dropped: int
    queued_bytes: int
    # Whether durable writes are taken: empty, or why not.
    storage_error: str = ""
    stored_bytes: int = 0
    tail_bytes: int = 0
    delayed: DelayReport = field(default_factory=DelayReport)
