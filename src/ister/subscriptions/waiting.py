"""Messages to be handed out again: at once, or after a delay.

A delayed message that is acknowledged in the meantime stays here until its delay is over; who
takes what is ready leaves it out then. Looking for it in every delay would cost more.
"""

from heapq import heappop, heappush

from ister.subscriptions.offsets import OffsetSet


class Waiting:
    """The messages of one topic that wait to be handed out again."""

    __slots__ = ("_delayed", "_times", "ready")

    def __init__(self) -> None:
        self.ready = OffsetSet()
        # By the time they are due; the heap holds each of these times once.
        self._delayed: dict[int, OffsetSet] = {}
        self._times: list[int] = []

    def add(self, offsets: OffsetSet, due_ms: int, now_ms: int) -> None:
        """Let messages wait until `due_ms`."""
        if due_ms <= now_ms:
            self.ready.update(offsets)
            return
        delayed = self._delayed.get(due_ms)
        if delayed is None:
            self._delayed[due_ms] = offsets.copy()
            heappush(self._times, due_ms)
        else:
            delayed.update(offsets)

    def advance(self, now_ms: int) -> None:
        """Make ready what is due."""
        while self._times and self._times[0] <= now_ms:
            self.ready.update(self._delayed.pop(heappop(self._times)))

    def next_ms(self) -> int | None:
        """Return when the next delay is over."""
        return self._times[0] if self._times else None

    def clear(self) -> None:
        """Forget everything."""
        self.ready.clear()
        self._delayed.clear()
        self._times.clear()
