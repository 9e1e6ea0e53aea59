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
from typing import Any, Generic, TypeVar, cast

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
        # Reentrant, as the lock of an outbox is.
        self._lock = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ister-client", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether calls are refused: after `close`, and in a forked child."""
        return self._closed or self._forked

    def run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """Run a coroutine on the loop, wait for it, and return or raise what comes of it."""
        call = _Call(work)
        try:
            self._hand_over(call)
        except BaseException:
            work.close()
            raise
        try:
            call.finished.acquire()
        except BaseException:
            # Ctrl-C, while blocked here: what was asked for is not wanted any more.
            self._loop.call_soon_threadsafe(call.cancel)
            raise
        return call.outcome()

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

    def _hand_over(self, call: "_Call[Any]") -> None:
        self._check()
        if threading.current_thread() is self._thread:
            raise BadRequestError(
                "a callback runs in the client's own thread and must not block in it: "
                "hand the work to another thread"
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the client")
            self._loop.call_soon_threadsafe(call.start, self._loop)

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


class _Call(Generic[_R]):
    """A coroutine on its way over, and what came of it.

    Does what `asyncio.run_coroutine_threadsafe` does, a third quicker: a lock instead of a future
    with its condition, and one turn of the loop less.
    """

    __slots__ = ("_error", "_result", "_task", "_work", "finished")

    def __init__(self, work: Coroutine[Any, Any, _R]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._result: _R | None = None
        # Free once there is an outcome.
        self.finished = threading.Lock()
        self.finished.acquire()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, on the loop."""
        self._task = loop.create_task(self._carry())

    def cancel(self) -> None:
        """Give up, on the loop. Harmless when it has ended."""
        if self._task is not None:
            self._task.cancel()

    def outcome(self) -> _R:
        """Return or raise what came of it."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # Else the error would keep this frame, and the frame the error. Its other frames
                # keep this call, which has forgotten it above.
                del error
        return cast("_R", self._result)

    async def _carry(self) -> None:
        try:
            self._result = await self._work
        except asyncio.CancelledError:
            self._error = ClosedError("the client")
            raise
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            self._error = error
        finally:
            self.finished.release()


async def _gather(tasks: "set[asyncio.Task[Any]]") -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
