"""Wakes a subscription when leases or delays of its topics end.

Always true: a track that is watched stands in the heap under the time it is watched for; there is
one timer for all of them, set for the first. Entries of a track that is watched for another time
by now are passed over when they come up.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ister.base import Clock, Timer

if TYPE_CHECKING:
    from ister.broker.durable.partition import Track

# Later than any time: of a track that is not watched.
NEVER_MS = 2**63
# Tracks dealt with in one turn of the loop: each may end hundreds of leases.
TRACKS_AT_ONCE = 16


class Alarm:
    """See the module. `on_due` gets each track at its time, once, and may watch it again."""

    __slots__ = ("_clock", "_count", "_dues", "_on_due", "_timer", "_timer_ms")

    def __init__(self, clock: Clock, on_due: Callable[["list[Track]"], object]) -> None:
        self._clock = clock
        self._on_due = on_due
        # Time, a number that makes ties fair, track.
        self._dues: list[tuple[int, int, Track]] = []
        self._count = 0
        self._timer: Timer | None = None
        self._timer_ms = 0

    def watch(self, track: "Track", due_ms: int | None) -> None:
        """Look at a track at that time, or when it is watched for already if that is earlier."""
        if due_ms is None or due_ms >= track.watched_ms:
            return
        track.watched_ms = due_ms
        self._count += 1
        heappush(self._dues, (due_ms, self._count, track))
        self._set_timer()

    def forget(self, track: "Track") -> None:
        """A track is gone."""
        track.watched_ms = NEVER_MS

    def close(self) -> None:
        """Never ring again."""
        self._dues.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if not self._dues:
            return
        due_ms = self._dues[0][0]
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_ms = max(due_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._clock.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        due: list[Track] = []
        while self._dues and self._dues[0][0] <= now_ms and len(due) < TRACKS_AT_ONCE:
            due_ms, _, track = heappop(self._dues)
            if due_ms == track.watched_ms:
                track.watched_ms = NEVER_MS
                due.append(track)
        self._on_due(due)
        self._set_timer()
