"""Prometheus text from reports. Nothing is counted here: the broker counts, a scrape reads.

Always true: names are `ister_<thing>_<unit>`, and every total covers every topic, also those
beyond `TOPIC_SERIES_MAX` that have no series of their own.

Import this module only to scrape: the library costs start-up time and memory.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ister.base import SubscriptionReport, TopicReport
from ister.server.http.snapshot import TOPIC_SERIES_MAX, Snapshot


class SnapshotCollector(Collector):
    """Turns one snapshot into metric families."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Yield the families: the broker as a whole, then each topic and subscription."""
        yield from _broker(self._snapshot)
        yield from _topics(self._snapshot.topics)
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
        ("ister_ready", "1 while the broker takes clients, 0 while it closes.", snapshot.ready),
        ("ister_connections", "Connections of clients.", report.connections),
        ("ister_topics", "Topics, each partition counted.", report.topics),
        ("ister_subscriptions", "Subscriptions.", report.subscriptions),
        ("ister_queued_bytes", "Bytes that wait for slow consumers.", report.queued_bytes),
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
        ("ister_connections_accepted", "Connections taken.", snapshot.connections_accepted),
        ("ister_connections_refused", "Connections closed with an error.",
         snapshot.connections_refused),
    ]  # fmt: skip
    for name, text, count in counters:
        yield CounterMetricFamily(name, text, value=count)
    errors = CounterMetricFamily(
        "ister_connection_errors", "Connections closed with an error.", labels=["error"]
    )
    for name, count in sorted(snapshot.errors.items()):
        errors.add_metric([name], count)
    yield errors


def _topics(rows: Sequence[TopicReport]) -> Iterator[Metric]:
    counters = (
        ("ister_topic_messages_in", "Messages published to a topic.", "messages_in"),
        ("ister_topic_received_bytes", "Bytes of batches published to a topic.", "bytes_in"),
        ("ister_topic_messages_out", "Messages of a topic sent to consumers.", "messages_out"),
        ("ister_topic_messages_dropped", "Messages of a topic dropped.", "messages_dropped"),
    )
    for name, text, attribute in counters:
        counter = CounterMetricFamily(name, text, labels=["topic"])
        for row in rows:
            counter.add_metric([row.topic], getattr(row, attribute))
        yield counter
    gauges = (
        ("ister_topic_producers", "Open producers of a topic.", "producers"),
        ("ister_topic_subscriptions", "Subscriptions on a topic.", "subscriptions"),
    )
    for name, text, attribute in gauges:
        gauge = GaugeMetricFamily(name, text, labels=["topic"])
        for row in rows:
            gauge.add_metric([row.topic], getattr(row, attribute))
        yield gauge


def _subscriptions(rows: Sequence[SubscriptionReport]) -> Iterator[Metric]:
    labels = ["topic", "subscription"]
    out = CounterMetricFamily(
        "ister_subscription_messages_out", "Messages sent to consumers.", labels=labels
    )
    dropped = CounterMetricFamily(
        "ister_subscription_messages_dropped", "Messages dropped for slowness.", labels=labels
    )
    consumers = GaugeMetricFamily("ister_subscription_consumers", "Consumers.", labels=labels)
    queued = GaugeMetricFamily(
        "ister_subscription_queued_bytes", "Bytes that wait for consumers.", labels=labels
    )
    for row in rows:
        names = [row.topic, row.subscription]
        out.add_metric(names, row.messages_out)
        dropped.add_metric(names, row.messages_dropped)
        consumers.add_metric(names, len(row.consumers))
        queued.add_metric(names, sum(one.queued_bytes for one in row.consumers))
    yield from (out, dropped, consumers, queued)
