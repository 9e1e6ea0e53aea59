"""However often clients cause an event, the log has one line of it a second, with a count."""

from collections.abc import Iterable, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.delayedbench import DelayedBench
from tests.unit.broker.streambench import TOPIC, StreamBench
from tests.unit.broker.timelines.cronbench import TO_MINUTE_MS, CronBench
from tests.unit.broker.timelines.timelinebench import TimelineBench

from ister.testing import Fault
from ister.timeline import Update, Work

COUNT = 20
LIVE = "/default/live"


def lines_of(logs: Iterable[MutableMapping[str, Any]], event: str) -> list[tuple[str, int]]:
    """Return the lines of an event, each with how often it says that the event happened."""
    return [(event, line["times"]) for line in logs if line["event"] == event]


def fail_once(bench: StreamBench, name: str, **acks: Any) -> None:
    """Let a new subscription's only delivery fail."""
    member = bench.consume(subscription=name, acks={"max_deliveries": 1, **acks})
    member.nack(*member.take(), delay_ms=0)


@pytest.mark.parametrize(
    ("event", "acks"),
    [
        ("subscription_blocked", {"poison": "block"}),
        ("not_buried", {"dead_letter_topic": LIVE}),
    ],
)
def test_subscriptions_with_dead_messages_do_not_fill_the_log(
    event: str, acks: dict[str, Any]
) -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"bad")
    for name in range(COUNT + 1):
        bench.consume(subscription=f"s{name}", acks={"max_deliveries": 1, **acks}, credit=0).leave()
    # After they subscribed: a subscriber cannot name a topic that takes no dead letters.
    bench.broker.create_topic(LIVE)
    with capture_logs() as logs:
        for name in range(COUNT):
            fail_once(bench, f"s{name}", **acks)
        first = lines_of(logs, event)
        bench.advance(1_000)
        fail_once(bench, f"s{COUNT}", **acks)

    assert first == [(event, 1)]
    assert lines_of(logs, event) == [(event, 1), (event, COUNT)]


def test_messages_leased_too_often_do_not_fill_the_log() -> None:
    bench = TimelineBench(max_leases=1)
    client = bench.consume()
    ids = [f"i{number}" for number in range(COUNT)]
    bench.put_many(ids, 0)
    with capture_logs() as logs:
        for name in ids:
            client.release(name, bench.now_ms)

    assert bench.report().buried == COUNT
    assert lines_of(logs, "message_buried") == [("message_buried", 1)]


def test_messages_that_cannot_become_dead_letters_do_not_fill_the_log() -> None:
    kinds: dict[str, str] = {}
    bench = TimelineBench(find_kind=kinds.get, max_leases=1, dead_letters="/default/dead")
    # Somebody creates a topic of that name that takes no letters.
    kinds["/default/dead"] = "stream"
    client = bench.consume()
    ids = [f"i{number}" for number in range(COUNT)]
    bench.put_many(ids, 0)
    with capture_logs() as logs:
        for name in ids:
            client.release(name, bench.now_ms)

    assert bench.report().buried == 0
    assert lines_of(logs, "message_not_buried") == [("message_not_buried", 1)]


def test_rules_that_fail_do_not_fill_the_log() -> None:
    bench = CronBench()
    for number in range(COUNT):
        bench.rule(f"r{number}")
        change = Update(bench.rules.number, f"r{number}", "shop", b"not a rule")
        bench.store.apply(0, [Work([change])])
    with capture_logs() as logs:
        bench.crash()
        bench.advance(TO_MINUTE_MS)

    assert lines_of(logs, "cron_failed") == [("cron_failed", 1)]


def test_delayed_messages_that_are_dropped_do_not_fill_the_log() -> None:
    bench = DelayedBench()
    with capture_logs() as logs:
        for number in range(COUNT):
            topic = f"{TOPIC}-{number}"
            bench.create(topic)
            bench.delay([b"a"], 1_000 - number, topic=topic, name=f"p{number}")
            bench.broker.delete_topic(topic)
            bench.settle()
        bench.advance(1_000)

    assert bench.delays.dropped == COUNT
    assert lines_of(logs, "delayed_dropped") == [("delayed_dropped", 1)]


def test_delayed_messages_that_streams_refuse_do_not_fill_the_log() -> None:
    bench = DelayedBench()
    topics = [f"{TOPIC}-{number}" for number in range(COUNT)]
    for topic in topics:
        bench.create(topic)
        # The first one finds out that the disk fails, and is tried again by itself.
        sent = bench.delay([b"a"], 2_000 - 1_000 * (topic == topics[0]), topic=topic)
        assert sent.error is None
    bench.disk.fail(Fault(lasting=True))
    with capture_logs() as logs:
        bench.advance(2_000)

    assert bench.delays.refused == COUNT - 1
    assert lines_of(logs, "delayed_refused") == [("delayed_refused", 1)]
