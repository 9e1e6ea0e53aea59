"""What the broker's clock says, as far as a client can know it; and how late messages were.

Always true: of a question that left at `sent` and was answered at `received`, the broker has told
a time from between the two. So its clock is ahead of ours by `told - received` at least, and by
`told - sent` at most; the shorter the round trip, the better we know it.
"""

from bisect import bisect_left
from collections import deque
from itertools import accumulate

# The last rounds, of which the quickest counts: one a second, in which clocks of two machines part
# by 50 µs each at most.
SAMPLES = 8
# A message is handed over later by what we do not know, but not by more than this.
DELAY_US_MAX = 2_000
# What two rounds may contradict each other by before one of the clocks must have been set anew.
JUMP_US = 5_000
# What clocks may differ by before somebody should be told: times that an application makes from
# its own clock are wrong by as much.
DRIFT_US_MAX = 500_000

# Upper bounds of a histogram of lateness, in microseconds; what is above the last counts, too.
LATENESS_BOUNDS_US = (
    100, 200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
    10_000_000,
)  # fmt: skip


class ClockOffset:
    """How far the broker's clock is ahead of ours, in microseconds."""

    __slots__ = ("_samples", "jumps", "offset_us", "uncertainty_us")

    def __init__(self) -> None:
        # Each with its round trip, and the least and the most that the offset can be.
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)
        self.offset_us = 0
        self.uncertainty_us = 0
        # How often one of the clocks was found to have been set anew.
        self.jumps = 0

    @property
    def known(self) -> bool:
        """Whether there was an answer, since the start or since a clock was set anew."""
        return bool(self._samples)

    @property
    def drifted(self) -> bool:
        """Whether the clocks differ by more than is good for anybody."""
        return abs(self.offset_us) > DRIFT_US_MAX

    def add(self, *, sent_us: int, told_us: int, received_us: int) -> None:
        """Take in an answer of the broker; the times at both ends of it are ours."""
        if received_us < sent_us:
            return  # Our own clock was set back meanwhile: this says nothing.
        least, most = told_us - received_us, told_us - sent_us
        if self._samples:
            _, known_least, known_most = min(self._samples)
            if least > known_most + JUMP_US or most < known_least - JUMP_US:
                self.forget()
                self.jumps += 1
        self._samples.append((most - least, least, most))
        round_trip_us, least, most = min(self._samples)
        self.offset_us = (least + most) // 2
        self.uncertainty_us = (round_trip_us + 1) // 2

    def forget(self) -> None:
        """A clock was set anew: nothing is known until the next answer."""
        self._samples.clear()

    def now_us(self, own_us: int) -> int:
        """Return the time of the broker, or a little less: never more than it can be.

        On slow connections that would be too much less, and it may be more by what is beyond
        `DELAY_US_MAX`.
        """
        return own_us + self.offset_us - min(self.uncertainty_us, DELAY_US_MAX)


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
