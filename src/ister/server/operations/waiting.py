"""The broker calls back when something is done; some operations wait for that.

What is several steps is done as a whole: who asked for it may go away in between.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ister.base.errors import IsterError

Result = TypeVar("Result")

# The event loop itself does not keep them alive.
_under_way: set[asyncio.Future[Any]] = set()


async def whole(work: Awaitable[Result]) -> Result:
    """Return what `work` returns, or raise what it raises; it ends also when we are cancelled."""
    return await asyncio.shield(keep(work))


def keep(work: Awaitable[Result]) -> "asyncio.Future[Result]":
    """Have `work` done by a task that ends by itself, and return that."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_on_ended)
    return task


def _on_ended(task: asyncio.Future[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        # Asked for, so that nobody complains when the caller was cancelled.
        task.exception()


async def done(start: Callable[[Callable[[IsterError | None], object]], object]) -> None:
    """Call `start` with what to call at the end, and wait for that; raise what went wrong."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: IsterError | None) -> None:
        # Whoever waited may have gone: the change happens all the same.
        if waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    start(on_done)
    await waiter


async def result(start: Callable[[Callable[[Result | IsterError], object]], object]) -> Result:
    """As `done`, for what ends with a value."""
    waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def on_result(value: Result | IsterError) -> None:
        if waiter.done():
            return
        if isinstance(value, IsterError):
            waiter.set_exception(value)
        else:
            waiter.set_result(value)

    start(on_result)
    return await waiter


async def checked(check: Callable[[], None] | None) -> bool:
    """Have a thread make a check that would hold up the event loop; return whether there is one."""
    if check is None:
        return False
    await asyncio.get_running_loop().run_in_executor(None, check)
    return True
