"""Messages that are sent now and published later: when, where, how often, and after which crash."""

import itertools
from typing import Any

import msgspec
import pytest
from tests.unit.broker.delayedbench import DelayedBench
from tests.unit.broker.streambench import TOPIC
from tests.unit.broker.test_schema_checks import NoBad

from ister.base.errors import (
    BadRequestError,
    MessageTooLargeError,
    ProducerFencedError,
    SchemaViolationError,
    StorageFailedError,
    TopicNotFoundError,
)
from ister.base.limits import ATTRIBUTES_COUNT_MAX, MIB
from ister.broker.delayed.envelope import Envelope, pack
from ister.broker.live.topic import SUBSCRIPTIONS_AT_ONCE
from ister.broker.timelines.leasing.throttle import ROUND_COUNT_MAX
from ister.client.session.producing.delayed import ATTRIBUTE_BYTES, ENVELOPE_BYTES
from ister.testing import Fault, Keep
from ister.timeline import Put, Work

LIVE = "/default/news"
DAY_MS = 86_400_000


@pytest.fixture
def bench() -> DelayedBench:
    bench = DelayedBench()
    bench.create()
    return bench


# When and where


def test_a_message_is_in_the_stream_when_it_is_due_and_not_a_millisecond_before(
    bench: DelayedBench,
) -> None:
    told = bench.delay([b"later"], 5_000)
    bench.advance(4_999)
    before = bench.payloads()
    bench.advance(1)

    assert told.error is None
    assert before == []
    assert bench.payloads() == [b"later"]


def test_messages_come_in_the_order_they_are_due_not_in_that_they_were_sent(
    bench: DelayedBench,
) -> None:
    bench.delay([b"third", b"first"], [3_000, 1_000])
    bench.delay([b"second"], 2_000)
    bench.advance(10_000)

    assert bench.payloads() == [b"first", b"second", b"third"]


def test_everything_that_goes_with_a_message_is_kept(bench: DelayedBench) -> None:
    # Somebody listens, so that the stream keeps in memory what comes.
    member = bench.consume(credit=0)
    bench.delay(
        [b"one"],
        1_000,
        name="shop",
        keys=["k"],
        ids=["i-1"],
        attributes=[{"a": "1"}],
        schema=(7, 2),
    )
    bench.advance(1_000)

    member.grant(1)
    batch = bench.topic().find(0)
    assert batch is not None
    assert (batch.payloads, batch.keys, batch.ids) == ([b"one"], ["k"], ["i-1"])
    assert (batch.attributes, batch.producer, batch.schema) == ([{"a": "1"}], "shop", (7, 2))


def test_what_is_due_already_is_published_at_once(bench: DelayedBench) -> None:
    bench.delay([b"late"], -5_000)

    assert bench.payloads() == [b"late"]


def test_a_live_topic_gives_it_to_whoever_is_there_when_it_is_due() -> None:
    bench = DelayedBench()
    early = bench.consume(LIVE, "early", start="latest")
    bench.delay([b"news"], 1_000, topic=LIVE)
    early.leave()
    there = bench.consume(LIVE, "there", start="latest")
    bench.advance(1_000)

    assert early.sink.live == []
    assert there.sink.live == [b"news"]
    assert bench.waiting_rows() == 0


def test_messages_due_for_very_many_subscriptions_are_published_in_order() -> None:
    bench = DelayedBench()
    members = [
        bench.consume(LIVE, f"s{n}", start="latest") for n in range(SUBSCRIPTIONS_AT_ONCE + 1)
    ]
    for n in range(20):
        bench.delay([b"%d" % n], 1_000 + n, topic=LIVE)
    bench.clock.tick_us = 1_000
    bench.advance(2_000)

    assert all(member.sink.live == [b"%d" % n for n in range(20)] for member in members)
    assert bench.waiting_rows() == 0


def test_a_live_message_due_while_the_broker_was_down_waits_for_clients_to_come_back() -> None:
    bench = DelayedBench()
    bench.delay([b"news"], 1_000, topic=LIVE)
    bench.restart(after_ms=10_000)
    bench.advance(1_000)
    there = bench.consume(LIVE, "there", start="latest")
    bench.advance(2_000)

    assert there.sink.live == [b"news"]
    assert bench.waiting_rows() == 0


