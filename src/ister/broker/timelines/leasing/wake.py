"""One timer, for the next time that something is to be done.

Wall time is what it is set for, and a timer goes by another clock: whoever is called looks at the
time again.
"""

from collections.abc import Callable

from ister.base import Clock, Timer
from ister.timeline import FAR

# No timer is set for longer.
TIMER_MS_MAX = 3_600_000


class Wake:
    """One timer, for a point in time."""

    __slots__ = ("_ahead_ms", "_at_ms", "_call", "_clock", "_timer")

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._timer: Timer | None = None
        self._at_ms = FAR
        # How far wall time was ahead of the timer's clock when that was set.
        self._ahead_ms = 0

    def set(self, at_ms: int, now_ms: int) -> None:
        """Call at that time, and not when it was set for before. `FAR`: never."""
        ahead_ms = now_ms - self._clock.monotonic_ms()
        # Each of the two is rounded down: that is no jump.
        is_same_clock = abs(ahead_ms - self._ahead_ms) <= 1
        if self._timer is not None and self._at_ms == at_ms and is_same_clock:
            return
        self.stop()
        if at_ms < FAR:
            self._at_ms = at_ms
            self._ahead_ms = ahead_ms
            delay_ms = min(max(at_ms - now_ms, 1), TIMER_MS_MAX)
            self._timer = self._clock.call_later(delay_ms / 1000, self._ring)

    def stop(self) -> None:
        """Do not call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._call()
