"""How often a message that is due may be given back as if it had never been handed out.

A consumer that leaves gives back what its application has not seen, and that is no attempt: or
messages would be dead letters after a few restarts of busy consumers. But it is the consumer that
says so, and one that says it every time would keep a message from the dead letters for ever.
"""

# 10,000 messages: 0.6 MB. When there are more, those count as attempts.
UNUSED_RETURNS_MAX = 10_000


class UnusedReturns:
    """Counts how often messages that are due were given back unused.

    `times_max`: as often as a message may be leased; 0 is without end.
    """

    __slots__ = ("_times", "_times_max")

    def __init__(self, times_max: int) -> None:
        self._times_max = times_max
        # By seq, of messages that are still there.
        self._times: dict[int, int] = {}

    def allow(self, seq: int) -> bool:
        """Return whether it is no attempt this time."""
        times = self._times.get(seq, 0)
        if not self._times_max:
            return True
        if times >= self._times_max or (not times and len(self._times) >= UNUSED_RETURNS_MAX):
            return False
        self._times[seq] = times + 1
        return True

    def forget(self, seq: int) -> None:
        """A message is gone."""
        self._times.pop(seq, None)
