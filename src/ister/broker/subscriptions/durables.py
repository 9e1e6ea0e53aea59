"""The durable subscriptions of a broker: made, found, moved, paused, removed.

Always true:
- there is one durable subscription for each storage, pattern and name;
- a change is there at once, and for good when the journal has it; when the journal fails, it is
  taken back.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from ister.base import (
    AckSettings,
    Clock,
    Origin,
    Poison,
    Position,
    Retention,
    StreamSettings,
    find_partition,
    is_wildcard,
    matches,
    parse_plain,
    parse_topic,
    partition_name,
)
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    ShardMovedError,
    SnapshotNotFoundError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import COVERED_AT_ONCE_MAX, Limits
from ister.broker.durable import (
    AckJournal,
    DeadLetterSink,
    DurableSubscription,
    Partition,
    dead_letter_name,
    holds_own_dead_letters,
)
from ister.broker.live import AnyTopic
from ister.broker.scheduling import Chores, Done, EndOfTurn, Steps, Turns, after_all, ignore
from ister.broker.state import (
    Change,
    CursorDropped,
    CursorMoved,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPaused,
    SubscriptionRecord,
    TopicsCovered,
)
from ister.broker.storage import Storage, Write
from ister.broker.streams import ReadAheadBudget, StreamTopic, resolve
from ister.broker.subscriptions.expiry import Expiry
from ister.broker.subscriptions.moving import move, seek
from ister.broker.subscriptions.saved_cursors import SavedCursors, cursor_of, saved_cursors
from ister.broker.subscriptions.settings import Found, Settings
from ister.broker.subscriptions.wanted import Wanted
from ister.subscriptions import Cursor, SubscriptionType
from ister.telemetry import Occasions

# Raises why a consumer cannot join a subscription.
Admit = Callable[[DurableSubscription], object]


class Durables:
    """The durable subscriptions of a broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        turns: Turns,
        end_of_turn: EndOfTurn,
        random_slot: Callable[[int], int],
        dead_letter_sink: DeadLetterSink,
        limits: Limits,
        check_dead_letters: Callable[[Collection[str]], object],
    ) -> None:
        """`check_dead_letters` raises when a topic is there that cannot take dead letters."""
        self.shared = ReadAheadBudget()
        self.turns = turns
        self._end_of_turn = end_of_turn
        self._clock = clock
        self._random_slot = random_slot
        self._undertaker = dead_letter_sink
        self._limits = limits
        self._chores = Chores(
            clock, lambda error: self._logger.error("internal_error", exc_info=error)
        )
        self._check_dead_letters = check_dead_letters
        self._throttle = Occasions(clock.monotonic_ms)
        self._saved = SavedCursors()
        self._ack_journals: dict[Storage, AckJournal] = {}
        self._by_key: dict[tuple[str, str], list[DurableSubscription]] = {}
        # The same, by pattern: of those with wildcards, and of others.
        self._wildcards: dict[str, dict[DurableSubscription, None]] = {}
        self._plain: dict[str, dict[DurableSubscription, None]] = {}
        self._logger: Any = structlog.get_logger("subscription")
        self._settings = Settings(
            lambda durable, acks: self._check_acks(
                durable.name, acks, [partition.topic for partition in durable.partitions]
            )
        )
        self.expiry = Expiry(clock, self._settings, self._forget)

    def __iter__(self) -> Iterator[DurableSubscription]:
        for some in self._by_key.values():
            yield from some

    def __len__(self) -> int:
        return len(self._by_key)

    def adopt(self, storage: Storage, topics: Mapping[int, StreamTopic]) -> None:
        """Take over the subscriptions of a storage, on its `topics`."""
        storage.on_loss.append(lambda error: self.on_lost(storage, error))
        self._ack_journals[storage] = AckJournal(storage)
        for record in storage.state.subscriptions.values():
            durable = self._make(record, storage)
            for number, cursor in record.cursors.items():
                topic = topics.get(number)
                if topic is not None:
                    durable.add_topic(topic, cursor)
            self.expiry.adopt(durable)
        # A crash may have come between the end of a topic and that of its subscriptions.
        list(self.on_topics_gone(list(self._plain), "its topic was deleted"))

    def matching(
        self, name: str, storage: Storage, *, is_queue: bool = False
    ) -> list[DurableSubscription]:
        """Return the subscriptions of a storage that cover a new topic or a new partition.

        By their pattern, or because it is a partition of their topic. A work queue has one at most.
        """
        partition = find_partition(name)
        plain = self._plain.get(partition[0], ()) if partition is not None else ()
        found = [durable for durable in plain if not durable.coverage.is_gone]
        for pattern, some in self._wildcards.items():
            if matches(pattern, name):
                found += [d for d in some if not holds_own_dead_letters(name, d.name, d.acks)]
        found = [durable for durable in found if durable.storage is storage]
        if not is_queue:
            return found
        first = partition_name(partition[0], 0) if partition is not None else ""
        here = [d for d in found if d.coverage.covers(first)]
        return (here or [d for d in found if d.takes_queues])[:1]

    @property
    def covered(self) -> int:
        """How many topics subscriptions by pattern cover, each counted for each of them."""
        return sum(len(d.record.cursors) for some in self._wildcards.values() for d in some)

    def check_covered(self, count: int) -> None:
        """Raise `LimitReachedError` when so many more topics cannot be covered by pattern."""
        if count > COVERED_AT_ONCE_MAX:
            raise LimitReachedError("covered_at_once_max", COVERED_AT_ONCE_MAX)
        if count and self.covered + count > self._limits.covered_topics_max:
            raise LimitReachedError("covered_topics_max", self._limits.covered_topics_max)

    def plan_cover(
        self, names: Sequence[str], storage: Storage, settings: StreamSettings
    ) -> Callable[[Sequence[StreamTopic]], Change] | None:
        """Return what has subscriptions cover a new topic, or partitions of one, if any do so."""
        # Partitions are covered by the same subscriptions, all of them.
        is_queue = settings.retention == Retention.WORKQUEUE
        covering = self.matching(names[0], storage, is_queue=is_queue)
        self.check_covered(len(names) * len(covering))
        return partial(self.cover_new, covering) if covering else None

    def do(self, steps: Steps) -> None:
        """Run work on subscriptions in several turns of the loop."""
        self._chores.do(steps)

    def cover_new(
        self, durables: Sequence[DurableSubscription], topics: Sequence[StreamTopic]
    ) -> Change:
        """Have subscriptions cover topics from their first message; return that for the journal."""
        numbers = [topic.record.topic for topic in topics]
        for durable in durables:
            durable.record.cursors.update((number, Cursor(0)) for number in numbers)
            self._cover(durable, topics)
        return TopicsCovered([durable.number for durable in durables], numbers)

    def _cover(self, durable: DurableSubscription, topics: Sequence[StreamTopic]) -> None:
        """Have a subscription cover topics from where its cursors stand, in several turns."""
        durable.coverage.expect(topics)
        self._chores.do(durable.add_expected())

    def covered_of(self, wanted: Wanted, topics: Sequence[StreamTopic]) -> list[StreamTopic]:
        """Return which of the topics that a pattern matches are covered.

        Not its dead letters; and no work queues, unless it was asked to cover them, because a work
        queue has one subscription only.
        """
        if not is_wildcard(wanted.pattern):
            return list(topics)
        there = {
            storage: self.find(wanted.pattern, wanted.name, storage)
            for storage in {topic.storage for topic in topics}
        }

        def is_covered(topic: StreamTopic) -> bool:
            durable = there[topic.storage]
            if durable is not None and durable.coverage.covers(topic.name):
                return True
            takes_queues = wanted.work_queues or (durable is not None and durable.takes_queues)
            if topic.is_work_queue and not takes_queues:
                return False
            acks = wanted.acks if durable is None else durable.acks
            return not holds_own_dead_letters(topic.name, wanted.name, acks)

        return [topic for topic in topics if is_covered(topic)]

    def find(self, pattern: str, name: str, storage: Storage) -> DurableSubscription | None:
        """Return the subscription of that name on topics of one storage, if there is one."""
        some = self._named(pattern, name)
        return next((durable for durable in some if durable.storage is storage), None)

    def find_type(self, pattern: str, name: str) -> SubscriptionType | None:
        """Return the type of the subscription of that name, if there is one."""
        return next((durable.type for durable in self._named(pattern, name)), None)

    def has(self, pattern: str, name: str) -> bool:
        """Whether there is a subscription of that name."""
        return bool(self._named(pattern, name))

    def get(self, pattern: str, name: str) -> list[DurableSubscription]:
        """Return the subscriptions of that name, one for each storage it has topics in."""
        found = self._named(pattern, name)
        if not found:
            raise SubscriptionNotFoundError(pattern, name)
        return found

    def _named(self, pattern: str, name: str) -> list[DurableSubscription]:
        """Return the subscriptions of that name, without those of a topic that was deleted."""
        return [d for d in self._by_key.get((pattern, name), ()) if not d.coverage.is_gone]

    def _get_whole(self, pattern: str, name: str) -> list[DurableSubscription]:
        """As `get`, for what is done to all topics of a subscription at once."""
        found = self.get(pattern, name)
        if not all(durable.coverage.is_whole for durable in found):
            raise SubscriptionBusyError(pattern, name)
        return found

    def on_topic(self, name: str, found: Sequence[AnyTopic]) -> Iterable[DurableSubscription]:
        """Return the subscriptions on a topic: by its name, or those that cover it."""
        some = dict(self._plain.get(name, self._wildcards.get(name, {})))
        for topic in found[:1]:
            if isinstance(topic, StreamTopic) and topic.name == name:
                owners = [f.owner for f in topic.followers if isinstance(f, Partition)]
                some |= {o: None for o in owners if isinstance(o, DurableSubscription)}
        return some

    def names_on(self, topic: StreamTopic) -> set[str]:
        """Return the names of the subscriptions that cover a topic."""
        return {f.owner.name for f in topic.followers if isinstance(f, Partition)}

    def confirm(self, storage: Storage, done: Done) -> None:
        """See `AckJournal.confirm`."""
        self._ack_journals[storage].confirm(done)

    def on_lost(self, storage: Storage, error: ShardMovedError) -> None:
        """Another broker has a storage: the consumers of its topics are told."""
        self._ack_journals[storage].clear()
        for durable in [durable for durable in self if durable.storage is storage]:
            durable.on_lost(error)

    # Making

    def open(
        self, wanted: Wanted, topics: Sequence[StreamTopic], done: Found, admit: Admit
    ) -> None:
        """Find a subscription on topics of one storage, or make it; `done` when it is durable.

        One that is there gets the settings that are given, unless `admit` raises.
        """
        topics[0].storage.committer.check_owned()
        durable = self.find(wanted.pattern, wanted.name, topics[0].storage)
        if durable is not None:
            self._open_again(durable, wanted, topics, done, admit)
            return
        self._check_new(wanted, topics)
        at_once = True

        def on_resolved(offsets: dict[int, int] | IsterError) -> None:
            self._on_resolved(wanted, topics, offsets, done, admit, checked=at_once)

        resolve(topics, wanted.start, on_resolved)
        at_once = False

    def _check_new(self, wanted: Wanted, topics: Sequence[StreamTopic]) -> None:
        limits = self._limits
        if len(self) >= limits.subscriptions_max:
            raise LimitReachedError("subscriptions_max", limits.subscriptions_max)
        if is_wildcard(wanted.pattern):
            if sum(map(len, self._wildcards.values())) >= limits.wildcards_max:
                raise LimitReachedError("wildcards_max", limits.wildcards_max)
            if len(topics) > limits.topics_per_subscription_max:
                most = limits.topics_per_subscription_max
                raise LimitReachedError("topics_per_subscription_max", most)
            self.check_covered(len(topics))
        self._check_acks(wanted.name, wanted.acks_to_make(), topics)
        wanted.start.check()
        topics[0].storage.committer.check()
        self._check_queues(topics)

    def is_free(self, topic: StreamTopic) -> bool:
        """Whether another subscription can cover a topic: a work queue has one only."""
        return not (topic.is_work_queue and topic.floors())

    def _check_queues(self, topics: Sequence[StreamTopic]) -> None:
        """Raise `WrongKindError` when one of the topics is the work queue of another."""
        for topic in topics:
            if not self.is_free(topic):
                partitions = [f for f in topic.followers if isinstance(f, Partition)]
                owners = [f"{p.owner.name!r} on {p.owner.pattern!r}" for p in partitions]
                detail = ", ".join(["it has one subscription only", *owners[:1]])
                raise WrongKindError(topic.name, "work queue", detail)

    def _check_acks(self, name: str, acks: AckSettings, topics: Sequence[StreamTopic]) -> None:
        acks.check()
        letters = acks.dead_letter_topic
        if letters and any(topic.name == letters for topic in topics):
            raise BadRequestError(f"{letters!r} cannot be the topic of its own dead letters")
        if letters:
            self._check_dead_letters([parse_topic(letters)])
        elif acks.max_deliveries and acks.poison == Poison.DEAD_LETTER:
            self._check_dead_letters({dead_letter_name(topic.name, name) for topic in topics})

    def _open_again(
        self,
        durable: DurableSubscription,
        wanted: Wanted,
        topics: Sequence[StreamTopic],
        done: Found,
        admit: Admit,
    ) -> None:
        if self._settings.is_waiting(durable):

            def on_made(found: DurableSubscription | IsterError) -> None:
                try:
                    if isinstance(found, IsterError):
                        raise found
                    # Which may find that it has ended.
                    self.open(wanted, topics, done, admit)
                except IsterError as error:
                    done(error)

            self._settings.wait(durable, on_made)
            return
        created = replace(_with(durable, wanted), idle_since_ms=0)
        self.cover_missing(durable, topics)
        if created == durable.record.created:
            done(durable)
            return
        admit(durable)
        if created.acks != durable.acks:
            self._check_acks(wanted.name, created.acks, topics)
        self._settings.change(durable, created, done)

    def update(self, wanted: Wanted, done: Done) -> None:
        """Give a subscription the settings of `wanted` that are given, consumers or not."""
        found = self._get_whole(wanted.pattern, wanted.name)
        self._settings.update([(d, _with(d, wanted)) for d in found], done)
        for durable in found:
            self.expiry.on_left(durable, graceful=False)

    def set_acks(self, pattern: str, name: str, acks: AckSettings, done: Done) -> None:
        """Have a subscription treat messages differently, also while it has consumers."""
        found = self._get_whole(pattern, name)
        self._settings.update([(d, replace(d.record.created, acks=acks)) for d in found], done)

    def check_acks(self, pattern: str, name: str, acks: AckSettings) -> None:
        """Raise if a subscription cannot be set to `acks` now."""
        for durable in self._get_whole(pattern, name):
            self._settings.check(durable, acks)

    def _on_resolved(
        self,
        wanted: Wanted,
        topics: Sequence[StreamTopic],
        offsets: dict[int, int] | IsterError,
        done: Found,
        admit: Admit,
        *,
        checked: bool,
    ) -> None:
        """Make a subscription, unless somebody else did while the disk was read."""
        if isinstance(offsets, IsterError):
            done(offsets)
            return
        present = [topic for topic in topics if not topic.deleted]
        try:
            if not present:
                raise TopicNotFoundError(topics[0].name)
            durable = self.find(wanted.pattern, wanted.name, present[0].storage)
            if durable is not None:
                self._open_again(durable, wanted, present, done, admit)
                return
            if not checked:
                self._check_new(wanted, present)
            self._make_new(wanted, present, offsets, done)
        except IsterError as error:
            done(error)

    def _make_new(
        self,
        wanted: Wanted,
        topics: Sequence[StreamTopic],
        offsets: dict[int, int],
        done: Found,
    ) -> None:
        storage = topics[0].storage
        state = storage.state
        # Reserved at once: two that are made in one turn must not get the same number.
        state.subscription_number += 1
        created = wanted.created(state.subscription_number)
        record = SubscriptionRecord(created)
        changes: list[Change] = [created]
        for topic in topics:
            number = topic.record.topic
            record.cursors[number] = Cursor(offsets[number])
            changes.append(CursorMoved(created.subscription, number, offsets[number]))

        def on_done(error: IsterError | None) -> None:
            if error is None:
                state.subscriptions[created.subscription] = record
            else:
                self._forget(durable, "it could not be stored")
            self._settings.on_stored(durable, error or durable)

        storage.commit(Write(journal_only=changes), on_done)
        durable = self._make(record, storage)
        self._settings.wait(durable, done)
        self._cover(durable, topics)

    def cover_missing(self, durable: DurableSubscription, topics: Sequence[StreamTopic]) -> None:
        """Have a subscription cover those of the topics that it does not cover yet."""
        missing = [topic for topic in topics if not durable.coverage.covers(topic.name)]
        if not missing:
            return
        self._check_queues(missing)

        def on_done(error: IsterError | None) -> None:
            if error is not None and not durable.closed:
                for topic in missing:
                    durable.coverage.remove(topic)

        durable.storage.committer.check()
        durable.storage.commit(Write(journal_only=[self.cover_new([durable], missing)]), on_done)

    def _make(self, record: SubscriptionRecord, storage: Storage) -> DurableSubscription:
        durable = DurableSubscription(
            record,
            storage,
            ack_journal=self._ack_journals[storage],
            clock=self._clock,
            random_slot=self._random_slot,
            turns=self.turns,
            end_of_turn=self._end_of_turn,
            shared=self.shared,
            dead_letter_sink=self._undertaker,
            throttle=self._throttle,
        )
        self._by_key.setdefault((durable.pattern, durable.name), []).append(durable)
        self._patterns_of(durable).setdefault(durable.pattern, {})[durable] = None
        return durable

    def _patterns_of(
        self, durable: DurableSubscription
    ) -> dict[str, dict[DurableSubscription, None]]:
        return self._wildcards if is_wildcard(durable.pattern) else self._plain

    # Removing

    def delete(self, pattern: str, name: str, done: Done) -> None:
        """Remove a subscription with its position; its consumers are told."""
        found = self.get(pattern, name)
        for durable in found:
            durable.storage.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            self._delete(durable, each)

    def _delete(self, durable: DurableSubscription, done: Done) -> None:
        def on_done(error: IsterError | None) -> None:
            if error is None:
                self._forget(durable, "the subscription was deleted")
            done(error)

        durable.storage.commit(Write(changes=[SubscriptionDeleted(durable.number)]), on_done)

    def on_topics_gone(self, names: Collection[str], reason: str) -> Steps:
        """Forget the subscriptions on deleted topics, one in each step."""
        for durable in [d for name in names for d in self._plain.get(name, ())]:
            if durable.closed or not durable.coverage.is_gone:
                continue
            # Without the journal it is found again at the next start, and deleted then.
            if durable.storage.committer.error is None:
                durable.storage.commit(Write(changes=[SubscriptionDeleted(durable.number)]), ignore)
            self._forget(durable, reason)
            yield

    def _forget(self, durable: DurableSubscription, reason: str) -> None:
        key = (durable.pattern, durable.name)
        some = self._by_key.get(key, [])
        if durable in some:
            some.remove(durable)
            if not some:
                del self._by_key[key]
            patterns = self._patterns_of(durable)
            del patterns[durable.pattern][durable]
            if not patterns[durable.pattern]:
                del patterns[durable.pattern]
        self.expiry.on_joined(durable)
        if not durable.closed:
            durable.close(reason)

    # Moving

    def seek(self, pattern: str, name: str, to: Position, done: Done) -> None:
        """Move a subscription on all of its topics."""
        to.check()
        found = self._get_whole(pattern, name)
        saved = [saved_cursors(d, to.name) for d in found] if to.origin == Origin.SNAPSHOT else []
        each = after_all(len(found), done)
        for durable in found:
            if saved:
                to_saved = cursor_of(saved.pop(0))
                self._chores.do(move(durable, list(durable.partitions), to_saved, each))
            else:
                self._chores.do(seek(durable, to, self._chores.do, each))

    def save_cursor(self, pattern: str, name: str, saved: str, done: Done) -> None:
        """Keep where a subscription stands under a name."""
        parse_plain(saved, "the name of a saved cursor")
        found = self.get(pattern, name)
        each = after_all(len(found), done)
        for durable in found:
            self._chores.do(self._saved.save(durable, saved, each))

    def drop_cursor(self, pattern: str, name: str, saved: str, done: Done) -> None:
        """Forget a saved cursor."""
        found = [d for d in self.get(pattern, name) if saved in d.record.saved]
        if not found:
            raise SnapshotNotFoundError(name, saved)
        for durable in found:
            durable.storage.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            durable.storage.commit(Write(changes=[CursorDropped(durable.number, saved)]), each)

    def pause(self, pattern: str, name: str, done: Done, *, paused: bool) -> None:
        """Let a subscription rest, or go on."""
        found = self.get(pattern, name)
        for durable in found:
            durable.storage.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            self._pause(durable, each, paused=paused)

    def _pause(self, durable: DurableSubscription, done: Done, *, paused: bool) -> None:
        def on_done(error: IsterError | None) -> None:
            if error is None:
                durable.set_paused(paused=paused)
            done(error)

        durable.storage.commit(
            Write(journal_only=[SubscriptionPaused(durable.number, paused)]), on_done
        )


def _with(durable: DurableSubscription, wanted: Wanted) -> SubscriptionCreated:
    """Return a subscription as it is with what is given."""
    return wanted.applied_to(durable.record.created, consumers=len(durable.consumers))
