"""What a subscription has handed out of one topic, and what of it comes back.

The state of each message from `cursor.floor` up to `position` is exactly one of:

    state      how it gets there                               what happens next
    acked      ack, ack_through, skip                          nothing, ever
    leased     lease                                           ack, nack, or its deadline passes
    waiting    nack, expire: after a delay; release: at once   due, then lease
    held       hold: the caller has set it aside               lease, or free: waiting again
    exhausted  as waiting, after `max_deliveries` failures     skip, as a dead letter or dropped;
                                                               or change: other settings

From `position` on, all that is not acknowledged was never handed out. A message that `lease` or
`hold` passes over on the way is waiting: none can be forgotten.

The attempt of a delivery is the count of failures before it, plus one. A nack and a passed
deadline are failures; a release is none. Failures are kept in the cursor and survive a restart,
the rest of this does not: what was handed out then is handed out again.

Work is done by runs. Nothing here is slower for 16,384 messages in a row than for one.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ister.base import AckSettings, Poison
from ister.base.limits import ACK_TIMEOUT_MS_MAX, NACK_DELAY_MS_MAX
from ister.subscriptions.cursor import Cursor
from ister.subscriptions.leases import Lease, Leases
from ister.subscriptions.offsets import OFFSET_END_MAX, OffsetSet, Run
from ister.subscriptions.waiting import Waiting

# One call looks at no more than this many runs of new messages: a topic may hold millions of
# them between acknowledged ones, and the caller has credit for a few batches.
NEW_RUNS_MAX = 64
# About 2 ms of work, at 7 µs for a lease of one message among very many.
EXPIRED_LEASES_MAX = 256


class NewRun(NamedTuple):
    """Messages not handed out yet. `attempt` is above 1 when they failed before a restart."""

    start: int
    end: int
    attempt: int


class Redelivery(NamedTuple):
    """Messages to be handed out again, rising: a range when they are one run."""

    offsets: range | list[int]
    attempt: int


class Expired(NamedTuple):
    """A run that was not acknowledged in time."""

    consumer: Hashable
    start: int
    end: int
    attempt: int


class Deliveries:
    """See the module. `numbers` counts the leases of all topics of the subscription."""

    __slots__ = (
        "_exhausted",
        "_held",
        "_leases",
        "_waiting",
        "cursor",
        "epoch",
        "position",
        "redelivered",
        "refused",
        "settings",
    )

    def __init__(self, cursor: Cursor, settings: AckSettings, numbers: Iterator[int]) -> None:
        self.cursor = cursor
        self.settings = settings
        # The next offset never handed out.
        self.position = cursor.floor
        # Messages handed out after a failure.
        self.redelivered = 0
        # Messages whose acknowledgement came too late.
        self.refused = 0
        # Counts `seek` and `clear`: what was read for an earlier epoch is not to be leased.
        self.epoch = 0
        self._leases = Leases(numbers)
        self._waiting = Waiting()
        self._held = OffsetSet()
        self._exhausted = self._failed_for_good()

    @property
    def in_flight(self) -> int:
        """Messages in leases."""
        return self._leases.count

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of messages in leases."""
        return self._leases.size_bytes

    @property
    def unsettled(self) -> int:
        """Messages handed out at least once, or passed over, and not acknowledged.

        This is what a limit has to bound: a message that waits after a nack costs memory too.
        """
        return self.cursor.unacked_count(self.position)

    @property
    def aside(self) -> int:
        """Messages of these that do not count against a limit: those held, and those that block.

        The caller has limits of his own for the first; the second wait for somebody to see to them,
        while others go on.
        """
        blocking = self._exhausted.count if self.settings.poison == Poison.BLOCK else 0
        return self._held.count + blocking

    # Handing out.

    def next_new(self, limit_end: int, *, runs_max: int = NEW_RUNS_MAX) -> list[NewRun]:
        """Return the first runs from `position` on, below `limit_end`, that can be handed out."""
        if self.cursor.is_plain:
            start = max(self.position, self.cursor.floor)
            return [NewRun(start, limit_end, 1)] if start < limit_end else []
        # Each step is taken only when it is asked for: there may be millions of runs.
        runs = (
            NewRun(start, end, failures + 1)
            for gap in self.cursor.iter_gaps(self.position, limit_end)
            for free in self._exhausted.gaps(*gap)
            for start, end, failures in self.cursor.iter_by_failures(*free)
        )
        return list(islice(runs, runs_max))

    def due(self, now_ms: int, count_max: int, *, end: int = OFFSET_END_MAX) -> list[Redelivery]:
        """Return the lowest messages below `end` to be handed out again now, grouped by attempt.

        They stay where they are until they are leased.
        """
        ready = self._ready(now_ms)
        if not ready:
            return []
        if ready.end > end:
            ready = ready.within(0, end)
        return [
            Redelivery(offsets.offsets(), failures + 1)
            for failures, offsets in self.cursor.by_failures(ready.lowest(count_max))
        ]

    def is_free(self, offsets: range | Sequence[int]) -> bool:
        """Tell whether all of these can be leased, after some time has passed since asking."""
        wanted = OffsetSet.of(offsets)
        unacked = wanted.copy()
        self.cursor.subtract_acked(unacked)
        below = wanted.within(0, self.position)
        known = below.intersection(self._waiting.ready).count + below.intersection(self._held).count
        return (
            unacked.count == wanted.count
            and known == below.count
            and not wanted.intersection(self._exhausted)
        )

    def lease(
        self,
        offsets: range | Sequence[int],
        *,
        consumer: Hashable,
        now_ms: int,
        size_bytes: int,
        attempt: int = 1,
    ) -> Lease:
        """Hand out messages that are new, due or held; rising, and at least one.

        `attempt` is what `next_new` or `due` said. `position` moves on past them; new messages
        they leave out on the way are due at once.
        """
        leased = OffsetSet.of(offsets)
        self._claim(leased)
        if attempt > 1:
            self.redelivered += leased.count
        return self._leases.open(
            leased,
            consumer=consumer,
            attempt=attempt,
            deadline_ms=now_ms + self.settings.ack_timeout_ms,
            size_bytes=size_bytes,
        )

    def hold(self, offsets: range | Sequence[int]) -> None:
        """Set messages aside that could be leased now; the caller remembers them."""
        held = OffsetSet.of(offsets)
        if held:
            self._claim(held)
            self._held.update(held)

    def free(self, offsets: range | Sequence[int]) -> None:
        """Let held messages be due at once; those no longer held are left as they are."""
        freed = OffsetSet.of(offsets).intersection(self._held)
        self._held.subtract(freed)
        self._waiting.ready.update(freed)

    def skip(self, start: int, end: int) -> None:
        """Count a range as acknowledged: filtered out, too old, a dead letter, or not there.

        Not for leased messages, which their consumers settle.
        """
        self.cursor.ack(start, end)
        self._waiting.ready.discard(start, end)
        self._held.discard(start, end)
        self._exhausted.discard(start, end)
        if start <= self.position:
            self.position = max(self.position, end)

    # Coming back. A run is named by the number of its lease; the runs returned are those refused:
    # in no lease of this number, and not acknowledged either.

    def ack(self, number: int, start: int, end: int) -> list[Run]:
        """Acknowledge a run of a lease and return what is refused."""
        if start >= end:
            return []
        if self._leases.take_whole(number, start, end):
            self.cursor.ack(start, end)
            return []
        lease = self._leases.find(number)
        if lease is not None:
            taken = self._leases.take(lease, start, end)
            for run_start, run_end in taken.runs():
                self.cursor.ack(run_start, run_end)
        return self._refuse(start, end, OffsetSet())

    def ack_through(self, number: int, end: int) -> bool:
        """Acknowledge everything below `end`; return whether the lease was good for that.

        It is when it has not ended and reaches as far as `end`, or when nothing is left to do.
        """
        if end <= self.cursor.floor:
            return True
        lease = self._leases.find(number)
        if lease is None or end > lease.end:
            self.refused += 1
            return False
        self._drop_below(end)
        self.cursor.ack(self.cursor.floor, end)
        return True

    def refusals(self, number: int, start: int, end: int) -> list[Run]:
        """Return what `ack` would refuse, and change nothing."""
        lease = self._leases.find(number)
        covered = OffsetSet() if lease is None else lease.within(start, end)
        return self._missing(start, end, covered)

    def is_leased(self, number: int, start: int, end: int) -> bool:
        """Tell whether all of a run is in that lease, which has not ended.

        Unlike `refusals`, this counts what is acknowledged as lost: maybe somebody else did that.
        """
        lease = self._leases.find(number)
        return lease is not None and 0 < end - start == lease.within(start, end).count

    def nack(
        self, number: int, start: int, end: int, *, now_ms: int, delay_ms: int | None = None
    ) -> list[Run]:
        """Give a run back as failed, and return what is refused.

        It is due after `delay_ms`, or when that is `None`, as the backoff list says.
        """
        taken = OffsetSet()
        lease = self._leases.find(number)
        if lease is not None:
            taken = self._leases.take(lease, start, end)
            self._fail(taken, lease.attempt, now_ms=now_ms, delay_ms=delay_ms)
        return [] if taken.is_run(start, end) else self._refuse(start, end, taken)

    def extend(
        self, number: int, start: int, end: int, *, now_ms: int, extension_ms: int
    ) -> list[Run]:
        """Let the deadline of a run be `extension_ms` from now; return what is refused."""
        moved = OffsetSet()
        lease = self._leases.find(number)
        if lease is not None:
            deadline_ms = now_ms + max(0, min(extension_ms, ACK_TIMEOUT_MS_MAX))
            moved = self._leases.extend(lease, start, end, deadline_ms=deadline_ms)
        return [] if moved.is_run(start, end) else self._refuse(start, end, moved)

    # Time, and consumers that leave.

    def expire(self, now_ms: int, *, leases_max: int = EXPIRED_LEASES_MAX) -> list[Expired]:
        """End what is past its deadline, as failed, and make ready what has waited long enough.

        With very many leases to end, `next_due_ms` is not beyond `now_ms` afterwards: call again.
        """
        expired: list[Expired] = []
        by_attempt: dict[int, OffsetSet] = {}
        for lease, offsets in self._leases.take_expired(now_ms, leases_max):
            self.cursor.subtract_acked(offsets)
            expired += [Expired(lease.consumer, *run, lease.attempt) for run in offsets.runs()]
            by_attempt.setdefault(lease.attempt, OffsetSet()).update(offsets)
        for attempt, offsets in by_attempt.items():
            self._fail(offsets, attempt, now_ms=now_ms, delay_ms=None)
        self._waiting.advance(now_ms)
        return expired

    def next_due_ms(self) -> int | None:
        """Return when to call `expire` next: at the first deadline or end of a delay.

        Messages that are due already do not count: they wait for a consumer, not for time.
        """
        times = (self._leases.next_deadline_ms(), self._waiting.next_ms())
        return min((time for time in times if time is not None), default=None)

    def has_due(self, now_ms: int) -> bool:
        """Tell whether `due` has something."""
        return bool(self._ready(now_ms))

    def release(self, consumer: Hashable, *, besides: Collection[int] = frozenset()) -> int:
        """Take everything back from a consumer that leaves in good order, due at once.

        Or from one that came back and holds only some of its leases, `besides` those. No attempt
        is burnt. Returns how many messages that are.
        """
        released = self._leases.take_all(consumer, besides=besides)
        self.cursor.subtract_acked(released)
        self._waiting.ready.update(released)
        return released.count

    def lost(self, consumer: Hashable, *, now_ms: int, grace_ms: int) -> None:
        """End the leases of a consumer whose connection is gone `grace_ms` from now at the latest.

        They fail then, as all that are past their deadline, unless it has `regained` them.
        """
        self._leases.end_by(consumer, now_ms + grace_ms)

    def regained(self, consumer: Hashable, *, now_ms: int) -> None:
        """Give a consumer that came back the full ack timeout for what it still holds."""
        self._leases.last_until(consumer, now_ms + self.settings.ack_timeout_ms)

    # The end of the line.

    @property
    def any_exhausted(self) -> bool:
        """Whether some messages failed too often."""
        return bool(self._exhausted)

    def is_exhausted(self, offset: int) -> bool:
        """Tell whether a message failed too often."""
        return offset in self._exhausted

    def exhausted(self, count_max: int) -> list[tuple[int, int]]:
        """Return messages that failed too often, with their failures: for the dead letters.

        They stay until `skip` (the dead letter is safe), or `change` lets them try again.
        """
        self.cursor.subtract_acked(self._exhausted)
        offsets = self._exhausted.lowest(count_max).offsets()
        return [(offset, self.cursor.failures_of(offset)) for offset in offsets]

    def exhausted_besides(self, *others: OffsetSet) -> OffsetSet:
        """Return the messages that failed too often and are in none of `others`."""
        self.cursor.subtract_acked(self._exhausted)
        rest = self._exhausted.copy()
        for other in others:
            rest.subtract(other)
        return rest

    def change(self, settings: AckSettings, *, besides: OffsetSet) -> None:
        """Go by other settings. What may fail more often by them is due again, `besides` some.

        What may fail less often is found out when it fails again; leases last as they were given.
        """
        self.settings = settings
        spared = self.exhausted_besides(self._failed_for_good(), besides)
        self._exhausted.subtract(spared)
        # The others are new again.
        self._waiting.ready.update(spared.within(0, self.position))

    # Starting over.

    def trim(self, first_offset: int) -> None:
        """Forget what retention has removed: everything below `first_offset`."""
        if first_offset > self.cursor.floor:
            self._drop_below(first_offset)
            self.cursor.trim(first_offset)

    def seek(self, offset: int) -> None:
        """Go to `offset`. Every lease is void: acknowledgements of them are refused."""
        self.cursor.seek(offset)
        self.clear()

    def use(self, cursor: Cursor) -> None:
        """Go on with another cursor. Every lease is void, as after `seek`."""
        self.cursor = cursor
        self.clear()

    def clear(self) -> None:
        """Void every lease and hand out anew all that is not acknowledged."""
        self.epoch += 1
        self._leases.clear()
        self._waiting.clear()
        self._held.clear()
        self._exhausted = self._failed_for_good()
        self.position = self.cursor.floor

    def _failed_for_good(self) -> OffsetSet:
        deliveries_max = self.settings.max_deliveries
        return self.cursor.failed(deliveries_max) if deliveries_max else OffsetSet()

    def _ready(self, now_ms: int) -> OffsetSet:
        self._waiting.advance(now_ms)
        ready = self._waiting.ready
        if ready:
            self.cursor.subtract_acked(ready)
        return ready

    def _claim(self, offsets: OffsetSet) -> None:
        """Take messages that are to be leased or held from where they are."""
        start, end = offsets.first, offsets.end
        if start < self.position:
            below = offsets.within(0, self.position)
            known = self._waiting.ready.count + self._held.count
            self._waiting.ready.subtract(below)
            self._held.subtract(below)
            left = self._waiting.ready.count + self._held.count
            assert known - left == below.count, "leased twice, or acknowledged before"
        if end <= self.position:
            return
        if start > self.position or not offsets.is_run(start, end):
            passed = OffsetSet(self.position, end)
            passed.subtract(offsets)
            passed.subtract(self._exhausted)
            self.cursor.subtract_acked(passed)
            self._waiting.ready.update(passed)
        self.position = end

    def _fail(self, offsets: OffsetSet, attempt: int, *, now_ms: int, delay_ms: int | None) -> None:
        self.cursor.fail(offsets, attempt)
        if 0 < self.settings.max_deliveries <= attempt:
            self._exhausted.update(offsets)
            return
        if delay_ms is None:
            delay_ms = self.settings.delay_ms(attempt)
        self._waiting.add(offsets, now_ms + min(delay_ms, NACK_DELAY_MS_MAX), now_ms)

    def _drop_below(self, end: int) -> None:
        self._leases.drop_below(end)
        self._waiting.ready.discard(0, end)
        self._held.discard(0, end)
        self._exhausted.discard(0, end)
        self.position = max(self.position, end)

    def _refuse(self, start: int, end: int, covered: OffsetSet) -> list[Run]:
        refused = self._missing(start, end, covered)
        # Beyond `position` nothing was handed out: a wild number must not spoil the count.
        self.refused += sum(max(0, min(end, self.position) - start) for start, end in refused)
        return refused

    def _missing(self, start: int, end: int, covered: OffsetSet) -> list[Run]:
        """Return the runs that are neither acknowledged nor in `covered`."""
        if start >= end or covered.is_run(start, end):
            return []
        return [run for gap in self.cursor.gaps(start, end) for run in covered.gaps(*gap)]
