"""One thread that blocking calls go through, one after the other, from an event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from ister.base.errors import ClosedError, LimitReachedError
from ister.base.limits import METADATA_CALLS_MAX

T = TypeVar("T")


class SerialExecutor:
    """Calls are made in the order they were given in, all by one thread.

    The thread is made for the first call. It does not keep the process alive: a disk may take as
    long as it likes, whoever ends the broker need not wait for it.
    """

    def __init__(self, what: str) -> None:
        """`what` names it in errors and in the list of threads."""
        self._what = what
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self._closed = False

    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, or raise what it raises.

        A call whose caller was cancelled is made all the same.
        """
        if self._closed:
            raise ClosedError(self._what)
        if self._waiting >= METADATA_CALLS_MAX:
            raise LimitReachedError("metadata_calls", METADATA_CALLS_MAX)
        return await self._put(call)

    async def close(self, last: Callable[[], None]) -> None:
        """Take no more calls; return when those given are made, and `last` after them."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            waiting = self._put(last)
            self._queue.put(None)
            await waiting

    def _put(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting += 1

        def settle(result: Any, error: BaseException | None) -> None:
            self._waiting -= 1
            if future.done():
                return  # Nobody waits any more.
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - carried over to the event loop
                failure = error
            with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
                loop.call_soon_threadsafe(settle, result, failure)

        self._queue.put(work)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"ister-{self._what}", daemon=True
            )
            self._thread.start()
        return future

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            # Nothing of a former call, which may be megabytes, stays alive while we wait.
            del work
