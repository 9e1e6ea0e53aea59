"""Carries out what planning decides: leases messages, sends them, and skips what nobody wants.

Always true:
- every partition with something to hand out is in `_new` or `_again`, unless it waits for a read, a
  time, or room among what is queued; so nobody looks at thousands of topics that rest;
- redeliveries go before new messages;
- nothing is sent without the consumer's credit, nor beyond the limits of what may be in flight.
"""

from collections.abc import Callable, Iterable

from ister.base import Clock
from ister.broker.consumers import Consumer, Members
from ister.broker.durable.deadlines import Deadlines
from ister.broker.durable.holders import Holders
from ister.broker.durable.in_flight import InFlight
from ister.broker.durable.partition import Partition
from ister.broker.durable.rules import Rules
from ister.broker.scheduling import Turns
from ister.broker.state import SubscriptionRecord
from ister.subscriptions import SubscriptionType
from ister.subscriptions.planning import (
    Deliver,
    Effect,
    Exclusive,
    Hold,
    KeyShared,
    Shared,
    Strategy,
    Times,
    cut,
    plan_again,
    plan_new,
)


class Dispatch:
    """Hands out what a durable subscription has for its consumers.

    `on_skipped` is told of partitions whose messages count as done. `resume` is called in a later
    turn of the loop when one was too short.
    """

    def __init__(
        self,
        record: SubscriptionRecord,
        *,
        clock: Clock,
        turns: Turns,
        random_slot: Callable[[int], int],
        deadlines: Deadlines,
        on_skipped: Callable[[Partition], object],
        resume: Callable[[], object],
    ) -> None:
        self.holders = Holders()
        # Partitions whose deliveries have changed since they were looked at.
        self.changed: dict[Partition, None] = {}
        self._record = record
        self._clock = clock
        self._turns = turns
        self._random_slot = random_slot
        self._deadlines = deadlines
        self._on_skipped = on_skipped
        self._resume = resume
        self._in_flight = InFlight()
        # Partitions that may have messages never handed out, and those with some that came back.
        self._new: dict[Partition, None] = {}
        self._again: dict[Partition, None] = {}
        self._ack_timeout_ms = 0
        self._running = False
        # Whether it goes on in a later turn of the loop.
        self._waits = False

    def use(self, members: Members, rules: Rules) -> None:
        """Hand out to the consumers of `members`, as `rules` say."""
        self._strategy: Strategy
        self._queues: KeyShared | None = None
        if rules.type is SubscriptionType.KEY_SHARED:
            self._strategy = self._queues = KeyShared(members, lambda: self._in_flight.room)
        elif rules.type is SubscriptionType.SHARED:
            self._strategy = Shared(members.consumers, rules.policy, self._random_slot)
        else:
            self._strategy = Exclusive(members.consumers)
        self.change(rules)

    def change(self, rules: Rules) -> None:
        """Have other rules from now on, of the same type."""
        self._ack_timeout_ms = rules.acks.ack_timeout_ms
        self._in_flight.set_limits(rules.acks)
        if isinstance(self._strategy, Shared):
            self._strategy.policy = rules.policy

    # What there is to hand out

    def on_new(self, partition: Partition) -> None:
        """A topic has new messages."""
        self._new[partition] = None

    def add(self, partition: Partition) -> None:
        """Look at a partition when handing out next."""
        self._new[partition] = None
        self._again[partition] = None

    def on_changed(self, partition: Partition, now_ms: int) -> None:
        """Count what a partition has in flight, and hand out what it has for consumers."""
        deliveries = partition.deliveries
        self._in_flight.count(deliveries)
        if deliveries.position < partition.end_offset:
            self._new[partition] = None
        if deliveries.has_due(now_ms):
            self._again[partition] = None

    def take_changed(self) -> Iterable[Partition]:
        """Return the partitions that have changed since the last call."""
        changed, self.changed = self.changed, {}
        return changed

    def on_done(self, partition: Partition, start: int, end: int) -> None:
        """Messages are done that were handed out: the next ones of their keys may go."""
        if self._queues is not None:
            self._queues.on_done(partition, start, end)

    def on_trimmed(self, partition: Partition, first_offset: int) -> None:
        """Everything below an offset is gone."""
        if self._queues is not None:
            self._queues.trim(partition, first_offset)

    def on_members(self) -> None:
        """Consumers have come or gone."""
        if self._queues is not None:
            self._queues.reroute()

    def forget(self, partition: Partition) -> None:
        """A partition starts over, or is gone."""
        self._in_flight.count(partition.deliveries)
        self.changed.pop(partition, None)
        self._new.pop(partition, None)
        self._again.pop(partition, None)
        if self._queues is not None:
            self._queues.forget(partition)

    # Handing out

    def run(self) -> None:
        """Hand out what can be, as long as there is time."""
        if self._running:
            return
        turns, queues = self._turns, self._queues
        if not turns.join() or (queues is not None and not queues.sort(turns.is_over)):
            self._wait()
            return
        times = Times(self._clock.now_ms(), self._clock.monotonic_ms, turns.end_ns // 1_000_000)
        self._running = True
        try:
            self._run_again(times)
            if queues is not None:
                self._run_queues(queues, times)
            # In a later turn, when time is up before all of these are handed out: else one batch
            # would go before them, where order is all that counts.
            if self._new and not (self._strategy.in_order and self._again):
                self._run_new(times)
        finally:
            self._running = False

    def go_through(self) -> None:
        """Go on with what an earlier turn was too short for."""
        self._waits = False
        self._resume()

    def _wait(self) -> None:
        """Go on in another turn of the loop: others are to have theirs."""
        if not self._waits:
            self._waits = True
            self._turns.wait(self)

    def _is_over(self) -> bool:
        """Whether the rest is for another turn of the loop."""
        if not self._turns.is_over():
            return False
        self._wait()
        return True

    def _run_queues(self, queues: KeyShared, times: Times) -> None:
        if self._in_flight.room <= 0:
            # Or what is queued here and there would be read over and over, for nothing.
            return
        for partition in queues.ready_partitions():
            assert isinstance(partition, Partition), "what was queued is of these"
            if self._carry_out(
                partition, queues.plan_queued(partition, times.now_ms, self._is_over)
            ):
                self.add(partition)
        self._run_again(times)

    def _run_again(self, times: Times) -> None:
        again, strategy = self._again, self._strategy
        while again and strategy.is_ready and not self._in_flight.is_full:
            partition = next(iter(again))
            if not self._carry_out(partition, plan_again(partition, strategy, times=times)):
                again.pop(partition, None)
            elif self._is_over():
                return

    def _run_new(self, times: Times) -> None:
        new, strategy = self._new, self._strategy
        while strategy.is_ready and (room := self._in_flight.room) > 0:
            partition = next(iter(new))
            planned = plan_new(partition, strategy, room=room, times=times)
            if (
                not self._carry_out(partition, planned)
                or partition.deliveries.position >= partition.end_offset
            ):
                new.pop(partition, None)
                if not new:
                    return
            elif self._is_over():
                break
        if len(new) > 1:
            # Another one first when there is room again: a busy topic must not starve the others.
            partition = next(iter(new))
            del new[partition]
            new[partition] = None

    # Carrying out

    def _carry_out(self, partition: Partition, effects: Iterable[Effect]) -> bool:
        """Do what was planned for a partition; return whether that was anything."""
        deliveries, any_done = partition.deliveries, False
        for effect in effects:
            any_done = True
            if isinstance(effect, Deliver):
                self._deliver(partition, effect)
            elif isinstance(effect, Hold):
                deliveries.hold(effect.offsets)
            else:
                start, end = effect
                known = start < deliveries.position
                deliveries.skip(start, end)
                self._on_skipped(partition)
                if known:
                    self.on_done(partition, start, end)
            self._in_flight.count(deliveries)
        return any_done

    def _deliver(self, partition: Partition, effect: Deliver) -> None:
        consumer, part = effect.consumer, cut(effect)
        assert isinstance(consumer, Consumer), "members are consumers"
        lease = partition.deliveries.lease(
            part.offsets,
            consumer=consumer.identity,
            now_ms=self._clock.monotonic_ms(),
            size_bytes=part.size_bytes,
            attempt=effect.attempt,
        )
        if effect.attempt > 1:
            self._record.redelivered += part.count
        self.holders.add(consumer.identity, partition)
        self._deadlines.schedule(partition, lease.deadline_ms)
        consumer.send_leased(
            partition.topic, part, lease.number, effect.attempt, self._ack_timeout_ms
        )
