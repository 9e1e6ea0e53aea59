"""The text of a scrape: every figure of the broker, with its name and unit."""

from prometheus_client.parser import text_string_to_metric_families
from tests.unit.broker.fakes import Bench

from ister.base import BrokerReport, ConsumerReport, SubscriptionReport, TopicReport
from ister.server.http.metrics import render_metrics
from ister.server.http.snapshot import TOPIC_SERIES_MAX, Snapshot, take_snapshot
from ister.server.native import NativeDoor


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
            connections_accepted=5,
            connections_refused=2,
            errors={"ProtocolError": 2},
        )
    )

    assert found["ister_messages_in_total",] == 10
    assert found["ister_received_bytes_total",] == 1000
    assert found["ister_messages_dropped_total",] == 1
    assert found["ister_connections",] == 3
    assert found["ister_connections_accepted_total",] == 5
    assert found["ister_connection_errors_total", "ProtocolError"] == 2
    assert found["ister_topic_messages_in_total", "/default/a"] == 10
    assert found["ister_topic_subscriptions", "/default/a"] == 2
    assert found["ister_subscription_messages_out_total", "/default/a", "s"] == 9
    assert found["ister_subscription_queued_bytes", "/default/a", "s"] == 70


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
