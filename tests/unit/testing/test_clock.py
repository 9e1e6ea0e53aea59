"""The virtual clock: order, edges, and tasks that wait on it."""

import asyncio
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from ister.base import housekeeping
from ister.base.errors import FrozenClockError, RequestTimeoutError
from ister.client.aio.connection.futures import Deadline
from ister.testing import MemoryBroker, VirtualClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(now_ms=5_000)

    assert (clock.now_ms(), clock.monotonic_ms()) == (5_000, 0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (6_500, 1_500)


def test_a_timer_runs_when_it_is_due_and_not_before() -> None:
    clock, ran = VirtualClock(), list[Any]()
    clock.call_later(30.0, lambda: ran.append(clock.monotonic_ms()))

    clock.advance(29.999)
    assert ran == []
    clock.advance(0.001)
    assert ran == [30_000]
    clock.advance(100)
    assert ran == [30_000]


def test_timers_run_in_order_and_see_their_own_time() -> None:
    clock, ran = VirtualClock(), list[Any]()
    for slot, delay_s in enumerate((3.0, 1.0, 2.0, 1.0)):
        clock.call_later(delay_s, partial(note, ran, slot, clock))
    clock.advance(10.0)

    assert ran == [(1, 1_000), (3, 1_000), (2, 2_000), (0, 3_000)]
    assert clock.monotonic_ms() == 10_000


def test_a_timer_set_by_a_timer_runs_in_the_same_move() -> None:
    clock, ran = VirtualClock(), list[Any]()

    def tick() -> None:
        ran.append(clock.monotonic_ms())
        clock.call_later(1.0, tick)

    clock.call_later(1.0, tick)
    clock.advance(3.5)
    assert ran == [1_000, 2_000, 3_000]


def test_a_cancelled_timer_never_runs() -> None:
    clock, ran = VirtualClock(), list[Any]()
    timer = clock.call_later(1.0, lambda: ran.append(1))
    timer.cancel()
    timer.cancel()
    clock.advance(2.0)

    assert ran == []
    assert timer.cancelled


def test_many_small_steps_add_up_exactly() -> None:
    clock, ran = VirtualClock(), list[Any]()
    clock.call_later(1.0, lambda: ran.append(1))
    for _ in range(9):
        clock.advance(0.1)
    assert ran == []
    clock.advance(0.1)
    assert ran == [1]


async def test_a_task_woken_on_the_way_sets_its_next_timer_in_time() -> None:
    clock, woken = VirtualClock(), list[int]()

    async def sleeper() -> None:
        for _ in range(3):
            slept = asyncio.get_running_loop().create_future()
            clock.call_later(1.0, partial(slept.set_result, None))
            await slept
            woken.append(clock.monotonic_ms())

    task = asyncio.ensure_future(sleeper())
    await clock.elapse(3.0)
    await task

    assert woken == [1_000, 2_000, 3_000]


def note(ran: list[Any], slot: int, clock: VirtualClock) -> None:
    """Write down that a timer ran, and when."""
    ran.append((slot, clock.monotonic_ms()))


# Waits that nothing would end


async def test_a_timeout_under_a_clock_that_stands_still_says_how_to_move_it() -> None:
    clock = VirtualClock(patience=0.02)
    async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
        await client.create_topic("/default/t", kind="timeline")
        leases = client.timeline("/default/t").consume("w")
        async with client.subscribe("/default/orders", "s") as sub, leases:
            for call in (
                sub.receive(timeout=5.0),
                sub.fetch(1, timeout=5.0),
                leases.receive(timeout=5.0),
                client.request("/default/orders", b"x", timeout=5.0),
            ):
                with pytest.raises(FrozenClockError, match=r"await clock\.elapse\(seconds\)"):
                    await call


async def test_sending_without_a_connection_says_so_too() -> None:
    clock = VirtualClock(patience=0.02)
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.producer("/default/orders") as producer,
    ):
        await broker.stop()
        with pytest.raises(FrozenClockError):
            await producer.send(b"x")


async def test_a_timeout_ends_when_the_clock_is_moved() -> None:
    clock = VirtualClock(patience=0.02)
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.subscribe("/default/orders", "s") as sub,
    ):
        receiving = asyncio.create_task(sub.receive(timeout=5.0))
        await clock.elapse(5.0)

        with pytest.raises(RequestTimeoutError):
            await receiving


async def test_a_clock_that_is_moved_now_and_then_fails_nobody() -> None:
    loop, clock, moves = asyncio.get_running_loop(), VirtualClock(patience=0.03), list[int]()
    ended: asyncio.Future[object] = loop.create_future()

    def move() -> None:
        moves.append(1)
        clock.advance(0.001)
        if len(moves) < 12:
            loop.call_later(0.005, move)

    clock.call_later(60.0, Deadline(ended.set_result))
    move()

    # The moves take twice the patience, in real time.
    assert isinstance(await ended, FrozenClockError)
    assert len(moves) == 12


# Long moves


async def test_a_quiet_day_takes_no_more_than_a_few_looks_a_minute() -> None:
    clock, looks = VirtualClock(), list[int]()

    @housekeeping
    def look() -> None:
        looks.append(clock.monotonic_ms())
        clock.call_later(1.0, look)

    clock.call_later(1.0, look)
    await clock.elapse(86_400.0)

    assert len(looks) < 86_400 / 20
    assert max(later - one for one, later in pairwise(looks)) <= 25_000
    assert clock.monotonic_ms() == 86_400_000


async def test_connections_outlive_a_quiet_day() -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
        await client.create_topic("/default/t", kind="timeline")
        timeline = client.timeline("/default/t")
        await timeline.put(b"tomorrow", after=86_400.0)
        async with timeline.consume("w") as leases:
            receiving = asyncio.create_task(leases.receive())
            await clock.elapse(86_399.0)
            assert not receiving.done()
            await clock.elapse(1.0)

            assert (await receiving).attempt == 1
        assert client.link.session.welcome is not None


async def test_what_is_due_in_a_long_move_is_on_time() -> None:
    clock, ran = VirtualClock(), list[int]()
    housekeeping_runs = list[int]()

    @housekeeping
    def look() -> None:
        housekeeping_runs.append(clock.monotonic_ms())
        clock.call_later(1.0, look)

    clock.call_later(1.0, look)
    for at_s in (10.5, 100.0, 100.001, 3_000.0):
        clock.call_later(at_s, lambda: ran.append(clock.monotonic_ms()))
    await clock.elapse(3_600.0)

    assert ran == [10_500, 100_000, 100_001, 3_000_000]
    assert housekeeping_runs == sorted(housekeeping_runs)
