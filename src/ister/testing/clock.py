"""A clock that stands still until a test moves it.

Always true:
- timers run in the order they are due (those due together in the order they were set), each sees
  its own due time as the present, and none runs early;
- but housekeeping (`ister.base.housekeeping`) runs up to `SLACK_S` late in a long `elapse`, while
  nothing else is due: else a quiet day would be half a million timers;
- a call with a timeout that waits while the clock stands still fails after `patience` seconds of
  real time in which the process has been idle.
"""

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush

from ister.base import is_housekeeping
from ister.base.errors import FrozenClockError

# 2023-11-14 22:13:20 UTC: a round number that a reader of a failing test knows to be made up.
START_MS = 1_700_000_000_000

# What one timer sets off passes through a few calls of the event loop: a timer wakes a task,
# which writes to a transport in memory, which wakes the other end. A reconnect, from
# its timer to the resumed subscription, takes 5 turns; a message of 8 MiB 32, in reads of 256 KiB.
SETTLE_TURNS = 50

# A connection is dead after 30 s without a frame, and each look at it is followed by one.
SLACK_S = 24
# Shorter moves are exact: who moves the clock by seconds looks at heartbeats.
EXACT_S = 60
# How many looks a wait that no clock ends takes, and how busy an idle process may be.
LOOKS = 10
IDLE_SHARE = 0.5


class VirtualTimer:
    """A call that waits for its time. See `ister.base.Timer`."""

    __slots__ = ("_call", "_due", "_number", "idle_s")

    def __init__(
        self, due_us: int, number: int, call: Callable[[], object], idle_s: float = 0.0
    ) -> None:
        self._due = due_us
        self._number = number
        self._call: Callable[[], object] | None = call
        # How long the process had been idle by then.
        self.idle_s = idle_s

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

    @property
    def on_frozen(self) -> "Callable[[FrozenClockError], object] | None":
        """What ends the wait that this is the timeout of, if it is one."""
        return getattr(self._call, "on_frozen", None)

    def run(self) -> None:
        """Make the call."""
        call, self._call = self._call, None
        if call is not None:
            call()


class VirtualClock:
    """A clock for tests; an `ister.base.Clock`.

    Nothing but `advance` and `elapse` moves it. A call that waits for its timeout has to be a task
    while the test moves the clock; a call that is awaited instead raises `FrozenClockError` after
    `patience` seconds of real time (`None`: never).

    >>> clock = ister.testing.VirtualClock()
    >>> timer = clock.call_later(30.0, lambda: print("late"))
    >>> clock.advance(29.999)
    >>> clock.advance(0.001)
    late
    """

    def __init__(self, now_ms: int = START_MS, *, patience: float | None = 5.0) -> None:
        self._start_ms = now_ms
        # Whole microseconds: sums of floating-point seconds would miss the edges tests look at.
        self._elapsed_us = 0
        self._count = 0
        self._timers: list[VirtualTimer] = []
        self._housekeeping: list[VirtualTimer] = []
        self._patience_s = patience
        # The loop that waits are looked at in, if any are; how long this process has been idle
        # meanwhile, and had been when the clock was moved last.
        self._watching: asyncio.AbstractEventLoop | None = None
        self._idle_s = 0.0
        self._moved_idle_s = 0.0
        self._seen = (0, 0.0)

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
        timer = VirtualTimer(due_us, self._count, call, self._idle_s)
        heappush(self._housekeeping if is_housekeeping(call) else self._timers, timer)
        if timer.on_frozen is not None:
            self._watch()
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
        if seconds > EXACT_S:
            await self._pass_quietly(end_us)
        while (timer := self._pop_due(end_us)) is not None:
            timer.run()
            await settle()
        self._elapsed_us = end_us

    async def _pass_quietly(self, end_us: int) -> None:
        """Move on with housekeeping done late, several timers at a time."""
        while self._housekeeping:
            stop_us = min(self._housekeeping[0].due_us + SLACK_S * 1_000_000, end_us)
            if self._timers:
                stop_us = min(stop_us, self._timers[0].due_us)
            if stop_us >= end_us:
                return
            self._elapsed_us = max(self._elapsed_us, stop_us)
            late = []
            while self._housekeeping and self._housekeeping[0].due_us <= stop_us:
                late.append(heappop(self._housekeeping))
            for timer in late:
                timer.run()
            if late:
                await settle()
            while self._timers and self._timers[0].due_us <= stop_us:
                heappop(self._timers).run()
                await settle()

    def _pop_due(self, end_us: int) -> VirtualTimer | None:
        while True:
            heaps = [heap for heap in (self._timers, self._housekeeping) if heap]
            heap = min(heaps, key=lambda heap: heap[0], default=None)
            if heap is None or heap[0].due_us > end_us:
                return None
            timer = heappop(heap)
            if not timer.cancelled:
                self._elapsed_us = max(self._elapsed_us, timer.due_us)
                return timer

    # Waits that nothing will end

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._patience_s is not None and self._watching is not loop:
            self._watching = loop
            self._seen = (self._elapsed_us, time.process_time())
            loop.call_later(self._patience_s / LOOKS, self._look, self._patience_s)

    def _look(self, patience_s: float) -> None:
        """Fail waits that have been here for long, while neither clock nor process did anything."""
        loop, self._watching = self._watching, None
        waits = [timer for timer in self._timers if timer.on_frozen is not None]
        if not waits or loop is None:
            return
        look_s = patience_s / LOOKS
        elapsed_us, busy_s = self._seen
        self._seen = (self._elapsed_us, time.process_time())
        if self._seen[0] != elapsed_us or self._seen[1] - busy_s > look_s * IDLE_SHARE:
            self._moved_idle_s = self._idle_s
        else:
            self._idle_s += look_s
        for timer in waits:
            # Sums of floating-point seconds: half a look more or less is all the same.
            idle_s = self._idle_s - max(timer.idle_s, self._moved_idle_s) + look_s / 2
            if idle_s >= patience_s and timer.on_frozen is not None:
                timer.on_frozen(FrozenClockError(patience_s))
                timer.cancel()
        self._watching = loop
        loop.call_later(look_s, self._look, patience_s)


async def settle() -> None:
    """Let everything that is ready to run do so. Nothing in memory needs time beyond that."""
    loop = asyncio.get_running_loop()
    # Private, and all that tells it: without it there are as many turns as it may take.
    ready = getattr(loop, "_ready", None)
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