def test_a_live_message_that_nobody_has_come_for_is_dropped() -> None:
    bench = DelayedBench()
    bench.delay([b"news"], 1_000, topic=LIVE)
    bench.restart(after_ms=10_000)
    bench.advance(10_000)
    there = bench.consume(LIVE, "there", start="latest")
    bench.advance(10_000)

    assert there.sink.live == []
    assert bench.waiting_rows() == 0
    assert bench.delays.dropped == 1


def test_messages_that_are_due_together_are_stored_together(bench: DelayedBench) -> None:
    bench.delay([b"%d" % n for n in range(1_000)], 1_000)
    bench.delay([b"%d" % n for n in range(1_000, 2_000)], 1_000)
    bench.advance(1_000)
    member = bench.consume(start="earliest")

    assert member.payloads == [b"%d" % n for n in range(2_000)]
    # A round of leases is one batch.
    assert member.sink.batches <= 2_000 // ROUND_COUNT_MAX + 1


def test_large_messages_all_arrive_though_only_some_are_in_memory_at_once(
    bench: DelayedBench,
) -> None:
    for number in range(40):
        bench.delay([b"%02d" % number + bytes(MIB - 4_096)], 1_000)
    bench.advance(2_000)

    assert [payload[:2] for payload in bench.payloads()] == [b"%02d" % n for n in range(40)]
    assert bench.waiting_rows() == 0


# Once


def test_of_messages_with_one_id_the_first_counts(bench: DelayedBench) -> None:
    bench.delay([b"first"], 2_000, ids=["order-1"])
    again = bench.delay([b"second"], 1_000, ids=["order-1"])
    bench.advance(5_000)

    assert again.error is None
    assert bench.payloads() == [b"first"]


def test_an_id_that_the_stream_has_had_meanwhile_is_not_stored_again(bench: DelayedBench) -> None:
    bench.delay([b"delayed"], 2_000, ids=["order-1"])
    bench.publish(b"at once", ids=["order-1"])
    bench.advance(5_000)

    assert bench.payloads() == [b"at once"]
    assert bench.waiting_rows() == 0


def test_what_is_sent_again_under_its_word_is_kept_once(bench: DelayedBench) -> None:
    bench.delay([b"a", b"b"], 2_000, word="w")
    bench.delay([b"a", b"b"], 2_000, word="w")
    bench.advance(5_000)

    assert bench.payloads() == [b"a", b"b"]


def test_what_is_sent_again_after_it_was_published_is_not_stored_again(
    bench: DelayedBench,
) -> None:
    bench.delay([b"a"], 1_000, word="w")
    bench.advance(2_000)
    again = bench.delay([b"a"], 1_000, word="w")
    bench.advance(2_000)

    assert again.error is None
    assert bench.payloads() == [b"a"]


@pytest.mark.parametrize("down_ms", [1, DAY_MS])
def test_a_message_is_in_the_stream_once_wherever_the_broker_is_killed(down_ms: int) -> None:
    """Longer than any stream remembers ids, too."""
    payloads = [b"%d" % n for n in range(3)]
    for steps in itertools.count():
        bench = DelayedBench()
        bench.create()
        bench.create("/default/other")
        bench.delay([b"warm"], 0)
        told = bench.delay(payloads, 0, word="w", settle=False)
        bench.delay([b"x"], 0, topic="/default/other", settle=False)
        for _ in range(steps):
            if bench._ready:
                bench.step()
        is_over = not bench._ready
        bench.restart(after_ms=down_ms)
        bench.settle()
        if not told.told:
            bench.delay(payloads, 0, word="w")
        bench.advance(5_000)

        assert bench.payloads() == [b"warm", *payloads], f"killed after {steps} steps"
        assert bench.waiting_rows() == 0
        if is_over:
            break
    assert steps > 5


def test_a_store_that_fails_when_messages_are_published_makes_none_twice(
    bench: DelayedBench,
) -> None:
    bench.delay([b"a", b"b"], 0, settle=False)
    while not bench.topic().next_offset:
        bench.step()
    bench.timelines.fails_after = True
    bench.advance(3_000)
    bench.timelines.fails_after = False
    bench.advance(10_000)

    assert bench.payloads() == [b"a", b"b"]
    assert bench.waiting_rows() == 0


