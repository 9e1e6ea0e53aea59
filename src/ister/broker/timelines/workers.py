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

    def try_at_once(self, call: Call[T]) -> T | Exception | None:
        """Make a call now, if the event loop may wait for it and nothing goes before; else `None`.

        Return its result, which is not `None`, or its error.
        """


class WithStore:
    """A store of this process, and what runs its calls."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    def run(self, call: Call[T], done: Callable[[T | Exception], object]) -> None:
        """See `StoreWorker`."""
        self._worker.run(partial(call, self._store), done)

    def try_at_once(self, call: Call[T]) -> T | Exception | None:
        """Nobody knows how long it would take."""
        return None
