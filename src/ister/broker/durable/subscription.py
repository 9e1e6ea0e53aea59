"""A durable subscription: hands out what its cursors have not acknowledged yet.

It covers one stream, the partitions of one, or every stream a pattern matches: a `Partition` for
each. Always true:
- a message is in one lease or in one commit at most at any time; its acknowledgement counts only
  under that lease, or when that commit is in the journal;
- nothing is sent without the consumer's credit, nor beyond the limits of what may be in flight;
- without keys, filters or failures, messages leave each topic in the order of their offsets;
- nothing that happens to one topic costs time for each of the others;
- whatever changes the deliveries of a partition goes through `on_changed`: the journal knows of it
  at once, and the rest follows at the end of the turn, once.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import structlog

from ister.base import AckSettings, Clock, SubscriptionReport, is_wildcard
from ister.base.errors import IsterError, ShardMovedError, SubscriptionNotFoundError
from ister.broker.consumers import Consumer, Members
from ister.broker.durable.ack_journal import AckJournal
from ister.broker.durable.coverage import Coverage
from ister.broker.durable.deadlines import Deadlines
from ister.broker.durable.dispatch import Dispatch
from ister.broker.durable.partition import Partition
from ister.broker.durable.poison import RETRY_MS, DeadLetterSink, PoisonPolicy
from ister.broker.durable.report import report_of
from ister.broker.durable.rules import Rules
from ister.broker.durable.slots import Slots
from ister.broker.scheduling import EndOfTurn, Steps, Turns
from ister.broker.state import SubscriptionCreated, SubscriptionRecord
from ister.broker.storage import Storage
from ister.broker.streams import ReadAheadBudget, StreamTopic
from ister.subscriptions import Cursor, InCommit, SubscriptionType
from ister.telemetry import Occasions

# Partitions made between two looks at the clock: 50 µs each.
TOPICS_PER_STEP = 16
# A consumer whose connection broke may come back and go on with what it holds; after this its
# messages go to others.
GRACE_MS = 5_000

Run = tuple[int, int, int]
TimedRun = tuple[int, int, int, int]


class DurableSubscription:
    """A subscription on streams, whose position outlives its consumers and the broker."""

    def __init__(
        self,
        record: SubscriptionRecord,
        storage: Storage,
        *,
        ack_journal: AckJournal,
        clock: Clock,
        random_slot: Callable[[int], int],
        turns: Turns,
        end_of_turn: EndOfTurn,
        shared: ReadAheadBudget,
        dead_letter_sink: DeadLetterSink,
        throttle: Occasions,
    ) -> None:
        self.record = record
        # What the journal has of it: it is set back to that when a change fails.
        self.journaled = record.created
        self.rules = Rules.of(record.created)
        self.storage = storage
        self.ack_journal = ack_journal
        self.members = Members(self.rules.type)
        slots = Slots(epoch=storage.log.epoch, journal=self.journal)
        self.coverage = Coverage(self, record, slots, shared)
        # Counts how often every lease became void.
        self.epoch = 0
        self.closed = False
        self._moves = Moves()
        self._deadlines = Deadlines(clock, self._on_due)
        self.poison_policy = PoisonPolicy(
            self, clock=clock, deadlines=self._deadlines, sink=dead_letter_sink, throttle=throttle
        )
        self.dispatch = Dispatch(
            record,
            clock=clock,
            turns=turns,
            random_slot=random_slot,
            deadlines=self._deadlines,
            on_skipped=self.on_changed,
            resume=self.go_through,
        )
        self.dispatch.use(self.members, self.rules)
        self._clock = clock
        self._end_of_turn = end_of_turn

    @property
    def number(self) -> int:
        """What the journal calls it."""
        return self.record.created.subscription

    @property
    def pattern(self) -> str:
        """The topic that it is on, or the pattern of those it covers."""
        return self.record.created.pattern

    @property
    def name(self) -> str:
        """What consumers call it."""
        return self.record.created.name

    @property
    def type(self) -> SubscriptionType:
        """How it divides messages among its consumers."""
        return self.rules.type

    @property
    def acks(self) -> AckSettings:
        """How it treats what is not acknowledged."""
        return self.rules.acks

    @property
    def journal(self) -> int:
        """Which journal has it, as the numbers of its leases say."""
        return 0 if self.storage.name == "local" else 1

    @property
    def consumers(self) -> list[Consumer]:
        """Those that are there, in the order they came."""
        return self.members.consumers

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is there to take messages."""
        return bool(self.members.consumers)

    # Topics

    @property
    def partitions(self) -> Collection[Partition]:
        """Its topics."""
        return self.coverage.partitions

    def add_topic(self, topic: StreamTopic, cursor: Cursor) -> None:
        """Cover a topic from where its cursor stands."""
        partition = self.coverage.add(topic, cursor, self.rules)
        partition.deliveries.trim(topic.first_offset)
        self.dispatch.add(partition)
        self.poison_policy.on_begun(partition)

    def add_expected(self) -> Steps:
        """Cover topics that are expected, some in each step."""
        while not self.coverage.is_whole:
            for topic in self.coverage.take_expected(TOPICS_PER_STEP):
                self.add_topic(topic, self.record.cursors[topic.record.topic])
            self.schedule()
            yield

    @property
    def takes_queues(self) -> bool:
        """Whether it covers work queues: with wildcards only when it was asked to."""
        return self.record.created.work_queues or not is_wildcard(self.pattern)

    def on_topic_deleted(self, partition: Partition) -> None:
        """A covered topic is gone."""
        partition.deliveries.clear()
        self.dispatch.forget(partition)
        self._deadlines.forget(partition)
        self.coverage.forget(partition)
        self.poison_policy.forget(partition)
        self.schedule()

    def on_new(self, partition: Partition) -> None:
        """A topic has new messages."""
        self.dispatch.on_new(partition)
        self.schedule()

    def on_trimmed(self, partition: Partition) -> None:
        """Messages at the start of a topic are gone: they count as done."""
        first_offset = partition.topic.first_offset
        partition.deliveries.trim(first_offset)
        self.dispatch.on_trimmed(partition, first_offset)
        self.on_changed(partition)

    def on_loaded(self, partition: Partition, error: Exception | None) -> None:
        """Stored messages have been read; when they cannot be, say so and try again."""
        if error is None:
            self.dispatch.add(partition)
            self.on_changed(partition)
            return
        logger: Any = structlog.get_logger("subscription")
        logger.error(
            "read_failed",
            topic=partition.topic.name,
            subscription=self.name,
            offset=partition.deliveries.position,
            reason=str(error),
            exc_info=None if isinstance(error, IsterError | OSError) else error,
        )
        self._deadlines.schedule(partition, self._clock.monotonic_ms() + RETRY_MS)

    # Consumers

    def attach(self, consumer: Consumer, *, consumers_max: int) -> bool:
        """Add a consumer and return whether it is active now."""
        self.storage.committer.check_owned()
        if self.closed:
            raise SubscriptionNotFoundError(self.pattern, self.name)
        self.members.join(consumer, of=(self.pattern, self.name), consumers_max=consumers_max)
        now_ms = self._clock.monotonic_ms()
        for partition in self.dispatch.holders.of(consumer.identity):
            if consumer.held is not None:
                # The others got lost on the way: the client does not have them.
                partition.deliveries.release(consumer.identity, besides=consumer.held)
            partition.deliveries.regained(consumer.identity, now_ms=now_ms)
            self.on_changed(partition)
        self.dispatch.on_members()
        consumer.on_credit.append(self.schedule)
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
        if not graceful and self.type.has_one_active:
            self.members.away.add(consumer.identity)
        now_ms = self._clock.monotonic_ms()
        for partition in self.dispatch.holders.of(consumer.identity):
            if graceful:
                partition.deliveries.release(consumer.identity)
            else:
                partition.deliveries.lost(consumer.identity, now_ms=now_ms, grace_ms=GRACE_MS)
            self.on_changed(partition)
        self.dispatch.on_members()
        self._end_grace()
        self.schedule()

    def _end_grace(self) -> None:
        """End the grace of others, when there is one consumer at a time and somebody is.

        It goes on where they stopped, and not with what comes behind that.
        """
        if not self.consumers or not self.type.has_one_active:
            return
        now_ms = self._clock.monotonic_ms()
        for identity in self.members.away:
            for partition in self.dispatch.holders.of(identity):
                partition.deliveries.lost(identity, now_ms=now_ms, grace_ms=0)
                self._expire(partition, now_ms)
        self.members.away.clear()

    def close(self, reason: str) -> None:
        """End for good: consumers are told, and the topics forget this."""
        self.closed = True
        self._close_consumers(reason)
        self.coverage.clear()

    def on_lost(self, error: ShardMovedError) -> None:
        """Another broker has the topics: consumers are told, and nothing is handed out."""
        self._close_consumers("another broker has taken over its topics", error)

    def _close_consumers(self, reason: str, error: IsterError | None = None) -> None:
        self._deadlines.close()
        for consumer in list(self.consumers):
            self.members.leave(consumer)
            consumer.close(reason, error=error)

    @property
    def resting(self) -> bool:
        """Whether nothing is handed out for now."""
        return self.record.paused or self._moves.pending > 0 or self.poison_policy.blocks

    def set_paused(self, *, paused: bool) -> None:
        """Let deliveries rest, or go on."""
        self.record.paused = paused
        self.schedule()

    # Starting over

    def begin_move(self) -> None:
        """Make every lease void: consumers are told, and get nothing before `end_move`."""
        self._moves.pending += 1
        self._void()

    def move(self, cursors: dict[Partition, Cursor]) -> Callable[[], None]:
        """Go on elsewhere in some topics, during a move. Call what is returned to go back."""
        self._moves.last += 1
        move = self._moves.last
        former = {partition: (partition.cursor, partition.move) for partition in cursors}
        for partition, cursor in cursors.items():
            partition.move = move
            self._use(partition, cursor)

        def undo() -> None:
            for partition, (cursor, former_move) in former.items():
                # A later move may have come on top, which fails with this one; its turn to go
                # back is after this, and it finds that done.
                if partition.move >= move and self.coverage.has(partition):
                    partition.move = former_move
                    # With what of it the journal was to hear of, before it was moved.
                    self._use(partition, cursor)
            self._void()

        return undo

    def end_move(self) -> None:
        """The journal has the move, or it was taken back."""
        self._moves.pending -= 1
        self.schedule()

    def change(self, created: SubscriptionCreated) -> None:
        """Have other settings from now on; another type only without consumers.

        Consumers keep their leases, unless keys are to be kept in order from now on, or no more.
        """
        former, self.rules = self.rules, Rules.of(created)
        self.record.created = created
        if self.rules.type is not former.type:
            for partition in self.partitions:
                self.dispatch.forget(partition)
            delivered = self.members.delivered
            self.members = Members(self.rules.type)
            self.members.delivered_before = delivered
            self.dispatch.use(self.members, self.rules)
        else:
            self.dispatch.change(self.rules)
        for partition in self.partitions:
            partition.selector.use(self.rules.filter)
        if self.rules.type is not former.type or self.rules.acks != former.acks:
            self._change_acks(former)
        self.schedule()

    def _change_acks(self, former: Rules) -> None:
        anew = self.rules.ordered is not former.ordered or not self.consumers
        for partition in self.partitions:
            if anew:
                partition.deliveries.settings = self.acks
                self._use(partition, partition.cursor)
            else:
                self.poison_policy.on_changed(partition)
                self.on_changed(partition)
        if anew:
            self._void()

    def _use(self, partition: Partition, cursor: Cursor) -> None:
        self.record.cursors[partition.topic.record.topic] = cursor
        self.dispatch.forget(partition)
        partition.start_over(cursor, ordered=self.rules.ordered)
        partition.deliveries.trim(partition.topic.first_offset)
        self.dispatch.add(partition)
        self._mark_changed(partition)
        self.poison_policy.forget(partition)
        self.poison_policy.on_begun(partition)

    def _void(self) -> None:
        """Tell consumers that what they hold is not theirs any more."""
        self.epoch += 1
        for consumer in list(self.consumers):
            consumer.on_void()

    # Coming back

    def ack(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge runs of leased messages, for good with `confirm`; return those refused."""
        refused: list[Run] = []
        for number, start, end in runs:
            partition = self.coverage.find(number)
            if partition is None or end <= start:
                refused.append((number, start, end))
                continue
            # Where keys are kept in order, the next ones of each key wait for exactly these.
            ordered = partition.gate is not None
            taken = partition.deliveries.left_of(number, start, end) if confirm or ordered else []
            refused += [(number, *run) for run in partition.deliveries.ack(number, start, end)]
            if confirm:
                self.ack_journal.record_leases(self.number, [(number, *run) for run in taken])
            self.on_changed(partition, done=taken if ordered else ())
        return self.storage.state.confirmations.missing(self.number, refused)

    def ack_through(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge everything below the ends of runs; not for types that share messages."""
        refused: list[Run] = []
        for number, start, end in runs:
            partition = self.coverage.find(number)
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
            self.on_changed(partition)
        return self.storage.state.confirmations.missing(self.number, refused)

    def nack(self, runs: Sequence[TimedRun], backoff_delay: int, reason: str = "") -> list[Run]:
        """Give messages back, to be delivered again after a delay; `NEVER_MS`: not again.

        `UNUSED_MS`: at once, and not as failed.
        The dead letter of a message says the last `reason` that was given for it.
        """
        refused: list[Run] = []
        now_ms = self._clock.monotonic_ms()
        for number, start, end, delay in runs:
            partition = self.coverage.find(number)
            if partition is None or end <= start:
                refused.append((number, start, end))
                continue
            delay_ms = None if delay == backoff_delay else delay
            left = partition.deliveries.nack(number, start, end, now_ms=now_ms, delay_ms=delay_ms)
            refused += [(number, *run) for run in left]
            if reason and not left:
                self.poison_policy.record_reason(partition, range(start, end), reason)
            self.on_changed(partition)
        return refused

    def extend(self, runs: Sequence[TimedRun]) -> list[Run]:
        """Give leases more time, or less."""
        refused: list[Run] = []
        now_ms = self._clock.monotonic_ms()
        for number, start, end, extension_ms in runs:
            partition = self.coverage.find(number)
            if partition is None or end <= start:
                refused.append((number, start, end))
                continue
            left = partition.deliveries.extend(
                number, start, end, now_ms=now_ms, extension_ms=extension_ms
            )
            refused += [(number, *run) for run in left]
            self.on_changed(partition)
        return refused

    def on_committed(self, partition: Partition, cursor: Cursor, commit: InCommit) -> None:
        """The journal has a transaction that acknowledges a run."""
        run = (commit.start, commit.end)
        if not self.was_moved(partition, cursor, [run]):
            partition.deliveries.end_commit(commit)
            self.on_changed(partition, done=[run])

    def on_not_committed(self, partition: Partition, cursor: Cursor, commit: InCommit) -> None:
        """The journal did not take a transaction: its consumer may try again, if it is there."""
        if self.was_moved(partition, cursor, ()):
            return
        left_ms = self._left_ms(commit.consumer)
        deadline_ms = None if left_ms is None else self._clock.monotonic_ms() + left_ms
        partition.deliveries.undo_commit(commit, deadline_ms=deadline_ms)
        if partition.deliveries.is_holding(commit.consumer):
            self.dispatch.holders.add(commit.consumer, partition)
        self.on_changed(partition)

    def _left_ms(self, identity: Hashable) -> int | None:
        """Return for how long a consumer may keep what it holds, `None` when it has left."""
        if any(consumer.identity == identity for consumer in self.consumers):
            return self.acks.ack_timeout_ms
        return GRACE_MS if identity in self.members.away else None

    def was_moved(
        self, partition: Partition, cursor: Cursor, acked: Sequence[tuple[int, int]]
    ) -> bool:
        """Whether a partition has another cursor than when something acknowledged these was begun.

        A move comes behind it in the journal, and what it has left has no leases any more. When
        the move fails, the subscription goes back there, and finds them acknowledged.
        """
        if cursor is partition.cursor and self.coverage.has(partition):
            return False
        for run in acked:
            cursor.ack(*run)
        return True

    def skip(self, partition: Partition, runs: Sequence[tuple[int, int]]) -> None:
        """Count messages as done that nobody holds."""
        for run in runs:
            partition.deliveries.skip(*run)
        self.on_changed(partition, done=runs)

    # What follows from that

    def on_changed(self, partition: Partition, *, done: Iterable[tuple[int, int]] = ()) -> None:
        """The deliveries of a partition have changed: the one door for all that follows.

        The next group of the journal has what is acknowledged and what has failed, and dead
        messages are treated. At the end of the turn its messages in flight are counted, its next
        deadline is set, and consumers get what they have room for. Of messages that were handed
        out and are `done`, the next ones of their keys may go, where keys are kept in order.
        """
        if partition.gate is not None:
            for run in done:
                self.dispatch.on_done(partition, *run)
        self._mark_changed(partition)
        if partition.deliveries.exhausted_count > partition.dead.pending.count:
            self.poison_policy.treat(partition)

    def _mark_changed(self, partition: Partition) -> None:
        if partition.cursor.has_changes:
            self.ack_journal.mark_dirty(partition)
        self.dispatch.changed[partition] = None
        self._end_of_turn.add(self)

    def schedule(self) -> None:
        """Hand out what can be at the end of the turn."""
        self._end_of_turn.add(self)

    def go_through(self) -> None:
        """It is the end of the turn: see `on_changed`."""
        if self.closed:
            return
        now_ms = self._clock.monotonic_ms()
        for partition in self.dispatch.take_changed():
            self.dispatch.on_changed(partition, now_ms)
            self._deadlines.schedule(partition, partition.deliveries.next_due_ms())
        if self.has_consumers and not self.resting:
            self.dispatch.run()

    def _expire(self, partition: Partition, now_ms: int) -> None:
        partition.deliveries.expire(now_ms)
        self.on_changed(partition)

    def _on_due(self, partitions: list[Partition]) -> None:
        now_ms = self._clock.monotonic_ms()
        for partition in partitions:
            self._expire(partition, now_ms)

    def report(self) -> SubscriptionReport:
        """Return the figures of this subscription, and of its first consumers."""
        return report_of(self, now_ms=self._clock.now_ms())


class Moves:
    """The moves of a subscription from one position to another."""

    __slots__ = ("last", "pending")

    def __init__(self) -> None:
        # How many the journal does not have yet, and the number of the last one.
        self.pending = self.last = 0