@pytest.mark.parametrize("keep", ["fails_before", "fails_after"])
def test_a_store_that_fails_when_messages_are_leased_loses_none(
    bench: DelayedBench, keep: str
) -> None:
    bench.delay([b"a", b"b"], 1_000)
    setattr(bench.timelines, keep, True)
    bench.advance(3_000)
    setattr(bench.timelines, keep, False)
    bench.advance(10_000)

    assert bench.payloads() == [b"a", b"b"]


def test_what_a_stream_refuses_is_tried_again_until_it_takes_it(bench: DelayedBench) -> None:
    bench.delay([b"a", b"b"], [1_000, 2_000])
    bench.disk.fail(Fault(lasting=True))
    bench.advance(20_000)
    refused = bench.delays.refused
    bench.disk.heal()
    bench.advance(120_000)

    assert refused > 2
    assert bench.payloads() == [b"a", b"b"]
    assert bench.waiting_rows() == 0


def test_a_broker_killed_while_a_stream_refuses_stores_each_message_once(
    bench: DelayedBench,
) -> None:
    bench.delay([b"a", b"b"], 1_000)
    bench.disk.fail(Fault(lasting=True))
    bench.advance(3_000)
    bench.disk.heal()
    bench.restart()
    bench.advance(120_000)

    assert bench.payloads() == [b"a", b"b"]


@pytest.mark.parametrize("down_ms", [1, DAY_MS])
@pytest.mark.parametrize("keep", ["none", "all"])
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_message_of_which_nobody_knows_whether_it_is_stored_is_there_once(
    *, is_killed: bool, keep: Keep, down_ms: int
) -> None:
    bench = DelayedBench()
    bench.create()
    bench.delay([b"a", b"b"], [1_000, 1_500])
    # The sync of what is written fails, and so does making another file.
    bench.disk.fail(Fault(actions=["sync", "create"], lasting=True))
    bench.advance(5_000)
    if is_killed:
        bench.disk.heal()
        bench.restart(keep, after_ms=down_ms)
    bench.disk.heal()
    bench.advance(120_000)

    assert sorted(bench.payloads()) == [b"a", b"b"]
    assert bench.waiting_rows() == 0


# What is gone


def test_messages_for_a_topic_that_was_deleted_are_dropped_and_counted(
    bench: DelayedBench,
) -> None:
    bench.delay([b"a", b"b"], 1_000)
    bench.broker.delete_topic(TOPIC)
    bench.settle()
    bench.advance(2_000)

    assert bench.delays.dropped == 2
    assert bench.waiting_rows() == bench.delays.waiting == 0


def test_a_stream_made_anew_gets_nothing_that_was_for_the_one_before_it(
    bench: DelayedBench,
) -> None:
    bench.delay([b"a"], 1_000)
    bench.broker.delete_topic(TOPIC)
    bench.settle()
    bench.create()
    bench.advance(2_000)

    assert bench.payloads() == []
    assert bench.delays.dropped == 1


@pytest.mark.parametrize(
    "how",
    [
        {"ids": ["order-1"]},
        # Its client was not told that it is safe, and sends it once more.
        {"word": "w"},
    ],
)
@pytest.mark.parametrize(
    ("before", "after"),
    [("stream", "stream"), ("stream", "object"), ("object", "stream"), ("stream", "live")],
)
def test_what_waits_for_a_deleted_topic_keeps_nothing_out_of_one_made_anew(
    how: dict[str, Any], before: str, after: str
) -> None:
    bench = DelayedBench(objects=True)
    make(bench, before)
    bench.delay([b"old"], 60_000, name="p1", **how)
    bench.broker.delete_topic(TOPIC)
    bench.settle()
    make(bench, after)
    # Whoever reads a stream would get its messages again and again until they are acknowledged.
    listener = bench.consume(start="latest").sink if after == "live" else None
    told = bench.delay([b"new"], 1_000, name="p2", **how)
    bench.advance(120_000)

    assert told.error is None
    assert (bench.payloads() if listener is None else listener.live) == [b"new"]
    assert bench.delays.dropped == 1


