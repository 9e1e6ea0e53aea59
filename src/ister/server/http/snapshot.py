"""What the broker and its doors report at one moment, for a scrape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ister.base import BrokerReport, SubscriptionReport, TopicReport
from ister.broker import Broker
from ister.server.native import NativeDoor

# A series costs a Prometheus server some KiB: 1,000 topics × 6 series stay below what its own
# defaults call a large target. They are the first by name, so a topic keeps or lacks its series.
TOPIC_SERIES_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values only: another thread may turn them into text."""

    broker: BrokerReport
    topics: Sequence[TopicReport] = ()
    subscriptions: Sequence[SubscriptionReport] = ()
    ready: bool = True
    connections_accepted: int = 0
    connections_refused: int = 0
    # By the name of the error that a connection was closed with.
    errors: Mapping[str, int] = field(default_factory=dict)


def take_snapshot(broker: Broker, native: NativeDoor) -> Snapshot:
    """Return the figures of now."""
    topics, _ = broker.topics("", after="", limit=TOPIC_SERIES_MAX)
    subscriptions, after = broker.subscriptions("", after="", limit=TOPIC_SERIES_MAX)
    # Pages are cut to the size of a frame, which does not matter here.
    while after and (room := TOPIC_SERIES_MAX - len(subscriptions)) > 0:
        rows, after = broker.subscriptions("", after=after, limit=room)
        subscriptions += rows
    return Snapshot(
        broker=broker.report(),
        topics=topics,
        subscriptions=subscriptions,
        ready=not native.closing,
        connections_accepted=native.counts.accepted,
        connections_refused=native.counts.refused,
        errors=dict(native.counts.errors),
    )
