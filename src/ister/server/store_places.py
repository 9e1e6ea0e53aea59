"""Where timelines in SQLite are worked on: in a process beside the broker, or in the broker itself.

A lone change takes the disk a third of a millisecond, and the way to another process and back as
long again. So while changes come one by one, and hardly anybody else is connected, the broker has
the file itself and makes them in the event loop, as streams do it; what takes longer is done by a
thread. Many changes, or many clients, are the process's.

    AWAY --there were only small ones for a while--> COMING --the process has closed it--> HERE
    HERE --a large one, or it is not calm--> LEAVING --the thread has closed the file--> AWAY

Always true:
- the process, the thread and the event loop never have the file open at the same time, and calls
  are made in the order they came;
- a file that the process has had is not made anew here when it is gone.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from operator import methodcaller
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from ister.base.errors import CorruptedError, StorageFailedError
from ister.base.limits import KIB
from ister.broker import StoreWorker
from ister.timeline import Call, Group, Store

# What may be made in the event loop: as much as the store does while the disk syncs. With more of
# them it is the process's: a thread would take turns with the event loop, row by row.
SMALL_CHANGES = 8
SMALL_BYTES = 16 * KIB
# What the disk may take for it at worst, of late: as for streams.
AT_ONCE_S = 0.002
# How long there are only small ones before the file comes. That and going back takes some
# milliseconds each, so it is twice as long each time that it does not stay.
CALM_S = 0.25
CALM_S_MAX = 64.0
STAYS = 10

T = TypeVar("T")


class Place(Enum):
    """See the module."""

    AWAY = auto()
    COMING = auto()
    HERE = auto()
    LEAVING = auto()


class _Waiting(NamedTuple):
    call: Call[Any]
    done: Callable[[Any], object]


class StorePlaces:
    """See the module, and `StoreWorker`.

    `here` makes calls of `store` in a thread. `calm` tells whether nobody minds if the event loop
    waits for a quick disk.
    """

    def __init__(
        self,
        process: StoreWorker,
        here: StoreWorker,
        store: Store,
        *,
        calm: Callable[[], bool],
        call_soon: Callable[..., object],
        now_s: Callable[[], float] = perf_counter,
    ) -> None:
        self._process = process
        self._here = here
        self._store = store
        self._calm = calm
        self._call_soon = call_soon
        self._now_s = now_s
        self.place = Place.AWAY
        # While the file changes hands.
        self._waiting: deque[_Waiting] = deque()
        # Calls that the process or the thread has.
        self._running = 0
        # Since when there were only small ones.
        self._calm_since_s = now_s()
        # How long that is to be, and when the file came.
        self._calm_s = CALM_S
        self._came_s = now_s()
        # Whether the process has had the file open.
        self._was_away = False
        # Whether the last call here found the file in order, and what the slowest took of late.
        self._is_open = False
        self._took_s = 0.0

    def run(self, call: Call[T], done: Callable[[T | Exception], object]) -> None:
        """See `StoreWorker`."""
        if self._waiting or self.place in (Place.COMING, Place.LEAVING):
            self._waiting.append(_Waiting(call, done))
            return
        is_calm = self._calm() and _changes_of(call) <= SMALL_CHANGES
        if not is_calm:
            self._calm_since_s = self._now_s()
        is_small = is_calm and _is_small(call)
        if self.place is Place.AWAY:
            is_time = self._now_s() - self._calm_since_s >= self._calm_s
            if is_small and is_time and self._was_away and not self._running:
                self._come(call, done)
            else:
                self._run(self._process, call, done)
        elif not is_calm:
            self._leave(call, done)
        elif is_small and self._is_quick:
            self._call_soon(done, self._make(call))
        else:
            # The slow ones are to be forgotten some time, or a hiccup would count for ever.
            self._took_s *= 0.9
            self._run(self._here, call, done)

    def try_at_once(self, call: Call[T]) -> T | Exception | None:
        """See `StoreWorker`."""
        is_here = self.place is Place.HERE and not self._waiting
        if is_here and self._is_quick and self._calm() and _is_small(call):
            return self._make(call)
        return None

    @property
    def _is_quick(self) -> bool:
        """Whether the event loop may wait for the file, when that is here."""
        return self._is_open and not self._running and self._took_s <= AT_ONCE_S

    def _run(
        self, worker: StoreWorker, call: Call[T], done: Callable[[T | Exception], object]
    ) -> None:
        self._running += 1

        def on_made(told: T | Exception) -> None:
            self._running -= 1
            self._note(call, told)
            done(told)

        worker.run(call, on_made)

    def _make(self, call: Call[T]) -> T | Exception:
        begun_s = self._now_s()
        told: T | Exception
        try:
            told = call(self._store)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            told = error
        self._took_s = max(self._now_s() - begun_s, self._took_s * 0.9)
        self._note(call, told)
        return told

    def _note(self, call: Call[Any], told: object) -> None:
        if self.place is Place.AWAY:
            self._was_away = self._was_away or (
                _changes_of(call) > 0 and not isinstance(told, Exception)
            )
        else:
            # After an error the file is opened again, which is nothing to be done in the loop.
            self._is_open = not isinstance(told, StorageFailedError | CorruptedError)

    # From one place to the other

    def _come(self, call: Call[Any], done: Callable[[Any], object]) -> None:
        self.place = Place.COMING
        self._waiting.append(_Waiting(call, done))

        # When it fails, the process has let go of the file as well.
        def on_closed(_: object) -> None:
            self.place, self._is_open = Place.HERE, False
            self._came_s = self._now_s()
            self._run_waiting()

        self._process.run(methodcaller("close"), on_closed)

    def _leave(self, call: Call[Any], done: Callable[[Any], object]) -> None:
        self.place = Place.LEAVING
        has_stayed = self._now_s() - self._came_s >= STAYS * self._calm_s
        self._calm_s = CALM_S if has_stayed else min(2 * self._calm_s, CALM_S_MAX)
        self._waiting.append(_Waiting(call, done))

        def on_closed(_: object) -> None:
            self.place = Place.AWAY
            self._run_waiting()

        self._here.run(methodcaller("close"), on_closed)

    def _run_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call, done in waiting:
            self.run(call, done)


def _changes_of(call: Call[Any]) -> int:
    return call.changes if isinstance(call, Group) else 0


def _is_small(call: Call[Any]) -> bool:
    return (
        isinstance(call, Group)
        and not call.calls
        and 0 < call.changes <= SMALL_CHANGES
        and call.size_bytes <= SMALL_BYTES
    )
