"""One end of a connection, without a socket: bytes in, frames out, and the other way round.

States, and what moves them:

    GREETING   --Hello / Welcome accepted-->  OPEN
    OPEN       --close()-->                   CLOSED
    any        --ProtocolError-->             CLOSED

Always true:
- before OPEN only one small control frame is accepted;
- liveness counts whole frames, so a peer that trickles bytes is as dead as a silent one;
- nothing is queued after CLOSED.
"""

from collections.abc import Iterable
from enum import Enum

from ister.base.errors import ProtocolError, VersionError
from ister.base.limits import NAME_BYTES_MAX
from ister.wire.commands import (
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    Hello,
    decode_command,
)
from ister.wire.frames import (
    Frame,
    FrameReader,
    Opcode,
    PlacePool,
    body_limits,
    hello_limits,
    ping_frame,
    pong_frame,
)

Bytes = bytes | memoryview


class State(Enum):
    """Where a connection is in its life."""

    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class Pulse(Enum):
    """What the clock asks of a connection."""

    FINE = "fine"
    DEAD = "dead"


class Connection:
    """Frames, liveness and the outgoing queue of one end."""

    __slots__ = (
        "_closed",
        "_heard",
        "_outgoing",
        "_pinged_ms",
        "_reader",
        "heard_ms",
        "heartbeat_ms",
        "state",
    )

    def __init__(self, *, now_ms: int, heartbeat_ms: int, pool: PlacePool | None = None) -> None:
        self.state = State.GREETING
        # The same as `state is CLOSED`, for the hot path.
        self._closed = False
        self.heartbeat_ms = heartbeat_ms
        self.heard_ms = now_ms
        self._heard = False
        self._pinged_ms = now_ms
        self._reader = FrameReader(hello_limits(), pool)
        self._outgoing: list[Bytes] = []

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of an incomplete frame."""
        return self._reader.buffered_bytes

    def opened(self, batch_bytes_max: int) -> None:
        """The handshake is done: accept every kind of frame from now on."""
        self.state = State.OPEN
        self._reader.set_limits(body_limits(batch_bytes_max))

    def close(self) -> None:
        """Take no more frames. What is queued can still be fetched by `outgoing`."""
        self.state = State.CLOSED
        self._closed = True
        # A closing connection may linger: half a frame of many megabytes must not.
        self._reader.forget()

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, pings and pongs apart.

        Raises `ProtocolError`, after which the connection is closed.
        """
        if self._closed:
            return []
        try:
            frames = self._reader.receive(data)
        except ProtocolError:
            self.close()
            raise
        if frames:
            self._heard = True
            for frame in frames:
                if frame[0] in _BEATS:
                    return self._answer_beats(frames)
        return frames

    def space(self) -> memoryview | None:
        """Return where a socket should put the next bytes, if they belong to a large frame.

        After that `filled` takes the place of `receive`.
        """
        return None if self._closed else self._reader.space()

    def filled(self, count: int) -> list[Frame]:
        """Return the frame that `count` bytes written into `space` complete, if they do."""
        if self._closed:
            return []
        frames = self._reader.filled(count)
        if frames:
            self._heard = True
        return frames

    def send(self, data: Bytes) -> None:
        """Queue one encoded frame."""
        if not self._closed:
            self._outgoing.append(data)

    def send_all(self, parts: Iterable[Bytes]) -> None:
        """Queue the parts of an encoded frame."""
        if not self._closed:
            self._outgoing.extend(parts)

    def outgoing(self) -> list[Bytes]:
        """Return what is to be sent, and forget it."""
        parts, self._outgoing = self._outgoing, []
        return parts

    def pulse(self, now_ms: int) -> Pulse:
        """Look at the clock: queue a ping when it is time, and say whether the peer is dead.

        Called about twice in a heartbeat. A peer is dead after three heartbeats without a frame.
        """
        if self._heard:
            self._heard = False
            self.heard_ms = now_ms
        if now_ms - self.heard_ms >= 3 * self.heartbeat_ms:
            return Pulse.DEAD
        if self.state is State.OPEN and now_ms - self._pinged_ms >= self.heartbeat_ms:
            self._pinged_ms = now_ms
            self._outgoing.append(ping_frame())
        return Pulse.FINE

    def _answer_beats(self, frames: list[Frame]) -> list[Frame]:
        if any(frame[0] == Opcode.PING for frame in frames):
            self._outgoing.append(pong_frame())
        return [frame for frame in frames if frame[0] not in _BEATS]


_BEATS = frozenset((Opcode.PING, Opcode.PONG))


def accept_hello(frame: Frame) -> tuple[Hello, int]:
    """Return a client's `Hello` and the version to speak with it.

    Raises `ProtocolError` for anything else and `VersionError` when no version is shared.
    """
    command = decode_command(frame[3])
    if not isinstance(command, Hello):
        raise ProtocolError("the first frame must be a hello")
    if not command.client_id:
        # Two clients without an id would take each other's consumers for their own.
        raise ProtocolError("a client needs an id of its own")
    if len(command.client_id.encode(errors="replace")) > NAME_BYTES_MAX:
        raise ProtocolError(f"client_id is longer than {NAME_BYTES_MAX} bytes")
    if len(command.secret.encode(errors="replace")) > NAME_BYTES_MAX:
        raise ProtocolError(f"secret is longer than {NAME_BYTES_MAX} bytes")
    version = min(command.version_max, PROTOCOL_VERSION_MAX)
    if version < max(command.version_min, PROTOCOL_VERSION_MIN):
        raise VersionError(
            f"{command.version_min}-{command.version_max}",
            f"{PROTOCOL_VERSION_MIN}-{PROTOCOL_VERSION_MAX}",
        )
    return command, version
