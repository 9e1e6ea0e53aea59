"""A clock that stands still until a test moves it.

Always true: timers run in the order they are due (those due together in the order they were
set), each sees its own due time as the present, and none runs early.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

# 2023-11-14 22:13:20 UTC: a round number that a reader of a failing test knows to be made up.
START_MS = 1_700_000_000_000

# What one timer sets off passes through a few calls of the event loop: a timer wakes a task,
# which writes to a transport in memory, which wakes the other end. A reconnect, from
# its timer to the resumed subscription, takes 5 turns; a message of 8 MiB 32, in reads of 256 KiB.
SETTLE_TURNS = 50


class VirtualTimer:
    """A call that waits for its time. See `ister.base.Timer`."""

    __slots__ = ("_call", "_due", "_number")

    def __init__(self, due_us: int, number: int, call: Callable[[], object]) -> None:
        self._due = due_us
        self._number = number
        self._call: Callable[[], object] | None = call

    def __lt__(self, other: "VirtualTimer") -> bool:
        return (self._due, self._number) < (other._due, other._number)

    @property
    def due_us(self) -> int:
        """When it runs, in microseconds since the clock was made."""
        return self._due

    @property
    def cancelled(self) -> bool:
        """Whether it has run or never will."""
        return self._call is None

    def cancel(self) -> None:
        """Make sure the call never happens."""
        self._call = None

    def run(self) -> None:
        """Make the call."""
        call, self._call = self._call, None
        if call is not None:
            call()


class VirtualClock:
    """A clock for tests; an `ister.base.Clock`.

    >>> clock = ister.testing.VirtualClock()
    >>> timer = clock.call_later(30.0, lambda: print("late"))
    >>> clock.advance(29.999)
    >>> clock.advance(0.001)
    late
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._start_ms = now_ms
        # Whole microseconds: sums of floating-point seconds would miss the edges tests look at.
        self._elapsed_us = 0
        self._count = 0
        self._timers: list[VirtualTimer] = []

    def now_ms(self) -> int:
        """Return milliseconds since 1970 in UTC."""
        return self._start_ms + self._elapsed_us // 1000

    def now_us(self) -> int:
        """Return microseconds since 1970 in UTC."""
        return self._start_ms * 1000 + self._elapsed_us

    def monotonic_ms(self) -> int:
        """Return milliseconds since the clock was made."""
        return self._elapsed_us // 1000

    def call_later(self, delay_s: float, call: Callable[[], object]) -> VirtualTimer:
        """Call `call` once, when the clock has been moved on by `delay_s` seconds."""
        self._count += 1
        due_us = self._elapsed_us + max(0, round(delay_s * 1_000_000))
        timer = VirtualTimer(due_us, self._count, call)
        heappush(self._timers, timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, running what is due on the way, also what that sets."""
        end_us = self._elapsed_us + round(seconds * 1_000_000)
        while (timer := self._pop_due(end_us)) is not None:
            timer.run()
        self._elapsed_us = end_us

    async def elapse(self, seconds: float) -> None:
        """Move on by `seconds` as `advance` does, but let tasks run after every timer.

        Use this where a timer wakes a task: what the task then waits for is on the clock before
        time goes on.
        """
        end_us = self._elapsed_us + round(seconds * 1_000_000)
        await settle()
        while (timer := self._pop_due(end_us)) is not None:
            timer.run()
            await settle()
        self._elapsed_us = end_us

    def _pop_due(self, end_us: int) -> VirtualTimer | None:
        while self._timers and self._timers[0].due_us <= end_us:
            timer = heappop(self._timers)
            if not timer.cancelled:
                self._elapsed_us = max(self._elapsed_us, timer.due_us)
                return timer
        return None


async def settle() -> None:
    """Let everything that is ready to run do so. Nothing in memory needs time beyond that."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
