"""The real broker with its native door, as the fakes run it: in memory and in a thread."""

import random
from weakref import WeakSet

from ister.base import Clock
from ister.base.limits import Limits
from ister.broker import Broker
from ister.server.native import NativeDoor, NativeSession
from ister.telemetry import library_logger


class Engine:
    """One life of a broker: from a start to a stop."""

    def __init__(self, *, name: str, limits: Limits, clock: Clock, seed: int) -> None:
        self.broker = Broker(
            name=name,
            limits=limits,
            clock=clock,
            # Seeded, so that the 'random' policy does the same in every run of a test.
            random_slot=random.Random(seed).randrange,
        )
        self.door = NativeDoor(
            self.broker,
            # Polling would take turns of the loop, and a core, from the test.
            busy_poll_us=0,
            logger=library_logger("ister.testing"),
        )
        self._sessions: WeakSet[NativeSession] = WeakSet()

    def session(self) -> NativeSession:
        """Return the protocol object of a new connection."""
        session = self.door.session()
        self._sessions.add(session)
        return session

    def disconnect_all(self) -> None:
        """Cut every connection, as a broken network does: nobody is told beforehand."""
        for session in list(self._sessions):
            session.abort()
        self._sessions.clear()
