"""Handing out has a few milliseconds of each turn of the loop, and loses nothing by that."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.broker.fakes import Bench, FakeSink, numbered
from tests.unit.broker.streambench import Outcome, StreamBench

from ister.base import EARLIEST
from ister.broker import open_reader
from ister.broker.consumers.consumer import BATCHES_AT_ONCE
from ister.broker.live.subscription import CROWD
from ister.broker.live.topic import SHARED_AT_ONCE, SUBSCRIPTIONS_AT_ONCE
from ister.broker.scheduling.completion import ignore
from ister.broker.scheduling.turns import CROWDED_TURN_NS, TURN_NS, Turns
from ister.broker.streams.stream import NOTIFIED_AT_ONCE
from ister.codec import Batch, encode
from ister.testing import VirtualClock

MS_NS = 1_000_000


class Loop:
    """An event loop that is a list, and a clock that tests move."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.ready: deque[Callable[[], object]] = deque()
        self.turns = Turns(call_soon=self.ready.append, now_ns=lambda: self.now_ns)

    def turn(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()


class Worker:
    """Takes a millisecond for each piece of work."""

    def __init__(self, loop: Loop, pieces: int) -> None:
        self._loop = loop
        self.left = pieces

    def go_through(self) -> None:
        while self.left:
            self.left -= 1
            self._loop.now_ns += MS_NS
            if self.left and self._loop.turns.is_over():
                self._loop.turns.wait(self)
                return


def test_all_who_join_in_one_turn_of_the_loop_share_its_time() -> None:
    loop = Loop()
    joined = []
    for _ in range(7):
        joined.append(loop.turns.join())
        loop.now_ns += MS_NS

    assert joined == [True] * 5 + [False] * 2


def test_the_next_turn_of_the_loop_has_its_own_time() -> None:
    loop = Loop()
    loop.turns.join()
    loop.now_ns += TURN_NS
    assert not loop.turns.join()

    loop.turn()

    assert loop.turns.join()


def test_many_short_turns_do_not_ask_the_loop_each_time() -> None:
    loop = Loop()
    asked = 0
    for _ in range(1_000):
        assert loop.turns.join()
        asked += len(loop.ready)
        loop.turn()
        loop.now_ns += MS_NS // 100

    assert asked == 10


def test_short_turns_that_become_long_end_as_well() -> None:
    loop = Loop()
    loop.turns.join()
    loop.turn()
    joined = 0
    while loop.turns.join():
        joined += 1
        loop.now_ns += MS_NS // 2

    assert joined * MS_NS // 2 <= TURN_NS + CROWDED_TURN_NS


def test_no_one_of_those_who_wait_takes_all_of_a_turn() -> None:
    loop = Loop()
    workers = [Worker(loop, 100), Worker(loop, 1), Worker(loop, 1)]
    for worker in workers:
        loop.turns.wait(worker)

    loop.turn()

    assert [worker.left for worker in workers] == [99, 0, 0]


def test_one_who_waits_alone_has_all_of_a_turn() -> None:
    loop = Loop()
    worker = Worker(loop, 100)
    loop.turns.wait(worker)

    loop.turn()

    assert worker.left == 100 - TURN_NS // MS_NS


def test_those_who_wait_leave_time_for_who_comes_next() -> None:
    loop = Loop()
    loop.turns.wait(Worker(loop, 100))
    loop.turn()

    assert loop.turns.join()


class TickingClock(VirtualClock):
    """A clock on which each look takes a while."""

    def __init__(self, tick_us: int) -> None:
        super().__init__()
        self._tick_us = tick_us

    def monotonic_ms(self) -> int:
        self._elapsed_us += self._tick_us
        return super().monotonic_ms()


# Streams


def test_one_subscription_gets_a_message_in_the_turn_that_commits_it() -> None:
    bench = StreamBench()
    bench.create()
    member = bench.consume()

    bench.publish(b"a")

    assert member.payloads == [b"a"]


@pytest.mark.parametrize("subscriptions", [20, NOTIFIED_AT_ONCE + 20])
def test_many_subscriptions_of_a_stream_get_messages_over_several_turns(subscriptions: int) -> None:
    bench = StreamBench()
    bench.create()
    members = [bench.consume(subscription=f"s{n}") for n in range(subscriptions)]
    bench.advance(1_000)
    bench.clock.tick_us = 1_000

    bench.publish(b"a")
    at_once = sum(member.payloads == [b"a"] for member in members)
    bench.publish(b"b")
    bench.advance(5_000)

    assert 0 < at_once < 5
    assert all(member.payloads == [b"a", b"b"] for member in members)


def test_a_follower_that_is_gone_is_not_told_later() -> None:
    bench = StreamBench()
    bench.create()
    members = [bench.consume(subscription=f"s{n}") for n in range(NOTIFIED_AT_ONCE + 20)]
    bench.advance(1_000)
    bench.clock.tick_us = 1_000

    bench.publish(b"a")
    bench.broker.durables.delete(members[-1].durable.pattern, members[-1].durable.name, ignore)
    bench.advance(5_000)

    assert [len(member.messages) for member in members] == [1] * (len(members) - 1) + [0]


def test_a_reader_is_sent_a_long_stream_over_several_turns_in_order() -> None:
    bench = StreamBench()
    bench.create()
    keeper = bench.consume()
    bench.publish_many(50)
    sink, opened = FakeSink(), Outcome()
    broker = bench.broker
    open_reader(
        bench.topic(),
        EARLIEST,
        None,
        opened,
        turns=broker.turns,
        shared=broker.durables.shared,
        sink=sink,  # type: ignore[arg-type]
        channel=1,
    )
    bench.advance(1_000)
    bench.clock.tick_us = 1_000

    opened.result.grant(1_000, 1 << 30)
    at_once = len(sink.offsets)
    bench.advance(5_000)

    assert 0 < at_once < 10
    assert sink.offsets == keeper.offsets == list(range(50))


@pytest.mark.parametrize("type_", ["exclusive", "failover"])
def test_new_messages_wait_for_redeliveries_that_take_several_turns(type_: str) -> None:
    bench = StreamBench()
    bench.create()
    former = bench.consume(type=type_, credit=20)
    bench.publish_many(50)
    assert former.offsets == list(range(20))
    former.leave()
    bench.advance(1_000)
    bench.clock.tick_us = 1_000

    member = bench.consume(type=type_)
    at_once = len(member.offsets)
    bench.advance(5_000)

    assert 0 < at_once < 20
    assert member.offsets == list(range(50))


# Live topics


def test_a_full_queue_is_sent_over_several_turns_in_order() -> None:
    clock = TickingClock(1_000)
    bench = Bench(clock=clock)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, 10 * BATCHES_AT_ONCE):
        bench.publish(payload)

    consumer.consumer.grant(1_000_000, 1 << 30)
    at_once = len(consumer.payloads)
    bench.publish(b"last")
    clock.advance(1)

    assert 0 < at_once < 10 * BATCHES_AT_ONCE
    assert consumer.payloads == [*numbered(0, 10 * BATCHES_AT_ONCE), b"last"]


