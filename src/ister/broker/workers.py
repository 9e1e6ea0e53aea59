"""Where blocking work is done: threads beside the event loop, or at once in tests."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Runs blocking calls one after the other, or several at once."""

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """Run `call` somewhere; then, in the event loop, give `done` its result or its error."""

    def close(self) -> None:
        """Finish what was given, then end. Blocks."""


class ThreadWorker:
    """Threads of its own, so that a slow disk never takes those of somebody else."""

    def __init__(
        self, name: str, threads: int, call_soon_threadsafe: Callable[..., object]
    ) -> None:
        self._call_soon = call_soon_threadsafe
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None] = (
            SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=self._work, name=f"ister-{name}-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """See `Worker`."""
        self._queue.put((call, done))

    def close(self) -> None:
        """See `Worker`."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            call, done = job
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - whoever gave the call is told
                result = error
            try:
                self._call_soon(done, result)
            except RuntimeError:
                return  # The loop was closed under us: nobody waits any more.
            # Nothing of a former job, which may be megabytes, stays alive while we wait.
            del call, done, result, job


class InlineWorker:
    """Runs calls at once, and tells of them in the next turn of the loop: for tests."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """See `Worker`."""
        result: T | Exception
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - whoever gave the call is told
            result = error
        self._call_soon(done, result)

    def close(self) -> None:
        """See `Worker`."""
