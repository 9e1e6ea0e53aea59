"""Commands to the broker, waiting for their replies.

Always true: every command gets a reply, an error or the end of its time, once.
"""

from collections.abc import Callable

import msgspec

from ister.base.errors import (
    BadRequestError,
    ConnectionLostError,
    GoingAwayError,
    IsterError,
    LimitReachedError,
    ProtocolError,
    RequestTimeoutError,
)
from ister.base.limits import REQUESTS_MAX
from ister.wire import (
    SEQUENCE_MASK,
    ChangeTimeline,
    CloseStage,
    Command,
    FinishLeases,
    PublishStages,
    RedriveSubscription,
    SendDelayed,
    control_frame,
    decode_command,
)

OnReply = Callable[[Command | IsterError], object]

# With these a connection has ended or is about to: what was being opened is opened on the next.
COMES_BACK = (ConnectionLostError, GoingAwayError)
# What to do about a call of which nobody knows whether it was carried out.
CALL_HINT = "see whether it was carried out, and repeat it if not"


# These have up to 1 GiB, or all dead letters of a subscription, written or checked before they are
# answered: 50 s at 21 MB/s, which a slow schema takes, and six times that for a disk that others
# use as well. Hearts beat meanwhile: a broker that is gone is noticed as with any other command.
LONG_MS = 300_000
LONG = (CloseStage, PublishStages, RedriveSubscription)


# Made of columns, a thousand messages each: whoever makes them has checked every value.
CHECKED = (ChangeTimeline, FinishLeases, SendDelayed)


def ignore(_: object) -> None:
    """For replies that change nothing."""


class Calls:
    """Those of one session."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # Whom to tell, and from when on its time counts.
        self._waiting: dict[int, tuple[OnReply, int]] = {}
        self._sequence = 0

    def make(self, command: Command, on_reply: OnReply) -> bytes | None:
        """Return the frame of a command whose reply goes to `on_reply`.

        `None` when it is not to be sent: `on_reply` was told why.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            on_reply(LimitReachedError("requests_max", REQUESTS_MAX))
            return None
        sequence = (self._sequence % SEQUENCE_MASK) + 1
        try:
            if not isinstance(command, CHECKED):
                _check_types(command)
            frame = control_frame(command, sequence=sequence)
        except BadRequestError as error:
            on_reply(error)
            return None
        self._sequence = sequence
        since_ms = self._now_ms() + (LONG_MS if isinstance(command, LONG) else 0)
        self._waiting[sequence] = (on_reply, since_ms)
        return frame

    def on_reply(self, sequence: int, reply: Command | IsterError) -> None:
        """The broker has answered."""
        waiting = self._waiting.pop(sequence, None)
        if waiting is not None:
            waiting[0](reply)

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Tell those that have waited too long."""
        for sequence, (on_reply, since_ms) in list(self._waiting.items()):
            if now_ms - since_ms >= timeout_ms:
                del self._waiting[sequence]
                on_reply(RequestTimeoutError("the broker", timeout_ms / 1000))

    def fail_all(self, error: IsterError) -> None:
        """Tell everybody that no reply will come."""
        waiting, self._waiting = self._waiting, {}
        for on_reply, _ in waiting.values():
            on_reply(error)


def _check_types(command: Command) -> None:
    """Raise `BadRequestError` when an argument has a wrong type.

    The broker would take such a frame for that of a broken client and end the connection.
    """
    try:
        decode_command(msgspec.msgpack.encode(command))
    except (ProtocolError, TypeError, ValueError, OverflowError) as error:
        # What msgspec found, without our words for a broken peer.
        reason = error.__cause__ or error
        raise BadRequestError(f"an argument is of the wrong type: {reason}") from None
