"""Does work once at the end of a turn of the event loop, however often it was asked for.

Doors call `run` when they have dealt with what they read, and so does a storage when it has told
everybody of a commit: what that has set off leaves with the answers. When neither happens, the
event loop calls it.
"""

from collections.abc import Callable

from ister.broker.scheduling.turns import Waiter


class EndOfTurn:
    """Those who have something to do at the end of this turn."""

    __slots__ = ("_call_soon", "_running", "_scheduled", "_waiting", "expected")

    def __init__(self, call_soon: Callable[[Callable[[], object]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: dict[Waiter, None] = {}
        self._scheduled = self._running = False
        # Whether a door is about to call `run`: the event loop need not go round for it.
        self.expected = False

    def add(self, waiter: Waiter) -> None:
        """Have `go_through` called at the end of this turn."""
        self._waiting[waiter] = None
        if not self._scheduled and not self.expected:
            self._scheduled = True
            self._call_soon(self._on_loop)

    def run(self) -> None:
        """The end of the turn has come."""
        if self._running:
            return  # Sending a lot makes a door send at once.
        waiting = self._waiting
        self._running = True
        try:
            while waiting:
                waiter = next(iter(waiting))
                del waiting[waiter]
                waiter.go_through()
        finally:
            self._running = False

    def _on_loop(self) -> None:
        self._scheduled = False
        self.run()
