"""What a durable subscription leaves out, and how much it has in flight."""

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base.errors import WrongKindError
from ister.codec import Batch
from ister.subscriptions import Filter


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


# In flight


def test_no_more_messages_are_in_flight_than_the_limit_says(bench: StreamBench) -> None:
    member = bench.consume(acks={"in_flight_max": 3})
    bench.publish(*[b"x"] * 10)
    assert member.offsets == [0, 1, 2]

    member.ack(member.messages[1])
    assert member.offsets == [0, 1, 2, 3]
    assert bench.report().cursor.in_flight == 3


def test_the_limit_counts_all_consumers_together(bench: StreamBench) -> None:
    members = [bench.consume(type="shared", acks={"in_flight_max": 4}) for _ in range(3)]
    bench.publish(*[b"x"] * 10)

    assert sum(len(member.offsets) for member in members) == 4


def test_a_message_that_waits_after_a_nack_counts(bench: StreamBench) -> None:
    member = bench.consume(acks={"in_flight_max": 2})
    bench.publish(b"0", b"1", b"2")
    first, second = member.take()
    member.nack(first, delay_ms=100)
    assert member.offsets == []

    member.ack(second)
    assert member.take_offsets() == [2]
    bench.advance(100)
    assert member.take_offsets() == [0]


def test_no_more_bytes_are_leased_than_the_limit_says_but_for_one_batch(
    bench: StreamBench,
) -> None:
    member = bench.consume(acks={"in_flight_bytes_max": 2_500})
    for _ in range(6):
        bench.publish(b"x" * 1_000)
    assert member.offsets == [0, 1, 2]

    member.ack(member.messages[0])
    assert member.offsets == [0, 1, 2, 3]


def test_redeliveries_keep_to_the_limit_of_bytes(bench: StreamBench) -> None:
    member = bench.consume(acks={"in_flight_bytes_max": 2_500})
    for _ in range(9):
        bench.publish(b"x" * 1_000)
    first = member.take()
    member.nack(*first, delay_ms=100)
    second = member.take()
    assert [m.offset for m in second] == [3, 4, 5]
    bench.advance(100)
    assert member.offsets == []

    member.ack(second[0])
    assert member.offsets == [0]


def test_the_limit_covers_all_topics_of_a_subscription(bench: StreamBench) -> None:
    bench.create("/default/other")
    member = bench.consume("/default/*", acks={"in_flight_max": 2})
    bench.publish(b"0")
    bench.publish(b"0", topic="/default/other")
    bench.publish(b"1")
    bench.publish(b"1", topic="/default/other")
    assert [(m.topic, m.offset) for m in member.messages] == [(TOPIC, 0), ("/default/other", 0)]

    member.ack(*member.take())
    assert len(member.take()) == 2


def test_a_redelivery_of_one_topic_comes_when_another_fills_the_limit(bench: StreamBench) -> None:
    bench.create("/default/other")
    member = bench.consume("/default/*", acks={"in_flight_max": 2})
    bench.publish(b"0")
    bench.publish(b"0", topic="/default/other")
    one, _ = member.take()
    bench.publish(b"1")
    bench.publish(b"1", topic="/default/other")
    member.nack(one, delay_ms=0)

    assert [(m.topic, m.offset, m.attempt) for m in member.messages] == [(TOPIC, 0, 2)]


def test_a_busy_topic_does_not_starve_another(bench: StreamBench) -> None:
    bench.create("/default/other")
    member = bench.consume("/default/*", credit=0)
    bench.publish_many(100)
    bench.publish_many(100, topic="/default/other")
    topics = set()
    for _ in range(4):
        member.grant(5)
        topics |= {m.topic for m in member.take()}

    assert topics == {TOPIC, "/default/other"}


# Filters


def test_a_filter_leaves_out_what_is_not_wanted(bench: StreamBench) -> None:
    member = bench.consume(filters={"kind": "a*"})
    bench.publish(
        b"0",
        b"1",
        b"2",
        b"3",
        attributes=[{"kind": "abc"}, {"kind": "b"}, None, {"kind": "a", "x": "y"}],
    )

    assert member.offsets == [0, 3]
    member.ack(*member.messages)
    assert bench.lag() == 0


def test_key_filters_of_the_subscription_leave_out_other_keys(bench: StreamBench) -> None:
    member = bench.consume(key_filters=["a*", "x"])
    bench.publish(b"0", b"1", b"2", b"3", keys=["ab", "b", "x", None])

    assert member.offsets == [0, 2]


