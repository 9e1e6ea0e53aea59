"""A subscription: its consumers, and the dispatch of batches to them.

One subscription may cover many topics (a pattern, the partitions of a topic). Always true:
- its consumers follow the rules of `members`;
- what a consumer was never sent goes to the others when it leaves, in order, and ahead of what is
  published after that, which queues behind it, within the limits of one consumer's queue;
- of a shared subscription that chooses the least loaded, messages wait only while no consumer has
  room. They wait in the queue of one of them, and go to the first to have room, in order.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ister.base import Pattern, SubscriptionReport
from ister.base.limits import LISTED_CONSUMERS_MAX
from ister.broker.consumers import BATCHES_AT_ONCE, Consumer, Members, SourceTopic
from ister.broker.live.topic import SHARED_AT_ONCE, Topic
from ister.broker.scheduling import Turns
from ister.codec import Batch, Column
from ister.subscriptions import (
    OWNER_WEIGHT,
    Filter,
    Policy,
    SubscriptionType,
    in_turn,
    keys_of,
    loads_of_responders,
    piece_end,
    to_least_loaded,
)

# Where the counting of turns starts over.
TURNS = 2**32

RandomSlot = Callable[[int], int]

# What is looked at for a subscription before others have their turn.
PIECE_US = 2_000
# With more consumers than this, dividing a large batch takes long, and so does asking each of them
# how it answers: 1 µs.
CROWD = 256


class Subscription:
    """A subscription on live topics: it lives as long as it has consumers."""

    __slots__ = (
        "_direct",
        "_holder",
        "_leaving",
        "_random_slot",
        "_to_ready",
        "_turn",
        "_turns",
        "consumers",
        "filter",
        "members",
        "messages_dropped",
        "name",
        "pattern",
        "policy",
        "topics",
        "type",
        "weight",
    )

    def __init__(
        self,
        *,
        pattern: Pattern,
        name: str,
        type_: SubscriptionType,
        policy: Policy,
        filter_: Filter,
        random_slot: RandomSlot,
        turns: Turns,
    ) -> None:
        self.pattern = pattern
        self.name = name
        self.type = type_
        self.policy = policy
        self.filter = filter_
        self.members = Members(type_)
        # Of the members, for the hot path.
        self.consumers = self.members.consumers
        self.topics: list[Topic] = []
        # Of consumers that have left.
        self.messages_dropped = 0
        self._direct = self._is_direct()
        self._to_ready = self._goes_to_ready()
        # Of these consumers the one in whose queue messages of all of them wait.
        self._holder: Consumer | None = None
        self._turn = 0
        self._random_slot = random_slot
        # What is looked at for each message, in globs.
        self.weight = self._weigh()
        self._turns = turns
        # Consumers that have left, and whose queues are still to be passed on.
        self._leaving: deque[Consumer] = deque()

    def change(self, *, policy: Policy, filter_: Filter) -> None:
        """Have another policy, and take other messages, from now on."""
        self.policy = policy
        self.filter = filter_
        self._direct = self._is_direct()
        self._to_ready = self._goes_to_ready()
        self._reweigh()

    def _goes_to_ready(self) -> bool:
        """Whether messages go to those that have room, and wait for all when nobody has."""
        return self.type is SubscriptionType.SHARED and self.policy is Policy.LEAST_LOADED

    def _is_direct(self) -> bool:
        """Whether one consumer gets everything: nothing to decide on the hot path."""
        return self.filter.takes_all and self.type.has_one_active

    def attach(self, consumer: Consumer, *, consumers_max: int) -> bool:
        """Add a consumer and return whether it is active now.

        The same client coming back under the same name takes the place of its former self.
        """
        former = self.members.join(
            consumer, of=(self.pattern, self.name), consumers_max=consumers_max
        )
        if former is not None:
            self.messages_dropped += former.dropped
            consumer.inherit(former)
            former.relieve = None
            if former is self._holder:
                self._holder = consumer
        if self.type is SubscriptionType.SHARED:
            consumer.relieve = self._relieve
            if len(self.consumers) == 2:
                # What one had to itself so far is everybody's now.
                self._holder = next((c for c in self.consumers if c.queued_count), None)
        self._reweigh()
        return self.members.is_active(consumer)

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; what it was not sent goes to the others. Harmless if it has left."""
        if consumer not in self.members:
            return
        promoted = self.members.leave(consumer)
        self._reweigh()
        consumer.on_left()
        consumer.relieve = None
        if consumer is self._holder:
            self._holder = None
        if promoted is not None:
            self.messages_dropped += consumer.dropped
            promoted.inherit(consumer)
            return
        self._leaving.append(consumer)
        if len(self._leaving) == 1:
            self.go_through()

    def go_through(self) -> None:
        """Pass on the queues of consumers that have left, as long as there is time."""
        while self._leaving:
            for _ in range(BATCHES_AT_ONCE):
                first = self._leaving[0].take_first()
                if first is None:
                    self.messages_dropped += self._leaving.popleft().dropped
                    break
                topic, batch = first
                lost = batch.count - (self._hand_out(topic, batch) if self.consumers else 0)
                self.messages_dropped += lost
                topic.messages_dropped += lost
            if self._leaving and not self._turns.join():
                self._turns.wait(self)
                return

    def dispatch(self, topic: Topic, batch: Batch) -> int:
        """Give a batch to the consumers; return how many of its messages found one."""
        if self._direct:
            self.consumers[0].offer(topic, batch)
            return batch.count
        if not self.filter.takes_all:
            slots = self.filter.select(batch)
            if slots is not None:
                if not slots:
                    return 0
                batch = batch.select(slots)
        return self._hand_out_in_order(topic, batch)

    def dispatch_in_steps(self, topic: Topic, batch: Batch, reached: bytearray) -> Iterator[None]:
        """As `dispatch`, with others having their turn between two steps.

        Marks in `reached` which messages of the batch found a consumer.
        """
        count, start = batch.count, 0
        # Whoever there was may have left since the last step.
        while start < count and self.consumers:
            end = self._piece_end(batch, start)
            slots: Sequence[int] = range(start, end)
            if not self.filter.takes_all:
                slots = self.filter.select_between(batch, start, end)
            if slots:
                part = batch.select(slots)
                if self._hand_out_in_order(topic, part) < len(slots):
                    owners = map(self.members.ring.owner, keys_of(part))
                    slots = [s for s, owner in zip(slots, owners, strict=True) if owner is not None]
            if isinstance(slots, range):
                reached[start:end] = b"\1" * len(slots)
            else:
                for slot in slots:
                    reached[slot] = 1
            start = end
            if start < count:
                yield

    def _piece_end(self, batch: Batch, start: int) -> int:
        end = batch.count
        if self.weight:
            end = piece_end(batch, start, weight=self.weight, work_us=PIECE_US)
        return min(end, start + SHARED_AT_ONCE) if self.is_crowded else end

    @property
    def is_crowded(self) -> bool:
        """Whether dividing a large batch among its consumers takes long."""
        return len(self.consumers) > CROWD

    def wanted(self, batch: Batch) -> set[int]:
        """Return the slots that `dispatch` would find a consumer for."""
        slots = self.filter.select(batch)
        wanted = set(range(len(batch)) if slots is None else slots)
        if self.type is SubscriptionType.KEY_SHARED:
            keys = keys_of(batch)
            wanted = {s for s in wanted if self.members.ring.owner(keys[s]) is not None}
        return wanted if self.consumers else set()

    def report(self) -> SubscriptionReport:
        """Return the figures of this subscription, and of its first consumers."""
        return SubscriptionReport(
            topic=self.pattern,
            subscription=self.name,
            type=self.type.value,
            policy=self.policy.value,
            filters=self.filter.attributes,
            key_filters=list(self.filter.key_globs),
            topics=len(self.topics),
            messages_out=self.members.delivered,
            messages_dropped=self.messages_dropped
            + sum(c.dropped for c in (*self.consumers, *self._leaving)),
            consumers=[
                c.report(active=self.members.is_active(c))
                for c in self.consumers[:LISTED_CONSUMERS_MAX]
            ],
        )

    def _weigh(self) -> int:
        by_key = self.type is SubscriptionType.KEY_SHARED
        return self.filter.weight + (OWNER_WEIGHT + self.members.ring.globs if by_key else 0)

    def _reweigh(self) -> None:
        """Consumers have come or gone, and with them globs."""
        change = self._weigh() - self.weight
        if change:
            self.weight += change
            for topic in self.topics:
                topic.weight += change

    def _hand_out_in_order(self, topic: SourceTopic, batch: Batch) -> int:
        """Give a filtered batch to the consumers, behind what others have left to them."""
        if not self._leaving:
            return self._hand_out(topic, batch)
        self._leaving[-1].enqueue(topic, batch)
        return batch.count

    def _hand_out(self, topic: SourceTopic, batch: Batch) -> int:
        consumers = self.consumers
        if self.type is SubscriptionType.KEY_SHARED:
            return self._by_key(topic, batch)
        if self.type is not SubscriptionType.SHARED or len(consumers) == 1:
            consumers[0].offer(topic, batch)
            return batch.count
        if self._to_ready:
            self._share(topic, batch)
            return batch.count
        if self.policy is Policy.ROUND_ROBIN:
            shares = in_turn(batch.count, len(consumers), first=self._turn)
            self._turn = (self._turn + batch.count) % len(consumers)
        else:
            shares = in_turn(batch.count, len(consumers), first=self._random_slot(len(consumers)))
        for slot, start, end in shares:
            consumers[slot].offer(topic, batch.slice(start, end))
        return batch.count

    def _share(self, topic: SourceTopic, batch: Batch) -> None:
        """Give a batch to those that have room; what is too much for them waits."""
        holder, count, start = self._holder, batch.count, 0
        if holder is not None and holder.queued_count:
            holder.offer(topic, batch)
            return
        ready = [consumer for consumer in self.consumers if consumer.ready]
        if ready:
            loads = [consumer.load for consumer in ready]
            if batch.columns & Column.REPLY and len(ready) <= CROWD:
                loads = loads_of_responders(loads, [c.sink.responder for c in ready])
            first = self._turn % len(ready)
            self._turn = (self._turn + count) % TURNS
            for slot, share_start, share_end in to_least_loaded(count, loads, first=first):
                start = _offer(ready[slot], topic, batch, start, share_end - share_start)
            for consumer in ready:
                # A share may be more than its consumer has room for.
                if start == count:
                    return
                start = _offer(consumer, topic, batch, start, count)
        if start < count:
            # The slowest is the one to be told when too much waits.
            holder = self._holder = max(self.consumers, key=_load)
            holder.offer(topic, batch.slice(start, count))

    def _relieve(self, consumer: Consumer) -> None:
        """Send a consumer that has room what waits for all of them."""
        holder = self._holder
        if self._to_ready and holder is not None and holder.queued_count:
            consumer.send_from(holder)

    def _by_key(self, topic: SourceTopic, batch: Batch) -> int:
        if batch.keys is None:
            owner = self.members.ring.owner(batch.producer)
            if owner is None:
                return 0
            self.members.by_name[owner].offer(topic, batch)
            return batch.count
        # One pass: there may be as many owners as messages.
        slots: dict[str, list[int]] = {}
        for slot, owner in enumerate(map(self.members.ring.owner, keys_of(batch))):
            if owner is not None:
                slots.setdefault(owner, []).append(slot)
        for owner, its_slots in slots.items():
            self.members.by_name[owner].offer(topic, batch.select(its_slots))
        return sum(map(len, slots.values()))


def _load(consumer: Consumer) -> int:
    return consumer.load


def _offer(consumer: Consumer, topic: SourceTopic, batch: Batch, start: int, count: int) -> int:
    """Send up to `count` messages of a batch, as far as there is room; return where that ends."""
    end = min(start + count, start + consumer.credit_count, batch.count)
    if start < end and consumer.ready:
        consumer.offer(topic, batch.slice(start, end))
        return end
    return start
