"""What has happened on one timeline: for metrics."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Upper bounds in seconds: from what the clock can tell to a consumer that was away.
BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 60.0)


class TimelineFigures:
    """Counts of one timeline since the broker started."""

    __slots__ = ("buried", "counts", "delivered", "lost", "seconds")

    def __init__(self) -> None:
        self.delivered = 0
        self.lost = 0
        self.buried = 0
        self.seconds = 0.0
        # One for each bound, and one for what was later than all of them.
        self.counts = [0] * (len(BOUNDS_S) + 1)

    def buckets(self) -> list[tuple[float, int]]:
        """Return how many were no later than each bound."""
        return list(zip(BOUNDS_S, accumulate(self.counts[:-1]), strict=True))

    def add_lateness(self, lateness_us: Sequence[int]) -> None:
        """Count how much later than due messages were handed to their application."""
        for late_us in lateness_us:
            late_s = late_us / 1_000_000
            self.seconds += late_s
            self.counts[bisect_left(BOUNDS_S, late_s)] += 1
