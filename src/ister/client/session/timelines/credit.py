"""How many messages a consumer of a timeline is sent at once: as many as its application gets to.

A message that was sent and is not handed over is nobody else's, and its lease runs. So a consumer
begins with few. Whenever it was full, and the application soon waits for more, it may have twice as
many, up to the credit that was asked for. What the application does not get to is given back, to be
somebody else's, and the consumer may have so many less.
"""

# One to be dealt with, and the next one on its way meanwhile. A consumer that keeps up has a
# thousand nine rounds later, some 50 ms.
FIRST = 2
# How soon is soon; and how long a message that is due waits for the application, though never for
# more than half of its lease: longer than whoever looks in now and then is away.
SOON_MS = 1_000
PATIENCE_MS = 5_000


class Credit:
    """How many messages a consumer of a timeline may be sent.

    `level` is what the broker knows of.
    """

    __slots__ = ("_full_ms", "level", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.level = min(FIRST, most)
        # Since when it is full, if it is.
        self._full_ms: int | None = None

    def on_held(self, count: int, now_ms: int) -> None:
        """It has so many messages, those that were handed over included."""
        if count >= self.level and self._full_ms is None:
            self._full_ms = now_ms

    def on_empty(self, busy: int, now_ms: int) -> int:
        """The application waits for more, busy with some; return how many more to ask for."""
        full_ms, self._full_ms = self._full_ms, None
        if full_ms is not None and now_ms - full_ms <= SOON_MS:
            more = max(self.level, 1)
        else:
            more = max(0, busy + 1 - self.level)
        more = min(more, self.most - self.level)
        self.level += more
        return more

    def on_given_back(self, count: int) -> None:
        """The application did not get to so many of them. With none left it has to ask again."""
        self.level = max(0, self.level - count)
        self._full_ms = None

    def on_lost(self) -> None:
        """The connection is lost, with what was sent. The next one is for one message at least."""
        self.level = max(1, self.level)
        self._full_ms = None


def is_left(now_ms: int, since_ms: int, until_ms: int) -> bool:
    """Return whether a message that is due since, under a lease, should be given back."""
    return now_ms - since_ms > min(PATIENCE_MS, (until_ms - since_ms) // 2)
