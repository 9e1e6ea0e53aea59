"""Very many topics: limits, and work that is spread over turns of the event loop."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.broker.streambench import Member, StreamBench

from ister.base import Position
from ister.base.errors import (
    LimitReachedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from ister.broker.catalog.reports import SortedNames
from ister.broker.durable.subscription import TOPICS_PER_STEP
from ister.broker.scheduling.chores import TURN_MS, Chores, Steps
from ister.testing import VirtualClock

WILD = "/default/t.*"


class TickingClock(VirtualClock):
    """A clock that advances by a millisecond each time it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def monotonic_ms(self) -> int:
        self.looks += 1
        return super().monotonic_ms() + self.looks


def bench_of(topics: int, **limits: Any) -> StreamBench:
    bench = StreamBench(**limits)
    for number in range(topics):
        bench.create(f"/default/t.{number}")
    return bench


def refusal(bench: StreamBench, subscription: str, topic: str = WILD) -> LimitReachedError:
    with pytest.raises(LimitReachedError) as caught:
        bench.consume(topic, subscription)
    return caught.value


def test_a_subscription_on_more_topics_than_allowed_is_refused() -> None:
    bench = bench_of(3, topics_per_subscription_max=2)

    error = refusal(bench, "s")

    assert (error.limit, error.value) == ("topics_per_subscription_max", 2)


def test_topics_created_later_are_covered_beyond_the_limit() -> None:
    bench = bench_of(2, topics_per_subscription_max=2)
    member = bench.consume(WILD)
    bench.create("/default/t.9")

    bench.publish(b"x", topic="/default/t.9")

    assert member.payloads == [b"x"]


def test_the_number_of_wildcard_subscriptions_is_limited() -> None:
    bench = bench_of(1, wildcards_max=1)
    bench.consume(WILD, "one")

    error = refusal(bench, "two")

    assert (error.limit, error.value) == ("wildcards_max", 1)
    bench.consume("/default/t.0", "plain")


def test_the_number_of_topics_covered_by_wildcard_subscriptions_is_limited() -> None:
    bench = bench_of(2, covered_topics_max=3)
    bench.consume(WILD, "one")

    error = refusal(bench, "two")

    assert (error.limit, error.value) == ("covered_topics_max", 3)


def test_a_topic_over_the_limit_of_covered_topics_is_not_created() -> None:
    bench = bench_of(2, covered_topics_max=3)
    bench.consume(WILD, "one")
    bench.create("/default/t.2")

    with pytest.raises(LimitReachedError, match="covered_topics_max"):
        bench.create("/default/t.3")

    bench.create("/default/other")
    bench.broker.delete_topic("/default/t.2")
    bench.settle()
    bench.create("/default/t.4")


class Slow(StreamBench):
    """A bench on which every step takes long after `slow` was called, until `quick` is."""

    def quick(self) -> None:
        del self.clock.monotonic_ms

    def slow(self) -> None:
        looks = 0
        real = self.clock.monotonic_ms

        def monotonic_ms() -> int:
            nonlocal looks
            looks += 1
            return real() + looks

        self.clock.monotonic_ms = monotonic_ms  # type: ignore[method-assign]


def slow_member() -> tuple[Slow, str]:
    bench = Slow()
    for number in range(20 * TOPICS_PER_STEP):
        bench.create(f"/default/t.{number}")
    last = f"/default/t.{number}"
    bench.publish(b"before", topic=last)
    bench.slow()
    return bench, last


def test_partitions_of_very_many_topics_are_created_in_several_turns() -> None:
    bench, _ = slow_member()

    member = bench.consume(WILD, start="earliest")
    begun = len(member.durable.partitions)
    bench.clock.advance(0)

    assert 0 < begun < 20 * TOPICS_PER_STEP
    assert len(member.durable.partitions) == 20 * TOPICS_PER_STEP
    assert member.payloads == [b"before"]


def moved_member() -> tuple[Slow, Member, list[object]]:
    """Return a subscription on many topics while it is moved to their start."""
    bench, _ = slow_member()
    bench.quick()
    member = bench.consume(WILD, start="earliest")
    member.ack(*member.take())
    bench.publish(b"other", topic="/default/t.0")
    member.ack(*member.take())
    bench.slow()
    told: list[object] = []
    bench.broker.durables.seek(WILD, "s", Position(origin="earliest"), told.append)
    bench.settle()
    return bench, member, told