@pytest.mark.parametrize("kind", ["stream", "object"])
def test_messages_that_were_kept_before_rows_were_named_after_their_stream_come_once_and_in_order(
    kind: str,
) -> None:
    payloads = [b"old 1", b"new 1", b"old 2", b"new 2"]
    for steps in itertools.count():
        bench = DelayedBench(objects=True)
        make(bench, kind)
        bench.delay([b"warm"], 0)
        for payload in payloads:
            if payload.startswith(b"old"):
                put_unnamed(bench, payload, in_ms=1_000)
            else:
                bench.delay([payload], 1_000)
        bench.restart()
        for _ in range(steps):
            if bench._ready:
                bench.step()
        is_over = not bench._ready
        bench.restart(after_ms=1)
        bench.advance(5_000)

        assert bench.payloads() == [b"warm", *payloads], f"killed after {steps} steps"
        assert bench.waiting_rows() == 0
        if is_over:
            break
    assert steps > 5


def put_unnamed(bench: DelayedBench, payload: bytes, in_ms: int) -> None:
    """Keep a message whose row and envelope do not say which stream of its name it is for."""
    envelope = [TOPIC, bench.topic().record.topic, "p", [0, 0], None, payload.decode()]
    number, now_ms = bench.timelines.topics()[0].number, bench.clock.now_ms()
    packed = msgspec.msgpack.encode(envelope)
    put = Put(number, payload.hex(), "", now_ms + in_ms, payload, packed)
    bench.timelines.apply(now_ms, [Work([put])])


def make(bench: DelayedBench, kind: str) -> None:
    """Make the topic: a stream in the data folder or in the object store, or a live one."""
    if kind == "live":
        bench.broker.create_topic(TOPIC)
    else:
        bench.create(durability="object" if kind == "object" else "fsync")


def test_how_many_wait_is_known_also_after_a_restart(bench: DelayedBench) -> None:
    bench.delay([b"a", b"b", b"c"], [1_000, 60_000, 60_000])
    bench.advance(2_000)
    before = bench.delays.waiting
    bench.restart()
    bench.settle()

    assert before == bench.delays.waiting == 2


def test_nobody_sees_the_timeline_that_messages_wait_in(bench: DelayedBench) -> None:
    bench.delay([b"a"], 1_000)

    names = [report.topic for report in bench.broker.topics("", after="", limit=100)[0]]
    hidden = bench.timelines.topics()[0].name
    assert names == [TOPIC]
    assert not bench.broker.timelines.has(hidden)
    with pytest.raises(TopicNotFoundError):
        bench.broker.timelines.report(hidden)


# What is refused


@pytest.mark.parametrize("in_ms", [10**15, -(10**15)])
def test_a_time_that_cannot_be_is_refused(bench: DelayedBench, in_ms: int) -> None:
    assert isinstance(bench.delay([b"a"], in_ms).error, BadRequestError)


def test_a_message_that_a_timeline_has_no_room_for_is_refused(bench: DelayedBench) -> None:
    told = bench.delay([bytes(MIB)], 1_000)

    assert isinstance(told.error, MessageTooLargeError)
    assert told.error.topic == TOPIC
    assert told.error.setting == ""


def test_the_schema_is_checked_when_a_message_is_sent(bench: DelayedBench) -> None:
    bench.topic().schema_check = NoBad()

    assert isinstance(bench.delay([b"bad"], 1_000).error, SchemaViolationError)
    assert bench.waiting_rows() == 0


def test_a_producer_that_was_replaced_sends_nothing_later(bench: DelayedBench) -> None:
    bench.producer()
    bench.broker.open_producer(TOPIC, "p")

    assert isinstance(bench.delay([b"a"], 1_000).error, ProducerFencedError)


def test_a_store_that_fails_refuses_messages(bench: DelayedBench) -> None:
    bench.delay([b"a"], 1_000)
    bench.timelines.fails_before = True

    assert isinstance(bench.delay([b"b"], 1_000).error, StorageFailedError)


def test_no_envelope_takes_more_than_clients_count_for_it() -> None:
    attributes = {f"{number:0200}": "v" * 300 for number in range(ATTRIBUTES_COUNT_MAX)}
    words = ["k" * 8_000, "i" * 255, *attributes, *attributes.values()]
    largest = Envelope(
        "t" * 255, 2**62, "p" * 255, (2**63, 2**63), words[0], words[1], attributes, "j" * 100
    )

    beside = ENVELOPE_BYTES + ATTRIBUTE_BYTES * len(attributes)
    assert len(pack(largest)) <= beside + sum(map(len, words))
