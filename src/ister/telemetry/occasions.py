"""Throttles for the log: events that clients can cause at will are logged once a second."""

from collections.abc import Callable

# How often an event is logged; those in between are counted.
TELL_MS = 1_000


class Occasional:
    """Throttle the log lines of one event. `now_ms` is a clock that never goes back."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._told_ms: int | None = None
        self._times = 0

    def times(self) -> int:
        """Count one more. Return how many there were since the last line, 0 to write none now."""
        self._times += 1
        now_ms = self._now_ms()
        if self._told_ms is not None and now_ms - self._told_ms < TELL_MS:
            return 0
        self._told_ms = now_ms
        times, self._times = self._times, 0
        return times


class Occasions:
    """Throttle several events, each by itself.

    Share one between all that a client can have many of, such as connections or subscriptions:
    one for each of them would limit nothing. The names of events are few and our own.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._events: dict[str, Occasional] = {}

    def times(self, event: str) -> int:
        """Count one more. Return how many there were since its last line, 0 to write none now."""
        if event not in self._events:
            self._events[event] = Occasional(self._now_ms)
        return self._events[event].times()
