"""The session as its producers, consumers and timelines see it.

They know this port, and the session knows all of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ister.base.errors import IsterError
from ister.client.session.calls import OnReply
from ister.client.session.events import Event
from ister.wire import Command, Connection


class Flushable(Protocol):
    """Something that has collected what is to be sent at the end of this turn."""

    def flush(self) -> object:
        """Send it."""


class Sender(Protocol):
    """A producer with messages to send at the end of this turn."""

    channel: int
    topic: str

    def cut(self) -> object:
        """Close the batch that is being filled."""

    def pump(self) -> object:
        """Send what may be sent."""


class LeasePort(Protocol):
    """Renews leases, and sends acknowledgements at the end of the turn."""

    def mark_acking(self, leases: Flushable) -> None:
        """Have the leases of a subscription flushed at the end of this turn."""

    def renew_by(self, due_ms: int) -> None:
        """Have leases renewed at that time, or earlier."""


class ClockPort(Protocol):
    """The broker's clock, and the changes of timelines that wait for the end of the turn."""

    @property
    def spread_us(self) -> int:
        """By how much the broker's time may be wrong."""

    def find_now_us(self) -> int | None:
        """Return the time of the broker, or `None` while it is not known."""

    def mark_dirty(self, outgoing: Flushable) -> None:
        """Have something flushed at the end of this turn."""

    def renew(self, now_ms: int) -> int | None:
        """Renew the leases that are due; return when to look again."""


class SessionPort(Protocol):
    """Time, connection and calls: what every part of a session needs of it."""

    client_id: str
    now_ms: Callable[[], int]
    pulse_ms: int
    round_trip_ms: int
    can_publish: bool
    can_answer: bool
    batch_bytes: int
    message_bytes_max: int
    connection: Connection
    events: deque[tuple[Callable[[Event], object], Event]]
    on_dirty: Callable[[], object]

    @property
    def receivers(self) -> LeasePort:
        """Subscriptions and readers."""

    @property
    def timelines(self) -> ClockPort:
        """Timelines."""

    def call(self, command: Command, on_reply: OnReply) -> None:
        """Send a command; `on_reply` gets the answer or an error, once."""

    def send(self, frame: bytes) -> None:
        """Send a frame that makes no sense on a later connection."""

    def new_channel(self) -> int:
        """Return a number no other producer or consumer of this session has."""

    def mark_dirty(self, producer: Sender) -> None:
        """Have a producer send what it has at the end of this turn."""

    def fail_requests(self, requests: list[int], error: IsterError) -> None:
        """Fail requests that were not sent."""
