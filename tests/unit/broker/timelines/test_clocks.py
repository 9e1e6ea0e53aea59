"""A broker's clock that is set back: what has begun goes on."""

import pytest
from tests.unit.broker.timelines.timelinebench import Client, TimelineBench

from ister.base.errors import MessageLeasedError
from ister.broker.timelines import OwnersChange
from ister.broker.timelines.leasing.max_clock import MaxClock
from ister.timeline import Changed

CHANGES = ("delete", "move", "update")


@pytest.fixture
def bench() -> TimelineBench:
    return TimelineBench()


def change(bench: TimelineBench, kind: str, name: str = "a") -> object:
    changes: dict[str, OwnersChange] = {
        "delete": bench.deleting(name),
        "move": bench.moving(name, 1_000),
        "update": bench.updating(name, b"other"),
    }
    return bench.change(changes[kind])


def begin(bench: TimelineBench, *, in_ms: int = 1_000, prefetch_ms: int = 0) -> Client:
    """Have a consumer begin a message."""
    client = bench.consume(prefetch_ms=prefetch_ms)
    bench.put("a", in_ms)
    bench.advance(in_ms)
    assert client.begun_ids == ["a"]
    return client


# Owners


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("prefetch_ms", [0, 1_000])
def test_an_owner_changes_nothing_that_is_in_work_when_the_clock_is_set_back(
    bench: TimelineBench, kind: str, prefetch_ms: int
) -> None:
    client = begin(bench, prefetch_ms=prefetch_ms)

    bench.clock.skew_ms = -5_000

    assert isinstance(change(bench, kind), MessageLeasedError)
    assert isinstance(client.done("a"), Changed)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("prefetch_ms", [0, 1_000])
def test_nor_does_it_when_its_consumer_has_lost_the_connection(
    bench: TimelineBench, kind: str, prefetch_ms: int
) -> None:
    client = begin(bench, prefetch_ms=prefetch_ms)
    working = client.working["a"]

    bench.clock.skew_ms = -5_000
    client.close()
    refusal = change(bench, kind)

    assert isinstance(refusal, MessageLeasedError)
    again = bench.consume()
    assert [row.version for row in again.rows] == [working.version]
    again.close()
    assert isinstance(change(bench, kind), MessageLeasedError)


def test_a_message_that_was_never_due_is_changed_while_the_clock_is_behind(
    bench: TimelineBench,
) -> None:
    client = begin(bench)
    bench.clock.skew_ms = -5_000
    bench.put("b", 6_000)

    assert isinstance(change(bench, "move", "b"), Changed)
    bench.advance(999)
    assert client.begun_ids == ["a"]
    bench.advance(1)
    assert client.begun_ids == ["a", "b"]


@pytest.mark.parametrize("kind", CHANGES)
def test_what_waits_is_changed_also_after_a_clock_was_far_ahead_by_mistake(
    bench: TimelineBench, kind: str
) -> None:
    client = bench.consume()
    bench.clock.skew_ms = 366 * 86_400_000
    bench.advance(2_000)
    bench.clock.skew_ms = 0
    bench.put("a", 5_000)
    bench.put("b", 100)

    assert isinstance(change(bench, kind), Changed)
    bench.advance(100)
    assert client.begun_ids == ["b"]
    assert isinstance(client.done("b"), Changed)


# The mark


def test_the_mark_is_the_time_as_long_as_the_clock_goes_forward(bench: TimelineBench) -> None:
    mark = MaxClock(bench.clock)
    for step_ms in (1, 50, 1_000):
        bench.advance(step_ms)
        bench.clock.skew_ms += step_ms

        assert mark.latest_ms() == bench.now_ms


def test_the_mark_knows_how_far_the_clock_was_though_nobody_had_looked(
    bench: TimelineBench,
) -> None:
    mark = MaxClock(bench.clock)
    bench.advance(700)
    latest_ms = bench.now_ms

    bench.clock.skew_ms = -10_000
    bench.advance(5)

    assert latest_ms <= mark.latest_ms() <= latest_ms + 5
    bench.advance(9_000)
    assert mark.latest_ms() <= latest_ms + 5
    bench.advance(1_000)
    assert mark.latest_ms() == bench.now_ms


def test_clocks_that_part_by_a_millisecond_do_not_move_the_mark(bench: TimelineBench) -> None:
    mark = MaxClock(bench.clock)
    bench.advance(100)
    now_ms = mark.latest_ms()

    bench.clock.skew_ms = -1

    assert mark.latest_ms() == now_ms
    bench.advance(10)
    assert mark.latest_ms() == bench.now_ms
