"""Where calls of a store are made: beside the event loop, one after the other."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from ister.broker.scheduling import Worker
from ister.timeline import Call, Store

T = TypeVar("T")


class StoreWorker(Protocol):
    """Makes calls of one store, in the order they come."""

    def run(self, call: Call[T], done: Callable[[T | Exception], object]) -> None:
        """Make a call; then, in the event loop, give `done` its result or its error."""


class WithStore:
    """A store of this process, and what runs its calls."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    def run(self, call: Call[T], done: Callable[[T | Exception], object]) -> None:
        """See `StoreWorker`."""
        self._worker.run(partial(call, self._store), done)
