"""How the clients that answer requests keep up: what each was sent and has not answered yet.

Answers are counted, not matched with their requests, so the work is the same for a batch as for
one request. By Little's law that is enough to know how long a request waits on average: the sum of
those that waited, over time, divided by the number of answers.

Always true: what a client was asked more than two spans ago counts no more. Some requests are never
answered, and a client that hung may be well again.
"""

from collections.abc import Callable, Sequence

# As long as a timeout of half a minute, at least; a client that hangs is tried again after it.
SPAN_MS = 30_000
# A client is slow when its answers take so many times as long as those of the quickest.
SLOW = 2
# Answers that are quicker than this count as if they took so long: else a pause of a millisecond
# would make a client slow.
QUICK_MS = 5


class Responder:
    """What one client was asked. `waiting` is the number of requests without an answer."""

    __slots__ = (
        "_before",
        "_begun_ms",
        "_changed_ms",
        "_now_ms",
        "_old",
        "_span",
        "waiting",
    )

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.waiting = 0
        # Of the requests that wait, those of an earlier span: the first to be answered.
        self._old = 0
        # Of this span and the one before: milliseconds waited, of all requests; and answers.
        self._span = self._before = (0, 0)
        self._now_ms = now_ms
        self._begun_ms = self._changed_ms = now_ms()

    def on_asked(self, count: int) -> None:
        """The client was sent requests."""
        self._go_on()
        self.waiting += count

    def on_answered(self, count: int) -> None:
        """The client has sent answers. Those to requests that no longer count are left out."""
        self._go_on()
        count = min(count, self.waiting)
        self.waiting -= count
        self._old = max(0, self._old - count)
        waited_ms, answers = self._span
        self._span = waited_ms, answers + count

    def delay_ms(self) -> tuple[int, bool]:
        """Return how long a request waits, at least 1 ms, and whether any was answered lately."""
        self._go_on()
        waited_ms = self._before[0] + self._span[0]
        answers = self._before[1] + self._span[1]
        return max(1, waited_ms // max(1, answers)), answers > 0

    def _go_on(self) -> None:
        """Count the time that the requests have waited since the last change."""
        now_ms = self._now_ms()
        while now_ms - self._begun_ms >= SPAN_MS:
            self._wait_until(self._begun_ms + SPAN_MS)
            self._begun_ms += SPAN_MS
            self.waiting -= self._old
            self._old = self.waiting
            self._before, self._span = self._span, (0, 0)
            if not self.waiting and self._before == (0, 0):
                # Nothing more to forget.
                self._begun_ms = self._changed_ms = now_ms
        self._wait_until(now_ms)

    def _wait_until(self, now_ms: int) -> None:
        waited_ms, answers = self._span
        self._span = waited_ms + self.waiting * (now_ms - self._changed_ms), answers
        self._changed_ms = now_ms


def loads_of_responders(loads: Sequence[int], responders: Sequence[Responder]) -> list[int]:
    """Return the loads of consumers for requests: what they have not answered counts.

    A slow one counts as if it had more, by the square of how many times slower than the quickest it
    is. One that takes five times as long, which may be longer than those who asked wait, gets a
    request when the others have four each. With a linear rule it got one request of 25.
    Where nobody answers (a log of the requests, say) nothing changes.
    """
    delays = [responder.delay_ms() for responder in responders]
    quickest_ms = min((delay_ms for delay_ms, answers in delays if answers), default=0)
    if not quickest_ms:
        return list(loads)
    slow_ms = SLOW * max(quickest_ms, QUICK_MS)
    return [
        load + responder.waiting + (responder.waiting + 1) * (delay_ms // slow_ms) ** 2
        for load, responder, (delay_ms, _) in zip(loads, responders, delays, strict=True)
    ]
