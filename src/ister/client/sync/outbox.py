"""From callers' threads to the loop, many at a time.

Waking an event loop from another thread costs a system call and a switch of threads. So whoever
puts the first thing in wakes the loop, and everything until the loop looks goes along.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class Run(Generic[_T, _R]):
    """What crosses at one time: the items, and once across, a result for each."""

    __slots__ = ("items", "results")

    def __init__(self) -> None:
        self.items: list[_T] = []
        # Set by the loop, whole: who sees it sees all of it.
        self.results: list[_R] | None = None


class Outbox(Generic[_T, _R]):
    """Threads fill it, the loop empties it, in order."""

    def __init__(
        self,
        post: Callable[[Callable[[], object]], object],
        deal: Callable[[list[_T]], list[_R]],
    ) -> None:
        """`post` has the loop make a call; `deal` turns items into results, on the loop."""
        # Reentrant: a signal handler or a finalizer may send while its thread is sending.
        self.lock = threading.RLock()
        self._post = post
        self._deal = deal
        self._run: Run[_T, _R] | None = None

    def run(self) -> Run[_T, _R]:
        """Return the run that takes items now. The caller holds `lock`, and appends."""
        run = self._run
        if run is None:
            # Before the call, in which a signal handler may send as well.
            run = self._run = Run()
            try:
                self._post(self.empty)
            except BaseException:
                self._run = None
                raise
        return run

    def empty(self) -> None:
        """Deal with everything put in so far. On the loop."""
        with self.lock:
            run, self._run = self._run, None
        if run is not None:
            run.results = self._deal(run.items)
            run.items = []
