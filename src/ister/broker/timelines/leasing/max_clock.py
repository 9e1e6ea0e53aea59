"""The latest time that the wall clock has shown, which may be set back.

A lease that began when its message was due goes on when the clock is behind that again: its
consumer is at work. So whether a lease has begun is asked of this mark, and nothing else is: what
is due, and when a lease ends, goes by the clock as it is. After a clock that was far ahead by
mistake the only thing that is refused for too long is an owner's change of a message that a
consumer was sent already.

How often it is looked at does not matter, because another clock, which is never set, tells how far
this one had come when it was set back.
"""

from ister.base import Clock

# The two clocks are read one after the other, each in whole milliseconds.
JUMP_MS = 2


class MaxClock:
    """The latest time that the wall clock has shown."""

    __slots__ = ("_ahead_ms", "_clock", "_mark_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mark_ms = clock.now_ms()
        # How far the wall clock is ahead of the other one.
        self._ahead_ms = self._mark_ms - clock.monotonic_ms()

    def latest_ms(self) -> int:
        """Return the latest time there was."""
        now_ms, own_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        ahead_ms, self._ahead_ms = self._ahead_ms, now_ms - own_ms
        # As it would be now: later than it was when it was set back, by less than a look ago.
        unset_ms = own_ms + ahead_ms if self._ahead_ms < ahead_ms - JUMP_MS else now_ms
        self._mark_ms = max(self._mark_ms, unset_ms)
        return self._mark_ms
