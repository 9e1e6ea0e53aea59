"""Notices when small frames come thick, and keeps the broker awake between them.

Sparse traffic and bulk traffic never cost a poll.
"""

import asyncio
from time import perf_counter_ns

from ister.wire import Wakefulness

# More than a round trip with everybody asleep, or polling would never begin.
GAP_NS = 1_000_000
# A conversation one message at a time has frames of this size; bulk is larger.
SMALL_BYTES = 2_048


class Conversation:
    """Keeps the broker awake while a client sends small frames in quick succession."""

    __slots__ = ("_last_ns", "_received", "wakefulness")

    def __init__(self, window_us: float) -> None:
        self.wakefulness = Wakefulness(
            window_us, call_soon=asyncio.get_running_loop().call_soon, now_ns=perf_counter_ns
        )
        self._received = 0
        self._last_ns = 0

    def on_received(self, size_bytes: int) -> None:
        """Something has come; expect more if it looks like a conversation."""
        self._received = received = self._received + 1
        if size_bytes > SMALL_BYTES:
            return
        now_ns = perf_counter_ns()
        if now_ns - self._last_ns < GAP_NS:
            self.wakefulness.expect(lambda: self._received != received)
        self._last_ns = now_ns

    def on_committed(self) -> None:
        """Whoever waited for the disk has its answer: its next word comes from now on."""
        self.wakefulness.renew()
