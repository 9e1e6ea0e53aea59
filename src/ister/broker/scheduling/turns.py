"""Share the event loop: long work gets a few milliseconds in each turn of the loop.

The sessions of a door share one `Turns`, and everything that delivers messages shares another one.
Always true:
- a waiter is work that did not fit into a turn. Waiters resume in the order they began to wait;
- a waiter that is called makes progress, so all work ends;
- in each turn of the loop all waiters together get the time of one turn, however many they are, and
  no waiter gets all of it while others wait.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

# The time of one session, or of all deliveries together, in a turn. A read of 64 KiB of small
# frames takes about as long, so a session rarely has to wait when it is alone.
TURN_NS = 5_000_000
# The time when others are waiting: enough for a few commands. A hundred sessions that all receive
# data at once hold up the loop for 0.1 s once, not in every turn.
CROWDED_TURN_NS = 1_000_000


class Waiter(Protocol):
    """Something with more to do."""

    def go_through(self) -> None:
        """Go on until the turn is over; `wait` again if there is more."""


class Turns:
    """The turns of one event loop, shared by those who join."""

    __slots__ = (
        "_begun_ns",
        "_call_soon",
        "_end_ns",
        "_fresh",
        "_known",
        "_now_ns",
        "_scheduled",
        "_waiting",
    )

    def __init__(
        self, *, call_soon: Callable[[Callable[[], object]], object], now_ns: Callable[[], int]
    ) -> None:
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._begun_ns = -TURN_NS
        self._end_ns = 0
        # Whether it will be seen that the turn of the loop is over.
        self._known = False
        # Whether who waited has just been called, and nobody has joined since.
        self._fresh = False
        self._scheduled = False
        self._waiting: deque[Waiter] = deque()

    @property
    def end_ns(self) -> int:
        """When the turn is over."""
        return self._end_ns

    def begin(self) -> None:
        """Somebody has received something: its turn begins."""
        self._end_ns = self._now_ns() + (CROWDED_TURN_NS if self._waiting else TURN_NS)

    def join(self) -> bool:
        """Return whether there is time left for all who `join` in this turn of the loop."""
        if self._fresh:
            # A waiter always makes progress, even when the turn has no time left.
            self._fresh = False
            return True
        now_ns = self._now_ns()
        # Asking the loop for a call at the end of its turn makes it go round once more: not for
        # each of thousands of small ones in a second.
        if not self._known and now_ns - self._begun_ns >= CROWDED_TURN_NS:
            self._begun_ns, self._end_ns = now_ns, now_ns + TURN_NS
            self._known = True
            self._call_soon(self._end)
        return now_ns < self._end_ns

    def is_over(self) -> bool:
        """Whether the rest is to wait."""
        return self._now_ns() >= self._end_ns

    def wait(self, waiter: Waiter) -> None:
        """Have somebody go on in a later turn of the loop."""
        self._waiting.append(waiter)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _end(self) -> None:
        """The turn of the loop is over: who joins in another one may begin it."""
        self._known = False

    def _run(self) -> None:
        now_ns = self._now_ns()
        former, end_ns = self._end_ns, now_ns + TURN_NS
        known, self._known = self._known, True
        try:
            for _ in range(len(self._waiting)):
                waiter = self._waiting.popleft()
                self._end_ns = min(end_ns, now_ns + CROWDED_TURN_NS) if self._waiting else end_ns
                self._fresh = True
                waiter.go_through()
                now_ns = self._now_ns()
                if now_ns >= end_ns:
                    break
        finally:
            # Also when one of them fails: the others must not wait for ever.
            self._end_ns, self._known, self._fresh = former, known, False
            self._scheduled = bool(self._waiting)
            if self._scheduled:
                self._call_soon(self._run)
