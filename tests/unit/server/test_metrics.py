"""The text of a scrape: every figure of the broker, with its name and unit."""

from dataclasses import replace
from math import inf

from prometheus_client.parser import text_string_to_metric_families
from tests.unit.broker.fakes import Bench

from ister.base import (
    BrokerReport,
    ConsumerReport,
    CursorReport,
    StreamReport,
    SubscriptionReport,
    TimelineReport,
    TopicReport,
)
from ister.broker import CommitFigures
from ister.server.http.metrics import render_metrics
from ister.server.http.snapshot import (
    TOPIC_SERIES_MAX,
    CompactionReport,
    JournalReport,
    Snapshot,
    take_snapshot,
)
from ister.server.native import NativeDoor
from ister.testing import MemoryBroker


def broker_report(*, topics: int = 1) -> BrokerReport:
    return BrokerReport(
        broker="b",
        version="1",
        uptime_s=2.5,
        connections=3,
        topics=topics,
        subscriptions=1,
        messages_in=10,
        bytes_in=1000,
        messages_out=9,
        messages_dropped=1,
        queued_bytes=70,
    )


def topic_report(name: str) -> TopicReport:
    return TopicReport(
        topic=name,
        kind="live",
        partitions=0,
        producers=1,
        subscriptions=2,
        messages_in=10,
        bytes_in=1000,
        messages_out=9,
        messages_dropped=1,
        next_offset=10,
    )


def subscription_report() -> SubscriptionReport:
    consumer = ConsumerReport(
        name="c",
        address="a",
        active=True,
        credit=1,
        queued=2,
        queued_bytes=70,
        delivered=9,
        dropped=1,
    )
    return SubscriptionReport(
        topic="/default/a",
        subscription="s",
        type="shared",
        policy="random",
        filters={},
        key_filters=[],
        topics=1,
        messages_out=9,
        messages_dropped=1,
        consumers=[consumer],
    )


