"""Release what a closed connection held: its consumers a few in each turn of the event loop.

A connection may have ten thousand consumers. Until they are detached they are sent nothing, because
their connection is not writable. A consumer that reconnects meanwhile replaces its former one.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ister.broker import Membership
from ister.server.native.streams import end_transaction

if TYPE_CHECKING:
    from ister.server.native.door import NativeDoor
    from ister.server.native.session import NativeSession


def let_go_of_all(session: "NativeSession") -> None:
    """Close everything that a connection has opened, and have the door forget it."""
    broker, door = session.broker, session.door
    session.connection.close()
    broker.replies.sinks.pop(session.id, None)
    session.writable = False
    for producer in session.producers.values():
        broker.close_producer(producer)
    # Copies: whoever is told may be detached here as well.
    memberships, readers = list(session.consumers.values()), list(session.readers.values())
    for channel in list(session.transactions):
        end_transaction(session, channel)
    for stage in session.stages.values():
        broker.staging.abandon(stage)
    for held in (session.producers, session.consumers, session.readers, session.stages):
        held.clear()
    session.opening.clear()
    door.turns.begin()
    Departure(door, memberships).go_through()
    for reader in readers:
        reader.close()
    for watch in session.watches:
        watch.close()
    session.watches.clear()
    session.timelines.close()
    door.on_disconnected(session)
    door.flush()


class Departure:
    """The consumers of one closed connection that are still to be detached."""

    def __init__(self, door: "NativeDoor", memberships: Iterable[Membership]) -> None:
        self._door = door
        self._memberships = deque(memberships)

    def go_through(self) -> None:
        """Detach consumers until the turn is over."""
        turns, subscribers = self._door.turns, self._door.broker.subscribers
        while self._memberships:
            subscribers.unsubscribe(self._memberships.popleft(), graceful=False)
            if self._memberships and turns.is_over():
                turns.wait(self)
                break
        self._door.flush()
