"""What the broker's clock says, as far as a client can know it; and how late messages were.

Always true: of a question that left at `sent` and was answered at `received`, the broker has told
a time from between the two. So its clock is ahead of ours by `told - received` at least, and by
`told - sent` at most. What counts for handing over messages is the least, of all rounds the
largest: nothing is early by the broker's clock, however slow or uneven the connection, and later
only by what the quickest answer took on its way.
"""

from bisect import bisect_left
from collections import deque
from itertools import accumulate

from ister.base.limits import DRIFT_US_MAX

# The last rounds: one a second, in which clocks of two machines part by 50 µs each at most.
SAMPLES = 8
# What two rounds may contradict each other by before one of the clocks must have been set anew.
JUMP_US = 1_000

# Upper bounds of a histogram of lateness, in microseconds; what is above the last counts, too.
LATENESS_BOUNDS_US = (
    100, 200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
    10_000_000,
)  # fmt: skip


class ClockOffset:
    """How far the broker's clock is ahead of ours, in microseconds."""

    __slots__ = ("_least_us", "_most_us", "_samples", "jumps")

    def __init__(self) -> None:
        # Each the least and the most that the offset can be.
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)
        # By all of them.
        self._least_us = 0
        self._most_us = 0
        # How often one of the clocks was found to have been set anew.
        self.jumps = 0

    @property
    def offset_us(self) -> int:
        """The middle of what it can be."""
        return (self._least_us + self._most_us) // 2

    @property
    def known(self) -> bool:
        """Whether there was an answer, since the start or since a clock was set anew."""
        return bool(self._samples)

    @property
    def drifted(self) -> bool:
        """Whether the clocks certainly differ by more than is good for anybody."""
        return self._least_us > DRIFT_US_MAX or self._most_us < -DRIFT_US_MAX

    def add(self, *, sent_us: int, told_us: int, received_us: int) -> None:
        """Take in an answer of the broker; the times at both ends of it are ours."""
        if received_us < sent_us:
            return  # Our own clock was set back meanwhile: this says nothing.
        least, most = told_us - received_us, told_us - sent_us
        if self._samples and (least > self._most_us + JUMP_US or most < self._least_us - JUMP_US):
            self.forget()
            self.jumps += 1
        self._samples.append((least, most))
        self._least_us = max(least for least, _ in self._samples)
        # Rounds may contradict each other a little.
        self._most_us = max(self._least_us, min(most for _, most in self._samples))

    def forget(self) -> None:
        """A clock was set anew: nothing is known until the next answer."""
        self._samples.clear()

    def now_us(self, own_us: int) -> int:
        """Return the time of the broker, or a little less: never more than it can be."""
        return own_us + self._least_us

    @property
    def spread_us(self) -> int:
        """How much later than `now_us` it can be for the broker."""
        return self._most_us - self._least_us


class Lateness:
    """How much later than due messages were handed to the application."""

    __slots__ = ("buckets", "count", "max_us", "total_us")

    def __init__(self) -> None:
        # One more than there are bounds.
        self.buckets = [0] * (len(LATENESS_BOUNDS_US) + 1)
        self.count = 0
        self.total_us = 0
        self.max_us = 0

    def add(self, lateness_us: int) -> None:
        """Count a message."""
        self.buckets[bisect_left(LATENESS_BOUNDS_US, lateness_us)] += 1
        self.count += 1
        self.total_us += lateness_us
        self.max_us = max(self.max_us, lateness_us)

    def quantile_us(self, share: float) -> int:
        """Return what `share` of the messages were no later than: a bound of the histogram."""
        wanted = share * self.count
        for slot, below in enumerate(accumulate(self.buckets[:-1])):
            if below >= wanted:
                return min(LATENESS_BOUNDS_US[slot], self.max_us)
        return self.max_us
