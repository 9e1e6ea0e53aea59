"""Acknowledgements and extensions whose outcome somebody waits for, without I/O.

    wanted --flush--> sent, under a sequence number --ACKED--> kept, or lost

Always true:
- everybody who waits is told once: kept, lost, an error, or that the time is over;
- those of one turn share a frame, neighbours in it a run;
- what is unanswered when the connection is lost is sent again on the next one: the broker says
  yes to what was acknowledged under the same lease.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ister.base.errors import IsterError, LeaseLostError, RequestTimeoutError
from ister.base.limits import ACKS_PER_FRAME_MAX
from ister.client.session.futures import Future
from ister.wire import SEQUENCE_MASK, Opcode, Run, ack_frames, timed_ack_frames

if TYPE_CHECKING:
    from ister.client.session.consuming.leases import Lease

# Lease, first offset, end offset; milliseconds at the end for an extension.
AnyRun = tuple[int, ...]

# Above any offset.
OFFSETS_END = 2**64


class Confirm:
    """Somebody who waits. `on_kept` is called for every part that the broker has taken."""

    __slots__ = ("_error", "_future", "_on_kept", "_parts", "topic")

    def __init__(
        self, future: Future, topic: str, parts: int, on_kept: "Callable[[Part], object]"
    ) -> None:
        self.topic = topic
        self._future = future
        self._parts = parts
        self._on_kept = on_kept
        self._error: IsterError | None = None

    def on_part(self, part: "Part", error: IsterError | None) -> None:
        """One of the parts is done; with the last one, who waits is told the first error."""
        if error is None:
            self._on_kept(part)
        elif self._error is None:
            self._error = error
        self._parts -= 1
        if self._parts or self._future.done():
            return
        if self._error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(self._error)


class Part(NamedTuple):
    """One run of a confirm, and the slots of its lease that it is about."""

    opcode: int
    run: AnyRun
    lease: "Lease"
    start: int
    end: int
    confirm: Confirm
    asked_ms: int


class _Sent(NamedTuple):
    opcode: int
    runs: list[AnyRun]
    parts: list[Part]


class Confirms:
    """Those of one subscription."""

    __slots__ = ("_on_idle", "_sent", "_sequence", "_wanted")

    def __init__(self) -> None:
        self._wanted: list[Part] = []
        self._sent: dict[int, _Sent] = {}
        self._sequence = 0
        self._on_idle: list[Callable[[], object]] = []

    @property
    def wanted(self) -> bool:
        """Whether there is something to send."""
        return bool(self._wanted)

    def want(self, parts: Sequence[Part]) -> None:
        """Send these with the next flush."""
        self._wanted += parts

    def when_idle(self, call: Callable[[], object]) -> None:
        """Make a call once nobody waits any more: at once, if nobody does."""
        self._on_idle.append(call)
        self._check_idle()

    def flush(self, channel: int) -> list[bytes]:
        """Return frames of what is wanted; they are sent from now on."""
        wanted, self._wanted = self._wanted, []
        # Neighbours side by side: they merge.
        wanted.sort(key=lambda part: (part.opcode, part.run))
        made: dict[int, _Sent] = {}
        current: _Sent | None = None
        for part in wanted:
            if current is None or not _add(current, part):
                current = _Sent(part.opcode, [part.run], [part])
                self._sequence = (self._sequence % SEQUENCE_MASK) + 1
                made[self._sequence] = current
        self._sent |= made
        return _frames(channel, made)

    def again(self, channel: int) -> list[bytes]:
        """Return frames of everything unanswered, for a new connection."""
        return _frames(channel, self._sent)

    def on_acked(self, sequence: int, refused: list[Run]) -> None:
        """The broker has answered a frame: everything was taken but `refused`."""
        sent = self._sent.pop(sequence, None)
        if sent is None:
            return
        refused.sort()
        for part in sent.parts:
            offset = _first_refused(part.run, refused)
            lost = None if offset is None else LeaseLostError(part.confirm.topic, offset)
            part.confirm.on_part(part, lost)
        self._check_idle()

    def on_error(self, sequence: int, error: IsterError) -> None:
        """The broker could not do what a frame asked for."""
        sent = self._sent.pop(sequence, None)
        if sent is not None:
            _fail(sent.parts, error)
            self._check_idle()

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Tell those who have waited too long. Whether it was done is not known."""
        error = RequestTimeoutError("the confirmation of an acknowledgement", timeout_ms / 1000)
        for sequence, sent in list(self._sent.items()):
            if now_ms - sent.parts[0].asked_ms >= timeout_ms:
                del self._sent[sequence]
                _fail(sent.parts, error)
        late = [part for part in self._wanted if now_ms - part.asked_ms >= timeout_ms]
        if late:
            self._wanted = [part for part in self._wanted if now_ms - part.asked_ms < timeout_ms]
            _fail(late, error)
        self._check_idle()

    def fail(self, error: IsterError) -> None:
        """Tell everybody that there will be no answer."""
        parts = [part for sent in self._sent.values() for part in sent.parts] + self._wanted
        self._sent.clear()
        self._wanted = []
        _fail(parts, error)
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle and not self._sent and not self._wanted:
            calls, self._on_idle = self._on_idle, []
            for call in calls:
                call()


def _add(sent: _Sent, part: Part) -> bool:
    """Put another part into a frame, if it fits."""
    if part.opcode != sent.opcode:
        return False
    last, run = sent.runs[-1], part.run
    if last[0] == run[0] and last[2] >= run[1] and last[3:] == run[3:]:
        sent.runs[-1] = (last[0], last[1], max(last[2], run[2]), *last[3:])
    elif len(sent.runs) < ACKS_PER_FRAME_MAX:
        sent.runs.append(run)
    else:
        return False
    sent.parts.append(part)
    return True


def _frames(channel: int, frames: dict[int, _Sent]) -> list[bytes]:
    made: list[bytes] = []
    for sequence, (opcode, runs, _) in frames.items():
        if opcode == Opcode.EXTEND:
            timed = [(run[0], run[1], run[2], run[3]) for run in runs]
            made += timed_ack_frames(channel, timed, opcode=opcode, sequence=sequence)
        else:
            plain = [(run[0], run[1], run[2]) for run in runs]
            made += ack_frames(channel, plain, opcode=opcode, sequence=sequence)
    return made


def _first_refused(run: AnyRun, refused: list[Run]) -> int | None:
    """Return the first offset of `run` that is among the refused ones, which are sorted."""
    lease, start, end = run[:3]
    slot = bisect_right(refused, (lease, start, OFFSETS_END))
    for other, other_start, other_end in refused[max(slot - 1, 0) : slot + 1]:
        if other == lease and other_start < end and other_end > start:
            return max(other_start, start)
    return None


def _fail(parts: Sequence[Part], error: IsterError) -> None:
    for part in parts:
        part.confirm.on_part(part, error)
