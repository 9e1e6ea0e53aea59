"""The channels of a connection: which may be opened, and how those that deliver are resumed."""

from collections import deque
from typing import TYPE_CHECKING

from ister.base.errors import BadRequestError, GoingAwayError, LimitReachedError

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

CHANNEL_MAX = 0xFFFF_FFFF


def check_channel(session: "NativeSession", channel: int) -> None:
    """Raise unless something new may be opened on `channel`."""
    if session.door.closing:
        raise GoingAwayError("shutting down")
    if _is_used(session, channel):
        raise BadRequestError(f"channel {channel} is in use")
    if not 0 < channel <= CHANNEL_MAX:
        raise BadRequestError(f"channel {channel} is not 1 to {CHANNEL_MAX}")


def check_room(session: "NativeSession", held: int, limit: str) -> None:
    """Raise `LimitReachedError` when the connection has too many of something."""
    most = getattr(session.broker.limits, limit)
    if held >= most:
        raise LimitReachedError(limit, most)


def _is_used(session: "NativeSession", channel: int) -> bool:
    return (
        channel in session.producers
        or channel in session.consumers
        or channel in session.readers
        or channel in session.transactions
        or channel in session.stages
        or channel in session.timelines.consumers
        or channel in session.opening
    )


class Resumption:
    """The channels on which a client that reads again is still to be sent messages.

    A connection may have ten thousand consumers, and as many readers: a few of them are resumed in
    each turn of the event loop. When the client is too slow again, the others wait until it reads
    again, which resumes all of them.
    """

    def __init__(self, session: "NativeSession") -> None:
        self._session = session
        session.resumption = self
        self._channels = deque((*session.consumers, *session.readers))

    def go_through(self) -> None:
        """Resume channels until the turn is over."""
        session = self._session
        turns = session.door.turns
        while self._channels and session.writable and session.resumption is self:
            channel = self._channels.popleft()
            membership = session.consumers.get(channel)
            reader = session.readers.get(channel)
            if membership is not None:
                membership.consumer.resume()
            elif reader is not None:
                reader.pump()
            if self._channels and turns.is_over():
                turns.wait(self)
                break
        session.door.flush()
