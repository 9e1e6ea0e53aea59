"""How fast a topic hands out messages while somebody publishes to other topics.

When thousands are due at once, they, the store and all consumers would take every processor, and
who publishes waits for one. So there is one small round of leases at a time then, and after each a
rest, of some times what the round took. All of a round goes to one consumer if that has room for
it: each that is woken takes a processor, and its answer a commit. On two processors, with four
consumers, publishing during a burst took at p99, as a multiple of what it takes else, and so many
were handed out a second, with so much of a processor for broker and store (runs with 40,000 to
50,000 messages as in `make bench-timeline`, streams / live, 3 to 9 each):

    rounds of 16 over all consumers, rests of 2   1.2 to 3.5 / 0.8 to 3.4   4,400   0.73
    rounds of 24, rests of 3                      1.5 to 2.5 / 1.3 to 1.7   4,200   0.53
    rounds of 32, rests of 3                      1.6 to 2.4 / 1.2 to 1.8   6,200   0.52
    rounds of 32, rests of 4                      1.5 to 2.6 / 1.3 to 1.9   4,200   0.45
    rounds of 64, rests of 4                      1.6 to 2.6 / 1.5 to 1.9   6,600   0.46
    rounds of 64, rests of 5                      1.6 to 2.9 / 1.2 to 2.0   5,300   0.41

By the milliseconds that publishing took, the fourth was the best of them in all runs but one.

A burst can wait. A steady load cannot: who rests would fall behind it for ever. What tells one from
the other is where the messages stand that are handed out: in a burst that hardly moves, while with
a steady load it goes on about as fast as the clock does.
"""

from collections.abc import Callable

from ister.timeline import FAR

# Messages leased in a round: a few milliseconds of the event loop.
ROUND_COUNT_MAX = 128
# Rounds that are with the store at once, so that a commit has many of them: each takes a sync of
# the disk, and the pages that its messages share are written once for all of them.
ROUNDS_MAX = 8
# Messages in the one round there is while others publish.
GENTLE_COUNT_MAX = 32
# The rest after one of a burst, in rounds.
RESTS = 4
# No longer, whatever the disk takes.
REST_MS_MAX = 100
# A topic that is less behind is not.
LATE_MS = 50
# How long to watch where the messages stand, and what they move at least where the load is steady,
# as a share of that time.
WATCH_MS = 500
STEADY = 0.25


class Throttle:
    """Tells how many messages a round of leases may have now. Times are of the wall clock.

    `gives_way` tells whether others publish.
    """

    __slots__ = ("_begun_ms", "_gives_way", "_is_burst", "_mark", "_rounds", "_until_ms")

    def __init__(self, gives_way: Callable[[int], bool]) -> None:
        self._gives_way = gives_way
        # Those that are with the store, and when the last one began.
        self._rounds = 0
        self._begun_ms = 0
        self._is_burst = False
        # Where messages stood, and when.
        self._mark: tuple[int, int] | None = None
        self._until_ms = 0

    def room(self, now_ms: int) -> int:
        """Return how many messages may be in a round that begins now."""
        if not self._gives_way(now_ms):
            return ROUND_COUNT_MAX if self._rounds < ROUNDS_MAX else 0
        if self._rounds or self._rest_ms(now_ms):
            return 0
        return GENTLE_COUNT_MAX

    def run_max(self, now_ms: int) -> int:
        """Return how many messages in a row a consumer is given in a round that begins now."""
        return GENTLE_COUNT_MAX if self._is_burst and self._gives_way(now_ms) else 1

    def next_ms(self, now_ms: int) -> int:
        """Return when there is room again, unless a round ends before."""
        rest_ms = 0 if self._rounds else self._rest_ms(now_ms)
        return now_ms + rest_ms if rest_ms else FAR

    def begin(self, position_ms: int, now_ms: int) -> None:
        """A round begins, of messages of which the first stands at `position_ms`."""
        self._rounds += 1
        self._begun_ms = now_ms
        if now_ms - position_ms < LATE_MS:
            self._is_burst, self._mark = False, None
        elif self._mark is None:
            self._is_burst, self._mark = True, (position_ms, now_ms)
        elif abs(elapsed_ms := now_ms - self._mark[1]) >= WATCH_MS:
            self._is_burst = position_ms - self._mark[0] < elapsed_ms * STEADY
            self._mark = position_ms, now_ms

    def end(self, now_ms: int) -> None:
        """A round is over."""
        self._rounds -= 1
        took_ms = max(now_ms - self._begun_ms, 1)
        self._until_ms = now_ms + min(took_ms * RESTS, REST_MS_MAX) if self._is_burst else 0

    def _rest_ms(self, now_ms: int) -> int:
        left_ms = self._until_ms - now_ms
        # Longer only by a clock that was set back.
        return left_ms if 0 < left_ms <= REST_MS_MAX else 0
