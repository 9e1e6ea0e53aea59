"""Run long work in steps, a few milliseconds in each turn of the event loop.

Always true: chores run one after the other, in the order they were added. A chore that fits into
one turn is finished before `do` returns, unless other chores are waiting.
"""

from collections import deque
from collections.abc import Callable, Iterator

from ister.base import Clock, Timer

# Together with the time that connections get in a turn, this is too short for anybody to notice.
TURN_MS = 4

# Other work may run between two steps.
Steps = Iterator[None]


class Chores:
    """A queue of chores. An error in a step ends its chore, and is passed to `on_failed`."""

    def __init__(self, clock: Clock, on_failed: Callable[[Exception], object]) -> None:
        self._clock = clock
        self._on_failed = on_failed
        self._waiting: deque[Steps] = deque()
        self._timer: Timer | None = None
        self._busy = False

    @property
    def idle(self) -> bool:
        """Whether all chores are done."""
        return not self._waiting

    def do(self, steps: Steps) -> None:
        """Add a chore. It runs now, or as soon as the chores before it are done."""
        self._waiting.append(steps)
        if self._timer is None and not self._busy:
            self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        self._busy = True
        end_ms = self._clock.monotonic_ms() + TURN_MS
        while self._waiting and self._clock.monotonic_ms() < end_ms:
            try:
                next(self._waiting[0])
            except StopIteration:
                self._waiting.popleft()
            except Exception as error:  # noqa: BLE001 - the top of a chore: the others continue
                self._waiting.popleft()
                self._on_failed(error)
        self._busy = False
        if self._waiting:
            self._timer = self._clock.call_later(0, self._go_on)
