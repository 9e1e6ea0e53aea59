"""Hands out what a durable subscription has for its consumers.

Always true:
- every partition with something to hand out is in `_new` or `_again`, unless it waits for a read, a
  time, or room among what is parked; so nobody looks at thousands of topics that rest;
- redeliveries go before new messages;
- nothing is sent without the consumer's credit, nor beyond the limits of what may be in flight.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from ister.base import Clock
from ister.broker.consumers.consumer import Consumer
from ister.broker.durable.deadlines import Alarm
from ister.broker.durable.holders import Holders
from ister.broker.durable.in_flight import Flight
from ister.broker.durable.key_queues import Parking
from ister.broker.durable.partition import Again, Partition
from ister.broker.durable.selection import fresh, runs_between, slots_between, slots_of
from ister.broker.scheduling.turns import Turns
from ister.codec import Batch, Column
from ister.subscriptions import (
    OWNER_WEIGHT,
    NewRun,
    Policy,
    SubscriptionType,
    in_turn,
    piece_end,
    to_least_loaded,
)

if TYPE_CHECKING:
    from ister.broker.durable.subscription import DurableSubscription

# Messages whose owners are looked for in one go, and how long that may take.
KEYED_AT_ONCE = 4_096
KEYED_US = 8_000
# Redeliveries of one batch looked at in one go.
REPEATS_AT_ONCE = 1_024


class Dispatch:
    """See the module."""

    def __init__(
        self,
        subscription: "DurableSubscription",
        *,
        clock: Clock,
        turns: Turns,
        random_slot: Callable[[int], int],
        alarm: Alarm,
        flight: Flight,
    ) -> None:
        self._subscription = subscription
        self.parking: Parking | None = None
        self.on_type()
        self._clock = clock
        self._turns = turns
        self._random_slot = random_slot
        self._alarm = alarm
        self._flight = flight
        # Partitions that may have messages never handed out, and those with some that came back.
        self._new: dict[Partition, None] = {}
        self._again: dict[Partition, None] = {}
        self.holders = Holders()
        self._pumping = False
        # Whether the last attempt to hand out was stopped by what is in flight.
        self._limited = False
        self._turn = 0
        # Whether it goes on in a later turn of the loop, and when this one is over.
        self._waits = False
        self._end_ms = 0

    def on_type(self) -> None:
        """The subscription has a type, or another one."""
        subscription = self._subscription
        self._consumers = subscription.members.consumers
        # Whether the first consumer gets everything.
        self._single = subscription.type.has_one_active
        self.parking = None
        if subscription.type is SubscriptionType.KEY_SHARED:
            self.parking = Parking(subscription.members, give=self._give_room, skip=self._skip)

    # What there is to hand out

    def on_new(self, partition: Partition) -> None:
        """A topic has new messages."""
        self._new[partition] = None
        self.pump()

    def add(self, partition: Partition) -> None:
        """Look at a partition when handing out next."""
        self._new[partition] = None
        self._again[partition] = None

    def forget(self, partition: Partition) -> None:
        """A partition starts over, or is gone."""
        self._new.pop(partition, None)
        self._again.pop(partition, None)
        if self.parking is not None:
            self.parking.forget(partition)

    def on_settled(self) -> None:
        """Messages were settled: hand out what had to wait for them."""
        if self._limited or self._subscription.ordered:
            self._limited = False
            self.pump()

    # Handing out

    def pump(self) -> None:
        """Hand out what can be."""
        if self._pumping or not self._consumers:
            return
        if self._subscription.resting:
            # Maybe until something is settled that blocks all the rest.
            self._limited = True
            return
        turns, parking = self._turns, self.parking
        if not turns.join() or (parking is not None and not parking.sort(turns.is_over)):
            self._wait()
            return
        self._pumping = True
        self._end_ms = turns.end_ns // 1_000_000
        try:
            if self._again:
                self._pump_again()
            if parking is not None:
                self._unpark(parking)
            # In a later turn, when time is up before all of these are handed out: else one batch
            # would go before them, where order is all that counts.
            if self._new and not (self._single and self._again):
                self._pump_new()
        finally:
            self._pumping = False

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

    def go_through(self) -> None:
        """Go on with what an earlier turn was too short for."""
        self._waits = False
        if not self._subscription.closed:
            self.pump()

    def _unpark(self, parking: Parking) -> None:
        if self._flight.room <= 0:
            # Or what is parked here and there would be read over and over, for nothing.
            self._limited = True
            return
        for partition in parking.unpark(self._clock.now_ms(), self._is_over):
            self.add(partition)
        if self._again:
            self._pump_again()

    def _pump_again(self) -> None:
        again = self._again
        while again and self._anybody_ready():
            if self._flight.full:
                self._limited = True
                return
            partition = next(iter(again))
            if not self._repeat(partition):
                again.pop(partition, None)
            elif self._is_over():
                return

    def _pump_new(self) -> None:
        new = self._new
        while self._anybody_ready():
            room = self._flight.room
            if room <= 0:
                self._limited = True
                break
            partition = next(iter(new))
            if not self._hand_out_new(partition, room):
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

    def _anybody_ready(self) -> bool:
        if self._single:
            return self._consumers[0].ready
        return any(consumer.ready for consumer in self._consumers)

    def _hand_out_new(self, partition: Partition, room: int) -> bool:
        """Hand out messages for the first time, of one batch; return whether to go on."""
        deliveries, record = partition.deliveries, partition.topic.record
        if partition.held_back and not deliveries.any_exhausted:
            # The last of them is among the dead letters by now, or retention has removed it.
            partition.held_back = False
        if partition.held_up or partition.held_back:
            return False
        runs = deliveries.next_new(record.next_offset, runs_max=1)
        if not runs:
            return False
        start, end, attempt = runs[0]
        batch = partition.new_batch(start)
        if batch is None:
            if partition.is_gone():
                # Compaction has left nothing up to the end.
                self._skip(partition, start, record.next_offset)
            return False
        if self._single and self._is_whole(batch, runs[0], record.settings.ttl_ms, room):
            # What most batches are: one consumer takes all of it, as it is.
            self._lease(self._consumers[0], partition, batch, attempt)
            return deliveries.position < record.next_offset
        batch_end = batch.offsets[-1] + 1
        slots: Sequence[int]
        if end >= batch_end:
            end = batch_end
            slots = slots_between(batch, start, end)
        else:
            # Some of the batch is acknowledged: go over the holes, not from hole to hole.
            more = deliveries.next_new(batch_end)
            runs = list(takewhile(lambda run: run.attempt == attempt, more))
            slots = [s for run in runs for s in slots_between(batch, run.start, run.end)]
            end = runs[-1].end
        wanted, looked = partition.sieve.choose(
            batch,
            slots,
            ttl_ms=record.settings.ttl_ms,
            now_ms=self._clock.now_ms(),
            elapsed_ms=self._clock.monotonic_ms,
            end_ms=self._end_ms,
        )
        if looked < len(slots):
            # The rest in another turn.
            end = batch.offsets[slots[looked - 1]] + 1
        chosen = wanted[: min(room, self._credit())]
        if len(wanted) != end - start:
            cut = end if len(chosen) == len(wanted) else batch.offsets[chosen[-1]] + 1
            self._pass_over(partition, runs, cut, [batch.offsets[s] for s in chosen])
        if chosen and not self._hand_out(partition, batch, chosen, attempt):
            return False
        position = deliveries.position
        if position >= batch_end:
            # What was cut out of it or looked up in it is of no use any more.
            batch.forget_columns()
        return position < record.next_offset

    def _is_whole(self, batch: Batch, run: NewRun, ttl_ms: int, room: int) -> bool:
        """Whether a batch can go to the one consumer without a look at its messages."""
        count = batch.count
        return (
            not batch.columns & _LOOKED_AT
            and batch.base_offset == run.start
            and run.end - run.start >= count <= room
            and count <= self._consumers[0].credit_count
            and not ttl_ms
            and self._subscription.filter.takes_all
        )

    def _pass_over(
        self, partition: Partition, runs: Sequence[NewRun], cut: int, offsets: Sequence[int]
    ) -> None:
        """Count as done what is in `runs` below `cut` but not among `offsets` (rising)."""
        for start, run_end, _ in runs:
            end = min(run_end, cut)
            if start >= end:
                break
            within = offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]
            for passed in runs_between(start, end, within):
                partition.deliveries.skip(*passed)
        self._subscription.ack_journal.mark_dirty(partition)
        self._flight.touch(partition)

    def _repeat(self, partition: Partition) -> bool:
        """Hand out messages of one batch that came back; return whether to go on."""
        deliveries = partition.deliveries
        now_ms = self._clock.monotonic_ms()
        first = deliveries.due(now_ms, 1)
        if not first:
            partition.end_reading(Again.REDELIVERY)
            partition.held_up = False
            return False
        offset = first[0].offsets[0]
        batch = partition.old_batch(offset, Again.REDELIVERY)
        if batch is None and partition.is_gone(Again.REDELIVERY):
            self._skip(partition, offset, offset + 1)
            return True
        # While it is read nothing that lies behind it may go, when order is all that counts.
        partition.held_up = batch is None and self._single
        if batch is None:
            return False
        end = batch.offsets[-1] + 1
        offsets, attempt = deliveries.due(now_ms, REPEATS_AT_ONCE, end=end)[0]
        slots = fresh(
            batch,
            slots_of(batch, offsets),
            ttl_ms=partition.topic.record.settings.ttl_ms,
            now_ms=self._clock.now_ms(),
        )
        if len(slots) < len(offsets):
            # Gone in the meantime, by retention, compaction or age.
            left = [batch.offsets[s] for s in slots]
            for offset in sorted(set(offsets).difference(left)):
                self._skip(partition, offset, offset + 1)
            if not slots:
                return True
        moved = self._hand_out(partition, batch, slots, attempt)
        batch.forget_columns()
        return moved

    def _skip(self, partition: Partition, start: int, end: int) -> None:
        """Count messages as done that were handed out before, or were to be."""
        partition.deliveries.skip(start, end)
        self._subscription.ack_journal.mark_dirty(partition)
        self._flight.touch(partition)
        if self.parking is not None:
            self.parking.on_done(partition, start, end)

    # To whom

    def _credit(self) -> int:
        """Return how many messages can be dealt with now."""
        if self._single:
            return self._consumers[0].credit_count
        if self.parking is not None:
            return KEYED_AT_ONCE
        return sum(consumer.credit_count for consumer in self._consumers if consumer.ready)

    def _hand_out(
        self, partition: Partition, batch: Batch, slots: Sequence[int], attempt: int
    ) -> bool:
        """Give the messages at `slots` to consumers, as far as there is room."""
        if self._single:
            return self._give(self._consumers[0], partition, batch, slots, attempt) > 0
        if self.parking is not None:
            # What is parked counts as well.
            self._flight.touch(partition)
            weight = OWNER_WEIGHT + self._subscription.members.ring.globs
            end = piece_end(batch, slots[0], weight=weight, work_us=KEYED_US)
            slots = slots[: bisect_left(slots, end)]
            return self.parking.hand_out(partition, batch, slots, attempt)
        ready = [consumer for consumer in self._consumers if consumer.ready]
        count = min(len(slots), sum(consumer.credit_count for consumer in ready))
        given = 0
        for consumer, share in self._shares(count, ready):
            given += self._give(consumer, partition, batch, slots[given : given + share], attempt)
        return given > 0

    def _shares(self, count: int, ready: list[Consumer]) -> list[tuple[Consumer, int]]:
        if len(ready) == 1:
            return [(ready[0], count)]
        policy = self._subscription.policy
        if policy is Policy.LEAST_LOADED:
            loads = [consumer.load for consumer in ready]
            shares = to_least_loaded(count, loads, first=self._turn % len(ready))
            self._turn += count
        elif policy is Policy.ROUND_ROBIN:
            shares = in_turn(count, len(ready), first=self._turn % len(ready))
            self._turn += count
        else:
            shares = in_turn(count, len(ready), first=self._random_slot(len(ready)))
        return [(ready[slot], end - start) for slot, start, end in shares]

    def _give_room(
        self,
        consumer: Consumer,
        partition: Partition,
        batch: Batch,
        slots: Sequence[int],
        attempt: int,
    ) -> int:
        """As `_give`, as far as there is room in flight: what is parked does not count there."""
        room = self._flight.room
        if room < len(slots):
            self._limited = True
            if room <= 0:
                return 0
            slots = slots[:room]
        return self._give(consumer, partition, batch, slots, attempt)

    def _give(
        self,
        consumer: Consumer,
        partition: Partition,
        batch: Batch,
        slots: Sequence[int],
        attempt: int,
    ) -> int:
        """Lease and send messages to one consumer, as many as it has credit for."""
        count = min(len(slots), consumer.credit_count)
        if count <= 0 or not consumer.ready:
            return 0
        if count == batch.count:
            part = batch
        elif isinstance(slots, range):
            part = batch.slice(slots.start, slots.start + count)
        else:
            part = batch.select(slots[:count])
        self._lease(consumer, partition, part, attempt)
        return count

    def _lease(self, consumer: Consumer, partition: Partition, part: Batch, attempt: int) -> None:
        lease = partition.deliveries.lease(
            part.offsets,
            consumer=consumer.identity,
            now_ms=self._clock.monotonic_ms(),
            size_bytes=part.size_bytes,
            attempt=attempt,
        )
        if attempt > 1:
            self._subscription.record.redelivered += part.count
        self.holders.add(consumer.identity, partition)
        self._flight.touch(partition)
        if lease.deadline_ms < partition.watched_ms:
            self._alarm.watch(partition, lease.deadline_ms)
        timeout_ms = self._subscription.acks.ack_timeout_ms
        consumer.send_leased(partition.topic, part, lease.number, attempt, timeout_ms)


# Columns that tell which messages are handed out, or that there are holes between their offsets.
_LOOKED_AT = Column.ATTRIBUTES | Column.OFFSET
