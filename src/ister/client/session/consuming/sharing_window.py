"""How many messages a consumer of a shared subscription is sent ahead: as many as it gets through.

A message that was sent ahead is nobody else's. So a consumer begins with one, and has the next when
it waits for that: nothing is stuck behind a job that takes minutes. It may have twice as many
whenever it has soon taken half of its window, up to the usual window; and half as many when that
takes long. Who asks for a number of messages at once may have so many.

A consumer that was quick and hangs now has messages ahead of it that others could work on. Messages
that wait for `PATIENCE_MS` are given back. Then nothing is sent ahead until the consumer is quick
again: else a slow consumer that is alone would be sent the same messages over and over.
"""

FIRST = 1
# What is soon for half a window. So messages that take 10 ms stay with one consumer by ones, and of
# quicker ones 10 to 20 ms of work.
SOON_MS = 5
# The same for who takes whole batches, which may take as long with one message as with a thousand.
SOON_IN_BATCHES_MS = 500
# Round trips to the broker that are added to this: with one for each half, the next half is there
# when the first is dealt with.
ROUND_TRIPS = 2
# Who takes so many in a millisecond may have them all: 65,536 are 1.3 s of work at most. A small
# window has the broker cut batches, which doubles what a message costs it.
QUICK_PER_MS = 50
# What is long for half a window.
LONG_MS = 1_000
# How long a message waits for the application. A whole window is 1.3 s of work at the pace that it
# grew at, so the consumer has become at least four times slower. A message of a timeline waits as
# long.
PATIENCE_MS = 5_000


class SharingWindow:
    """The window of one consumer. `level` is what may be ahead of it, in messages."""

    __slots__ = ("_since_ms", "_taken", "least", "level", "most", "sends_ahead", "soon_ms")

    def __init__(self, most: int) -> None:
        self.most = most
        self.least = self.level = min(FIRST, most)
        self.soon_ms = SOON_MS
        # Whether the next messages may come before the application waits for them.
        self.sends_ahead = True
        # What was taken, and since when, if it is known.
        self._taken = 0
        self._since_ms: int | None = None

    def on_attached(self) -> None:
        """The consumer is attached, for the first time or again: others may share by now."""
        self.level = self.least
        self.sends_ahead = True
        self._taken = 0
        self._since_ms = None

    def on_given_back(self) -> None:
        """Messages have waited for too long, and were given back."""
        self.on_attached()
        self.sends_ahead = False

    def on_wanted(self, count: int) -> int:
        """The application wants so many at once; return how many more it may have."""
        self.least = min(count, self.most)
        more = max(0, self.least - self.level)
        self.level += more
        return more

    def on_taken(self, count: int, now_ms: int, round_trip_ms: int) -> int:
        """The application has taken messages; return how many more it may have, or fewer."""
        self._taken += count
        if self._taken * 2 < self.level:
            return 0
        taken, self._taken = self._taken, 0
        since_ms, self._since_ms = self._since_ms, now_ms
        if since_ms is None:
            return 0
        spent_ms, change = now_ms - since_ms, 0
        soon_ms = self.soon_ms + ROUND_TRIPS * round_trip_ms
        if spent_ms <= soon_ms or spent_ms * QUICK_PER_MS <= taken:
            change = min(self.level, self.most - self.level)
            self.sends_ahead = True
        elif spent_ms >= LONG_MS:
            change = -min(self.level // 2, self.level - self.least)
        self.level += change
        return change
