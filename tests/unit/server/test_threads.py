"""The executor of the event loop: calls run, errors are raised, and shutdown does not wait."""

import asyncio
import threading

import pytest

from ister.server.threads import DaemonExecutor


async def test_calls_of_an_event_loop_run_in_parallel() -> None:
    loop = asyncio.get_running_loop()
    executor = DaemonExecutor(threads_max=3)
    meeting = threading.Barrier(3, timeout=10)
    calls = [loop.run_in_executor(executor, meeting.wait) for _ in range(3)]

    assert sorted(await asyncio.gather(*calls)) == [0, 1, 2]


def test_a_call_returns_or_raises() -> None:
    executor = DaemonExecutor()

    assert executor.submit(divmod, 7, 2).result(10) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(10)


def test_an_idle_thread_is_used_again() -> None:
    executor = DaemonExecutor()
    names = {executor.submit(lambda: threading.current_thread().name).result(10) for _ in range(5)}
    # The first may tell of its result before it is free.
    assert len(names) <= 2


def test_shutdown_does_not_wait_and_drops_calls_that_have_not_begun() -> None:
    executor = DaemonExecutor(threads_max=1)
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        go_on.wait(10)
        done.append("first")

    busy = executor.submit(first)
    executor.submit(done.append, "second")
    assert begun.wait(10)
    executor.shutdown(wait=True)
    assert not busy.done()
    go_on.set()
    busy.result(10)

    assert done == ["first"]
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(print)


def test_a_cancelled_call_does_not_run() -> None:
    executor = DaemonExecutor(threads_max=1)
    go_on = threading.Event()
    done: list[str] = []
    executor.submit(go_on.wait, 10)
    cancelled = executor.submit(done.append, "never")
    assert cancelled.cancel()
    go_on.set()
    executor.submit(done.append, "last").result(10)

    assert done == ["last"]


class InLane:
    """A call that takes turns with others of its lane."""

    def __init__(self, lane: str, made: list[str], go_on: threading.Event | None = None) -> None:
        self.lane = lane
        self._made = made
        self._go_on = go_on

    def __call__(self) -> None:
        if self._go_on is not None:
            assert self._go_on.wait(10)
        self._made.append(self.lane)


def test_calls_of_one_lane_are_made_one_after_the_other() -> None:
    executor = DaemonExecutor()
    made: list[str] = []
    go_on = threading.Event()
    first = executor.submit(InLane("a", made, go_on))
    second = executor.submit(InLane("a", made))
    executor.submit(InLane("b", made)).result(10)
    executor.submit(made.append, "").result(10)

    assert made == ["b", ""]
    assert not second.running()
    go_on.set()
    second.result(10)
    first.result(10)
    executor.submit(InLane("a", made)).result(10)
    assert made == ["b", "", "a", "a", "a"]


def test_a_call_that_raises_does_not_hold_up_its_lane() -> None:
    executor = DaemonExecutor()
    made: list[str] = []
    go_on = threading.Event()
    executor.submit(InLane("a", made, go_on))
    wrong = InLane("a", made)
    wrong._made = None  # type: ignore[assignment]
    failed = executor.submit(wrong)
    last = executor.submit(InLane("a", made))
    go_on.set()

    with pytest.raises(AttributeError):
        failed.result(10)
    last.result(10)
    assert made == ["a", "a"]


def test_the_end_drops_what_waits_in_a_lane() -> None:
    executor = DaemonExecutor()
    made: list[str] = []
    go_on = threading.Event()
    first = executor.submit(InLane("a", made, go_on))
    waiting = executor.submit(InLane("a", made))
    executor.shutdown()
    go_on.set()
    first.result(10)

    assert not waiting.done()
    assert made == ["a"]