@pytest.mark.parametrize("type_", ["shared", "key_shared"])
def test_what_a_consumer_leaves_goes_ahead_of_what_is_published_later(type_: str) -> None:
    clock = TickingClock(1_000)
    bench = Bench(clock=clock)
    first = bench.consume(credit=0, type=type_)
    for payload in numbered(0, 500):
        bench.publish(payload, keys=["k"])
    second = bench.consume(type=type_)
    before = len(second.payloads)

    first.leave()
    at_once = len(second.payloads) - before
    for payload in numbered(500, 510):
        bench.publish(payload, keys=["k"])
    clock.advance(1)

    assert 0 < at_once < 500
    assert second.payloads == numbered(0, 510)


def test_what_waits_behind_a_consumer_that_left_is_bounded_and_drops_are_counted() -> None:
    clock = TickingClock(1_000)
    bench = Bench(clock=clock, queue_count_max=400)
    first = bench.consume(credit=0, type="key_shared")
    for payload in numbered(0, 400):
        bench.publish(payload, keys=["k"])
    second = bench.consume(type="key_shared")

    first.leave()
    for payload in numbered(400, 1_000):
        bench.publish(payload, keys=["k"])
    queued = bench.broker.budget.queued_bytes
    clock.advance(1)

    got = [int(payload) for payload in second.payloads]
    assert 0 < queued < 500 * len(b"".join(encode([b"000"], keys=["k"], producer=b"p")))
    assert got == sorted(got)
    assert got[-1] == 999
    assert second.subscription.report().messages_dropped == 1_000 - len(got) > 0
    assert bench.topic_report().messages_dropped == 1_000 - len(got)
    assert bench.broker.budget.queued_bytes == 0


