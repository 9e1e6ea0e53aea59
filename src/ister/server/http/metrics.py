"""Prometheus text from reports. Nothing is counted here: the broker counts, a scrape reads.

Always true: names are `ister_<thing>_<unit>`, and every total covers every topic, also those
beyond `TOPIC_SERIES_MAX` that have no series of their own.

Import this module only to scrape: the library costs start-up time and memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isinf
from operator import attrgetter

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ister.base import SubscriptionReport, TimelineReport, TopicReport
from ister.server.http.snapshot import TOPIC_SERIES_MAX, JournalReport, SchemaCheckReport, Snapshot


class SnapshotCollector(Collector):
    """Turns one snapshot into metric families."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Yield the families: the broker as a whole, then each journal, topic, subscription."""
        yield from _broker(self._snapshot)
        yield from _journals(self._snapshot.journals)
        yield from _topics(self._snapshot.topics)
        yield from _timelines(
            [row.timeline for row in self._snapshot.topics if row.timeline is not None]
        )
        yield from _schema_checks(self._snapshot.schema_checks)
        yield from _subscriptions(self._snapshot.subscriptions)


def render_metrics(snapshot: Snapshot) -> bytes:
    """Return the Prometheus exposition text of `snapshot` and of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _broker(snapshot: Snapshot) -> Iterator[Metric]:
    report = snapshot.broker
    yield InfoMetricFamily(
        "ister_broker",
        "The broker's name and version.",
        value={"broker": report.broker, "version": report.version},
    )
    gauges: list[tuple[str, str, float]] = [
        ("ister_uptime_seconds", "Time since the broker started.", report.uptime_s),
        (
            "ister_ready",
            "1 while the broker takes clients and what they publish, else 0.",
            snapshot.ready,
        ),
        ("ister_connections", "Connections of clients.", report.connections),
        ("ister_grpc_connections", "Connections of the gRPC ports.", snapshot.grpc_connections),
        ("ister_topics", "Topics, each partition counted.", report.topics),
        ("ister_subscriptions", "Subscriptions.", report.subscriptions),
        ("ister_queued_bytes", "Bytes that wait for slow consumers.", report.queued_bytes),
        ("ister_stream_memory_bytes", "Newest messages of streams in memory.", report.tail_bytes),
        (
            "ister_delayed_waiting",
            "Messages on the disk that are to be published later.",
            report.delayed.waiting,
        ),
        ("ister_message_ids", "Message ids that streams remember.", snapshot.message_ids),
        ("ister_stages", "Stages that nobody has published yet.", snapshot.stages),
        ("ister_staged_bytes", "Bytes of batches in stages.", snapshot.staged_bytes),
        (
            "ister_topics_without_series",
            f"Topics beyond the first {TOPIC_SERIES_MAX} by name: in the totals only.",
            max(0, report.topics - TOPIC_SERIES_MAX),
        ),
    ]
    for name, text, number in gauges:
        yield GaugeMetricFamily(name, text, value=float(number))
    counters: list[tuple[str, str, int]] = [
        ("ister_messages_in", "Messages published.", report.messages_in),
        ("ister_received_bytes", "Bytes of batches published.", report.bytes_in),
        ("ister_messages_out", "Messages sent to consumers.", report.messages_out),
        ("ister_messages_dropped", "Messages that reached nobody.", report.messages_dropped),
        ("ister_delayed_published", "Messages published when they were due.",
         report.delayed.published),
        ("ister_delayed_refused", "Times that a stream did not take a message that was due.",
         report.delayed.refused),
        ("ister_delayed_dropped", "Messages that were due when their topic was gone.",
         report.delayed.dropped),
        ("ister_timelines_failures", "Times that the storage of timelines failed.",
         snapshot.timelines_failures),
        ("ister_upkeep_failures", "Times that retention or other upkeep of streams failed.",
         snapshot.upkeep_failures),
        ("ister_message_ids_forgotten", "Message ids forgotten because there were too many.",
         snapshot.message_ids_forgotten),
        ("ister_connections_accepted", "Connections taken.", snapshot.connections_accepted),
        ("ister_connections_refused", "Connections closed with an error.",
         snapshot.connections_refused),
        ("ister_grpc_connections_accepted", "Connections taken by the gRPC ports.",
         snapshot.grpc_accepted),
        ("ister_grpc_connections_refused", "Connections that the gRPC ports closed with an error.",
         snapshot.grpc_refused),
    ]  # fmt: skip
    for name, text, count in counters:
        yield CounterMetricFamily(name, text, value=count)
    errors = CounterMetricFamily(
        "ister_connection_errors", "Connections closed with an error.", labels=["error"]
    )
    for name, count in sorted(snapshot.errors.items()):
        errors.add_metric([name], count)
    yield errors


def _journals(rows: Sequence[JournalReport]) -> Iterator[Metric]:
    gauges = (
        ("ister_storage_up", "1 while a journal takes writes, 0 while it refuses them.", "is_up"),
        ("ister_stored_bytes", "Size of the sealed segments of a journal.", "stored_bytes"),
        ("ister_segments", "Sealed segments of a journal.", "segments"),
    )
    yield from _families(GaugeMetricFamily, gauges, ["journal"], rows)
    counters = (
        ("ister_journal_committed_bytes", "Bytes committed to a journal.", "committed_bytes"),
        ("ister_journal_failures", "Times that a journal could not be written.", "failures"),
        (
            "ister_compaction_failures",
            "Times that segments could not be rewritten.",
            "compaction_failures",
        ),
    )
    yield from _families(CounterMetricFamily, counters, ["journal"], rows)
    commits = HistogramMetricFamily(
        "ister_journal_commit_seconds", "Time to write and sync a group.", labels=["journal"]
    )
    for row in rows:
        commits.add_metric([row.journal], _buckets(row.commit_buckets), row.commit_seconds)
    yield commits
    rewrites = (
        ("ister_compactions", "Rewrites of segments, by reason.", "rewrites"),
        ("ister_compaction_read_bytes", "Bytes read to rewrite segments.", "read_bytes"),
        ("ister_compaction_written_bytes", "Bytes written in their place.", "written_bytes"),
        ("ister_compaction_segments_replaced", "Segments replaced.", "segments_replaced"),
        (
            "ister_compaction_dropped_messages",
            "Messages dropped because their key has a newer one.",
            "dropped_messages",
        ),
    )
    found = [one for row in rows for one in row.compactions]
    yield from _families(CounterMetricFamily, rewrites, ["journal", "reason"], found)


def _topics(rows: Sequence[TopicReport]) -> Iterator[Metric]:
    counters = (
        ("ister_topic_messages_in", "Messages published to a topic.", "messages_in"),
        ("ister_topic_received_bytes", "Bytes of batches published to a topic.", "bytes_in"),
        ("ister_topic_messages_out", "Messages of a topic sent to consumers.", "messages_out"),
        ("ister_topic_messages_dropped", "Messages of a topic dropped.", "messages_dropped"),
    )
    yield from _families(CounterMetricFamily, counters, ["topic"], rows)
    gauges = (
        ("ister_topic_producers", "Open producers of a topic.", "producers"),
        ("ister_topic_subscriptions", "Subscriptions on a topic.", "subscriptions"),
    )
    yield from _families(GaugeMetricFamily, gauges, ["topic"], rows)
    kept = (
        ("ister_topic_stored_bytes", "Bytes stored of a stream.", "stream.stored_bytes"),
        ("ister_topic_first_offset", "Oldest offset a stream keeps.", "stream.first_offset"),
        ("ister_topic_next_offset", "Next offset of a stream.", "next_offset"),
        ("ister_topic_segments", "Segments with messages of a stream.", "stream.segments"),
    )
    streams = [row for row in rows if row.stream is not None]
    yield from _families(GaugeMetricFamily, kept, ["topic"], streams)


def _timelines(rows: Sequence[TimelineReport]) -> Iterator[Metric]:
    lateness = HistogramMetricFamily(
        "ister_timeline_lateness_seconds",
        "How much later than due messages were handed to applications.",
        labels=["topic"],
    )
    for row in rows:
        counted = [*row.lateness, (inf, row.lateness_count)]
        lateness.add_metric([row.topic], _buckets(counted), row.lateness_s)
    yield lateness
    gauges = (
        ("ister_timeline_consumers", "Consumers of a timeline.", "consumers"),
        ("ister_timeline_due", "Messages that are due and with nobody, of those in memory.", "due"),
        ("ister_timeline_leases", "Messages that are due and leased.", "leases"),
        ("ister_timeline_prefetched", "Messages sent ahead of their time.", "prefetched"),
        ("ister_timeline_window", "Messages in memory until they are due.", "window"),
    )
    yield from _families(GaugeMetricFamily, gauges, ["topic"], rows)
    due = GaugeMetricFamily(
        "ister_timeline_due_seconds",
        "How long the first of the messages that are due has waited, 0 when there is none.",
        labels=["topic"],
    )
    drift = GaugeMetricFamily(
        "ister_timeline_clock_drift_seconds",
        "How far the broker's clock is ahead of that consumer's whose clock differs most.",
        labels=["topic"],
    )
    for row in rows:
        due.add_metric([row.topic], row.due_ms / 1000)
        drift.add_metric([row.topic], row.drift_us / 1_000_000)
    yield from (due, drift)
    counters = (
        ("ister_timeline_delivered", "Messages handed to consumers.", "delivered"),
        (
            "ister_timeline_leases_lost",
            "Leases that ended by time, as their messages are handed out again.",
            "lost",
        ),
        ("ister_timeline_dead_letters", "Messages put among the dead letters.", "buried"),
    )
    yield from _families(CounterMetricFamily, counters, ["topic"], rows)


def _schema_checks(rows: Sequence[SchemaCheckReport]) -> Iterator[Metric]:
    counters = (
        ("ister_schema_checked_batches", "Batches checked against a schema.", "checked"),
        ("ister_schema_violations", "Batches that do not follow their schema.", "violations"),
    )
    yield from _families(CounterMetricFamily, counters, ["topic"], rows)


def _subscriptions(rows: Sequence[SubscriptionReport]) -> Iterator[Metric]:
    labels = ["topic", "subscription"]
    counters = (
        ("ister_subscription_messages_out", "Messages sent to consumers.", "messages_out"),
        (
            "ister_subscription_messages_dropped",
            "Messages dropped for slowness.",
            "messages_dropped",
        ),
    )
    yield from _families(CounterMetricFamily, counters, labels, rows)
    consumers = GaugeMetricFamily("ister_subscription_consumers", "Consumers.", labels=labels)
    queued = GaugeMetricFamily(
        "ister_subscription_queued_bytes", "Bytes that wait for consumers.", labels=labels
    )
    for row in rows:
        names = [row.topic, row.subscription]
        consumers.add_metric(names, len(row.consumers))
        queued.add_metric(names, sum(one.queued_bytes for one in row.consumers))
    yield from (consumers, queued)
    yield from _durables([row for row in rows if row.cursor is not None])


def _durables(rows: Sequence[SubscriptionReport]) -> Iterator[Metric]:
    labels = ["topic", "subscription"]
    gauges = (
        ("ister_subscription_lag", "Messages not acknowledged yet.", "cursor.lag"),
        (
            "ister_subscription_in_flight",
            "Messages delivered and not acknowledged.",
            "cursor.in_flight",
        ),
        ("ister_subscription_in_flight_bytes", "Their bytes.", "cursor.in_flight_bytes"),
        ("ister_subscription_paused", "1 while deliveries rest.", "cursor.paused"),
    )
    yield from _families(GaugeMetricFamily, gauges, labels, rows)
    oldest = GaugeMetricFamily(
        "ister_subscription_oldest_unacked_seconds",
        "Age of the oldest message not acknowledged, 0 when there is none.",
        labels=labels,
    )
    for row in rows:
        assert row.cursor is not None
        oldest.add_metric([row.topic, row.subscription], row.cursor.oldest_unacked_ms / 1000)
    yield oldest
    counters = (
        ("ister_subscription_redelivered", "Messages delivered again.", "cursor.redelivered"),
        (
            "ister_subscription_dead_lettered",
            "Messages put among the dead letters.",
            "cursor.dead_lettered",
        ),
        (
            "ister_subscription_acks_refused",
            "Acknowledgements that came too late.",
            "cursor.refused",
        ),
    )
    yield from _families(CounterMetricFamily, counters, labels, rows)


def _buckets(bounds: Sequence[tuple[float, int]]) -> list[tuple[str, int]]:
    """Return the buckets of a histogram as the library wants them."""
    return [("+Inf" if isinf(bound) else str(bound), count) for bound, count in bounds]


def _families(
    family: Callable[..., CounterMetricFamily | GaugeMetricFamily],
    columns: Iterable[tuple[str, str, str]],
    labels: Sequence[str],
    rows: Sequence[object],
) -> Iterator[Metric]:
    """Yield a family for each column: its name, its text, and the attribute it shows of a row."""
    names = attrgetter(*labels) if len(labels) > 1 else lambda row: (attrgetter(labels[0])(row),)
    for name, text, attribute in columns:
        value = attrgetter(attribute)
        one = family(name, text, labels=labels)
        for row in rows:
            one.add_metric(names(row), value(row))
        yield one
