"""Numbers of segments: one counter for the journal and the compactor, which run in two threads."""

from threading import Lock


class Numbers:
    """Gives every number once, from `following` on."""

    def __init__(self, following: int) -> None:
        self.following = following
        self._lock = Lock()

    def take(self) -> int:
        """Return the next number."""
        with self._lock:
            number = self.following
            self.following += 1
            return number
