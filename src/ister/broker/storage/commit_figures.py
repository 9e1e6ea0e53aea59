"""What the commits of one journal took: for metrics."""

from bisect import bisect_left
from itertools import accumulate
from math import inf

# Upper bounds in seconds: from a disk with a cache of its own that power cannot take away, to an
# object store that retries.
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class CommitFigures:
    """Counts of one journal. Written by the thread that commits, read by any."""

    __slots__ = ("committed_bytes", "counts", "failures", "seconds")

    def __init__(self) -> None:
        self.committed_bytes = 0
        self.failures = 0
        self.seconds = 0.0
        # One for each bound, and one for what took longer than all of them.
        self.counts = [0] * (len(BOUNDS_S) + 1)

    def buckets(self) -> list[tuple[float, int]]:
        """Return how many took no longer than each bound; the last one is infinite."""
        return list(zip((*BOUNDS_S, inf), accumulate(self.counts), strict=True))

    def add(self, seconds: float, size_bytes: int) -> None:
        """Count a group that was written, and synced if it had to be."""
        self.seconds += seconds
        self.committed_bytes += size_bytes
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
