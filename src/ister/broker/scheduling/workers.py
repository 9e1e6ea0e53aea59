"""Where blocking work is done: threads beside the event loop, or at once in tests."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Runs blocking calls one after the other, or several at once."""

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """Run `call` somewhere; then, in the event loop, give `done` its result or its error."""

    def close(self, timeout_s: float | None = None) -> bool:
        """Finish what was given, then end. Blocks.

        After `timeout_s` what is under way is left to itself; return whether all of it is done.
        """


class ThreadWorker:
    """Threads of its own, so that a slow disk never takes those of somebody else.

    They are started when there is work for them: most of the time one is enough.
    """

    def __init__(
        self, name: str, threads: int, call_soon_threadsafe: Callable[..., object]
    ) -> None:
        self._call_soon = call_soon_threadsafe
        self._name = name
        self._threads_max = threads
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None] = (
            SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        # Calls that were given and are not done.
        self._lock = threading.Lock()
        self._calls = 0

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """See `Worker`."""
        with self._lock:
            self._calls += 1
            if self._calls > len(self._threads) < self._threads_max:
                name = f"ister-{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put((call, done))

    def share(self) -> "SharedWorker":
        """Return a part in these threads, which can be closed alone."""
        return SharedWorker(self)

    def close(self, timeout_s: float | None = None) -> bool:
        """See `Worker`."""
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(None if ends_s is None else max(0.0, ends_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            call, done = job
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - passed to `done`
                result = error
            with self._lock:
                self._calls -= 1
            try:
                self._call_soon(done, result)
            except RuntimeError:
                return  # The loop was closed under us: nobody waits any more.
            # Nothing of a former job, which may be megabytes, stays alive while we wait.
            del call, done, result, job


class SharedWorker:
    """A part in the threads of a `ThreadWorker`, which others use as well."""

    def __init__(self, worker: ThreadWorker) -> None:
        self._worker = worker
        self._calls = 0
        self._changed = threading.Condition()

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """See `Worker`."""

        def counted() -> T:
            try:
                return call()
            finally:
                with self._changed:
                    self._calls -= 1
                    self._changed.notify_all()

        with self._changed:
            self._calls += 1
        self._worker.run(counted, done)

    def close(self, timeout_s: float | None = None) -> bool:
        """See `Worker`. The threads stay, and so do the calls of others."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout_s)


class InlineWorker:
    """Runs calls at once, and tells of them in the next turn of the loop: for tests."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """See `Worker`."""
        result: T | Exception
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - passed to `done`
            result = error
        self._call_soon(done, result)

    def close(self, timeout_s: float | None = None) -> bool:
        """See `Worker`."""
        return True
