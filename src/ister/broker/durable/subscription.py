"""A durable subscription: hands out what its cursors have not acknowledged yet.

It covers one stream, the partitions of one, or every stream a pattern matches: a `Track` for
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
from ister.broker.consumers.members import Roster
from ister.broker.durable.deadlines import Alarm
from ister.broker.durable.dispatch import Dispatch
from ister.broker.durable.in_flight import Flight
from ister.broker.durable.partition import Track
from ister.broker.durable.poison import RETRY_MS, Quarantine, Undertaker
from ister.broker.durable.report import report_of
from ister.broker.durable.slots import Slots
from ister.broker.scheduling.chores import Steps
from ister.broker.scheduling.turns import Turns
from ister.broker.state.changes import SubscriptionCreated
from ister.broker.state.state import SubscriptionRecord
from ister.broker.storage.storage import Vault
from ister.broker.streams.read_ahead import ReadAhead
from ister.broker.streams.stream import StreamTopic
from ister.subscriptions import Cursor, Filter, InCommit, Policy, SubscriptionType
from ister.telemetry import Occasions

# Tracks made between two looks at the clock: 50 µs each.
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
        vault: Vault,
        *,
        clock: Clock,
        random_slot: Callable[[int], int],
        turns: Turns,
        shared: ReadAhead,
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
        self.vault = vault
        self.journal = 0 if vault.name == "local" else 1
        self.roster = Roster(self.type)
        self.consumers = self.roster.consumers
        self.messages_out = 0
        # Counts how often every lease became void.
        self.epoch = 0
        self.closed = False
        # Moves that the journal does not have yet, and the number of the last one.
        self._moves = 0
        self._move = 0
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
        # By the name of the topic; and topics whose tracks are to be made.
        self._tracks: dict[str, Track] = {}
        self._coming: dict[str, StreamTopic] = {}
        self._slots = Slots(epoch=vault.log.epoch, journal=self.journal)
        self._clock = clock
        self._shared = shared
        self._logger: Any = structlog.get_logger("subscription")
        # Consumers that may come back: whom leases are kept for, unless somebody takes their place.
        self._lost: set[tuple[str, str]] = set()

    # Topics

    @property
    def tracks(self) -> Collection[Track]:
        """Its topics."""
        return self._tracks.values()

    def add_topic(self, topic: StreamTopic, cursor: Cursor) -> None:
        """Cover a topic from where its cursor stands."""
        slot, leases = self._slots.take()
        track = Track(self, topic, cursor, slot=slot, leases=leases, shared=self._shared)
        self._tracks[topic.name] = track
        self._slots.put(track)
        topic.followers[track] = None
        track.deliveries.trim(topic.first_offset)
        self.dispatch.add(track)
        self.quarantine.on_begun(track)

    def expect(self, topics: Iterable[StreamTopic]) -> None:
        """Cover topics from where their cursors stand, once `add_expected` comes to them."""
        for topic in topics:
            topic.tracks_coming += 1
            self._coming[topic.name] = topic

    def add_expected(self) -> Steps:
        """Cover topics that are expected, some in each step."""
        while self._coming:
            for _ in range(min(len(self._coming), TOPICS_PER_STEP)):
                topic = self._coming.pop(next(iter(self._coming)))
                topic.tracks_coming -= 1
                if topic.deleted:
                    self.record.cursors.pop(topic.record.topic, None)
                else:
                    self.add_topic(topic, self.record.cursors[topic.record.topic])
            self.dispatch.pump()
            yield

    @property
    def is_whole(self) -> bool:
        """Whether it has a track for each topic it covers."""
        return not self._coming

    @property
    def takes_queues(self) -> bool:
        """Whether it covers work queues: with wildcards only when it was asked to."""
        return self.record.created.work_queues or not is_wildcard(self.pattern)

    @property
    def covers_nothing(self) -> bool:
        """Whether all of its topics are gone, those included whose tracks are to be made."""
        tracked = all(track.topic.deleted for track in self._tracks.values())
        return tracked and all(topic.deleted for topic in self._coming.values())

    @property
    def is_gone(self) -> bool:
        """Whether its topic was deleted, so that the subscription is about to be deleted too."""
        return self.covers_nothing and not is_wildcard(self.pattern)

    def remove_topic(self, topic: StreamTopic) -> None:
        """Cover a topic no more. Harmless if that is so."""
        if self._coming.get(topic.name) is topic:
            del self._coming[topic.name]
            topic.tracks_coming -= 1
        track = self._tracks.get(topic.name)
        if track is not None and track.topic is topic:
            topic.followers.pop(track, None)
            track.on_topic_deleted()

    def on_topic_deleted(self, track: Track) -> None:
        """A covered topic is gone."""
        self.dispatch.forget(track)
        track.deliveries.clear()
        self._flight.touch(track)
        self._alarm.forget(track)
        # A new topic may have the name by now.
        if self._tracks.get(track.topic.name) is track:
            del self._tracks[track.topic.name]
        self._slots.free(track)
        self.record.cursors.pop(track.topic.record.topic, None)
        if self.quarantine.forget(track):
            self.dispatch.pump()

    def on_trimmed(self, track: Track) -> None:
        """Messages at the start of a topic are gone: they count as done."""
        first_offset = track.topic.first_offset
        track.deliveries.trim(first_offset)
        self._flight.touch(track)
        if self.dispatch.parking is not None:
            self.dispatch.parking.trim(track, first_offset)
        self.dispatch.add(track)
        self.dispatch.pump()

    def on_loaded(self, track: Track) -> None:
        """Stored messages have been read."""
        self.quarantine.treat(track)
        self.dispatch.add(track)
        self.dispatch.pump()

    def on_read_failed(self, track: Track, error: Exception) -> None:
        """Stored messages cannot be read: say so, and try again."""
        self._logger.error(
            "read_failed",
            topic=track.topic.name,
            subscription=self.name,
            offset=track.deliveries.position,
            reason=str(error),
            exc_info=None if isinstance(error, IsterError | OSError) else error,
        )
        self._alarm.watch(track, self._clock.monotonic_ms() + RETRY_MS)

    def covers(self, topic: str) -> bool:
        """Whether a topic is one of its own."""
        return topic in self._tracks or topic in self._coming

    # Consumers

    def attach(self, consumer: Consumer, *, consumers_max: int) -> bool:
        """Add a consumer and return whether it is active now."""
        self.vault.committer.check_owned()
        if self.closed:
            raise SubscriptionNotFoundError(self.pattern, self.name)
        former = self.roster.join(
            consumer, of=(self.pattern, self.name), consumers_max=consumers_max
        )
        if former is not None:
            self.messages_out += former.delivered
        self._lost.discard(consumer.identity)
        now_ms = self._clock.monotonic_ms()
        for track in self.dispatch.holders.of(consumer.identity):
            if consumer.held is not None and track.deliveries.release(
                consumer.identity, besides=consumer.held
            ):
                # Got lost on the way: the client does not have it.
                self._flight.touch(track)
                self.dispatch.add(track)
            track.deliveries.regained(consumer.identity, now_ms=now_ms)
        if self.dispatch.parking is not None:
            self.dispatch.parking.reroute()
        consumer.pumps.append(self.dispatch.pump)
        self._end_grace()
        return self.roster.is_active(consumer)

    def detach(self, consumer: Consumer, *, graceful: bool) -> None:
        """Remove a consumer. Harmless if it has left.

        With `graceful` what it holds goes to the others at once and costs no attempt; else it has
        `GRACE_MS` to come back, or until somebody else takes its place.
        """
        if consumer not in self.roster:
            return
        self.roster.leave(consumer)
        self.messages_out += consumer.delivered
        now_ms = self._clock.monotonic_ms()
        if not graceful and self.type in _ONE_AT_A_TIME:
            self._lost.add(consumer.identity)
        for track in self.dispatch.holders.of(consumer.identity):
            if not graceful:
                track.deliveries.lost(consumer.identity, now_ms=now_ms, grace_ms=GRACE_MS)
                self.watch(track)
            elif track.deliveries.release(consumer.identity):
                self._flight.touch(track)
                self.dispatch.add(track)
        if self.dispatch.parking is not None:
            self.dispatch.parking.reroute()
        self._end_grace()
        self.dispatch.pump()

    def _end_grace(self) -> None:
        """End the grace of others, when there is one consumer at a time and somebody is.

        It goes on where they stopped, and not with what comes behind that.
        """
        if not self.consumers or self.type not in _ONE_AT_A_TIME:
            return
        now_ms = self._clock.monotonic_ms()
        for identity in self._lost:
            for track in self.dispatch.holders.of(identity):
                track.deliveries.lost(identity, now_ms=now_ms, grace_ms=0)
                self._expire(track, now_ms)
        self._lost.clear()

    def close(self, reason: str) -> None:
        """End for good: consumers are told, and the topics forget this."""
        self.closed = True
        self._alarm.close()
        for consumer in list(self.consumers):
            self.roster.leave(consumer)
            consumer.close(reason)
        for track in self.tracks:
            track.close()
            track.topic.followers.pop(track, None)
        for topic in self._coming.values():
            topic.tracks_coming -= 1
        self._coming.clear()
        self._tracks.clear()
        self._slots.clear()

    def on_lost(self, error: ShardMovedError) -> None:
        """Another broker has the topics: consumers are told, and nothing is handed out."""
        self._alarm.close()
        for consumer in list(self.consumers):
            self.roster.leave(consumer)
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

    def move(self, cursors: dict[Track, Cursor]) -> Callable[[], None]:
        """Go on elsewhere in some topics, during a move. Call what is returned to go back."""
        self._move += 1
        move = self._move
        former = {track: (track.cursor, track.moved) for track in cursors}
        for track, cursor in cursors.items():
            track.moved = move
            self._use(track, cursor)

        def undo() -> None:
            for track, (cursor, moved) in former.items():
                # A later move may have come on top, which fails with this one; its turn to go
                # back is after this, and it finds that done.
                if track.moved >= move and self._tracks.get(track.topic.name) is track:
                    track.moved = moved
                    self._use(track, cursor)
                    # What of it the journal was to hear of, before it was moved.
                    self.vault.on_acked(track)
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
        for track in self.tracks:
            track.sieve.use(filter_)
        if created.type != former.type or created.acks != former.acks:
            self._set_acks(created)
        self.dispatch.pump()

    def _set_type(self, type_: SubscriptionType) -> None:
        for track in self.tracks:
            self.dispatch.forget(track)
        self._lost.clear()
        self.type = type_
        self.roster = Roster(type_)
        self.consumers = self.roster.consumers
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
        for track in self.tracks:
            if anew:
                track.deliveries.settings = created.acks
                self._use(track, track.cursor)
            else:
                self.quarantine.on_set(track)
                self._flight.touch(track)
                self.dispatch.add(track)
        if anew:
            self._void()

    def _keeps_order(self) -> bool:
        """Whether there is at most one message of a key in flight."""
        # A message can block its key only where the others of that key come after it.
        wanted = self.acks.ordered or self.acks.poison == Poison.BLOCK
        return wanted and self.type is SubscriptionType.KEY_SHARED

    def _use(self, track: Track, cursor: Cursor) -> None:
        self.record.cursors[track.topic.record.topic] = cursor
        self.dispatch.forget(track)
        track.start_over(cursor, ordered=self.ordered)
        track.deliveries.trim(track.topic.first_offset)
        self._flight.touch(track)
        self.dispatch.add(track)
        self.quarantine.forget(track)
        self.quarantine.on_begun(track)

    def _void(self) -> None:
        """Tell consumers that what they hold is not theirs any more."""
        self.epoch += 1
        for consumer in list(self.consumers):
            consumer.on_void()

    # Coming back

    def ack(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge runs of leased messages, for good with `confirm`; return those refused."""
        refused: list[Run] = []
        last: Track | None = None
        for number, start, end in runs:
            track = self.track_of_lease(number)
            if track is None or end <= start:
                refused.append((number, start, end))
                continue
            # Where keys are kept in order, the next ones of each key wait for exactly these.
            ordered = track.gate is not None
            taken = track.deliveries.left_of(number, start, end) if confirm or ordered else []
            refused += [(number, *run) for run in track.deliveries.ack(number, start, end)]
            if confirm:
                self.vault.on_confirmed(self.number, [(number, *run) for run in taken])
            if ordered:
                for run in taken:
                    self.on_acked(track, *run)
            # A consumer that settles one message at a time sends thousands of runs at once.
            elif track is not last:
                self.on_acked(track, start, end)
                last = track
        self.dispatch.on_settled()
        return self.vault.ledger.confirmations.missing(self.number, refused)

    def ack_through(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge everything below the ends of runs; not for types that share messages."""
        refused: list[Run] = []
        for number, start, end in runs:
            track = self.track_of_lease(number)
            if (
                track is None
                or self.type not in _ONE_AT_A_TIME
                or end > track.topic.next_offset
                or not track.deliveries.ack_through(number, end)
            ):
                refused.append((number, start, end))
                continue
            if confirm:
                self.vault.on_confirmed(self.number, [(number, end - 1, end)])
            self.on_acked(track, start, end)
        self.dispatch.on_settled()
        return self.vault.ledger.confirmations.missing(self.number, refused)

    def nack(self, runs: Sequence[TimedRun], backoff_delay: int, reason: str = "") -> list[Run]:
        """Give messages back, to be delivered again after a delay; `NEVER_MS`: not again.

        `UNUSED_MS`: at once, and not as failed.
        The dead letter of a message says the last `reason` that was given for it.
        """
        refused: list[Run] = []
        failed: dict[Track, None] = {}
        now_ms = self._clock.monotonic_ms()
        for number, start, end, delay in runs:
            track = self.track_of_lease(number)
            if track is None or end <= start:
                refused.append((number, start, end))
                continue
            delay_ms = None if delay == backoff_delay else delay
            left = track.deliveries.nack(number, start, end, now_ms=now_ms, delay_ms=delay_ms)
            refused += [(number, *run) for run in left]
            failed[track] = None
            if reason and not left:
                self.quarantine.on_reason(track, range(start, end), reason)
        for track in failed:
            self._on_failed(track)
        self.dispatch.pump()
        return refused

    def extend(self, runs: Sequence[TimedRun]) -> list[Run]:
        """Give leases more time, or less."""
        refused: list[Run] = []
        now_ms = self._clock.monotonic_ms()
        for number, start, end, extension_ms in runs:
            track = self.track_of_lease(number)
            if track is None or end <= start:
                refused.append((number, start, end))
                continue
            left = track.deliveries.extend(
                number, start, end, now_ms=now_ms, extension_ms=extension_ms
            )
            refused += [(number, *run) for run in left]
            self.watch(track)
        return refused

    def on_committed(self, track: Track, cursor: Cursor, commit: InCommit) -> None:
        """The journal has a transaction that acknowledges a run."""
        if self.was_moved(track, cursor, [(commit.start, commit.end)]):
            return
        track.deliveries.end_commit(commit)
        self.on_acked(track, commit.start, commit.end)
        self.dispatch.on_settled()

    def on_not_committed(self, track: Track, cursor: Cursor, commit: InCommit) -> None:
        """The journal did not take a transaction: its consumer may try again, if it is there."""
        if self.was_moved(track, cursor, ()):
            return
        left_ms = self._left_ms(commit.consumer)
        deadline_ms = None if left_ms is None else self._clock.monotonic_ms() + left_ms
        track.deliveries.undo_commit(commit, deadline_ms=deadline_ms)
        if track.deliveries.is_holding(commit.consumer):
            self.dispatch.holders.add(commit.consumer, track)
        self._flight.touch(track)
        self.dispatch.add(track)
        self.watch(track)
        self.dispatch.pump()

    def _left_ms(self, identity: Hashable) -> int | None:
        """Return for how long a consumer may keep what it holds, `None` when it has left."""
        if any(consumer.identity == identity for consumer in self.consumers):
            return self.acks.ack_timeout_ms
        return GRACE_MS if identity in self._lost else None

    def was_moved(self, track: Track, cursor: Cursor, acked: Sequence[tuple[int, int]]) -> bool:
        """Whether a track has another cursor than when something acknowledged these was begun.

        A move comes behind it in the journal, and what it has left has no leases any more. When
        the move fails, the subscription goes back there, and finds them acknowledged.
        """
        if cursor is track.cursor and self._tracks.get(track.topic.name) is track:
            return False
        for run in acked:
            cursor.ack(*run)
        return True

    def track_of_lease(self, number: int) -> Track | None:
        """Return the track that a lease number belongs to, if there is one."""
        return self._slots.find(number)

    def on_acked(self, track: Track, start: int, end: int) -> None:
        """Messages are done: have that in the journal, and go on with what waited for them."""
        if start < end:
            self.vault.on_acked(track)
            self._flight.touch(track)
            if track.gate is not None and self.dispatch.parking is not None:
                self.dispatch.parking.on_done(track, start, end)
                self.dispatch.add(track)

    # Going wrong

    def _on_failed(self, track: Track) -> None:
        """Deliveries have gone wrong: have that in the journal, and go on with them."""
        self.vault.on_acked(track)
        self._flight.touch(track)
        self.dispatch.add(track)
        self.quarantine.treat(track)
        self.watch(track)

    def _expire(self, track: Track, now_ms: int) -> None:
        if track.deliveries.expire(now_ms):
            self._on_failed(track)
        else:
            self.dispatch.add(track)
            self.watch(track)

    def watch(self, track: Track) -> None:
        """Look at a track when its next lease or delay ends, or dead letters are to be tried."""
        self._alarm.watch(track, track.deliveries.next_due_ms())
        self.quarantine.watch(track)

    def _on_due(self, tracks: list[Track]) -> None:
        now_ms = self._clock.monotonic_ms()
        for track in tracks:
            self._expire(track, now_ms)
            # Of a former life of the broker, or what could not be written the last time.
            self.quarantine.treat(track)
        self.dispatch.pump()

    def report(self) -> SubscriptionReport:
        """Return the figures of this subscription, and of its first consumers."""
        return report_of(self, now_ms=self._clock.now_ms())


_ONE_AT_A_TIME = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
