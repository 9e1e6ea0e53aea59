"""Durable subscriptions on many topics: patterns, partitions, topics that come and go."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, LeaseSink, Outcome, StreamBench, saved

from ister.base import Origin, Position, StreamSettings
from ister.base.errors import (
    BadRequestError,
    LimitReachedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import COVERED_AT_ONCE_MAX, PARTITIONS_MAX
from ister.codec import Batch, encode
from ister.subscriptions.planning import Effect, Plannable, Strategy, plan_new

EU = "/default/orders.eu"
US = "/default/orders.us"
ALL = "/default/orders.*"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create(EU)
    bench.create(US)
    return bench


# Patterns


def test_a_pattern_covers_every_stream_it_matches(bench: StreamBench) -> None:
    bench.create("/default/others")
    member = bench.consume(ALL)
    for topic in (EU, US, "/default/others"):
        bench.publish(b"0", topic=topic)

    assert [(m.topic, m.offset) for m in member.messages] == [(EU, 0), (US, 0)]
    assert member.ack(*member.messages) == []
    assert bench.lag(ALL) == 0


def test_a_stream_that_appears_later_is_covered_from_its_start(bench: StreamBench) -> None:
    member = bench.consume(ALL, start="latest")
    bench.create("/default/orders.asia")
    bench.publish(b"0", topic="/default/orders.asia")

    assert [m.topic for m in member.messages] == ["/default/orders.asia"]


def test_a_stream_that_appears_while_nobody_is_there_is_covered(bench: StreamBench) -> None:
    bench.consume(ALL, start="latest").leave()
    bench.create("/default/orders.asia")
    bench.publish(b"0", topic="/default/orders.asia")
    bench.restart("none")

    assert [m.topic for m in bench.consume(ALL).messages] == ["/default/orders.asia"]


def test_a_topic_with_more_partitions_than_can_be_covered_at_once_is_not_created(
    bench: StreamBench,
) -> None:
    for number in range(COVERED_AT_ONCE_MAX // PARTITIONS_MAX + 1):
        bench.consume(ALL, f"s{number}", credit=0)
    before = dict(bench.broker.streams.topics_of(bench.storage))

    with pytest.raises(LimitReachedError, match="covered_at_once_max"):
        bench.create("/default/orders.asia", partitions=PARTITIONS_MAX)
    assert bench.broker.streams.topics_of(bench.storage) == before
    bench.create("/default/orders.asia", partitions=3)


def test_cursors_of_deleted_topics_are_gone_after_a_restart(bench: StreamBench) -> None:
    bench.consume(ALL, start="latest").leave()
    bench.create("/default/orders.asia")
    bench.broker.catalog.delete("/default/orders.asia")
    bench.settle()
    bench.restart("none")

    [durable] = bench.broker.durables
    assert list(durable.record.cursors) == list(bench.broker.streams.topics_of(bench.storage))


def test_consumers_of_live_topics_get_a_stream_that_appears(bench: StreamBench) -> None:
    members = [
        bench.subscribe("/default/new.*", "s", type="shared", owner=str(n)) for n in range(2)
    ]
    sinks = [sink for sink, _ in members]
    memberships = [outcome.result for _, outcome in members]
    for membership in memberships:
        membership.consumer.grant(100, 1 << 20)
    bench.create("/default/new.one")
    bench.publish(*[b"x"] * 10, topic="/default/new.one")

    assert sorted(m.offset for sink in sinks for m in sink.messages) == list(range(10))
    assert all(sink.messages for sink in sinks)
    # What their leases belong to was told before.
    assert [sink.lives for sink in sinks] == [[a.life] for a in memberships]


def test_a_stream_that_appears_while_a_start_is_looked_up_is_covered(bench: StreamBench) -> None:
    bench.publish(b"old", topic=EU)
    bench.advance(1_000)
    start = Position(origin=Origin.TIME, at=bench.clock.now_ms())
    bench.publish(b"new", topic=EU)
    sink, outcome = bench.subscribe(ALL, start=start)
    bench.broker.create_topic("/default/orders.asia", Outcome(), kind="stream")
    bench.settle()
    outcome.result.consumer.grant(100, 1 << 20)
    bench.publish(b"0", topic="/default/orders.asia")

    assert [(m.topic, m.payload) for m in sink.messages] == [
        (EU, b"new"),
        ("/default/orders.asia", b"0"),
    ]


def test_a_partition_that_is_added_while_a_start_is_looked_up_is_covered(
    bench: StreamBench,
) -> None:
    bench.create(TOPIC, partitions=1)
    start = Position(origin=Origin.TIME, at=bench.clock.now_ms())
    sink, outcome = bench.subscribe(TOPIC, start=start)
    bench.broker.catalog.grow(TOPIC, 2, kind="stream")
    bench.settle()
    outcome.result.consumer.grant(100, 1 << 20)
    bench.publish(b"0", topic=f"{TOPIC}-part-1")

    assert [m.payload for m in sink.messages] == [b"0"]


def test_a_stream_that_appears_in_the_other_journal_before_that_is_asked_is_covered() -> None:
    bench = StreamBench(objects=True)
    bench.create(EU)
    bench.create(US, durability="object")
    bench.publish(b"old", topic=US)
    sink, outcome = bench.subscribe(ALL, start="latest")
    asia = StreamSettings(durability="object")
    bench.broker.create_topic("/default/orders.asia", Outcome(), kind="stream", stream=asia)
    bench.settle()
    outcome.result.consumer.grant(100, 1 << 20)
    for topic in (EU, US, "/default/orders.asia"):
        bench.publish(b"0", topic=topic)

    assert [(m.topic, m.offset) for m in sink.messages] == [
        (EU, 0),
        (US, 1),
        ("/default/orders.asia", 0),
    ]


def test_a_topic_created_while_its_namesake_is_being_deleted_stays_covered(
    bench: StreamBench,
) -> None:
    member = bench.consume(ALL)
    blocked = True

    def block() -> Iterator[None]:
        while blocked:
            yield

    # Time passes, so that the deletion does not end before the creation begins.
    bench.clock.tick_us = 1_000
    bench.broker.streams.deletions.do(block())
    bench.broker.catalog.delete(EU)
    bench.settle()
    bench.create(EU)
    blocked = False
    bench.clock.tick_us = 0
    bench.advance(1_000)
    bench.publish(b"0", topic=EU, name="q")

    assert [m.payload for m in member.take()] == [b"0"]
    assert bench.lag(ALL) == 1
    assert bench.seek("earliest", ALL) is None
    assert [m.payload for m in member.take()] == [b"0"]


def test_consumers_of_live_topics_get_every_partition_that_appears(bench: StreamBench) -> None:
    sink, outcome = bench.subscribe("/default/new.*", "s")
    outcome.result.consumer.grant(100, 1 << 20)
    bench.create("/default/new.one", partitions=3)
    for number in range(3):
        bench.publish(b"x", topic=f"/default/new.one-part-{number}")

    assert sorted(m.topic for m in sink.messages) == [
        f"/default/new.one-part-{number}" for number in range(3)
    ]


def test_a_pattern_gets_live_topics_and_streams(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    live = bench.broker.open_producer("/default/orders.live", "p")
    head, body = encode([b"live"], producer=b"p")
    bench.broker.publish(live, Batch(head + body))
    bench.publish(b"stored", topic=EU)

    assert member.sink.live == [b"live"]
    assert member.payloads == [b"stored"]


def test_a_consumer_that_left_is_not_attached_to_a_stream_that_appears(
    bench: StreamBench,
) -> None:
    _, outcome = bench.subscribe("/default/new.*", "s")
    membership = outcome.result
    bench.broker.create_topic("/default/new.one", kind="stream")
    # The subscription is being stored while its consumer goes.
    bench.broker.subscribers.unsubscribe(membership)
    bench.settle()

    assert membership.durables == []
    assert bench.consume("/default/new.*", "s").membership.active


def test_a_pattern_does_not_cover_the_dead_letters_of_its_own(bench: StreamBench) -> None:
    member = bench.consume(ALL, acks={"max_deliveries": 1})
    bench.publish(b"0", topic=EU)
    member.nack(*member.take())

    assert [m.payload for m in bench.stored(f"{EU}-s-dlq")] == [b"0"]
    assert member.offsets == []
    member.leave()
    assert bench.consume(ALL, acks={"max_deliveries": 1}).offsets == []
    bench.restart()
    assert bench.consume(ALL).offsets == []
    # Another one does.
    assert bench.consume(ALL, "other").offsets == [0, 0]


def test_a_pattern_does_not_cover_a_named_topic_of_its_dead_letters(bench: StreamBench) -> None:
    acks = {"max_deliveries": 1, "dead_letter_topic": "/default/orders.dead"}
    member = bench.consume(ALL, acks=acks)
    bench.publish(b"0", topic=EU)
    member.nack(*member.take())
    assert member.offsets == []
    member.leave()

    again = bench.consume(ALL)
    assert again.offsets == []
    assert [m.payload for m in bench.stored("/default/orders.dead")] == [b"0"]


def test_a_topic_cannot_hold_its_own_dead_letters(bench: StreamBench) -> None:
    with pytest.raises(BadRequestError):
        bench.consume(EU, acks={"dead_letter_topic": EU})


def test_deleting_a_subscription_by_pattern_takes_its_consumers_from_live_topics_as_well(
    bench: StreamBench,
) -> None:
    member = bench.consume(ALL)
    assert bench.change("delete", ALL, "s") is None

    assert member.sink.closed == ["the subscription was deleted"]
    assert member.membership.live is not None
    assert member.membership.live.consumers == []


def test_a_lease_of_one_topic_does_not_fit_another(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    bench.publish(b"0", topic=EU)
    bench.publish(b"0", topic=US)
    one, other = member.messages

    assert one.lease != other.lease
    member.ack(one)
    assert bench.report(ALL).cursor.floors == {EU: 1, US: 0}


# Seeking


def test_seeking_moves_all_topics(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", topic=EU)
    bench.publish(b"0", b"1", topic=US)
    member = bench.consume(ALL)
    member.ack(*member.take())
    assert bench.seek(1, ALL) is None

    assert sorted((m.topic, m.offset) for m in member.messages) == [(EU, 1), (US, 1)]


def test_a_topic_that_was_not_there_starts_over_with_a_saved_cursor(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    bench.publish(b"0", topic=EU)
    member.ack(*member.take())
    bench.change("save_cursor", ALL, "s", "then")
    bench.create("/default/orders.asia")
    bench.publish(b"0", topic="/default/orders.asia")
    bench.publish(b"1", topic=EU)
    member.ack(*member.take())
    assert bench.seek(saved("then"), ALL) is None

    assert sorted((m.topic, m.offset) for m in member.messages) == [
        ("/default/orders.asia", 0),
        (EU, 1),
    ]


# Topics that go


def test_the_other_topics_go_on_when_one_is_deleted(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    bench.publish(b"0", topic=EU)
    bench.publish(b"0", topic=US)
    messages = member.take()
    bench.broker.delete_topic(EU)
    bench.settle()

    assert member.ack(*messages) == [messages[0].run]
    bench.publish(b"1", topic=US)
    assert member.take_offsets() == [1]
    bench.advance(30_000)
    assert member.take_offsets() == [1]
    assert bench.report(ALL).topics == 1


def test_a_topic_made_anew_is_another_topic(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    bench.publish(b"old", topic=EU)
    (old,) = member.take()
    bench.broker.delete_topic(EU)
    bench.settle()
    bench.create(EU)
    bench._producers.clear()
    bench.publish(b"new", topic=EU, sequence=0)
    (new,) = member.take()

    assert new.payload == b"new"
    assert new.lease != old.lease
    assert member.ack(old) == [old.run]
    assert member.ack(new) == []
    bench.restart("none")
    assert bench.lag(ALL) == 1


def test_the_place_of_a_deleted_topic_is_used_again(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    for number in range(50):
        bench.create(f"/default/orders.{number}")
        bench.broker.delete_topic(f"/default/orders.{number}")
        bench.settle()
    bench.publish(b"0", topic=EU)

    assert len(member.durable.coverage._slots) == 3
    assert member.offsets == [0]


def test_consumers_of_a_deleted_topic_are_closed(bench: StreamBench) -> None:
    member = bench.consume(EU)
    bench.publish(b"0", topic=EU)
    (message,) = member.take()
    bench.broker.delete_topic(EU)
    bench.settle()

    assert member.sink.closed == [f"topic {EU} was deleted"]
    assert member.ack(message) == [message.run]
    with pytest.raises(SubscriptionNotFoundError):
        bench.seek("earliest", EU)
    bench.advance(60_000)
    bench.restart("none")
    assert len(bench.broker.durables) == 0


def test_a_crash_between_the_end_of_a_topic_and_of_its_subscription_leaves_none(
    bench: StreamBench,
) -> None:
    bench.consume(EU).leave()
    # As the journal is when the broker stops before the second change.
    bench.broker.streams.delete([bench.topic(EU)], lambda _: None)
    bench.settle()
    bench.restart()

    assert len(bench.broker.durables) == 0
    bench.create(EU)
    bench.publish(b"0", topic=EU, sequence=0)
    assert bench.consume(EU).offsets == [0]


def test_a_dead_letter_on_its_way_does_no_harm_when_its_topic_is_deleted(
    bench: StreamBench,
) -> None:
    member = bench.consume(EU, acks={"max_deliveries": 1})
    bench.publish(b"0", topic=EU)
    message = member.take()[0]
    member.membership.nack([(*message.run, 0)], -1)
    bench.broker.delete_topic(EU)
    bench.settle()

    assert member.sink.closed
    with pytest.raises(TopicNotFoundError):
        bench.broker.streams_of(EU)


# Partitions


def test_a_partitioned_stream_is_one_subscription(bench: StreamBench) -> None:
    bench.create(TOPIC, partitions=3)
    member = bench.consume(TOPIC)
    for number in range(3):
        bench.publish(b"0", b"1", topic=f"{TOPIC}-part-{number}")
    member.ack(*[m for m in member.messages if m.offset == 0])
    assert bench.confirm() is None
    bench.restart("none")
    again = bench.consume(TOPIC)

    assert sorted((m.topic, m.offset) for m in again.messages) == [
        (f"{TOPIC}-part-{number}", 1) for number in range(3)
    ]


def test_the_dead_letters_of_partitions_go_to_one_topic(bench: StreamBench) -> None:
    bench.create(TOPIC, partitions=2)
    member = bench.consume(TOPIC, acks={"max_deliveries": 1})
    for number in range(2):
        bench.publish(b"%d" % number, topic=f"{TOPIC}-part-{number}")
    member.nack(*member.take())

    assert sorted(m.payload for m in bench.stored(f"{TOPIC}-s-dlq")) == [b"0", b"1"]


# Cost


def test_thousands_of_resting_topics_cost_nothing_for_a_message_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = StreamBench()
    count = 2_000
    for number in range(count):
        bench.broker.create_topic(f"/default/t.{number}", kind="stream")
    bench.settle()
    member = bench.consume("/default/t.*", start="latest", acks={"in_flight_max": 1})
    looked_at = []

    def look(partition: Plannable, strategy: Strategy, **options: Any) -> Iterator[Effect]:
        looked_at.append(partition)
        return plan_new(partition, strategy, **options)

    monkeypatch.setattr("ister.broker.durable.dispatch.plan_new", look)
    for _ in range(3):
        bench.publish(b"x", topic="/default/t.7")
        member.ack(*member.take())

    assert len(looked_at) <= 8


def test_a_seek_of_nothing_is_done_at_once() -> None:
    bench = StreamBench()
    bench.create(EU)
    sink = LeaseSink()
    bench.consume(ALL, sink=sink)
    bench.broker.delete_topic(EU)
    bench.settle()

    assert bench.seek(Position(origin="time", at=0), ALL) is None
    assert bench.seek("earliest", ALL) is None


# Work queues

JOBS = "/default/orders.jobs"


def jobs(bench: StreamBench) -> None:
    bench.create(JOBS, retention="workqueue")


def test_a_pattern_passes_a_work_queue_by(bench: StreamBench) -> None:
    jobs(bench)
    dashboard = bench.consume(ALL)
    worker = bench.consume(JOBS, "workers")
    bench.publish(b"job", topic=JOBS)
    bench.publish(b"order", topic=EU)

    assert dashboard.payloads == [b"order"]
    assert worker.payloads == [b"job"]


def test_a_work_queue_of_others_is_no_hindrance_for_a_pattern(bench: StreamBench) -> None:
    jobs(bench)
    bench.consume(JOBS, "workers")

    assert bench.consume(ALL).durable.coverage.covers(EU)


@pytest.mark.parametrize("pattern", [ALL, "/default/*.jobs"])
def test_a_pattern_passes_a_work_queue_by_that_is_made_later(
    bench: StreamBench, pattern: str
) -> None:
    sink, _ = bench.subscribe(pattern)
    jobs(bench)
    bench.publish(b"job", topic=JOBS)

    assert bench.consume(JOBS, "workers").payloads == [b"job"]
    assert (sink.messages, sink.closed) == ([], [])


def test_a_pattern_that_asks_for_work_queues_covers_them(bench: StreamBench) -> None:
    jobs(bench)
    member = bench.consume(ALL, work_queues=True)
    bench.publish(b"job", topic=JOBS)

    assert member.payloads == [b"job"]
    with pytest.raises(WrongKindError, match="one subscription only, 's' on '/default/orders"):
        bench.consume(JOBS, "workers")


@pytest.mark.parametrize("pattern", [ALL, "/default/*.jobs"])
def test_a_pattern_that_asks_for_work_queues_covers_one_that_is_made_later(
    bench: StreamBench, pattern: str
) -> None:
    members = [bench.subscribe(pattern, name, work_queues=True) for name in ("first", "second")]
    bench.settle()
    for _, outcome in members:
        outcome.result.consumer.grant(10, 1 << 20)
    jobs(bench)
    bench.publish(b"job", topic=JOBS)

    # The second one has to pass it by, and is not closed for that.
    assert [[m.payload for m in sink.messages] for sink, _ in members] == [[b"job"], []]
    assert [sink.closed for sink, _ in members] == [[], []]
    assert [d.name for d in bench.broker.durables if d.coverage.covers(JOBS)] == ["first"]


def test_a_pattern_keeps_the_work_queues_that_it_covers(bench: StreamBench) -> None:
    jobs(bench)
    bench.consume(ALL, work_queues=True).leave()
    bench.restart()
    member = bench.consume(ALL)
    bench.publish(b"job", topic=JOBS)
    bench.create("/default/orders.more", partitions=2, retention="workqueue")

    assert member.payloads == [b"job"]
    assert member.durable.coverage.covers("/default/orders.more-part-1")


def test_a_pattern_can_ask_for_work_queues_afterwards(bench: StreamBench) -> None:
    jobs(bench)
    bench.consume(ALL).leave()
    bench.consume(ALL, work_queues=True).leave()
    bench.restart()
    bench.publish(b"job", topic=JOBS)

    assert bench.consume(ALL).payloads == [b"job"]


def test_new_partitions_of_a_work_queue_go_to_its_subscription(bench: StreamBench) -> None:
    bench.create(JOBS, partitions=1, retention="workqueue")
    worker = bench.consume(JOBS, "workers")
    watcher = bench.consume(ALL, "watcher", work_queues=False)
    settings = StreamSettings(retention="workqueue")
    bench.broker.grow_topic(JOBS, 2, lambda _: None, kind="stream", stream=settings)
    bench.settle()

    assert worker.durable.coverage.covers(f"{JOBS}-part-1")
    assert not watcher.durable.coverage.covers(f"{JOBS}-part-1")


def test_a_work_queue_that_others_took_while_a_start_was_looked_up_is_passed_by(
    bench: StreamBench,
) -> None:
    bench.publish(b"old", topic=EU)
    start = Position(origin=Origin.TIME, at=bench.clock.now_ms() + 1)
    _, outcome = bench.subscribe(ALL, start=start, work_queues=True)
    settings = StreamSettings(retention="workqueue")
    bench.broker.create_topic(JOBS, Outcome(), kind="stream", stream=settings)
    _, workers = bench.subscribe(JOBS, "workers")
    bench.settle()

    assert workers.result.durables[0].coverage.covers(JOBS)
    assert [d.coverage.covers(JOBS) for d in outcome.result.durables] == [False]