def publishing(bench: Bench, *payloads: bytes, **columns: Any) -> Iterator[bool | None] | None:
    batch = Batch(b"".join(encode(payloads, producer=b"p", **columns)))
    return bench.broker.publish(bench.producer(), batch)


def test_few_subscriptions_without_filters_get_a_large_batch_at_once() -> None:
    bench = Bench()
    consumers = [bench.consume(subscription=f"s{n}") for n in range(5)]

    assert publishing(bench, *[b"x"] * 65_536) is None
    assert [len(consumer.payloads) for consumer in consumers] == [65_536] * 5


def test_very_many_subscriptions_get_a_message_in_steps_once_each() -> None:
    bench = Bench()
    consumers = [bench.consume(subscription=f"s{n}") for n in range(SUBSCRIPTIONS_AT_ONCE + 1)]

    steps = publishing(bench, b"a")
    assert steps is not None
    next(steps)
    consumers[-1].leave()
    newcomer = bench.consume(subscription="new")
    for _ in steps:
        pass

    assert all(consumer.payloads == [b"a"] for consumer in consumers[:-1])
    assert consumers[-1].payloads == newcomer.payloads == []


def test_a_topic_that_is_published_to_in_steps_has_others_wait_for_their_turn() -> None:
    bench = Bench()
    consumer = bench.consume(filters={"a": "b*"})
    first = publishing(bench, *[b"1"] * 10_000, attributes=[{"a": "bc"}] * 10_000)
    assert first is not None
    next(first)
    second = publishing(bench, b"2", attributes=[{"a": "bd"}])
    assert second is not None

    assert next(second) is True
    assert all(not stuck for stuck in first)
    assert list(second) in ([None], [])
    assert consumer.payloads == [b"1"] * 10_000 + [b"2"]
    assert consumer.sink.offsets == list(range(10_001))


def test_who_publishes_in_steps_and_goes_leaves_the_topic_free() -> None:
    bench = Bench()
    bench.consume(filters={"a": "b*"})
    steps = publishing(bench, *[b"1"] * 10_000, attributes=[{"a": "bc"}] * 10_000)
    assert steps is not None
    next(steps)

    del steps

    assert publishing(bench, b"2") is None


def test_steps_choose_the_same_messages_as_one_go_and_count_the_others() -> None:
    count = 10_000
    attributes = [{"a": "bc" if n % 3 else "x"} for n in range(count)]
    keys = [f"k{n % 50}" for n in range(count)]
    reports = []
    for in_steps in (True, False):
        bench = Bench()
        one = bench.consume(subscription="one", filters={"a": "b*"})
        some = [
            bench.consume(subscription="two", type="key_shared", key_filters=[f"k{n}*"])
            for n in range(2, 4)
        ]
        if in_steps:
            bench.publish(*[b"x"] * count, attributes=attributes, keys=keys)
        else:
            batch = encode([b"x"] * count, attributes=attributes, keys=keys, producer=b"p")
            one.subscription.topics[0].publish(Batch(b"".join(batch)), 0)
        offsets = [sorted(c.sink.offsets) for c in (one, *some)]
        reports.append((offsets, bench.topic_report().messages_dropped))

    assert reports[0] == reports[1]
    assert reports[0][1] > 0


def test_who_asks_in_steps_is_told_which_requests_reached_nobody() -> None:
    bench, me, count = Bench(), FakeSink(), 10_000
    bench.broker.replies.sinks[7] = me
    bench.consume(filters={"a": "b*"})
    steps = publishing(
        bench,
        *[b"q"] * count,
        attributes=[{"a": "b" if n % 2 else "x"} for n in range(count)],
        replies=[(7, n) for n in range(count)],
    )
    for _ in steps or ():
        pass

    assert steps is not None
    assert me.unanswered == list(range(0, count, 2))


def test_a_large_batch_is_divided_among_very_many_consumers_in_steps() -> None:
    bench = Bench()
    consumers = [bench.consume(type="shared") for _ in range(CROWD + 1)]

    steps = publishing(bench, *[b"x"] * (2 * SHARED_AT_ONCE))
    assert steps is not None
    assert sum(1 for _ in steps) > 1
    assert sum(len(consumer.payloads) for consumer in consumers) == 2 * SHARED_AT_ONCE
