"""One timer, for the next time that something is to be done.

Wall time is what it is set for, and a timer goes by another clock: whoever is called looks at the
time again.
"""

from collections.abc import Callable

from ister.base import Clock, Timer
from ister.broker.timelines.window import FAR

# No timer is set for longer.
TIMER_MS_MAX = 3_600_000


class Wake:
    """See the module."""

    __slots__ = ("_at_ms", "_call", "_clock", "_timer")

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._timer: Timer | None = None
        self._at_ms = FAR

    def set(self, at_ms: int, now_ms: int) -> None:
        """Call at that time, and not when it was set for before. `FAR`: never."""
        if self._timer is not None and self._at_ms == at_ms:
            return
        self.stop()
        if at_ms < FAR:
            self._at_ms = at_ms
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
