"""What a consumer of streams was delivered and has not settled yet, without I/O.

A message is settled when it was acknowledged or given back. Acknowledgements are collected, and
leave as runs once per turn of the event loop: `Message.ack` only moves the end of a run.

Always true:
- a lease is renewed when a third of its time is left, as a whole, as long as something of it is
  unsettled and the application gets on: see `Leases.renew`;
- what was collected while there is no connection leaves on the next one, if its lease still
  holds; what belongs to void leases is counted in `refused` and not sent;
- nothing here holds on to a batch: a lease is a few numbers.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ister.base.errors import BadBatchError, IsterError, LeaseLostError
from ister.base.limits import ACKS_PER_FRAME_MAX
from ister.client.session.calls import OnReply, ignore
from ister.client.session.checks import cut_reason
from ister.client.session.consuming.confirms import Confirm, Confirms, Part
from ister.client.session.futures import Future
from ister.client.session.renewal import RENEWAL_SLACK
from ister.codec import Batch, Column
from ister.wire import (
    BACKOFF_DELAY,
    NackMessages,
    Opcode,
    Run,
    TimedRun,
    ack_frames,
    timed_ack_frames,
)

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort


# Where a run of offsets ends at the latest.
OFFSET_MAX = 2**63


_UNSETTLED = re.compile(rb"\0+")

# Lease numbers in one command: half a megabyte of them.
HELD_MAX = 50_000


class Nack(NamedTuple):
    """How a message is given back."""

    delay_ms: int
    reason: str
    reject: bool


class LeasedBatch(Batch):
    """A batch of a stream, as it was delivered: `Subscription.ack_batch` acknowledges it."""

    __slots__ = ("lease",)

    lease: "Lease"


class Lease:
    """The messages of one delivered batch, by their slots in it.

    Most fields keep their default for most leases, so the defaults live in the class.
    """

    # The end of the run of acknowledged slots that still grows; -1: there is none. The fast path
    # of `Message.ack` moves it.
    run_end = -1
    _run_start = 0
    # The other runs acknowledged since the last flush.
    _runs: list[tuple[int, int]] | None = None
    # Slots below this are settled.
    _floor = 0
    # One byte for each slot, 1 when settled: once they are not settled in order.
    _settled: bytearray | None = None
    # Until when the application has extended single messages, by slot.
    _extended_ms: dict[int, int] | None = None
    # Whether the application has got it.
    taken = False

    def __init__(
        self,
        leases: "Leases",
        topic: str,
        offsets: Sequence[int],
        *,
        number: int,
        attempt: int,
        now_ms: int,
    ) -> None:
        self.leases = leases
        self.topic = topic
        self.offsets = offsets
        self.number = number
        self.attempt = attempt
        # Messages that are not settled.
        self.left = len(offsets)
        self.came_ms = now_ms
        # When the application last did something about it.
        self.moved_ms = now_ms
        self.renew_ms = 0
        self._life = leases.life

    @property
    def void(self) -> bool:
        """Whether the broker has taken it back, or is another one by now."""
        return self._life != self.leases.life

    def take(self, now_ms: int) -> None:
        """The application gets the messages."""
        self.taken = True
        self.moved_ms = self.leases.moved_ms = now_ms

    def ack(self, start: int, end: int) -> None:
        """Acknowledge slots `start` to `end` with the next flush."""
        if self._life != self.leases.life:
            self.leases.refused += end - start
            return
        run_end = self.run_end
        if run_end == start:
            self.run_end = end
            return
        if run_end < 0:
            self.leases.touch(self)
        elif self._runs is None:
            self._runs = [(self._run_start, run_end)]
        else:
            self._runs.append((self._run_start, run_end))
        self._run_start, self.run_end = start, end

    def take_acked(self) -> list[tuple[int, int]]:
        """Return the slots acknowledged since the last call, as few runs as there can be."""
        run = (self._run_start, self.run_end)
        self.run_end = -1
        if self._runs is None:
            return [run]
        runs, self._runs = self._runs, None
        runs.append(run)
        runs.sort()
        return merged(runs)

    def settle(self, start: int, end: int) -> None:
        """Slots `start` to `end` are acknowledged or given back."""
        if self._settled is None:
            if start <= self._floor:
                if end > self._floor:
                    self.left -= end - self._floor
                    self._floor = end
                return
            self._settled = self._flags()
        self.left -= self._settled.count(0, start, end)
        self._settled[start:end] = b"\1" * (end - start)

    def slot_of(self, offset: int) -> int:
        """Return the slot of the first message at or beyond `offset`."""
        return bisect_left(self.offsets, offset)

    def runs(self, start: int, end: int) -> list[Run]:
        """Return slots `start` to `end` as runs of offsets."""
        offsets, number = self.offsets, self.number
        first, last = offsets[start], offsets[end - 1]
        if last - first == end - 1 - start:
            return [(number, first, last + 1)]
        # Parts of a batch went to other consumers: their offsets are not ours to acknowledge.
        runs = merged([(offset, offset + 1) for offset in offsets[start:end]])
        return [(number, first, after) for first, after in runs]

    def extend(self, start: int, end: int, deadline_ms: int) -> None:
        """The application has extended slots `start` to `end`."""
        if self._extended_ms is None:
            self._extended_ms = {}
        self._extended_ms.update(dict.fromkeys(range(start, end), deadline_ms))

    def renewal(self, timeout_ms: int, now_ms: int) -> list[TimedRun]:
        """Return what to extend by `timeout_ms`: all that is unsettled.

        But for what the application has extended for longer.
        """
        extended = self._extended_ms or {}
        longer = [slot for slot, until_ms in extended.items() if until_ms > now_ms + timeout_ms]
        unsettled = self.unsettled(longer)
        return [(*run, timeout_ms) for start, end in unsettled for run in self.runs(start, end)]

    def unsettled(self, besides: Sequence[int]) -> list[tuple[int, int]]:
        """Return the runs of slots that are not settled, without some slots."""
        if self._settled is None and not besides:
            return [(self._floor, len(self.offsets))]
        settled = self._flags().copy()
        for slot in besides:
            settled[slot] = 1
        return [found.span() for found in _UNSETTLED.finditer(settled)]

    def forget_acked(self) -> int:
        """Drop what was collected; return how many messages that were."""
        return sum(end - start for start, end in self.take_acked())

    def _flags(self) -> bytearray:
        if self._settled is not None:
            return self._settled
        return bytearray(b"\1" * self._floor).ljust(len(self.offsets), b"\0")


# Slots of a lease.
Span = tuple[Lease, int, int]


class Leases:
    """Those of one subscription, with everything that is to be said about them."""

    def __init__(self, session: "SessionPort", *, channel: int, max_renewal_ms: int) -> None:
        self.channel = channel
        # Changes when all leases become void.
        self.life = 0
        # Whether the broker has delivered anything under a lease.
        self.used = False
        # Acknowledgements that came too late, as far as we know.
        self.refused = 0
        # When the application last took or settled anything.
        self.moved_ms = 0
        self._session = session
        self._max_renewal_ms = max_renewal_ms
        # How long the broker leases, as its deliveries tell.
        self._timeout_ms = 0
        self._attached = False
        # The oldest first: they are due for renewal in this order.
        self._open: dict[Lease, None] = {}
        self._touched: list[Lease] = []
        self._nacked: list[tuple[Lease, int, Nack]] = []
        # The furthest message of each topic that everything is acknowledged up to.
        self._through: dict[str, tuple[Lease, int]] = {}
        self._confirms = Confirms()
        self._attach_waiters: list[Future] = []

    # From the broker

    def on_leased(self, batch: LeasedBatch, number: int, attempt: int, lease_ms: int) -> None:
        """A batch has come, and `lease_ms` to deal with it."""
        now_ms = self._session.now_ms()
        offsets = _offsets(batch)
        lease = Lease(self, batch.topic, offsets, number=number, attempt=attempt, now_ms=now_ms)
        batch.lease = lease
        self.used = True
        self._timeout_ms = max(self._timeout_ms, lease_ms)
        lease.renew_ms = now_ms + lease_ms * 2 // 3
        if not self._open:
            self._session.receivers.renew_by(lease.renew_ms)
        self._open[lease] = None

    def held(self) -> list[int] | None:
        """Return the numbers of the leases that are still open, if they are not too many."""
        return [lease.number for lease in self._open] if len(self._open) <= HELD_MAX else None

    def on_attached(self) -> None:
        """There is a connection: say what was not said, or not answered."""
        self._attached = True
        self._wake_attach_waiters()
        self._send(self._confirms.again(self.channel))
        self.flush()
        next_ms = self.renew(self._session.now_ms())
        if next_ms is not None:
            self._session.receivers.renew_by(next_ms)

    def on_detached(self) -> None:
        """The connection is lost."""
        self._attached = False

    def on_acked(self, sequence: int, refused: list[Run]) -> None:
        """The broker has answered; without a sequence number it tells what came too late."""
        if sequence:
            self._confirms.on_acked(sequence, refused)
        else:
            self.refused += sum(end - start for _, start, end in refused)

    def on_error(self, sequence: int, error: IsterError) -> None:
        """The broker could not do what it was asked for; the leases stay as they were."""
        self._confirms.on_error(sequence, error)

    def on_closed(self, error: IsterError) -> None:
        """The subscription has ended: nothing will be answered any more."""
        self.end()
        self._confirms.fail(error)

    def end(self) -> None:
        """Make every lease void: its messages are or will be delivered again."""
        self.life += 1
        self._wake_attach_waiters()
        self.refused += sum(lease.forget_acked() for lease in self._touched)
        self._touched.clear()
        self._nacked.clear()
        self._through.clear()
        self._open.clear()

    # From the application

    def touch(self, lease: Lease) -> None:
        """Have the next flush look at a lease."""
        if not self._touched:
            self._session.receivers.mark_acking(self)
        self._touched.append(lease)

    def nack(
        self,
        lease: Lease,
        slot: int,
        delay_ms: int | None,
        *,
        reason: str = "",
        reject: bool = False,
    ) -> None:
        """Give a message back, to be delivered again after a delay; `None`: the backoff list's.

        With `reject` it is not delivered again. A dead letter says the `reason`.
        """
        if lease.void:
            self.refused += 1
            return
        if not self._nacked:
            self._session.receivers.mark_acking(self)
        delay_ms = BACKOFF_DELAY if delay_ms is None else delay_ms
        self._nacked.append((lease, slot, Nack(delay_ms, cut_reason(reason), reject)))

    def nack_handed_out(self, waiting: Iterable[tuple[Lease, int]], reason: str) -> None:
        """Nack all messages that the application has received and not settled.

        Those in `waiting` it has not received yet, although their batches are taken.
        """
        if not self._attached:
            return
        self.flush()
        slots: dict[Lease, list[int]] = {}
        for lease, slot in waiting:
            slots.setdefault(lease, []).append(slot)
        runs: list[TimedRun] = []
        for lease in [lease for lease in self._open if lease.taken]:
            for start, end in lease.unsettled(slots.get(lease, ())):
                runs += [(*run, BACKOFF_DELAY) for run in lease.runs(start, end)]
                self.settle(lease, start, end)
        if runs:
            self._send_nacks(runs, cut_reason(reason), reject=False)

    def give_back(self, waiting: Iterable[Span], on_reply: OnReply) -> None:
        """Have messages delivered to others that the application has not received.

        `on_reply` hears that the broker has done it.
        """
        self.flush()
        slots: dict[Lease, list[tuple[int, int]]] = {}
        for lease, start, end in waiting:
            if not lease.void:
                slots.setdefault(lease, []).append((start, end))
        runs: list[TimedRun] = []
        for lease, some in slots.items():
            for start, end in merged(sorted(some)):
                runs += [(*run, 0) for run in lease.runs(start, end)]
                self.settle(lease, start, end)
        # Also without any: this has the broker take back the credit of the consumer.
        for first in range(0, max(len(runs), 1), ACKS_PER_FRAME_MAX):
            part = runs[first : first + ACKS_PER_FRAME_MAX]
            nack = NackMessages(channel=self.channel, runs=part, unused=True)
            last = first + ACKS_PER_FRAME_MAX >= len(runs)
            self._session.call(nack, on_reply if last else ignore)

    def confirm(self, lease: Lease, start: int, end: int, future: Future) -> None:
        """Acknowledge slots `start` to `end`; `future` is done when the broker has stored that.

        It gets `LeaseLostError` when the acknowledgement came too late.
        """

        def on_kept(part: Part) -> None:
            self.settle(part.lease, part.start, part.end)

        self._want(Opcode.ACK, lease, (start, end), future, on_kept)

    def extend(self, lease: Lease, slot: int, extension_ms: int, future: Future) -> None:
        """Give the application `extension_ms` from now on for a message."""

        def on_kept(part: Part) -> None:
            lease.extend(part.start, part.end, part.asked_ms + extension_ms)

        self._want(Opcode.EXTEND, lease, (slot, slot + 1), future, on_kept, extension_ms)

    def ack_through(self, lease: Lease, slot: int) -> None:
        """Acknowledge everything of a topic up to a message, whoever it was delivered to."""
        if lease.void:
            self.refused += 1
            return
        furthest = self._through.get(lease.topic)
        if furthest is None or lease.offsets[slot] > furthest[0].offsets[furthest[1]]:
            self._session.receivers.mark_acking(self)
            self._through[lease.topic] = (lease, slot)

    def confirm_through(self, lease: Lease, slot: int, future: Future) -> None:
        """The same; `future` is done when the broker has stored that."""

        def on_kept(part: Part) -> None:
            self._settle_through(part.lease, part.start)

        self._want(Opcode.ACK_THROUGH, lease, (slot, slot + 1), future, on_kept)

    def wait_attached(self, waiter: Future) -> None:
        """Finish `waiter` when it is known whether the leases hold: not without a connection."""
        if self._attached:
            waiter.set_result(None)
        else:
            self._attach_waiters.append(waiter)

    # From the session

    def flush(self) -> None:
        """Send what was collected. Without a connection it waits for the next one."""
        if not self._attached:
            return
        if self._touched:
            self._flush_acks(self._session.now_ms())
        if self._nacked:
            self._flush_nacks(self._session.now_ms())
        if self._through:
            through, self._through = list(self._through.values()), {}
            runs = [lease.runs(slot, slot + 1)[0] for lease, slot in through]
            self._send(ack_frames(self.channel, runs, opcode=Opcode.ACK_THROUGH))
            for lease, slot in through:
                self._settle_through(lease, slot)
        if self._confirms.wanted:
            self._send(self._confirms.flush(self.channel))

    def when_idle(self, call: Callable[[], object]) -> None:
        """Make a call once every confirmation has come that somebody waits for."""
        self._confirms.when_idle(call)

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Tell those who have waited too long for a confirmation."""
        self._confirms.expire(now_ms, timeout_ms)

    def renew(self, now_ms: int) -> int | None:
        """Renew the leases that are due; return when to look again, if there is anything left.

        One that the application has got is renewed for `max_renewal_ms` after the last time it
        settled something of it. One that waits in our buffer is renewed for as long after the
        last time that the application took or settled anything at all.
        """
        if not self._attached:
            return None
        soon_ms = now_ms + self._timeout_ms // RENEWAL_SLACK
        due: list[Lease] = []
        for lease in self._open:
            if lease.renew_ms > soon_ms:
                break
            due.append(lease)
        runs: list[TimedRun] = []
        for lease in due:
            del self._open[lease]
            moved_ms = lease.moved_ms if lease.taken else max(lease.moved_ms, self.moved_ms)
            if now_ms - moved_ms < self._max_renewal_ms:
                runs += lease.renewal(self._timeout_ms, now_ms)
                lease.renew_ms = now_ms + self._timeout_ms * 2 // 3
                self._open[lease] = None
        if runs:
            self._send(timed_ack_frames(self.channel, runs, opcode=Opcode.EXTEND))
        return next((lease.renew_ms for lease in self._open), None)

    def _flush_acks(self, now_ms: int) -> None:
        touched, self._touched = self._touched, []
        runs: list[Run] = []
        for lease in touched:
            lease.moved_ms = now_ms
            for start, end in lease.take_acked():
                runs += lease.runs(start, end)
                self.settle(lease, start, end)
        self.moved_ms = now_ms
        self._send(ack_frames(self.channel, runs))

    def _flush_nacks(self, now_ms: int) -> None:
        nacked, self._nacked = self._nacked, []
        slots: dict[tuple[Lease, Nack], list[tuple[int, int]]] = {}
        for lease, slot, how in nacked:
            slots.setdefault((lease, how), []).append((slot, slot + 1))
        runs: dict[tuple[str, bool], list[TimedRun]] = {}
        for (lease, how), some in slots.items():
            lease.moved_ms = now_ms
            alike = runs.setdefault((how.reason, how.reject), [])
            for start, end in merged(sorted(some)):
                alike += [(*run, how.delay_ms) for run in lease.runs(start, end)]
                self.settle(lease, start, end)
        self.moved_ms = now_ms
        for (reason, reject), alike in runs.items():
            self._send_nacks(alike, reason, reject=reject)

    def _send_nacks(self, runs: list[TimedRun], reason: str, *, reject: bool) -> None:
        if not (reason or reject) or not self._session.can_publish:
            # A broker that leaves takes no commands any more.
            self._send(timed_ack_frames(self.channel, runs, opcode=Opcode.NACK))
            return
        for start in range(0, len(runs), ACKS_PER_FRAME_MAX):
            some = runs[start : start + ACKS_PER_FRAME_MAX]
            nack = NackMessages(channel=self.channel, runs=some, reason=reason, reject=reject)
            self._session.call(nack, ignore)

    def _want(
        self,
        opcode: int,
        lease: Lease,
        slots: tuple[int, int],
        future: Future,
        on_kept: Callable[[Part], object],
        *milliseconds: int,
    ) -> None:
        start, end = slots
        if lease.void:
            future.set_exception(LeaseLostError(lease.topic, lease.offsets[start]))
            return
        lease.moved_ms = now_ms = self._session.now_ms()
        runs = lease.runs(start, end)
        confirm = Confirm(future, lease.topic, len(runs), on_kept)
        parts = []
        for run in runs:
            after = start + run[2] - run[1]
            parts.append(Part(opcode, (*run, *milliseconds), lease, start, after, confirm, now_ms))
            start = after
        self._confirms.want(parts)
        self._session.receivers.mark_acking(self)

    def _wake_attach_waiters(self) -> None:
        waiters, self._attach_waiters = self._attach_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _settle_through(self, lease: Lease, slot: int) -> None:
        end = lease.offsets[slot] + 1
        for other in [one for one in self._open if one.topic == lease.topic]:
            self.settle(other, 0, other.slot_of(end))

    def settle(self, lease: Lease, start: int, end: int) -> None:
        """Slots `start` to `end` of a lease are acknowledged or given back."""
        lease.settle(start, end)
        if not lease.left:
            self._open.pop(lease, None)

    def _send(self, frames: list[bytes]) -> None:
        # Not `session.send`: whoever flushes writes what there is to write afterwards.
        if self._session.can_answer:
            self._session.connection.send_all(frames)


def _offsets(batch: Batch) -> Sequence[int]:
    """Return the offsets of a delivered batch, or raise `BadBatchError` if they make no runs."""
    base, count = batch.base_offset, batch.count
    if not batch.columns & Column.OFFSET:
        if base + count > OFFSET_MAX:
            raise BadBatchError(f"base offset {base} is past the last offset")
        return range(base, base + count)
    offsets = list(batch.offsets)
    if not 0 <= offsets[0] <= offsets[-1] < OFFSET_MAX or offsets != sorted(set(offsets)):
        raise BadBatchError("offsets of a delivery do not rise")
    return offsets


def merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted runs with those that touch each other made one."""
    found: list[tuple[int, int]] = []
    start, end = runs[0]
    for next_start, next_end in runs[1:]:
        if next_start > end:
            found.append((start, end))
            start, end = next_start, next_end
        elif next_end > end:
            end = next_end
    found.append((start, end))
    return found
