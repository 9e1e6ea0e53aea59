"""The executor for `run_in_executor` and `to_thread`. Its threads never keep a process alive.

Python waits for the threads of its own executor twice: when the event loop is closed, and at the
end of the process. A schema check that takes half a minute would delay the end of the broker by as
much. No result is needed by then: storage and metadata have threads of their own.

Always true: calls whose functions have the same `lane`, an attribute, run one at a time, in the
order they were submitted.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# As many as Python's default on 4 processors. The calls compute, or look up a host name.
THREADS_MAX = 8


class DaemonExecutor(ThreadPoolExecutor):
    """Run calls in daemon threads. A subclass, because an event loop accepts nothing else."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        super().__init__(max_workers=threads_max)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._started = 0
        self._threads_max = threads_max
        self._closed = False
        self._guard = threading.Lock()
        # Calls that wait for others of their lane; of a lane that is not here, none is made.
        self._lanes: dict[str, deque[Callable[[], None]]] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run a call in a thread."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - passed on by the future
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._guard:
            if self._closed:
                raise RuntimeError("the broker is closed: its threads accept no more calls")
            lane = getattr(fn, "lane", None)
            if lane in self._lanes:
                self._lanes[lane].append(work)
                return future
            if lane is not None:
                self._lanes[lane] = deque()
            self._jobs.put(work if lane is None else partial(self._go_along, lane, work))
            if not self._free.acquire(blocking=False) and self._started < self._threads_max:
                self._started += 1
                threading.Thread(
                    target=self._work, name=f"ister-aside-{self._started}", daemon=True
                ).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Accept no more calls and drop those that have not begun. Never waits."""
        with self._guard:
            self._closed = True
            self._lanes.clear()
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in range(self._started):
            self._jobs.put(None)

    def _go_along(self, lane: str, work: Callable[[], None]) -> None:
        """Make a call, and those of its lane that have come meanwhile."""
        while True:
            with suppress(RuntimeError):  # See below.
                work()
            with self._guard:
                waiting = self._lanes.get(lane)
                if not waiting:
                    self._lanes.pop(lane, None)
                    return
                work = waiting.popleft()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            # The loop may be closed when the result comes.
            with suppress(RuntimeError):
                job()
            del job
            self._free.release()