def test_what_is_left_out_is_done_after_a_restart(bench: StreamBench) -> None:
    member = bench.consume(filters={"kind": "a"})
    bench.publish(b"0", b"1", attributes=[{"kind": "b"}, {"kind": "b"}])
    assert member.offsets == []
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.lag() == 0
    assert bench.report().cursor.floors == {TOPIC: 2}


def test_with_little_credit_only_what_was_passed_counts_as_left_out(bench: StreamBench) -> None:
    bench.publish(*[b"x"] * 10, attributes=[{"kind": "ab"[n % 2]} for n in range(10)])
    member = bench.consume(filters={"kind": "b"}, credit=2)
    assert member.offsets == [1, 3]
    member.ack(*member.take())

    assert bench.lag() == 6
    member.grant(2)
    assert member.offsets == [5, 7]


def test_a_batch_handed_out_bit_by_bit_is_filtered_once(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(*[b"x"] * 1_000, attributes=[{"kind": "ab"[n % 2]} for n in range(1_000)])
    member = bench.consume(filters={"kind": "b"}, credit=0)
    chosen: list[Batch] = []
    select = Filter.select

    def counted(self: Filter, batch: Batch) -> list[int] | None:
        chosen.append(batch)
        return select(self, batch)

    monkeypatch.setattr(Filter, "select", counted)
    for _ in range(100):
        member.grant(1)

    assert member.offsets == list(range(1, 200, 2))
    assert len(chosen) <= 1


def test_messages_between_acknowledged_ones_leave_together(bench: StreamBench) -> None:
    bench.publish(*[b"x"] * 100)
    member = bench.consume()
    messages = member.take()
    member.ack(*messages[::2])
    assert bench.confirm() is None
    bench.restart()
    member = bench.consume()

    assert member.offsets == list(range(1, 100, 2))
    assert member.sink.batches == 1


def test_a_message_that_failed_between_others_is_not_left_out(bench: StreamBench) -> None:
    bench.publish(*[b"x"] * 6, attributes=[{"kind": "a"}] * 6)
    member = bench.consume(filters={"kind": "a"})
    messages = member.take()
    member.ack(messages[1])
    member.nack(messages[3], delay_ms=60_000)
    assert bench.confirm() is None
    bench.restart()
    member = bench.consume(filters={"kind": "a"})

    assert sorted((m.offset, m.attempt) for m in member.messages) == [
        (0, 1),
        (2, 1),
        (3, 2),
        (4, 1),
        (5, 1),
    ]
    assert bench.lag() == 5


def test_a_work_queue_has_one_subscription() -> None:
    bench = StreamBench()
    bench.create(retention="workqueue")
    bench.consume(subscription="one")

    with pytest.raises(WrongKindError, match="one subscription only, 'one'"):
        bench.consume(subscription="other")


# Compaction


def compact_away(bench: StreamBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing of the topic stored any more, as compaction leaves it behind tombstones."""
    monkeypatch.setattr(bench.storage.log, "plan", lambda *_: None)


@pytest.fixture
def compacted() -> StreamBench:
    bench = StreamBench(tail_bytes=1)
    bench.create(retention="compact")
    bench.publish(b"0", keys=["a"])
    bench.publish(b"1", keys=["b"])
    return bench


def test_a_subscription_comes_to_the_end_where_compaction_has_left_nothing(
    compacted: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted.restart()
    compact_away(compacted, monkeypatch)
    member = compacted.consume()

    assert member.offsets == []
    assert compacted.lag() == 0


@pytest.mark.parametrize("type_", ["exclusive", "shared", "key_shared"])
def test_a_message_that_compaction_took_does_not_come_again_nor_hold_up_others(
    compacted: StreamBench, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    member = compacted.consume(type=type_)
    messages = member.take()
    with monkeypatch.context() as patch:
        compact_away(compacted, patch)
        member.nack(*messages, delay_ms=0)
        assert compacted.lag() == 0
    compacted.publish(b"2", keys=["a"])

    assert member.take_offsets() == [2]


def test_a_message_that_compaction_took_while_it_was_parked_is_done(
    compacted: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        compacted.publish(b"x", keys=["a"])
    other = compacted.consume(type="key_shared", consumer="b", key_filters=["nothing"])
    slow = compacted.consume(type="key_shared", consumer="a", credit=0)
    compact_away(compacted, monkeypatch)
    slow.grant(10)

    assert slow.offsets == other.offsets == []
    assert compacted.lag() == 0


def test_a_dead_message_that_compaction_took_is_no_letter(
    compacted: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = compacted.consume(acks={"max_deliveries": 1})
    messages = member.take()
    compact_away(compacted, monkeypatch)
    member.nack(*messages)

    assert compacted.lag() == 0
    assert compacted.report().cursor.dead_lettered == 0
