"""A durable subscription: hands out what its cursors have not acknowledged yet.

It covers one stream, the partitions of one, or every stream a pattern matches: a `Partition` for
each. Always true:
- a message is in one lease or in one commit at most at any time; its acknowledgement counts only
  under that lease, or when that commit is in the journal;
- nothing is sent without the consumer's credit, nor beyond the limits of what may be in flight;
- without keys, filters or failures, messages leave each topic in the order of their offsets;
- nothing that happens to one topic costs time for each of the others.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import structlog

from ister.base import Clock, Poison, SubscriptionReport, is_wildcard
from ister.base.errors import IsterError, ShardMovedError, SubscriptionNotFoundError
from ister.broker.consumers.consumer import Consumer
from ister.broker.consumers.members import Members
from ister.broker.durable.ack_journal import AckJournal
from ister.broker.durable.deadlines import Alarm
from ister.broker.durable.dispatch import Dispatch
from ister.broker.durable.in_flight import Flight
from ister.broker.durable.partition import Partition
from ister.broker.durable.poison import RETRY_MS, Quarantine, Undertaker
from ister.broker.durable.report import report_of
from ister.broker.durable.slots import Slots
from ister.broker.scheduling.chores import Steps
from ister.broker.scheduling.turns import Turns
from ister.broker.state.changes import SubscriptionCreated
from ister.broker.state.state import SubscriptionRecord
from ister.broker.storage.storage import Storage
from ister.broker.streams.read_ahead import ReadAheadBudget
from ister.broker.streams.stream import StreamTopic
from ister.subscriptions import Cursor, Filter, InCommit, Policy, SubscriptionType
from ister.telemetry import Occasions

# Partitions made between two looks at the clock: 50 µs each.
TOPICS_PER_STEP = 16
# A consumer whose connection broke may come back and go on with what it holds; after this its
# messages go to others.
GRACE_MS = 5_000

Run = tuple[int, int, int]
TimedRun = tuple[int, int, int, int]


class DurableSubscription:
    """See the module."""

    def __init__(
        self,
        record: SubscriptionRecord,
        storage: Storage,
        *,
        ack_journal: AckJournal,
        clock: Clock,
        random_slot: Callable[[int], int],
        turns: Turns,
        shared: ReadAheadBudget,
        undertaker: Undertaker,
        told: Occasions,
    ) -> None:
        created = record.created
        self.record = record
        self.number = created.subscription
        self.pattern = created.pattern
        self.name = created.name
        # What the journal has of it: it is set back to that when a change fails.
        self.journaled = created
        self.acks = created.acks
        self.type = SubscriptionType(created.type)
        self.ordered = self._keeps_order()
        self.policy = Policy(created.policy)
        self.filter = self._make_filter()
        self.storage = storage
        self.ack_journal = ack_journal
        self.journal = 0 if storage.name == "local" else 1
        self.members = Members(self.type)
        self.consumers = self.members.consumers
        self.messages_out = 0
        # Counts how often every lease became void.
        self.epoch = 0
        self.closed = False
        # Moves that the journal does not have yet, and the number of the last one.
        self._moves = self._move = 0
        self._alarm = Alarm(clock, self._on_due)
        self.quarantine = Quarantine(
            self, clock=clock, alarm=self._alarm, undertaker=undertaker, told=told
        )
        self._flight = Flight(self.acks)
        self.dispatch = Dispatch(
            self,
            clock=clock,
            turns=turns,
            random_slot=random_slot,
            alarm=self._alarm,
            flight=self._flight,
        )
        # By the name of the topic; and topics whose partitions are to be made.
        self._partitions: dict[str, Partition] = {}
        self._coming: dict[str, StreamTopic] = {}
        self._slots = Slots(epoch=storage.log.epoch, journal=self.journal)
        self._clock = clock
        self._shared = shared
        self._logger: Any = structlog.get_logger("subscription")
        # Consumers that may come back: whom leases are kept for, unless somebody takes their place.
        self._lost: set[tuple[str, str]] = set()

    # Topics

    @property
    def partitions(self) -> Collection[Partition]:
        """Its topics."""
        return self._partitions.values()

    def add_topic(self, topic: StreamTopic, cursor: Cursor) -> None:
        """Cover a topic from where its cursor stands."""
        slot, leases = self._slots.take()
        partition = Partition(self, topic, cursor, slot=slot, leases=leases, shared=self._shared)
        self._partitions[topic.name] = partition
        self._slots.put(partition)
        topic.followers[partition] = None
        partition.deliveries.trim(topic.first_offset)
        self.dispatch.add(partition)
        self.quarantine.on_begun(partition)

    def expect(self, topics: Iterable[StreamTopic]) -> None:
        """Cover topics from where their cursors stand, once `add_expected` comes to them."""
        for topic in topics:
            topic.partitions_coming += 1
            self._coming[topic.name] = topic

    def add_expected(self) -> Steps:
        """Cover topics that are expected, some in each step."""
        while self._coming:
            for _ in range(min(len(self._coming), TOPICS_PER_STEP)):
                topic = self._coming.pop(next(iter(self._coming)))
                topic.partitions_coming -= 1
                if topic.deleted:
                    self.record.cursors.pop(topic.record.topic, None)
                else:
                    self.add_topic(topic, self.record.cursors[topic.record.topic])
            self.dispatch.pump()
            yield

    @property
    def is_whole(self) -> bool:
        """Whether it has a partition for each topic it covers."""
        return not self._coming

    @property
    def takes_queues(self) -> bool:
        """Whether it covers work queues: with wildcards only when it was asked to."""
        return self.record.created.work_queues or not is_wildcard(self.pattern)

    @property
    def covers_nothing(self) -> bool:
        """Whether all of its topics are gone, those included whose partitions are to be made."""
        tracked = all(partition.topic.deleted for partition in self._partitions.values())
        return tracked and all(topic.deleted for topic in self._coming.values())

    @property
    def is_gone(self) -> bool:
        """Whether its topic was deleted, so that the subscription is about to be deleted too."""
        return self.covers_nothing and not is_wildcard(self.pattern)

    def remove_topic(self, topic: StreamTopic) -> None:
        """Cover a topic no more. Harmless if that is so."""
        if self._coming.get(topic.name) is topic:
            del self._coming[topic.name]
            topic.partitions_coming -= 1
        partition = self._partitions.get(topic.name)
        if partition is not None and partition.topic is topic:
            topic.followers.pop(partition, None)
            partition.on_topic_deleted()

    def on_topic_deleted(self, partition: Partition) -> None:
        """A covered topic is gone."""
        self.dispatch.forget(partition)
        partition.deliveries.clear()
        self._flight.touch(partition)
        self._alarm.forget(partition)
        # A new topic may have the name by now.
        if self._partitions.get(partition.topic.name) is partition:
            del self._partitions[partition.topic.name]
        self._slots.free(partition)
        self.record.cursors.pop(partition.topic.record.topic, None)
        if self.quarantine.forget(partition):
            self.dispatch.pump()

    def on_trimmed(self, partition: Partition) -> None:
        """Messages at the start of a topic are gone: they count as done."""
        first_offset = partition.topic.first_offset
        partition.deliveries.trim(first_offset)
        if self.dispatch.parking is not None:
            self.dispatch.parking.trim(partition, first_offset)
        self._look_again(partition)
        self.dispatch.pump()

    def on_loaded(self, partition: Partition) -> None:
        """Stored messages have been read."""
        self.quarantine.treat(partition)
        self.dispatch.add(partition)
        self.dispatch.pump()

    def on_read_failed(self, partition: Partition, error: Exception) -> None:
        """Stored messages cannot be read: say so, and try again."""
        self._logger.error(
            "read_failed",
            topic=partition.topic.name,
            subscription=self.name,
            offset=partition.deliveries.position,
            reason=str(error),
            exc_info=None if isinstance(error, IsterError | OSError) else error,
        )
        self._alarm.watch(partition, self._clock.monotonic_ms() + RETRY_MS)

    def covers(self, topic: str) -> bool:
        """Whether a topic is one of its own."""
        return topic in self._partitions or topic in self._coming

    # Consumers

    def attach(self, consumer: Consumer, *, consumers_max: int) -> bool:
        """Add a consumer and return whether it is active now."""
        self.storage.committer.check_owned()
        if self.closed:
            raise SubscriptionNotFoundError(self.pattern, self.name)
        former = self.members.join(
            consumer, of=(self.pattern, self.name), consumers_max=consumers_max
        )
        if former is not None:
            self.messages_out += former.delivered
        self._lost.discard(consumer.identity)
        for partition in self.dispatch.holders.of(consumer.identity):
            if consumer.held is not None and partition.deliveries.release(
                consumer.identity, besides=consumer.held
            ):
                # Got lost on the way: the client does not have it.
                self._look_again(partition)
            partition.deliveries.regained(consumer.identity, now_ms=self._clock.monotonic_ms())
        if self.dispatch.parking is not None:
            self.dispatch.parking.reroute()
        consumer.pumps.append(self.dispatch.pump)
        self._end_grace()
        return self.members.is_active(consumer)

    def detach(self, consumer: Consumer, *, graceful: bool) -> None:
        """Remove a consumer. Harmless if it has left.

        With `graceful` what it holds goes to the others at once and costs no attempt; else it has
        `GRACE_MS` to come back, or until somebody else takes its place.
        """
        if consumer not in self.members:
            return
        self.members.leave(consumer)
        self.messages_out += consumer.delivered
        now_ms = self._clock.monotonic_ms()
        if not graceful and self.type.has_one_active:
            self._lost.add(consumer.identity)
        for partition in self.dispatch.holders.of(consumer.identity):
            if not graceful:
                partition.deliveries.lost(consumer.identity, now_ms=now_ms, grace_ms=GRACE_MS)
                self.watch(partition)
            elif partition.deliveries.release(consumer.identity):
                self._look_again(partition)
        if self.dispatch.parking is not None:
            self.dispatch.parking.reroute()
        self._end_grace()
        self.dispatch.pump()

    def _end_grace(self) -> None:
        """End the grace of others, when there is one consumer at a time and somebody is.

        It goes on where they stopped, and not with what comes behind that.
        """
        if not self.consumers or not self.type.has_one_active:
            return
        now_ms = self._clock.monotonic_ms()
        for identity in self._lost:
            for partition in self.dispatch.holders.of(identity):
                partition.deliveries.lost(identity, now_ms=now_ms, grace_ms=0)
                self._expire(partition, now_ms)
        self._lost.clear()

    def close(self, reason: str) -> None:
        """End for good: consumers are told, and the topics forget this."""
        self.closed = True
        self._alarm.close()
        for consumer in list(self.consumers):
            self.members.leave(consumer)
            consumer.close(reason)
        for partition in self.partitions:
            partition.close()
            partition.topic.followers.pop(partition, None)
        for topic in self._coming.values():
            topic.partitions_coming -= 1
        self._coming.clear()
        self._partitions.clear()
        self._slots.clear()

    def on_lost(self, error: ShardMovedError) -> None:
        """Another broker has the topics: consumers are told, and nothing is handed out."""
        self._alarm.close()
        for consumer in list(self.consumers):
            self.members.leave(consumer)
            consumer.close("another broker has taken over its topics", error=error)

    @property
    def resting(self) -> bool:
        """Whether nothing is handed out for now."""
        return self.record.paused or self._moves > 0 or self.quarantine.blocks

    def set_paused(self, *, paused: bool) -> None:
        """Let deliveries rest, or go on."""
        self.record.paused = paused
        self.dispatch.pump()

    # Starting over

    def begin_move(self) -> None:
        """Make every lease void: consumers are told, and get nothing before `end_move`."""
        self._moves += 1
        self._void()

    def move(self, cursors: dict[Partition, Cursor]) -> Callable[[], None]:
        """Go on elsewhere in some topics, during a move. Call what is returned to go back."""
        self._move += 1
        move = self._move
        former = {partition: (partition.cursor, partition.moved) for partition in cursors}
        for partition, cursor in cursors.items():
            partition.moved = move
            self._use(partition, cursor)

        def undo() -> None:
            for partition, (cursor, moved) in former.items():
                # A later move may have come on top, which fails with this one; its turn to go
                # back is after this, and it finds that done.
                if (
                    partition.moved >= move
                    and self._partitions.get(partition.topic.name) is partition
                ):
                    partition.moved = moved
                    self._use(partition, cursor)
                    # What of it the journal was to hear of, before it was moved.
                    self.ack_journal.mark_dirty(partition)
            self._void()

        return undo

    def end_move(self) -> None:
        """The journal has the move, or it was taken back."""
        self._moves -= 1
        self.dispatch.pump()

    def change(self, created: SubscriptionCreated) -> None:
        """Have other settings from now on; another type only without consumers.

        Consumers keep their leases, unless keys are to be kept in order from now on, or no more.
        """
        former, self.record.created = self.record.created, created
        self.policy = Policy(created.policy)
        if created.type != former.type:
            self._set_type(SubscriptionType(created.type))
        filter_ = self.filter = self._make_filter()
        for partition in self.partitions:
            partition.sieve.use(filter_)
        if created.type != former.type or created.acks != former.acks:
            self._set_acks(created)
        self.dispatch.pump()

    def _set_type(self, type_: SubscriptionType) -> None:
        for partition in self.partitions:
            self.dispatch.forget(partition)
        self._lost.clear()
        self.type = type_
        self.members = Members(type_)
        self.consumers = self.members.consumers
        self.dispatch.on_type()

    def _make_filter(self) -> Filter:
        created, by_key = self.record.created, self.type is SubscriptionType.KEY_SHARED
        return Filter(created.filters, () if by_key else created.key_filters)

    def _set_acks(self, created: SubscriptionCreated) -> None:
        was_ordered = self.ordered
        self.acks = created.acks
        self.ordered = self._keeps_order()
        self._flight.set_limits(created.acks)
        anew = self.ordered is not was_ordered or not self.consumers
        for partition in self.partitions:
            if anew:
                partition.deliveries.settings = created.acks
                self._use(partition, partition.cursor)
            else:
                self.quarantine.on_set(partition)
                self._look_again(partition)
        if anew:
            self._void()

    def _keeps_order(self) -> bool:
        """Whether there is at most one message of a key in flight."""
        # A message can block its key only where the others of that key come after it.
        wanted = self.acks.ordered or self.acks.poison == Poison.BLOCK
        return wanted and self.type is SubscriptionType.KEY_SHARED

    def _use(self, partition: Partition, cursor: Cursor) -> None:
        self.record.cursors[partition.topic.record.topic] = cursor
        self.dispatch.forget(partition)
        partition.start_over(cursor, ordered=self.ordered)
        partition.deliveries.trim(partition.topic.first_offset)
        self._look_again(partition)
        self.quarantine.forget(partition)
        self.quarantine.on_begun(partition)

    def _void(self) -> None:
        """Tell consumers that what they hold is not theirs any more."""
        self.epoch += 1
        for consumer in list(self.consumers):
            consumer.on_void()

    # Coming back

    def ack(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge runs of leased messages, for good with `confirm`; return those refused."""
        refused: list[Run] = []
        last: Partition | None = None
        for number, start, end in runs:
            partition = self.partition_of_lease(number)
            if partition is None or end <= start:
                refused.append((number, start, end))
                continue
            # Where keys are kept in order, the next ones of each key wait for exactly these.
            ordered = partition.gate is not None
            taken = partition.deliveries.left_of(number, start, end) if confirm or ordered else []
            refused += [(number, *run) for run in partition.deliveries.ack(number, start, end)]
            if confirm:
                self.ack_journal.record_leases(self.number, [(number, *run) for run in taken])
            if ordered:
                for run in taken:
                    self.on_acked(partition, *run)
            # A consumer that settles one message at a time sends thousands of runs at once.
            elif partition is not last:
                self.on_acked(partition, start, end)
                last = partition
        self.dispatch.on_settled()
        return self.storage.state.confirmations.missing(self.number, refused)

    def ack_through(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge everything below the ends of runs; not for types that share messages."""
        refused: list[Run] = []
        for number, start, end in runs:
            partition = self.partition_of_lease(number)
            if (
                partition is None
                or not self.type.has_one_active
                or end > partition.topic.next_offset
                or not partition.deliveries.ack_through(number, end)
            ):
                refused.append((number, start, end))
                continue
            if confirm:
                self.ack_journal.record_leases(self.number, [(number, end - 1, end)])
            self.on_acked(partition, start, end)
        self.dispatch.on_settled()
        return self.storage.state.confirmations.missing(self.number, refused)

    def nack(self, runs: Sequence[TimedRun], backoff_delay: int, reason: str = "") -> list[Run]:
        """Give messages back, to be delivered again after a delay; `NEVER_MS`: not again.

        `UNUSED_MS`: at once, and not as failed.
        The dead letter of a message says the last `reason` that was given for it.
        """
        refused: list[Run] = []
        failed: dict[Partition, None] = {}
        now_ms = self._clock.monotonic_ms()
        for number, start, end, delay in runs:
            partition = self.partition_of_lease(number)
            if partition is None or end <= start:
                refused.append((number, start, end))
                continue
            delay_ms = None if delay == backoff_delay else delay
            left = partition.deliveries.nack(number, start, end, now_ms=now_ms, delay_ms=delay_ms)
            refused += [(number, *run) for run in left]
            failed[partition] = None
            if reason and not left:
                self.quarantine.on_reason(partition, range(start, end), reason)
        for partition in failed:
            self._on_failed(partition)
        self.dispatch.pump()
        return refused

    def extend(self, runs: Sequence[TimedRun]) -> list[Run]:
        """Give leases more time, or less."""
        refused: list[Run] = []
        now_ms = self._clock.monotonic_ms()
        for number, start, end, extension_ms in runs:
            partition = self.partition_of_lease(number)
            if partition is None or end <= start:
                refused.append((number, start, end))
                continue
            left = partition.deliveries.extend(
                number, start, end, now_ms=now_ms, extension_ms=extension_ms
            )
            refused += [(number, *run) for run in left]
            self.watch(partition)
        return refused

    def on_committed(self, partition: Partition, cursor: Cursor, commit: InCommit) -> None:
        """The journal has a transaction that acknowledges a run."""
        if self.was_moved(partition, cursor, [(commit.start, commit.end)]):
            return
        partition.deliveries.end_commit(commit)
        self.on_acked(partition, commit.start, commit.end)
        self.dispatch.on_settled()

    def on_not_committed(self, partition: Partition, cursor: Cursor, commit: InCommit) -> None:
        """The journal did not take a transaction: its consumer may try again, if it is there."""
        if self.was_moved(partition, cursor, ()):
            return
        left_ms = self._left_ms(commit.consumer)
        deadline_ms = None if left_ms is None else self._clock.monotonic_ms() + left_ms
        partition.deliveries.undo_commit(commit, deadline_ms=deadline_ms)
        if partition.deliveries.is_holding(commit.consumer):
            self.dispatch.holders.add(commit.consumer, partition)
        self._look_again(partition)
        self.watch(partition)
        self.dispatch.pump()

    def _left_ms(self, identity: Hashable) -> int | None:
        """Return for how long a consumer may keep what it holds, `None` when it has left."""
        if any(consumer.identity == identity for consumer in self.consumers):
            return self.acks.ack_timeout_ms
        return GRACE_MS if identity in self._lost else None

    def was_moved(
        self, partition: Partition, cursor: Cursor, acked: Sequence[tuple[int, int]]
    ) -> bool:
        """Whether a partition has another cursor than when something acknowledged these was begun.

        A move comes behind it in the journal, and what it has left has no leases any more. When
        the move fails, the subscription goes back there, and finds them acknowledged.
        """
        if cursor is partition.cursor and self._partitions.get(partition.topic.name) is partition:
            return False
        for run in acked:
            cursor.ack(*run)
        return True

    def partition_of_lease(self, number: int) -> Partition | None:
        """Return the partition that a lease number belongs to, if there is one."""
        return self._slots.find(number)

    def on_acked(self, partition: Partition, start: int, end: int) -> None:
        """Messages are done: have that in the journal, and go on with what waited for them."""
        if start < end:
            self.ack_journal.mark_dirty(partition)
            self._flight.touch(partition)
            if partition.gate is not None and self.dispatch.parking is not None:
                self.dispatch.parking.on_done(partition, start, end)
                self.dispatch.add(partition)

    # Going wrong

    def _on_failed(self, partition: Partition) -> None:
        """Deliveries have gone wrong: have that in the journal, and go on with them."""
        self.ack_journal.mark_dirty(partition)
        self._look_again(partition)
        self.quarantine.treat(partition)
        self.watch(partition)

    def _expire(self, partition: Partition, now_ms: int) -> None:
        if partition.deliveries.expire(now_ms):
            self._on_failed(partition)
        else:
            self.dispatch.add(partition)
            self.watch(partition)

    def watch(self, partition: Partition) -> None:
        """Look at a partition when its next lease or delay ends, or dead letters are retried."""
        self._alarm.watch(partition, partition.deliveries.next_due_ms())
        self.quarantine.watch(partition)

    def _on_due(self, partitions: list[Partition]) -> None:
        now_ms = self._clock.monotonic_ms()
        for partition in partitions:
            self._expire(partition, now_ms)
            # Of a former life of the broker, or what could not be written the last time.
            self.quarantine.treat(partition)
        self.dispatch.pump()

    def _look_again(self, partition: Partition) -> None:
        self._flight.touch(partition)
        self.dispatch.add(partition)

    def report(self) -> SubscriptionReport:
        """Return the figures of this subscription, and of its first consumers."""
        return report_of(self, now_ms=self._clock.now_ms())
