"""Deliveries against a reference that keeps one entry for each message and knows no runs."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.unit.subscriptions.reference import LOST_LEASES_MAX, Out, Reference, Undecided

from ister.base import AckSettings
from ister.subscriptions import Cursor, Deliveries, OffsetSet

MESSAGE_BYTES = 10
CONSUMERS = st.sampled_from(["ann", "ben"])
# Short runs of near offsets: they meet often.
OFFSETS = st.integers(0, 60)
LENGTHS = st.integers(0, 12)
SLOTS = st.integers(0, 9)
STEPS = st.integers(-3, 3)


class DeliveriesMachine(RuleBasedStateMachine):
    """The same things happen to both; afterwards both say the same."""

    @initialize(
        max_deliveries=st.sampled_from([0, 1, 2]),
        backoff_ms=st.sampled_from([(), (0,), (500, 2_000)]),
    )
    def begin(self, max_deliveries: int, backoff_ms: tuple[int, ...]) -> None:
        self.settings = AckSettings(
            ack_timeout_ms=3_000, max_deliveries=max_deliveries, backoff_ms=backoff_ms
        )
        self.now_ms = 1_000
        self.numbers = count(1)
        self.last_number = 0
        # All leases that each message was ever in.
        self.holders: dict[int, set[int]] = {}
        self.reference = Reference(self.settings, next_offset=30)
        self.deliveries = self.deliveries_of(Cursor())
        # What a journal would have brought back: fed with the changes only.
        self.journaled = Cursor()
        self.lease_first()

    def deliveries_of(self, cursor: Cursor) -> Deliveries:
        return Deliveries(cursor, self.settings, self.numbers, lost_leases_max=LOST_LEASES_MAX)

    def lease_first(self) -> None:
        """Put something under way, for the many steps that do nothing without."""
        for consumer in ("ann", "ben", "ann"):
            self.publish_and_lease(consumer, 6)

    # Handing out.

    @rule(consumer=CONSUMERS, length=LENGTHS)
    def publish_and_lease(self, consumer: str, length: int) -> None:
        self.reference.next_offset += length
        for start, end, attempt in self.deliveries.next_new(self.reference.next_offset)[:2]:
            run = range(start, min(end, start + max(1, length)))
            self.lease(run, consumer, attempt)

    @precondition(lambda self: self.reference.new())
    @rule(consumer=CONSUMERS, chosen=st.sets(SLOTS, min_size=1))
    def lease_some_new(self, consumer: str, chosen: set[int]) -> None:
        new = self.reference.new()
        self.lease_by_attempt([new[s] for s in sorted(chosen) if s < len(new)], consumer)

    @rule(consumer=CONSUMERS, count_max=st.integers(1, 20), only_first=st.booleans())
    def lease_due(self, consumer: str, count_max: int, only_first: bool) -> None:
        for offsets, attempt in self.deliveries.due(self.now_ms, count_max):
            self.lease(offsets[:1] if only_first else offsets, consumer, attempt)

    def lease_by_attempt(self, offsets: list[int], consumer: str) -> None:
        groups: dict[int, list[int]] = {}
        for offset in offsets:
            groups.setdefault(self.reference.failures.get(offset, 0) + 1, []).append(offset)
        for attempt, group in groups.items():
            self.lease(group, consumer, attempt)

    def lease(self, offsets: range | list[int], consumer: str, attempt: int) -> None:
        lease = self.deliveries.lease(
            offsets,
            consumer=consumer,
            now_ms=self.now_ms,
            size_bytes=MESSAGE_BYTES * len(offsets),
            attempt=attempt,
        )
        self.last_number = lease.number
        if self.reference.first is None:
            self.reference.first = lease.number
        self.reference.claim(list(offsets))
        for offset in offsets:
            self.holders.setdefault(offset, set()).add(lease.number)
        for offset in offsets:
            assert self.reference.failures.get(offset, 0) + 1 == attempt
            self.reference.leased[offset] = Out(
                lease.number, consumer, attempt, self.now_ms + self.settings.ack_timeout_ms
            )

    @rule(chosen=st.sets(SLOTS, min_size=1), what=st.sampled_from(["new", "due", "lease"]))
    def set_aside(self, chosen: set[int], what: str) -> None:
        reference = self.reference
        if what in ("new", "due"):
            free = reference.new() if what == "new" else reference.ready(self.now_ms)
            offsets = [free[slot] for slot in sorted(chosen) if slot < len(free)]
            assert self.deliveries.has_due(self.now_ms) == bool(reference.ready(self.now_ms))
            self.deliveries.hold(offsets)
            if offsets:
                reference.claim(offsets)
                reference.held |= set(offsets)
            return
        held = sorted(reference.held)
        offsets = [held[slot] for slot in sorted(chosen) if slot < len(held)]
        self.lease_by_attempt(offsets, "ann")

    def skip(self, step: int, length: int) -> None:
        start = max(0, self.reference.position + step)
        end = min(start + length, self.reference.next_offset)
        taken = self.reference.leased.keys() | self.reference.committing
        if start >= end or any(offset in taken for offset in range(start, end)):
            return
        self.deliveries.skip(start, end)
        self.reference.ack(set(range(max(start, self.reference.floor), end)))
        if start <= self.reference.position:
            self.reference.position = max(self.reference.position, end)

    # Coming back.

    def number(self, back: int) -> int:
        """A lease that is alive, as long as there are enough, or one that is over or to come."""
        alive = sorted({out.number for out in self.reference.leased.values()})
        return alive[back] if back < len(alive) else self.last_number + 1 - back

    def run(self, number: int, start: int, length: int) -> tuple[int, int]:
        """A run that mostly lies in its lease, or reaches a little beyond."""
        first = min(self.its_offsets(number), default=start)
        start = max(0, first - 1 + start % 8)
        return start, start + length

    @rule(back=SLOTS, start=OFFSETS, length=LENGTHS)
    def ack(self, back: int, start: int, length: int) -> None:
        number = self.number(back)
        start, end = self.run(number, start, length)
        expected = self.reference.refusals(number, start, end)
        with_stale = expected | self.reference.stale(number, start, end)
        assert spread(self.deliveries.ack(number, start, end)) == with_stale
        self.confirm(number, set(range(start, end)) - with_stale)
        self.reference.ack({o for o in self.its_offsets(number) if start <= o < end})
        self.count_refused(expected)

    def confirm(self, number: int, offsets: set[int]) -> None:
        """Of all that ever held a message, one lease is told that it was acknowledged under it."""
        for offset in offsets:
            holders = self.reference.confirmed.setdefault(offset, set())
            if number in self.holders.get(offset, ()):
                holders.add(number)
            assert len(holders) <= 1

    @rule(back=SLOTS, data=st.data())
    def ack_all_but_some(self, back: int, data: st.DataObject) -> None:
        number = self.number(back)
        for offset in self.its_offsets(number):
            if data.draw(st.booleans()):
                assert self.deliveries.ack(number, offset, offset + 1) == []
                self.reference.ack({offset})

    @rule(back=SLOTS, start=OFFSETS, length=LENGTHS, delay_ms=st.sampled_from([None, 0, 1_500]))
    def nack(self, back: int, start: int, length: int, delay_ms: int | None) -> None:
        number = self.number(back)
        start, end = self.run(number, start, length)
        expected = self.reference.refusals(number, start, end)
        refused = self.deliveries.nack(number, start, end, now_ms=self.now_ms, delay_ms=delay_ms)
        assert spread(refused) == expected
        for offset in self.its_offsets(number):
            if start <= offset < end:
                self.reference.fail(offset, self.now_ms, delay_ms)
        self.count_refused(expected)

    @rule(back=SLOTS, start=OFFSETS, length=LENGTHS, extension_ms=st.integers(0, 6_000))
    def extend(self, back: int, start: int, length: int, extension_ms: int) -> None:
        number = self.number(back)
        start, end = self.run(number, start, length)
        # A message in a commit needs no renewal.
        expected = self.reference.refusals(number, start, end) - self.reference.committing
        refused = self.deliveries.extend(
            number, start, end, now_ms=self.now_ms, extension_ms=extension_ms
        )
        assert spread(refused) == expected
        for offset in self.its_offsets(number):
            if start <= offset < end:
                self.reference.leased[offset].deadline_ms = self.now_ms + extension_ms
        self.count_refused(expected)

    @rule(back=SLOTS, less=st.integers(-1, 3))
    def ack_through(self, back: int, less: int) -> None:
        number = self.number(back)
        its_offsets = self.its_offsets(number)
        end = max(0, max(its_offsets, default=20) + 1 - less)
        if its_offsets and less < 0:
            return  # How far a lease reached when it began is not in the reference.
        below = end <= self.reference.floor and not self.reference.stale(
            number, max(0, end - 1), end
        )
        good = self.deliveries.ack_through(number, end)
        assert good == (bool(its_offsets) or below)
        if good:
            through = set(range(self.reference.floor, end)) - self.reference.committing
            self.reference.ack(through)
            self.reference.position = max(self.reference.position, end)
        else:
            self.reference.refused += 1

    def its_offsets(self, number: int) -> list[int]:
        leased = self.reference.leased
        return sorted(offset for offset, out in leased.items() if out.number == number)

    def count_refused(self, offsets: set[int]) -> None:
        self.reference.refused += sum(offset < self.reference.position for offset in offsets)

    # Transactions.

    @rule(back=SLOTS, start=OFFSETS, length=LENGTHS)
    def begin_commit(self, back: int, start: int, length: int) -> None:
        number = self.number(back)
        start, end = self.run(number, start, length)
        leased = self.reference.leased
        its_offsets = {o for o in self.its_offsets(number) if start <= o < end}
        whole = len(its_offsets) == end - start > 0
        assert self.deliveries.is_leased(number, start, end) == whole
        if whole:
            commit = self.deliveries.begin_commit(number, start, end)
            outs = {offset: leased.pop(offset) for offset in its_offsets}
            self.reference.commits.append(Undecided(commit, its_offsets, outs))

    @precondition(lambda self: self.reference.commits)
    @rule(slot=SLOTS, how=st.sampled_from(["done", "back", "gone"]))
    def end_commit(self, slot: int, how: str) -> None:
        commits = self.reference.commits
        undecided = commits.pop(slot % len(commits))
        if how == "done":
            self.deliveries.end_commit(undecided.commit)
            self.reference.ack(undecided.offsets)
            return
        deadline_ms = self.now_ms + 700 if how == "back" else None
        self.deliveries.undo_commit(undecided.commit, deadline_ms=deadline_ms)
        if deadline_ms is None or undecided.void:
            number = undecided.commit.number
            self.reference.lose(number, undecided.offsets)
            due = {o for o in undecided.offsets if o < self.reference.position}
            self.reference.waiting |= dict.fromkeys(due, 0)
            return
        for offset in undecided.offsets:
            self.reference.leased[offset] = undecided.outs[offset]
            # The later of two deadlines, for what is left of the lease as well.
            undecided.outs[offset].deadline_ms = deadline_ms
        self.learn_deadlines(undecided.commit.number)

    def learn_deadlines(self, number: int) -> None:
        """Take over the deadlines of a lease, which may be later than what was asked for."""
        lease = self.deliveries._leases.find(number)
        if lease is None:
            return
        for part in lease.all_parts():
            for offset in part.offsets.offsets():
                out = self.reference.leased[offset]
                assert part.deadline_ms >= out.deadline_ms
                out.deadline_ms = part.deadline_ms

    # Time and consumers.

    @rule(step_ms=st.sampled_from([1, 499, 500, 1_000, 2_999, 3_000, 10_000]))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        late = {
            offset: out
            for offset, out in self.reference.leased.items()
            if out.deadline_ms <= self.now_ms
        }
        expired = self.deliveries.expire(self.now_ms)
        assert {
            (offset, run.consumer, run.attempt)
            for run in expired
            for offset in range(run.start, run.end)
        } == {(offset, out.consumer, out.attempt) for offset, out in late.items()}
        for offset in late:
            self.reference.fail(offset, self.now_ms, None)
        next_ms = self.deliveries.next_due_ms()
        assert next_ms is None or next_ms > self.now_ms

    @rule(consumer=CONSUMERS, grace_ms=st.integers(0, 4_000), comes_back=st.booleans())
    def lose(self, consumer: str, grace_ms: int, comes_back: bool) -> None:
        self.deliveries.lost(consumer, now_ms=self.now_ms, grace_ms=grace_ms)
        for offset in self.offsets_of(consumer):
            out = self.reference.leased[offset]
            out.deadline_ms = min(out.deadline_ms, self.now_ms + grace_ms)
        if not comes_back:
            return
        self.deliveries.regained(consumer, now_ms=self.now_ms)
        for offset in self.offsets_of(consumer):
            out = self.reference.leased[offset]
            out.deadline_ms = max(out.deadline_ms, self.now_ms + self.settings.ack_timeout_ms)

    def offsets_of(self, consumer: str) -> list[int]:
        return [o for o, out in self.reference.leased.items() if out.consumer == consumer]

    # The end of the line, and starting over.

    @rule(max_deliveries=st.sampled_from([0, 1, 2, 3]))
    def change(self, max_deliveries: int) -> None:
        self.settings = replace(self.settings, max_deliveries=max_deliveries)
        self.deliveries.change(self.settings, besides=OffsetSet())
        self.reference.change(self.settings)

    @rule(count_max=st.integers(1, 5))
    def dead_letters(self, count_max: int) -> None:
        for offset, failures in self.deliveries.exhausted(count_max):
            assert failures == self.reference.failures[offset]
            self.deliveries.skip(offset, offset + 1)
            self.reference.ack({offset})
            if offset <= self.reference.position:
                self.reference.position = max(self.reference.position, offset + 1)

    @rule(
        what=st.sampled_from(["release", "trim", "skip", "seek", "clear", "restart", "replay"]),
        consumer=CONSUMERS,
        step=STEPS,
        length=st.integers(0, 3),
    )
    def start_over(self, what: str, consumer: str, step: int, length: int) -> None:
        """One rule for what is rare and ends much: else little would ever be under way."""
        match what:
            case "release":
                self.release(consumer)
            case "trim":
                self.trim(self.reference.floor + step)
            case "skip":
                self.skip(step, length)
            case "seek":
                self.seek((self.reference.position if length else self.reference.floor) + step)
            case "clear":
                self.deliveries.clear()
                self.reference.start_over()
            case _:
                self.restart(from_journal=what == "replay")
        self.lease_first()

    def release(self, consumer: str) -> None:
        its_offsets = self.offsets_of(consumer)
        assert self.deliveries.release(consumer) == len(its_offsets)
        for offset in its_offsets:
            self.reference.lose(self.reference.leased.pop(offset).number, {offset})
            self.reference.waiting[offset] = 0

    def trim(self, first_offset: int) -> None:
        first_offset = max(0, min(first_offset, self.reference.next_offset))
        self.deliveries.trim(first_offset)
        self.journaled.trim(first_offset)
        for undecided in self.reference.commits:
            undecided.offsets = {o for o in undecided.offsets if o >= first_offset}
        if first_offset > self.reference.floor:
            self.reference.ack(set(range(self.reference.floor, first_offset)))
            self.reference.position = max(self.reference.position, first_offset)

    def seek(self, offset: int) -> None:
        offset = max(0, min(offset, self.reference.next_offset))
        self.deliveries.use(Cursor(offset))
        self.journaled.seek(offset)
        self.reference.floor = offset
        self.reference.acked.clear()
        self.reference.failures.clear()
        self.reference.commits.clear()
        self.reference.confirmed.clear()
        self.reference.start_over()

    def restart(self, *, from_journal: bool) -> None:
        self.journal()
        cursor = self.journaled if from_journal else self.deliveries.cursor
        self.deliveries = self.deliveries_of(Cursor.decode(cursor.encode()))
        self.reference.commits.clear()
        self.reference.start_over()
        self.reference.refused = 0

    @rule()
    def journal(self) -> None:
        for start, end in self.deliveries.cursor.take_changes():
            self.journaled.ack(start, end)
        for start, end, failures in self.deliveries.cursor.take_failures():
            self.journaled.fail_run(start, end, failures)
        assert state_of(self.journaled) == state_of(self.deliveries.cursor)

    # Both say the same.

    @invariant()
    def messages_are_where_the_reference_says(self) -> None:
        deliveries, reference = self.deliveries, self.reference
        cursor = deliveries.cursor
        assert cursor.floor == reference.floor
        assert set(cursor.acked.offsets()) == reference.acked
        assert max(deliveries.position, cursor.floor) == max(reference.position, reference.floor)
        assert {o: cursor.failures_of(o) for o in reference.failures} == reference.failures
        assert set(cursor.failed(1).offsets()) == reference.failures.keys()
        assert {o for o, _ in deliveries.exhausted(10**6)} == reference.exhausted
        new = [o for run in deliveries.next_new(reference.next_offset) for o in range(*run[:2])]
        assert new == reference.new()
        due = deliveries.due(self.now_ms, 10**6)
        assert sorted(o for group in due for o in group.offsets) == reference.ready(self.now_ms)

    @invariant()
    def attempts_are_failures_and_one(self) -> None:
        failures = self.reference.failures
        for run in self.deliveries.next_new(self.reference.next_offset):
            assert {failures.get(o, 0) + 1 for o in range(run.start, run.end)} == {run.attempt}
        for group in self.deliveries.due(self.now_ms, 7):
            assert {failures.get(o, 0) + 1 for o in group.offsets} == {group.attempt}

    @invariant()
    def figures_are_those_of_the_reference(self) -> None:
        deliveries, reference = self.deliveries, self.reference
        assert deliveries.in_flight == len(reference.leased) + len(reference.committing)
        # What retention has removed counts until its commit is decided.
        committing_bytes = MESSAGE_BYTES * sum(len(u.outs) for u in reference.commits)
        leased_bytes = MESSAGE_BYTES * len(reference.leased)
        assert deliveries.in_flight_bytes == leased_bytes + committing_bytes
        assert deliveries.refused == reference.refused
        unsettled = [o for o in range(reference.position) if not reference.is_acked(o)]
        assert deliveries.unsettled == len(unsettled)

    @invariant()
    def a_message_is_in_one_lease_or_in_one_commit(self) -> None:
        leases = self.deliveries._leases._by_number.values()
        sets = [set(part.offsets.offsets()) for lease in leases for part in lease.all_parts()]
        sets.append(set(self.deliveries._committing.offsets()))
        assert sum(map(len, sets)) == len(set().union(*sets))
        assert sets[-1] == self.reference.committing
        assert set().union(*sets[:-1]) == self.reference.leased.keys()

    @invariant()
    def nothing_is_due_before_it_is_said_to_be(self) -> None:
        deadlines = [out.deadline_ms for out in self.reference.leased.values()]
        delays = [due_ms for due_ms in self.reference.waiting.values() if due_ms > self.now_ms]
        next_ms = self.deliveries.next_due_ms()
        if deadlines or delays:
            # Earlier is allowed: a delayed message may have been acknowledged.
            assert next_ms is not None
            assert next_ms <= min(deadlines + delays)


def state_of(cursor: Cursor) -> tuple[int, list[tuple[int, int]], dict[int, int]]:
    failures = {offset: cursor.failures_of(offset) for offset in cursor.failed(1).offsets()}
    return cursor.floor, cursor.acked.runs(), failures


def spread(runs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in runs for offset in range(start, end)}


DeliveriesMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# Ten seconds alone; a machine that is busy with other tests has taken more than the usual limit.
TestDeliveriesAgreeWithTheReference = pytest.mark.timeout(300)(DeliveriesMachine.TestCase)
