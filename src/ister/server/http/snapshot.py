"""What the broker and its doors report at one moment, for a scrape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ister.base import BrokerReport, SubscriptionReport, TopicReport
from ister.broker import Broker, Storage
from ister.server.native import NativeDoor

if TYPE_CHECKING:
    from ister.registry import Registry

# A series costs a Prometheus server some KiB: 1,000 topics × 10 series stay below what its own
# defaults call a large target. They are the first by name, so a topic keeps or lacks its series.
TOPIC_SERIES_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What the compactor of one journal has done for one reason."""

    journal: str
    reason: str
    rewrites: int
    read_bytes: int
    written_bytes: int
    segments_replaced: int
    dropped_messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalReport:
    """One journal with its segments: that of the data folder, or of the object store."""

    journal: str
    is_up: bool
    stored_bytes: int
    segments: int
    committed_bytes: int
    failures: int
    # How many commits took no longer than so many seconds, the last one without a bound.
    commit_buckets: Sequence[tuple[float, int]]
    commit_seconds: float
    compaction_failures: int = 0
    compactions: Sequence[CompactionReport] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCheckReport:
    """What has been checked against the schema of one topic, in batches."""

    topic: str
    checked: int
    violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values only: another thread may turn them into text."""

    broker: BrokerReport
    topics: Sequence[TopicReport] = ()
    subscriptions: Sequence[SubscriptionReport] = ()
    journals: Sequence[JournalReport] = ()
    schema_checks: Sequence[SchemaCheckReport] = ()
    # Stages that wait to be published, or are being filled.
    stages: int = 0
    staged_bytes: int = 0
    timelines_failures: int = 0
    upkeep_failures: int = 0
    message_ids: int = 0
    message_ids_forgotten: int = 0
    ready: bool = True
    connections_accepted: int = 0
    connections_refused: int = 0
    grpc_connections: int = 0
    grpc_accepted: int = 0
    grpc_refused: int = 0
    # By the name of the error that a connection was closed with.
    errors: Mapping[str, int] = field(default_factory=dict)


def take_snapshot(
    broker: Broker, native: NativeDoor, registry: "Registry | None" = None
) -> Snapshot:
    """Return the figures of now."""
    topics, _ = broker.topics("", after="", limit=TOPIC_SERIES_MAX)
    subscriptions, after = broker.subscriptions("", after="", limit=TOPIC_SERIES_MAX)
    # Pages are cut to the size of a frame, which does not matter here.
    while after and (room := TOPIC_SERIES_MAX - len(subscriptions)) > 0:
        rows, after = broker.subscriptions("", after=after, limit=room)
        subscriptions += rows
    budgets = broker.streams.budgets
    return Snapshot(
        broker=broker.report(),
        topics=topics,
        subscriptions=subscriptions,
        journals=[_journal(storage) for storage in broker.streams.storages],
        schema_checks=_schema_checks(registry) if registry is not None else (),
        stages=broker.staging.count,
        staged_bytes=broker.staging.staged_bytes,
        timelines_failures=broker.catalog.timelines.failures if broker.catalog.timelines else 0,
        upkeep_failures=broker.streams.upkeep.failures,
        message_ids=budgets.ids.size if budgets else 0,
        message_ids_forgotten=budgets.ids.forgotten if budgets else 0,
        ready=not native.closing and not broker.streams.error,
        connections_accepted=native.counts.accepted,
        connections_refused=native.counts.refused,
        grpc_connections=broker.grpc.open,
        grpc_accepted=broker.grpc.accepted,
        grpc_refused=broker.grpc.refused,
        errors=dict(native.counts.errors),
    )


def _schema_checks(registry: "Registry") -> list[SchemaCheckReport]:
    tallies = sorted(registry.tallies().items())[:TOPIC_SERIES_MAX]
    return [
        SchemaCheckReport(topic=topic, checked=tally.checked, violations=tally.violations)
        for topic, tally in tallies
    ]


def _journal(storage: Storage) -> JournalReport:
    figures = storage.committer.figures
    return JournalReport(
        journal=storage.name,
        is_up=not storage.committer.trouble,
        stored_bytes=storage.log.total_bytes,
        segments=len(storage.log.segments),
        committed_bytes=figures.committed_bytes,
        failures=figures.failures,
        commit_buckets=figures.buckets(),
        commit_seconds=figures.seconds,
        compaction_failures=storage.compactions.failures,
        compactions=[
            CompactionReport(
                journal=storage.name,
                reason=reason,
                rewrites=found.rewrites,
                read_bytes=found.read_bytes,
                written_bytes=found.written_bytes,
                segments_replaced=found.segments_replaced,
                dropped_messages=found.dropped_messages,
            )
            for reason, found in storage.compactions.by_reason.items()
        ],
    )
