"""The virtual clock: order, edges, and tasks that wait on it."""

import asyncio
from functools import partial
from typing import Any

from ister.testing import VirtualClock


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
