"""Keeps the event loop awake while one answer is about to come.

Waiting for the answer to a lone message by polling instead of sleeping halves the round trip
(see `server/native/wakefulness.py` for why). It is done only while exactly that answer is due,
for at most `window_s`, and given up for a while when answers keep taking longer.
"""

import asyncio
import os
from time import perf_counter_ns
from typing import Protocol

# Answers that took longer than the window, in a row, before polling is given up ...
MISSES_MAX = 8
# ... for so many sends: a slow broker costs 8 windows in 264 sends, 6 µs each.
REST_SENDS = 256
# An answer takes this long when both sides have a core of their own; after that the core is
# offered to others on every turn.
ALONE_NS = 60_000


class Awaited(Protocol):
    """Something that is done or not."""

    def done(self) -> bool:
        """Whether it is done."""


class Wakefulness:
    """See the module."""

    __slots__ = ("_awaited", "_loop", "_misses", "_rest", "_until_ns", "_window_ns", "awake")

    def __init__(self, window_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._window_ns = int(window_s * 1e9)
        self._awaited: Awaited | None = None
        self.awake = False
        self._until_ns = 0
        self._misses = 0
        self._rest = 0

    def wait(self, awaited: Awaited) -> None:
        """Stay awake for `awaited`, if that has paid lately."""
        if self._rest:
            self._rest -= 1
            return
        if not self._window_ns:
            return
        self._awaited = awaited
        self._until_ns = perf_counter_ns() + self._window_ns
        if not self.awake:
            self.awake = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        awaited = self._awaited
        if awaited is None or awaited.done():
            self._misses = 0
        elif (left_ns := self._until_ns - perf_counter_ns()) > 0:
            if left_ns < self._window_ns - ALONE_NS:
                _yield_core()
            self._loop.call_soon(self._poll)
            return
        else:
            self._misses += 1
            if self._misses >= MISSES_MAX:
                self._misses = 0
                self._rest = REST_SENDS
        self.awake = False
        self._awaited = None


def _stay() -> None:
    """Where the system cannot yield a core, just go on."""


# No answer for so long: the peer may be waiting for the very core we poll on.
_yield_core = getattr(os, "sched_yield", _stay)
