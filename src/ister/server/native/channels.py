"""Which channels a client may open something on."""

from typing import TYPE_CHECKING

from ister.base.errors import BadRequestError, GoingAwayError

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

CHANNEL_MAX = 0xFFFF_FFFF


def check_channel(session: "NativeSession", channel: int) -> None:
    """Raise unless something new may be opened on `channel`."""
    if session.door.closing:
        raise GoingAwayError("shutting down")
    if session.uses(channel):
        raise BadRequestError(f"channel {channel} is in use")
    if not 0 < channel <= CHANNEL_MAX:
        raise BadRequestError(f"channel {channel} is not 1 to {CHANNEL_MAX}")
