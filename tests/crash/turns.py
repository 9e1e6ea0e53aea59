"""Threads of one owner, of which one runs at a time, in an order that is drawn by chance.

A thread waits before every request to a store, and where `ister.log.journal.fetching` makes it
wait for another thread. So a run is reproducible, also of an owner that reads in several threads,
and the owner can be paused before any request of any of them.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Generic, TypeVar

import pytest

_T = TypeVar("_T")
_here = threading.local()


class Task:
    """One thread: it may run when it is `ready`, and does when it may `go`."""

    def __init__(self) -> None:
        self.ready: Callable[[], bool] = lambda: True
        self.go = threading.Semaphore(0)


class Turns:
    """Let an owner make a number of requests, whichever of its threads makes them."""

    def __init__(self, body: Callable[[], None], order: random.Random) -> None:
        self.requests = 0
        # The most threads that have waited to make a request at the same time.
        self.waiting_max = 0
        self._order = order
        self._left = 0
        self._waiting = 0
        self._tasks: list[Task] = []
        self._error: BaseException | None = None
        self._back = threading.Semaphore(0)
        self._first = self.start(body)

    @property
    def done(self) -> bool:
        """Whether all threads of the owner have ended."""
        return not self._tasks

    @property
    def is_parallel(self) -> bool:
        """Whether the thread that runs now was started by the first one of the owner."""
        return _here.task is not self._first

    def give(self, requests: int) -> None:
        """Let the owner make so many requests, or run to its end."""
        if self.done:
            return
        self._left = requests
        self._pass_on()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    # For the threads of the owner.

    def start(self, body: Callable[[], None]) -> Task:
        """Start a thread, which runs when it is its turn."""
        task = Task()
        self._tasks.append(task)
        threading.Thread(target=self._run, args=(task, body), daemon=True).start()
        return task

    def take(self) -> None:
        """Wait for a turn. The owner calls this before every request."""
        self._waiting += 1
        self.waiting_max = max(self.waiting_max, self._waiting)
        if not self._left or len(self._tasks) > 1:
            self.wait(lambda: self._left > 0)
        self._waiting -= 1
        self._left -= 1
        self.requests += 1

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let other threads run until it is the turn of this one, and it is `ready`."""
        task: Task = _here.task
        task.ready = ready
        self._pass_on()
        task.go.acquire()

    def _run(self, task: Task, body: Callable[[], None]) -> None:
        task.go.acquire()
        _here.turns, _here.task = self, task
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        self._tasks.remove(task)
        self._pass_on()

    def _pass_on(self) -> None:
        """Let any thread run that is ready; when there is none, return to who gave the turns."""
        ready = [task for task in self._tasks if task.ready()]
        if ready:
            self._order.choice(ready).go.release()
            return
        if self._tasks and self._left and self._error is None:
            self._error = AssertionError("all threads of the owner wait for each other")
        self._back.release()


class Thread:
    """Stands in for `threading.Thread`."""

    def __init__(
        self,
        *,
        target: Callable[..., None],
        args: tuple[object, ...],
        name: str,
        daemon: bool,
    ) -> None:
        assert daemon
        self._body = partial(target, *args)

    def start(self) -> None:
        _here.turns.start(self._body)


class Event:
    """Stands in for `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self) -> None:
        _here.turns.wait(lambda: self._is_set)


class Queue(Generic[_T]):
    """Stands in for `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[_T] = deque()

    def put(self, item: _T) -> None:
        self._items.append(item)

    def get(self) -> _T:
        _here.turns.wait(lambda: bool(self._items))
        return self._items.popleft()


def run_reads_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the threads that read chunks in parallel take turns with all others."""
    monkeypatch.setattr(
        "ister.log.journal.fetching.threading", SimpleNamespace(Thread=Thread, Event=Event)
    )
    monkeypatch.setattr("ister.log.journal.fetching.SimpleQueue", Queue)
