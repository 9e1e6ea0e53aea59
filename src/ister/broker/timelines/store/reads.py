"""Questions to the store, one at a time: what is to be committed waits for one of them at most.

A count of millions takes a second of the store. Were all that are asked given to it at once,
no lease would be written, and no message handed out, before the last one was answered.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ister.base.errors import LimitReachedError
from ister.broker.timelines.store.workers import StoreWorker
from ister.timeline import Call

# A client has 64 commands under way, and each takes 0.8 KB here: 8 MB.
READS_MAX = 10_000

T = TypeVar("T")


class Reads:
    """Asks the store one question at a time."""

    __slots__ = ("_is_busy", "_waiting", "_worker")

    def __init__(self, worker: StoreWorker) -> None:
        self._worker = worker
        self._waiting: deque[tuple[Call[Any], Callable[[Any], object]]] = deque()
        self._is_busy = False

    def add(self, call: Call[T], done: Callable[[T | Exception], object]) -> None:
        """Make `call` when those before it were; then give `done` its result or its error."""
        if len(self._waiting) >= READS_MAX:
            done(LimitReachedError("timeline_reads_max", READS_MAX))
            return
        self._waiting.append((call, done))
        self._begin()

    def _begin(self) -> None:
        if self._is_busy or not self._waiting:
            return
        self._is_busy = True
        call, done = self._waiting.popleft()

        def on_read(found: Any) -> None:
            self._is_busy = False
            self._begin()
            done(found)

        self._worker.run(call, on_read)