def test_a_subscription_on_very_many_topics_moves_in_several_turns() -> None:
    bench, member, told = moved_member()
    assert told == []
    # Some have moved by now, and others have not.
    assert 0 < bench.lag(WILD) < 2
    bench.publish(b"new", topic="/default/t.1")
    assert member.messages == []

    bench.quick()
    bench.advance(10)

    assert told == [None]
    assert sorted(member.payloads) == [b"before", b"new", b"other"]
    bench.restart("none")
    assert bench.lag(WILD) == 3


def test_a_topic_deleted_while_its_subscription_moves_is_left_out() -> None:
    bench, member, told = moved_member()
    bench.broker.delete_topic(f"/default/t.{20 * TOPICS_PER_STEP - 1}")
    bench.quick()
    bench.advance(10)

    assert told == [None]
    assert member.payloads == [b"other"]


def test_deleting_a_subscription_that_moves_ends_the_move() -> None:
    bench, _, told = moved_member()
    bench.broker.durables.delete(WILD, "s", lambda _: None)
    bench.quick()
    bench.advance(10)

    assert [type(error) for error in told] == [SubscriptionNotFoundError]


def test_a_subscription_that_is_still_being_created_cannot_be_moved() -> None:
    bench, _ = slow_member()
    bench.consume(WILD)

    with pytest.raises(SubscriptionBusyError):
        bench.seek("earliest", topic=WILD)


def test_messages_are_kept_for_a_subscription_that_is_still_being_created() -> None:
    bench, last = slow_member()
    bench.consume(WILD, start="earliest")

    assert bench.topic(last).partitions_coming == 1
    assert bench.topic(last).floors() == [0]
    bench.clock.advance(0)
    assert bench.topic(last).partitions_coming == 0


def test_a_topic_deleted_before_its_partition_is_created_leaves_nothing_behind() -> None:
    bench, last = slow_member()
    member = bench.consume(WILD)
    bench.broker.delete_topic(last)
    bench.settle()

    bench.clock.advance(0)

    assert not member.durable.coverage.covers(last)
    assert len(member.durable.record.cursors) == len(member.durable.partitions)


def test_deleting_another_topic_leaves_a_subscription_that_is_still_being_made() -> None:
    bench, _ = slow_member()
    bench.create("/default/mine")
    bench.create("/default/other")
    bench.consume(WILD)
    member = bench.consume("/default/mine", "jobs")
    assert not member.durable.coverage.is_whole

    bench.broker.delete_topic("/default/other")
    bench.settle()
    bench.clock.advance(0)

    assert member.sink.closed == []
    bench.publish(b"x", topic="/default/mine")
    assert member.payloads == [b"x"]


def test_a_subscription_still_being_made_goes_with_its_topic() -> None:
    bench, _ = slow_member()
    bench.create("/default/mine")
    bench.consume(WILD)
    member = bench.consume("/default/mine", "jobs")

    bench.broker.delete_topic("/default/mine")
    bench.settle()

    assert len(member.sink.closed) == 1
    assert not bench.broker.durables.has("/default/mine", "jobs")


def steps(told: list[object], name: str, count: int) -> Steps:
    for number in range(count):
        told.append(f"{name}{number}")
        yield


def test_chores_run_in_order_a_few_steps_in_each_turn() -> None:
    clock = TickingClock()
    told: list[object] = []
    chores = Chores(clock, told.append)

    chores.do(steps(told, "a", TURN_MS + 2))
    chores.do(steps(told, "b", 1))
    first = list(told)
    clock.advance(0)

    assert first == [f"a{n}" for n in range(TURN_MS - 1)]
    assert told == [*(f"a{n}" for n in range(TURN_MS + 2)), "b0"]


def test_a_chore_that_fails_ends_and_the_others_continue() -> None:
    told: list[object] = []
    error = RuntimeError("broken")

    def broken() -> Iterator[None]:
        yield
        raise error

    chores = Chores(VirtualClock(), told.append)
    chores.do(broken())
    chores.do(steps(told, "a", 1))

    assert told == [error, "a0"]


def test_names_stay_sorted_when_topics_are_created_and_deleted() -> None:
    names = SortedNames()
    for name in "dbca":
        names.add(name)
    assert list(names.after("")) == list("abcd")

    names.discard("b")
    names.add("bb")
    names.add("e")
    names.discard("e")
    names.discard("c")
    names.add("c")

    assert list(names.after("a")) == ["bb", "c", "d"]
