"""How work that takes time ends: one callback, called once, with an error or without.

The contract of every function that takes such a callback: it never raises for what its caller could
not have checked beforehand. What goes wrong later goes to the callback.
"""

from collections.abc import Callable

from ister.base.errors import IsterError

Done = Callable[[IsterError | None], object]


def ignore(_: IsterError | None) -> None:
    """For what nobody waits for."""


class Latch:
    """Calls `done` once, when every part has ended and no more are added, with the first error."""

    __slots__ = ("_done", "_error", "_left")

    def __init__(self, done: Done) -> None:
        self._done = done
        self._error: IsterError | None = None
        # Parts that have not ended, and `close`.
        self._left = 1

    def add(self) -> Done:
        """Wait for one more part; return what to call when it ends."""
        self._left += 1
        return self._end

    def close(self, error: IsterError | None = None) -> None:
        """Add no more parts."""
        self._end(error)

    def _end(self, error: IsterError | None) -> None:
        self._error = self._error or error
        self._left -= 1
        if not self._left:
            self._done(self._error)


def after_all(count: int, done: Done) -> Done:
    """Return what to call `count` times: `done` is called after the last one, with the first error.

    With nothing to wait for, it is called at once.
    """
    latch = Latch(done)
    end: Done = ignore
    for _ in range(count):
        end = latch.add()
    latch.close()
    return end