def samples(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    text = render_metrics(snapshot).decode()
    return {
        (one.name, *sorted(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_totals_topics_and_subscriptions_are_there() -> None:
    found = samples(
        Snapshot(
            broker=broker_report(),
            topics=[topic_report("/default/a")],
            subscriptions=[subscription_report()],
            stages=2,
            staged_bytes=300,
            connections_accepted=5,
            connections_refused=2,
            errors={"ProtocolError": 2},
        )
    )

    assert found["ister_messages_in_total",] == 10
    assert found["ister_received_bytes_total",] == 1000
    assert found["ister_messages_dropped_total",] == 1
    assert found["ister_connections",] == 3
    assert (found["ister_stages",], found["ister_staged_bytes",]) == (2, 300)
    assert found["ister_connections_accepted_total",] == 5
    assert found["ister_connection_errors_total", "ProtocolError"] == 2
    assert found["ister_topic_messages_in_total", "/default/a"] == 10
    assert found["ister_topic_subscriptions", "/default/a"] == 2
    assert found["ister_subscription_messages_out_total", "/default/a", "s"] == 9
    assert found["ister_subscription_queued_bytes", "/default/a", "s"] == 70


def test_a_stream_shows_what_it_keeps_and_a_live_topic_does_not() -> None:
    kept = StreamReport(first_offset=4, stored_bytes=500, segments=2)
    stream = replace(topic_report("/default/s"), kind="stream", stream=kept)
    found = samples(Snapshot(broker=broker_report(), topics=[topic_report("/default/a"), stream]))

    assert found["ister_topic_stored_bytes", "/default/s"] == 500
    assert found["ister_topic_first_offset", "/default/s"] == 4
    assert found["ister_topic_next_offset", "/default/s"] == 10
    assert found["ister_topic_segments", "/default/s"] == 2
    assert ("ister_topic_stored_bytes", "/default/a") not in found


def test_a_durable_subscription_shows_how_far_it_is_and_a_live_one_does_not() -> None:
    cursor = CursorReport(
        lag=7,
        in_flight=3,
        in_flight_bytes=30,
        oldest_unacked_ms=1_500,
        redelivered=2,
        dead_lettered=1,
        refused=4,
        paused=True,
    )
    durable = replace(subscription_report(), subscription="d", cursor=cursor)
    found = samples(
        Snapshot(broker=broker_report(), subscriptions=[subscription_report(), durable])
    )

    names = ("/default/a", "d")
    assert found["ister_subscription_lag", *names] == 7
    assert found["ister_subscription_in_flight", *names] == 3
    assert found["ister_subscription_in_flight_bytes", *names] == 30
    assert found["ister_subscription_oldest_unacked_seconds", *names] == 1.5
    assert found["ister_subscription_redelivered_total", *names] == 2
    assert found["ister_subscription_dead_lettered_total", *names] == 1
    assert found["ister_subscription_acks_refused_total", *names] == 4
    assert found["ister_subscription_paused", *names] == 1
    assert ("ister_subscription_lag", "/default/a", "s") not in found


def test_a_journal_shows_its_commits_and_what_the_compactor_did() -> None:
    compaction = CompactionReport(
        journal="local",
        reason="keys",
        rewrites=2,
        read_bytes=100,
        written_bytes=40,
        segments_replaced=3,
        dropped_messages=9,
    )
    journal = JournalReport(
        journal="local",
        is_up=False,
        stored_bytes=1_000,
        segments=5,
        committed_bytes=600,
        failures=1,
        commit_buckets=[(0.001, 3), (inf, 4)],
        commit_seconds=0.25,
        compaction_failures=1,
        compactions=[compaction],
    )
    found = samples(Snapshot(broker=broker_report(), journals=[journal]))

    assert found["ister_storage_up", "local"] == 0
    assert found["ister_stored_bytes", "local"] == 1_000
    assert found["ister_segments", "local"] == 5
    assert found["ister_journal_committed_bytes_total", "local"] == 600
    assert found["ister_journal_failures_total", "local"] == 1
    assert found["ister_journal_commit_seconds_bucket", "0.001", "local"] == 3
    assert found["ister_journal_commit_seconds_bucket", "+Inf", "local"] == 4
    assert found["ister_journal_commit_seconds_count", "local"] == 4
    assert found["ister_journal_commit_seconds_sum", "local"] == 0.25
    assert found["ister_compactions_total", "keys", "local"] == 2
    assert found["ister_compaction_written_bytes_total", "keys", "local"] == 40
    assert found["ister_compaction_dropped_messages_total", "keys", "local"] == 9
    assert found["ister_compaction_failures_total", "local"] == 1


def test_a_commit_counts_in_the_bucket_of_its_bound_and_in_all_above() -> None:
    figures = CommitFigures()
    figures.add(0.001, 10)
    figures.add(0.0011, 20)
    figures.add(100.0, 30)

    buckets = dict(figures.buckets())
    assert (buckets[0.0005], buckets[0.001], buckets[0.0025]) == (0, 1, 2)
    assert (buckets[5.0], buckets[inf]) == (2, 3)
    assert figures.committed_bytes == 60


async def test_a_snapshot_has_the_journal_that_streams_are_kept_in() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        before = take_snapshot(broker.engine, NativeDoor(broker.engine))
        await client.create_topic("/default/a", kind="stream")
        async with client.producer("/default/a") as producer:
            await producer.send(b"x" * 1_000)
        after = take_snapshot(broker.engine, NativeDoor(broker.engine))

    assert before.journals == []
    [journal] = after.journals
    assert (journal.journal, journal.is_up, journal.failures) == ("local", True, 0)
    assert journal.committed_bytes > 1_000
    assert journal.commit_buckets[-1][1] >= 2
    [topic] = after.topics
    assert topic.stream is not None
    assert topic.stream.stored_bytes > 1_000


def test_readiness_is_a_gauge() -> None:
    assert samples(Snapshot(broker=broker_report()))["ister_ready",] == 1
    assert samples(Snapshot(broker=broker_report(), ready=False))["ister_ready",] == 0


def test_topics_beyond_the_cap_are_counted() -> None:
    at_the_cap = samples(Snapshot(broker=broker_report(topics=TOPIC_SERIES_MAX)))
    beyond = samples(Snapshot(broker=broker_report(topics=TOPIC_SERIES_MAX + 1)))

    assert at_the_cap["ister_topics_without_series",] == 0
    assert beyond["ister_topics_without_series",] == 1


def test_a_label_with_quotes_and_newlines_stays_one_sample() -> None:
    found = samples(Snapshot(broker=broker_report(), errors={'a"b\n': 1}))

    assert found["ister_connection_errors_total", 'a"b\n'] == 1


async def test_a_snapshot_has_more_subscriptions_than_a_page_of_a_listing() -> None:
    bench = Bench()
    for number in range(400):
        bench.consume(subscription=f"s{number}")

    snapshot = take_snapshot(bench.broker, NativeDoor(bench.broker))
    assert len(snapshot.subscriptions) == 400


def test_a_timeline_has_its_lateness_what_is_due_and_the_drift_of_clocks() -> None:
    timeline = TimelineReport(
        topic="/default/t",
        consumers=2,
        due=3,
        due_ms=1_500,
        leases=4,
        prefetched=5,
        delivered=6,
        lost=7,
        buried=8,
        lateness=[(0.001, 1)],
        lateness_count=3,
        lateness_s=2.5,
        window=9,
        drift_us=-250_000,
    )
    row = replace(topic_report("/default/t"), kind="timeline", timeline=timeline)
    others = [topic_report("/default/a")]
    found = samples(
        Snapshot(broker=broker_report(topics=2), topics=[*others, row], timelines_failures=1)
    )

    assert found["ister_timeline_lateness_seconds_bucket", "/default/t", "0.001"] == 1
    assert found["ister_timeline_lateness_seconds_bucket", "+Inf", "/default/t"] == 3
    assert found["ister_timeline_lateness_seconds_sum", "/default/t"] == 2.5
    gauges = ("consumers", "due", "due_seconds", "leases", "prefetched", "window")
    assert [found[f"ister_timeline_{name}", "/default/t"] for name in gauges] == [
        2, 3, 1.5, 4, 5, 9,
    ]  # fmt: skip
    assert found["ister_timeline_clock_drift_seconds", "/default/t"] == -0.25
    counters = ("delivered", "leases_lost", "dead_letters")
    assert [found[f"ister_timeline_{name}_total", "/default/t"] for name in counters] == [6, 7, 8]
    assert found["ister_timelines_failures_total",] == 1
    assert ("ister_timeline_due", "/default/a") not in found
