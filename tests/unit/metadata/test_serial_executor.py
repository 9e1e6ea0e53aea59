"""Blocking calls through one thread."""

import asyncio
import threading
from functools import partial

import pytest

from ister.base.errors import ClosedError, LimitReachedError
from ister.base.limits import METADATA_CALLS_MAX
from ister.metadata.serial_executor import SerialExecutor


def nothing() -> None:
    """Do it."""


async def test_calls_are_made_in_order_by_one_thread() -> None:
    executor = SerialExecutor("test")
    calls: list[tuple[int, int]] = []

    def call(number: int) -> int:
        calls.append((number, threading.get_ident()))
        return number

    answers = await asyncio.gather(*(executor.run(partial(call, n)) for n in range(100)))
    await executor.close(nothing)

    assert answers == [number for number, _ in calls] == list(range(100))
    assert len({thread for _, thread in calls}) == 1
    assert calls[0][1] != threading.get_ident()


async def test_an_error_is_raised_to_whoever_asked() -> None:
    executor = SerialExecutor("test")
    with pytest.raises(ZeroDivisionError):
        await executor.run(lambda: 1 // 0)

    assert await executor.run(lambda: 1) == 1
    await executor.close(nothing)


async def test_the_last_call_comes_after_those_that_were_given() -> None:
    executor, calls = SerialExecutor("test"), list[str]()
    go_on = threading.Event()

    def wait() -> None:
        go_on.wait()
        calls.append("first")

    first = asyncio.create_task(executor.run(wait))
    await asyncio.sleep(0)
    closing = asyncio.create_task(executor.close(lambda: calls.append("last")))
    await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await executor.run(nothing)
    go_on.set()
    await closing

    assert first.done()
    assert calls == ["first", "last"]


async def test_an_executor_that_was_never_used_closes_at_once() -> None:
    calls: list[str] = []
    await SerialExecutor("test").close(lambda: calls.append("last"))

    assert calls == []


async def test_calls_that_wait_are_bounded() -> None:
    executor, go_on = SerialExecutor("test"), threading.Event()
    waiting = [asyncio.create_task(executor.run(go_on.wait)) for _ in range(METADATA_CALLS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReachedError):
        await executor.run(nothing)
    go_on.set()
    await asyncio.gather(*waiting)

    await executor.run(nothing)
    await executor.close(nothing)


def test_a_call_goes_on_when_the_loop_of_its_caller_has_ended() -> None:
    executor, go_on, done = SerialExecutor("test"), threading.Event(), threading.Event()

    def wait() -> None:
        go_on.wait()
        done.set()

    async def ask_and_leave() -> None:
        asking = asyncio.create_task(executor.run(wait))
        await asyncio.sleep(0)
        asking.cancel()

    asyncio.run(ask_and_leave())
    go_on.set()

    assert done.wait(10)
    # The thread is well.
    assert asyncio.run(executor.run(lambda: 7)) == 7
    asyncio.run(executor.close(nothing))
