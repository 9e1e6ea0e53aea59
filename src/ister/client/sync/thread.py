"""The private event loop of one blocking client, in a thread of its own.

Always true:
- everything of the asyncio client is touched by the loop's thread alone;
- a call either runs to its end on the loop or raises: also when the loop stops under it, when
  the process has forked, and when Ctrl-C interrupts the caller, which cancels it on the loop;
- the thread is a daemon and is stopped at exit, so that a client nobody closed hangs nobody.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ister.base.errors import BadRequestError, ClosedError

# A loop with nothing but our own tasks stops in milliseconds.
JOIN_S = 5.0

_R = TypeVar("_R")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._pid = os.getpid()
        # Held for handing over only: once `_closed` is set, nothing new reaches the loop.
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ister-client", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether calls are refused: after `close`, and in a forked child."""
        return self._closed or self._forked

    def run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """Run a coroutine on the loop, wait for it, and return or raise what comes of it."""
        try:
            future = self._hand_over(work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("the client") from None
        except BaseException:
            # Ctrl-C, while blocked here: what was asked for is not wanted any more.
            future.cancel()
            raise

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop make a call soon; do not wait for it."""
        self._check()
        with self._lock:
            if self._closed:
                raise ClosedError("the client")
            self._loop.call_soon_threadsafe(call)

    def close(self, farewell: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `farewell` on the loop and stop it; calls that still wait raise `ClosedError`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._forked:
            return  # The thread is the parent's, and so is the connection.
        self._loop.call_soon_threadsafe(self._begin_end, farewell)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._pid

    def _check(self) -> None:
        if self._forked:
            raise BadRequestError(
                "this client was opened before the process forked: open one in each process"
            )

    def _hand_over(self, work: Coroutine[Any, Any, _R]) -> "Future[_R]":
        self._check()
        if threading.current_thread() is self._thread:
            raise BadRequestError(
                "a callback runs in the client's own thread and must not block in it: "
                "hand the work to another thread"
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the client")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _begin_end(self, farewell: Callable[[], Coroutine[Any, Any, object]]) -> None:
        task = self._loop.create_task(farewell())
        task.add_done_callback(lambda _: self._loop.stop())

    def _work(self) -> None:
        loop = self._loop
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            # Once more around, for the futures of those who wait to be told.
            loop.run_until_complete(_gather(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _gather(tasks: "set[asyncio.Task[Any]]") -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
