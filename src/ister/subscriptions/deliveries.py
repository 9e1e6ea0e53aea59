"""What a subscription has handed out of one topic, and what of it comes back.

The state of each message from `cursor.floor` up to `position` is exactly one of:

    state      how it gets there                               what happens next
    acked      ack, ack_through, skip                          nothing, ever
    leased     lease                                           ack, nack, or its deadline passes
    in commit  begin_commit: a transaction acknowledges it     end_commit: acked; undo_commit:
                                                               leased again, or waiting
    waiting    nack, expire: after a delay; release: at once   due, then lease
    held       hold: the caller has set it aside               lease
    exhausted  as waiting, after `max_deliveries` failures     skip, as a dead letter or dropped;
                                                               or change: other settings

From `position` on, all that is not acknowledged was never handed out. A message that `lease` or
`hold` passes over on the way is waiting: none can be forgotten.

The attempt of a delivery is the count of failures before it, plus one. A nack and a passed
deadline are failures; a release is none. Failures are kept in the cursor and survive a restart,
the rest of this does not: what was handed out then is handed out again.

A message in commit belongs to its transaction until that is decided: it is in no lease, so that no
deadline, no nack, no acknowledgement and no consumer that leaves can move it. It stays in commit
when every lease becomes void.

Work is done by runs. Nothing here is slower for 16,384 messages in a row than for one.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import islice

from ister.base import AckSettings, Poison
from ister.base.limits import ACK_TIMEOUT_MS_MAX, NACK_DELAY_MS_MAX
from ister.subscriptions.cursor import Cursor
from ister.subscriptions.fence import LOST_LEASES_MAX, Fence, merge_runs
from ister.subscriptions.leases import Lease, Leases
from ister.subscriptions.offsets import OFFSET_END_MAX, OffsetSet, Run
from ister.subscriptions.portions import (
    NEVER_MS,
    UNUSED_MS,
    Expired,
    InCommit,
    NewRun,
    Redelivery,
)
from ister.subscriptions.waiting import Waiting

# One call looks at no more than this many runs of new messages: a topic may hold millions of
# them between acknowledged ones, and the caller has credit for a few batches.
NEW_RUNS_MAX = 64
# About 2 ms of work, at 7 µs for a lease of one message among very many.
EXPIRED_LEASES_MAX = 256
# At most this many runs are listed when one run is refused. Each gap between acknowledged messages
# that is examined for it takes 3 µs, and a run may lie across hundreds of thousands of gaps.
REFUSED_RUNS_MAX = 16
GAPS_LOOKED_AT_MAX = 128


class Deliveries:
    """What is handed out of one topic. `numbers` gives each lease its number."""

    __slots__ = (
        "_committing",
        "_committing_bytes",
        "_counted",
        "_exhausted",
        "_fence",
        "_held",
        "_leases",
        "_waiting",
        "cursor",
        "epoch",
        "position",
        "refused",
        "settings",
    )

    def __init__(
        self,
        cursor: Cursor,
        settings: AckSettings,
        numbers: Iterator[int],
        *,
        lost_leases_max: int = LOST_LEASES_MAX,
    ) -> None:
        self.cursor = cursor
        self.settings = settings
        # The next offset never handed out.
        self.position = cursor.floor
        # Messages whose acknowledgement came too late.
        self.refused = 0
        # Counts `clear`: what was read for an earlier epoch is not to be leased.
        self.epoch = 0
        self._leases = Leases(numbers)
        self._fence = Fence(leases_max=lost_leases_max)
        self._waiting = Waiting()
        self._held = OffsetSet()
        self._committing = OffsetSet()
        self._committing_bytes = 0
        self._exhausted = self._failed_for_good()
        # What `take_growth` has returned, all together.
        self._counted = (0, 0)

    @property
    def in_flight(self) -> int:
        """Messages in leases and in commits."""
        return self._leases.count + self._committing.count

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of messages in leases and in commits."""
        return self._leases.size_bytes + self._committing_bytes

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

    def take_growth(self) -> tuple[int, int]:
        """Return how much more counts against the limits than at the last call.

        In messages handed out and not settled, and in bytes of those in leases and commits.
        """
        count, size_bytes = self.unsettled - self.aside, self.in_flight_bytes
        counted, counted_bytes = self._counted
        self._counted = count, size_bytes
        return count - counted, size_bytes - counted_bytes

    # Handing out.

    def next_new(self, limit_end: int, *, runs_max: int = NEW_RUNS_MAX) -> list[NewRun]:
        """Return the first runs from `position` on, below `limit_end`, that can be handed out."""
        if self.cursor.is_plain and not self._committing:
            start = max(self.position, self.cursor.floor)
            return [NewRun(start, limit_end, 1)] if start < limit_end else []
        # Each step is taken only when it is asked for: there may be millions of runs.
        runs = (
            NewRun(start, end, failures + 1)
            for gap in self.cursor.iter_gaps(self.position, limit_end)
            for free in self._exhausted.gaps(*gap)
            for open_ in self._committing.gaps(*free)
            for start, end, failures in self.cursor.iter_by_failures(*open_)
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
        lease = self._leases.open(
            leased,
            consumer=consumer,
            attempt=attempt,
            deadline_ms=now_ms + self.settings.ack_timeout_ms,
            size_bytes=size_bytes,
        )
        self._fence.on_lease(lease.number)
        return lease

    def hold(self, offsets: range | Sequence[int]) -> None:
        """Set messages aside that could be leased now; the caller remembers them."""
        held = OffsetSet.of(offsets)
        if held:
            self._claim(held)
            self._held.update(held)

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
    # in no lease of this number, and not acknowledged either, or not under this lease. There are
    # `REFUSED_RUNS_MAX` at most, of which the last then reaches to the end of the run asked for:
    # too much, never too little.

    def ack(self, number: int, start: int, end: int) -> list[Run]:
        """Acknowledge a run of a lease and return what is refused."""
        if start >= end:
            return []
        if self._leases.take_whole(number, start, end):
            self.cursor.ack(start, end)
            return []
        taken = OffsetSet()
        lease = self._leases.find(number)
        if lease is not None:
            taken = self._leases.take(lease, start, end)
            for run_start, run_end in taken.runs():
                self.cursor.ack(run_start, run_end)
        refused = self._refuse(start, end, OffsetSet())
        stale = self._fence.stale_runs(number, start, end, held=taken)
        return merge_runs([*refused, *stale]) if stale else refused

    def ack_through(self, number: int, end: int) -> bool:
        """Acknowledge everything below `end`; return whether the lease was good for that.

        It is when it has not ended and reaches as far as `end`, or when nothing is left to do and
        it has not lost the last message.
        Messages in a commit are left to it.
        """
        last = max(0, end - 1)
        if end <= self.cursor.floor and not self._fence.stale_runs(
            number, last, end, held=OffsetSet()
        ):
            return True
        lease = self._leases.find(number)
        if lease is None or end > lease.end:
            self.refused += 1
            return False
        self._drop_below(end)
        for run in self._committing.gaps_within(self.cursor.floor, end):
            self.cursor.ack(*run)
        return True

    def left_of(self, number: int, start: int, end: int) -> list[Run]:
        """Return what of a run is in that lease."""
        lease = self._leases.find(number)
        return [] if lease is None else lease.within(start, end).runs()

    def is_holding(self, consumer: Hashable) -> bool:
        """Tell whether a consumer has messages."""
        return self._leases.has_any(consumer)

    def is_leased(self, number: int, start: int, end: int) -> bool:
        """Tell whether all of a run is in that lease, which has not ended.

        What is acknowledged counts as lost: maybe somebody else did that.
        """
        lease = self._leases.find(number)
        return lease is not None and 0 < end - start == lease.within(start, end).count

    # Transactions.

    def begin_commit(self, number: int, start: int, end: int) -> InCommit:
        """Take a run for which `is_leased` holds out of its lease, until its commit is decided."""
        lease = self._leases.find(number)
        assert lease is not None, "committed without a lease"
        size_bytes = lease.size_bytes
        taken = self._leases.take(lease, start, end)
        assert taken.count == end - start, "committed without a lease"
        size_bytes -= lease.size_bytes
        self._committing.add(start, end)
        self._committing_bytes += size_bytes
        return InCommit(start, end, number, lease.consumer, lease.attempt, size_bytes, self.epoch)

    def end_commit(self, commit: InCommit) -> None:
        """The journal has a transaction: what it acknowledges is done."""
        self._leave_commit(commit)
        self.cursor.ack(commit.start, commit.end)

    def undo_commit(self, commit: InCommit, *, deadline_ms: int | None) -> None:
        """The journal does not have a transaction: its messages are to be settled otherwise.

        They are in their lease again until `deadline_ms`. Without one, or when the lease is void,
        they are due at once. No attempt is burnt.
        """
        offsets = self._leave_commit(commit)
        self.cursor.subtract_acked(offsets)
        if not offsets:
            return
        if deadline_ms is None or commit.epoch != self.epoch:
            self._fence.on_lost(commit.number, offsets)
            # The others are new again.
            self._waiting.ready.update(offsets.within(0, self.position))
            return
        self._leases.put_back(
            commit.number,
            offsets,
            consumer=commit.consumer,
            attempt=commit.attempt,
            deadline_ms=deadline_ms,
            # Without the share of what retention has removed meanwhile.
            size_bytes=commit.size_bytes * offsets.count // (commit.end - commit.start),
        )

    def _leave_commit(self, commit: InCommit) -> OffsetSet:
        """Return what of a commit retention has not removed meanwhile."""
        self._committing_bytes -= commit.size_bytes
        return self._committing.take(commit.start, commit.end)

    def nack(
        self, number: int, start: int, end: int, *, now_ms: int, delay_ms: int | None = None
    ) -> list[Run]:
        """Give a run back as failed, and return what is refused.

        It is due after `delay_ms`, or when that is `None`, as the backoff list says; with
        `NEVER_MS` it counts as exhausted. With `UNUSED_MS` it is due at once, and has not failed.
        """
        taken = OffsetSet()
        lease = self._leases.find(number)
        if lease is not None:
            taken = self._leases.take(lease, start, end)
            if delay_ms == NEVER_MS:
                self.cursor.fail(taken, lease.attempt)
                self._exhausted.update(taken)
            elif delay_ms == UNUSED_MS:
                self._waiting.ready.update(taken)
            else:
                self._fail(taken, lease.attempt, now_ms=now_ms, delay_ms=delay_ms)
            self._fence.on_lost(number, taken)
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
        if self._committing:
            # Clients renew whole leases: what is in a commit needs no renewal, and is not late.
            moved = moved.copy()
            moved.update(self._committing.within(start, end))
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
            self._fence.on_lost(lease.number, offsets)
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
        count = 0
        for number, released in self._leases.take_all(consumer, besides=besides):
            self.cursor.subtract_acked(released)
            self._fence.on_lost(number, released)
            self._waiting.ready.update(released)
            count += released.count
        return count

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

    @property
    def exhausted_count(self) -> int:
        """How many messages failed too often; some of them may be acknowledged by now."""
        return self._exhausted.count

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
            self._committing.discard(0, first_offset)
            self.cursor.trim(first_offset)

    def use(self, cursor: Cursor, dead: OffsetSet | None = None) -> None:
        """Go on with a cursor. Every lease is void.

        Those of `dead` stay exhausted, whatever the settings say by now. Commits belong to the
        cursor they began under: another one knows nothing of them.
        """
        if cursor is not self.cursor:
            self._forget_commits()
        self.cursor = cursor
        self.clear()
        if dead is not None:
            self._exhausted.update(dead)

    def clear(self) -> None:
        """Void every lease and hand out anew all that is not acknowledged, nor in a commit."""
        self.epoch += 1
        self._fence.begin()
        self._leases.clear()
        self._waiting.clear()
        self._held.clear()
        self._exhausted = self._failed_for_good()
        self.position = self.cursor.floor

    def _forget_commits(self) -> None:
        self._committing.clear()
        self._committing_bytes = 0

    def _failed_for_good(self) -> OffsetSet:
        deliveries_max = self.settings.max_deliveries
        if not deliveries_max:
            return OffsetSet()
        failed = self.cursor.failed(deliveries_max)
        failed.subtract(self._committing)
        return failed

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
            passed.subtract(self._committing)
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
        if refused:
            # Beyond `position` nothing was handed out: a wild number must not spoil the count.
            end = min(end, self.position)
            count = self.cursor.unacked_within(start, end) - covered.count_within(start, end)
            self.refused += max(0, count)
        return refused

    def _missing(self, start: int, end: int, covered: OffsetSet) -> list[Run]:
        """Return the runs that are neither acknowledged nor in `covered`."""
        if start >= end or covered.is_run(start, end):
            return []
        if covered and self.cursor.acked:
            covered = covered.copy()
            self.cursor.subtract_acked(covered)
        if self.cursor.unacked_within(start, end) == covered.count_within(start, end):
            return []
        runs: list[Run] = []
        for _ in range(GAPS_LOOKED_AT_MAX):
            gap = next(self.cursor.iter_gaps(start, end), None)
            if gap is None:
                return runs
            missing = next(covered.gaps(*gap), None)
            if missing is not None:
                if len(runs) == REFUSED_RUNS_MAX:
                    start = runs.pop()[0]
                    break
                runs.append(missing)
            start = gap[1] if missing is None else missing[1]
        return [*runs, (start, end)] if start < end else runs
