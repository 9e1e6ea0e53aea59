"""The machine's clock is set by hours and days: leases hold, nothing is early, nothing is twice."""

from collections import Counter

import pytest
from tests.unit.broker.timelines.timelinebench import Client, TimelineBench

from ister.base.errors import MessageLeasedError, TimelineLeaseLostError
from ister.broker.timelines.leasing import window as window_module
from ister.timeline import Changed, Done, Work

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEASE_MS = 60_000
# Within this a broker has noticed that its clock was set.
NOTICED_MS = 1_000
MANY = 100_000


@pytest.fixture
def bench() -> TimelineBench:
    """A timeline without messages."""
    return TimelineBench(max_leases=0)


@pytest.fixture
def holder(bench: TimelineBench) -> Client:
    """A consumer that deals with ten messages since a second."""
    holder = bench.consume("holder", lease_ms=LEASE_MS, credit=10)
    bench.put_many([f"held-{n}" for n in range(10)], 0)
    bench.advance(1_000)
    assert len(holder.working) == 10
    return holder


def set_clock(bench: TimelineBench, by_ms: int) -> None:
    """Set the clock, and let the broker notice."""
    bench.clock.skew_ms += by_ms
    bench.advance(NOTICED_MS)


# Back by an hour, with live leases


def test_leases_outlive_a_clock_set_back_and_nobody_else_gets_their_messages(
    bench: TimelineBench, holder: Client
) -> None:
    other = bench.consume("other", credit=100)
    set_clock(bench, -HOUR_MS)
    bench.advance(HOUR_MS + LEASE_MS - 1_000 - NOTICED_MS - 1)

    assert other.ids == []
    bench.advance(1)
    assert len({*other.ids, *holder.ids[10:]}) == 10


def test_a_holder_finishes_keeps_and_releases_its_messages_after_the_clock_was_set_back(
    bench: TimelineBench, holder: Client
) -> None:
    set_clock(bench, -HOUR_MS)

    assert isinstance(holder.done("held-0"), Changed)
    assert isinstance(holder.extend("held-1", bench.now_ms + LEASE_MS), Changed)
    assert isinstance(holder.release("held-2", bench.now_ms + 5_000), Changed)
    bench.advance(4_999)
    assert "held-2" not in holder.ids[10:]
    bench.advance(1)
    assert holder.ids[10:] == ["held-2"]


def test_messages_put_after_the_clock_was_set_back_are_not_behind_those_of_before(
    bench: TimelineBench, holder: Client
) -> None:
    bench.put("of-before", 500)
    set_clock(bench, -HOUR_MS)
    other = bench.consume("other")
    bench.put("now", 0)
    bench.put("soon", 2_000)

    assert other.begun_ids == ["now"]
    bench.advance(1_999)
    assert other.begun_ids == ["now"]
    bench.advance(1)
    assert other.begun_ids == ["now", "soon"]
    bench.advance(HOUR_MS - 4_000)
    assert "of-before" not in other.begun_ids
    bench.advance(4_000)
    assert "of-before" in other.begun_ids


def test_owners_are_refused_a_message_in_work_though_it_is_not_due_by_the_clock_set_back(
    bench: TimelineBench, holder: Client
) -> None:
    set_clock(bench, -HOUR_MS)

    assert isinstance(bench.change(bench.deleting("held-0")), MessageLeasedError)
    assert isinstance(bench.change(bench.moving("held-1", 0)), MessageLeasedError)


def test_a_holder_that_comes_back_after_the_clock_was_set_back_has_its_leases_again(
    bench: TimelineBench, holder: Client
) -> None:
    bench.crash()
    bench.clock.skew_ms -= HOUR_MS
    bench.advance(NOTICED_MS)
    other = bench.consume("other")
    again = bench.consume("holder", lease_ms=LEASE_MS)

    assert other.ids == []
    assert sorted(again.ids) == sorted(holder.ids)
    outcomes = again.finish(*(Done(0, row.id, "", row.version) for row in again.rows))
    assert all(isinstance(outcome, Changed) for outcome in outcomes)


# Forward by a day


def test_a_day_forward_ends_leases_and_their_holders_are_refused(
    bench: TimelineBench, holder: Client
) -> None:
    versions = {row.id: row.version for row in holder.rows}
    other = bench.consume("other", credit=100)
    set_clock(bench, DAY_MS)

    later = Counter([*other.ids, *holder.ids[10:]])
    assert later == Counter(versions.keys())
    outcomes = holder.finish(*(Done(0, name, "", v) for name, v in versions.items()))
    assert all(isinstance(outcome, TimelineLeaseLostError) for outcome in outcomes)


def test_a_day_forward_with_many_waiting_delivers_each_once_in_order_in_bounded_memory(
    bench: TimelineBench,
) -> None:
    number = bench.store.topics()[0].number
    # Spread over the day, the last in its last second.
    puts = [
        bench.putting(str(n), (n + 1) * DAY_MS // MANY - 1)._replace(topic=number)
        for n in range(MANY)
    ]
    bench.store.apply(bench.now_ms, [Work([*puts])])
    bench.crash()
    clients = [bench.consume(f"worker-{n}", credit=1_000, prefetch_ms=500) for n in range(4)]
    for client in clients:
        client.quick = True
    slots: list[int] = []

    def is_over() -> bool:
        slots.append(bench.timelines.slots)
        return len(bench.begun) == MANY

    bench.clock.skew_ms += DAY_MS
    assert clients[0].consumer is not None
    clients[0].consumer.grant(1)
    bench.settle_until(is_over)
    bench.settle()

    assert 0 < max(slots) <= window_module.SLOTS_MAX
    assert Counter(row.id for _, _, row in bench.begun) == Counter(map(str, range(MANY)))
    for client in clients:
        assert [row.due_ms for row in client.rows] == sorted(row.due_ms for row in client.rows)
    assert bench.store.count(number, 0, 2**62) == 0


def test_a_clock_that_goes_forward_and_back_again_hands_nothing_to_two(
    bench: TimelineBench, holder: Client
) -> None:
    bench.put_many([f"later-{n}" for n in range(10)], HOUR_MS)
    other = bench.consume("other", credit=5, lease_ms=LEASE_MS)
    bench.clock.skew_ms += DAY_MS
    bench.advance(NOTICED_MS)
    taken = set(other.working)
    bench.clock.skew_ms -= DAY_MS
    bench.advance(NOTICED_MS)
    third = bench.consume("third", credit=100)
    bench.advance(HOUR_MS)

    assert taken
    assert taken.isdisjoint(third.ids)
    for name in taken:
        assert isinstance(other.done(name), Changed)


def test_a_message_sent_ahead_is_not_begun_early_when_the_clock_is_set_back(
    bench: TimelineBench,
) -> None:
    client = bench.consume(prefetch_ms=5_000)
    bench.put("a", 4_000)
    bench.advance(2_000)
    assert client.ids == ["a"]
    set_clock(bench, -HOUR_MS)

    bench.advance(HOUR_MS + 2_000 - NOTICED_MS - 1)
    assert client.begun == []
    bench.advance(1)
    client.begin()
    assert client.begun_ids == ["a"]
