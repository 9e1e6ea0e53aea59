"""The durable subscriptions of a broker: made, found, moved, paused, removed.

Always true:
- there is one durable subscription for each vault, pattern and name;
- a change is there at once, and for good when the journal has it; when the journal fails, it is
  taken back.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ister.base import (
    AckSettings,
    Clock,
    Origin,
    Poison,
    Position,
    Retention,
    find_partition,
    is_wildcard,
    matches,
    parse_plain,
    parse_topic,
)
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    SnapshotNotFoundError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import SNAPSHOTS_MAX
from ister.broker.changes import (
    Acked,
    Change,
    CursorDropped,
    CursorMoved,
    CursorSaved,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPaused,
)
from ister.broker.committer import Done, after_all, ignore
from ister.broker.deadletters import holds_own_letters, letters_of
from ister.broker.durable import DurableSubscription
from ister.broker.ledger import SubscriptionRecord
from ister.broker.places import resolve
from ister.broker.quarantine import Undertaker
from ister.broker.stream import StreamTopic
from ister.broker.track import Track
from ister.broker.vault import Vault
from ister.broker.window import ReadAhead
from ister.subscriptions import Cursor, Policy, SubscriptionType

Found = Callable[[DurableSubscription | IsterError], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a consumer asks of a durable subscription; checked."""

    pattern: str
    name: str
    type: SubscriptionType
    policy: Policy
    filters: dict[str, str]
    key_filters: list[str]
    start: Position
    # As asked for; nothing asked for takes what is there.
    acks: AckSettings | None


class Durables:
    """See the module."""

    def __init__(
        self,
        *,
        clock: Clock,
        random_slot: Callable[[int], int],
        undertaker: Undertaker,
        subscriptions_max: int,
        check_letters: Callable[[str], object],
    ) -> None:
        """`check_letters` raises when a topic is there that cannot take dead letters."""
        self.shared = ReadAhead()
        self._clock = clock
        self._random_slot = random_slot
        self._undertaker = undertaker
        self._subscriptions_max = subscriptions_max
        self._check_letters = check_letters
        self._by_key: dict[tuple[str, str], list[DurableSubscription]] = {}
        # Those the journal does not have yet, with everybody else who waits for that.
        self._making: dict[DurableSubscription, list[Found]] = {}

    def __iter__(self) -> Iterator[DurableSubscription]:
        for some in self._by_key.values():
            yield from some

    def __len__(self) -> int:
        return len(self._by_key)

    def adopt(self, vault: Vault) -> None:
        """Take over the subscriptions of a vault."""
        for record in vault.ledger.subscriptions.values():
            durable = self._make(record, vault)
            for number, cursor in record.cursors.items():
                topic = vault.topics.get(number)
                if topic is not None:
                    durable.add_topic(topic, cursor)
        # A crash may have come between the end of a topic and that of its subscriptions.
        self.on_topics_gone("its topic was deleted")

    def matching(self, topic: StreamTopic) -> list[DurableSubscription]:
        """Return the subscriptions of its vault that cover a new topic.

        By their pattern, or because it is a partition of their topic.
        """
        partition = find_partition(topic.name)
        base = partition[0] if partition is not None else ""
        return [
            durable
            for durable in self
            if durable.vault is topic.vault
            and (
                durable.pattern == base
                or (
                    is_wildcard(durable.pattern)
                    and matches(durable.pattern, topic.name)
                    and not holds_own_letters(topic.name, durable.name, durable.acks)
                )
            )
        ]

    def is_covered(self, wanted: Wanted, topic: StreamTopic) -> bool:
        """Whether a topic that the pattern matches is covered; not its own dead letters."""
        if not is_wildcard(wanted.pattern):
            return True
        durable = self.find(wanted.pattern, wanted.name, topic.vault)
        acks = wanted.acks if durable is None else durable.acks
        return not holds_own_letters(topic.name, wanted.name, acks)

    def find(self, pattern: str, name: str, vault: Vault) -> DurableSubscription | None:
        """Return the subscription of that name on topics of one vault, if there is one."""
        some = self._by_key.get((pattern, name), ())
        return next((durable for durable in some if durable.vault is vault), None)

    def get(self, pattern: str, name: str) -> list[DurableSubscription]:
        """Return the subscriptions of that name, one for each vault it has topics in."""
        found = self._by_key.get((pattern, name))
        if not found:
            raise SubscriptionNotFoundError(pattern, name)
        return list(found)

    def floors(self, topic: StreamTopic) -> list[int]:
        """Return where the cursors on a topic stand."""
        return [f.cursor.floor for f in topic.followers if isinstance(f, Track)]

    def names_on(self, topic: StreamTopic) -> set[str]:
        """Return the names of the subscriptions that cover a topic."""
        return {f.subscription.name for f in topic.followers if isinstance(f, Track)}

    # Making

    def open(self, wanted: Wanted, topics: Sequence[StreamTopic], done: Found) -> None:
        """Find a subscription on topics of one vault, or make it; `done` when it is durable."""
        durable = self.find(wanted.pattern, wanted.name, topics[0].vault)
        if durable is not None:
            self._open_again(durable, wanted, topics, done)
            return
        self._check_new(wanted, topics)
        resolve(topics, wanted.start, lambda found: self._on_resolved(wanted, topics, found, done))

    def _check_new(self, wanted: Wanted, topics: Sequence[StreamTopic]) -> None:
        if len(self) >= self._subscriptions_max:
            raise LimitReachedError("subscriptions_max", self._subscriptions_max)
        self._check_acks(wanted.name, wanted.acks or AckSettings(), topics)
        wanted.start.check()
        topics[0].vault.committer.check()
        for topic in topics:
            if topic.record.settings.retention == Retention.WORKQUEUE and self.floors(topic):
                owner = next(f for f in topic.followers if isinstance(f, Track)).subscription
                raise WrongKindError(
                    topic.name,
                    "work queue",
                    f"it has one subscription only, {owner.name!r} on {owner.pattern!r}",
                )

    def _check_acks(self, name: str, acks: AckSettings, topics: Sequence[StreamTopic]) -> None:
        acks.check()
        letters = acks.dead_letter_topic
        if letters and any(topic.name == letters for topic in topics):
            raise BadRequestError(f"{letters!r} cannot be the topic of its own dead letters")
        if letters:
            self._check_letters(parse_topic(letters))
        elif acks.max_deliveries and acks.poison == Poison.DEAD_LETTER:
            for own in {letters_of(topic.name, name) for topic in topics}:
                self._check_letters(own)

    def _open_again(
        self,
        durable: DurableSubscription,
        wanted: Wanted,
        topics: Sequence[StreamTopic],
        done: Found,
    ) -> None:
        durable.check_same(
            type_=wanted.type,
            policy=wanted.policy,
            filters=wanted.filters,
            keys=wanted.key_filters,
        )
        missing = [topic for topic in topics if not durable.covers(topic.name)]
        if missing:
            self._cover(durable, missing)
        waiting = self._making.get(durable)
        if wanted.acks is None or wanted.acks == durable.acks:
            if waiting is None:
                done(durable)
            else:
                waiting.append(done)
            return
        if durable.consumers or waiting is not None:
            raise SubscriptionMismatchError(
                durable.pattern, durable.name, f"other ack settings: {durable.acks}"
            )
        self._check_acks(wanted.name, wanted.acks, topics)
        self._set_acks(durable, wanted.acks, done)

    def set_acks(self, pattern: str, name: str, acks: AckSettings, done: Done) -> None:
        """Have a subscription treat messages differently, also while it has consumers."""
        found = self.get(pattern, name)
        for durable in found:
            self._check_acks(name, acks, [track.topic for track in durable.tracks])
            durable.vault.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            self._set_acks(
                durable, acks, lambda set_: each(set_ if isinstance(set_, IsterError) else None)
            )

    def _set_acks(self, durable: DurableSubscription, acks: AckSettings, done: Found) -> None:
        created = msgspec.structs.replace(durable.record.created, acks=acks)

        def on_done(error: IsterError | None) -> None:
            if error is None:
                durable.journaled = created
            elif durable.record.created is created and not durable.closed:
                durable.set_acks(durable.journaled)
            done(error or durable)

        durable.vault.record([created], on_done, apply=False)
        durable.set_acks(created)

    def _on_resolved(
        self,
        wanted: Wanted,
        topics: Sequence[StreamTopic],
        offsets: dict[int, int] | IsterError,
        done: Found,
    ) -> None:
        """Make a subscription, unless somebody else did while the disk was read."""
        if isinstance(offsets, IsterError):
            done(offsets)
            return
        present = [topic for topic in topics if not topic.deleted]
        try:
            if not present:
                raise TopicNotFoundError(topics[0].name)
            durable = self.find(wanted.pattern, wanted.name, present[0].vault)
            if durable is not None:
                self._open_again(durable, wanted, present, done)
                return
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
        vault = topics[0].vault
        ledger = vault.ledger
        # Reserved at once: two that are made in one turn must not get the same number.
        ledger.subscription_number += 1
        created = SubscriptionCreated(
            ledger.subscription_number,
            wanted.pattern,
            wanted.name,
            wanted.type.value,
            wanted.policy.value,
            wanted.filters,
            wanted.key_filters,
            wanted.acks or AckSettings(),
        )
        record = SubscriptionRecord(created)
        changes: list[Change] = [created]
        for topic in topics:
            number = topic.record.topic
            record.cursors[number] = Cursor(offsets[number])
            changes.append(CursorMoved(created.subscription, number, offsets[number]))

        def on_done(error: IsterError | None) -> None:
            if error is None:
                ledger.subscriptions[created.subscription] = record
            else:
                self._forget(durable, "it could not be stored")
            for told in self._making.pop(durable):
                told(error or durable)

        vault.record(changes, on_done, apply=False)
        durable = self._make(record, vault)
        self._making[durable] = [done]
        for topic in topics:
            durable.add_topic(topic, record.cursors[topic.record.topic])

    def cover_new(self, durable: DurableSubscription, topic: StreamTopic) -> None:
        """Have a subscription by pattern cover a topic that has just appeared, if it does not."""
        if not durable.covers(topic.name) and not holds_own_letters(
            topic.name, durable.name, durable.acks
        ):
            self._cover(durable, [topic])

    def _cover(self, durable: DurableSubscription, topics: Sequence[StreamTopic]) -> None:
        """Have a subscription cover more topics, from their start."""
        numbers = [topic.record.topic for topic in topics]
        changes: list[Change] = [CursorMoved(durable.number, number, 0) for number in numbers]

        def on_done(error: IsterError | None) -> None:
            if error is not None and not durable.closed:
                for topic in topics:
                    durable.remove_topic(topic)

        durable.vault.record(changes, on_done, apply=False)
        for topic in topics:
            cursor = durable.record.cursors[topic.record.topic] = Cursor(0)
            durable.add_topic(topic, cursor)

    def _make(self, record: SubscriptionRecord, vault: Vault) -> DurableSubscription:
        durable = DurableSubscription(
            record,
            vault,
            clock=self._clock,
            random_slot=self._random_slot,
            shared=self.shared,
            undertaker=self._undertaker,
        )
        self._by_key.setdefault((durable.pattern, durable.name), []).append(durable)
        return durable

    # Removing

    def delete(self, pattern: str, name: str, done: Done) -> None:
        """Remove a subscription with its position; its consumers are told."""
        found = self.get(pattern, name)
        for durable in found:
            durable.vault.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            self._delete(durable, each)

    def _delete(self, durable: DurableSubscription, done: Done) -> None:
        def on_done(error: IsterError | None) -> None:
            if error is None:
                self._forget(durable, "the subscription was deleted")
            done(error)

        durable.vault.record([SubscriptionDeleted(durable.number)], on_done)

    def on_topics_gone(self, reason: str) -> None:
        """Forget subscriptions on nothing, those by pattern apart."""
        for durable in [d for d in self if not is_wildcard(d.pattern) and not d.tracks]:
            # Without the journal it is found again at the next start, and deleted then.
            if durable.vault.committer.error is None:
                durable.vault.record([SubscriptionDeleted(durable.number)], ignore)
            self._forget(durable, reason)

    def _forget(self, durable: DurableSubscription, reason: str) -> None:
        key = (durable.pattern, durable.name)
        some = self._by_key.get(key, [])
        if durable in some:
            some.remove(durable)
            if not some:
                del self._by_key[key]
        if not durable.closed:
            durable.close(reason)

    # Moving

    def seek(self, pattern: str, name: str, to: Position, done: Done) -> None:
        """Move a subscription on all of its topics."""
        to.check()
        found = self.get(pattern, name)
        if to.origin == Origin.SNAPSHOT:
            places = [_saved_cursors(durable, to.name) for durable in found]
            each = after_all(len(found), done)
            for durable, cursors in zip(found, places, strict=True):
                self._move(durable, cursors, each)
            return
        each = after_all(len(found), done)
        for durable in found:
            self._seek(durable, to, each)

    def _seek(self, durable: DurableSubscription, to: Position, done: Done) -> None:
        def on_resolved(found: dict[int, int] | IsterError) -> None:
            if isinstance(found, IsterError):
                done(found)
            else:
                self._move(durable, {n: Cursor(offset) for n, offset in found.items()}, done)

        resolve([track.topic for track in durable.tracks], to, on_resolved)

    def _move(self, durable: DurableSubscription, cursors: dict[int, Cursor], done: Done) -> None:
        """Have a subscription go on from other cursors, by topic."""
        moved: dict[Track, Cursor] = {}
        changes: list[Change] = []
        for track in durable.tracks:
            cursor = cursors.get(track.topic.record.topic)
            if cursor is not None:
                cursor.trim(track.topic.first_offset)
                moved[track] = cursor
                changes.append(CursorMoved(*track.numbers, cursor.floor))
                if cursor.acked:
                    changes.append(Acked(*track.numbers, cursor.acked.runs()))

        def on_done(error: IsterError | None) -> None:
            if error is not None and not durable.closed:
                undo()
            # The answer first: a client drops everything that it received before.
            done(error)
            durable.end_move()

        try:
            # Not applied by the ledger, whose cursors these are: moving does that, and at once,
            # so that no acknowledgement of a lease from before comes after it in the journal.
            durable.vault.record(changes, on_done, apply=False)
        except IsterError as error:
            done(error)
            return
        undo = durable.begin_move(moved)

    def save_cursor(self, pattern: str, name: str, saved: str, done: Done) -> None:
        """Keep where a subscription stands under a name."""
        parse_plain(saved, "the name of a saved cursor")
        found = self.get(pattern, name)
        for durable in found:
            if len(durable.record.saved) >= SNAPSHOTS_MAX and saved not in durable.record.saved:
                raise LimitReachedError("snapshots_max", SNAPSHOTS_MAX)
            durable.vault.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            cursors = {n: c.encode() for n, c in durable.record.cursors.items()}
            durable.vault.record([CursorSaved(durable.number, saved, cursors)], each)

    def drop_cursor(self, pattern: str, name: str, saved: str, done: Done) -> None:
        """Forget a saved cursor."""
        found = [d for d in self.get(pattern, name) if saved in d.record.saved]
        if not found:
            raise SnapshotNotFoundError(name, saved)
        for durable in found:
            durable.vault.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            durable.vault.record([CursorDropped(durable.number, saved)], each)

    def pause(self, pattern: str, name: str, done: Done, *, paused: bool) -> None:
        """Let a subscription rest, or go on."""
        found = self.get(pattern, name)
        for durable in found:
            durable.vault.committer.check()
        each = after_all(len(found), done)
        for durable in found:
            self._pause(durable, each, paused=paused)

    def _pause(self, durable: DurableSubscription, done: Done, *, paused: bool) -> None:
        def on_done(error: IsterError | None) -> None:
            if error is None:
                durable.set_paused(paused=paused)
            done(error)

        durable.vault.record([SubscriptionPaused(durable.number, paused)], on_done, apply=False)

    def on_trimmed(self, topic: StreamTopic) -> None:
        """Messages of a topic are gone: cursors below count them as done."""
        for follower in list(topic.followers):
            if isinstance(follower, Track):
                follower.on_trimmed()
            else:
                follower.on_new()


def _saved_cursors(durable: DurableSubscription, saved: str) -> dict[int, Cursor]:
    """Return where a subscription stood; on topics that were not there then, at their start."""
    cursors = durable.record.saved.get(saved)
    if cursors is None:
        raise SnapshotNotFoundError(durable.name, saved)
    found = {track.topic.record.topic: Cursor(0) for track in durable.tracks}
    for number, data in cursors.items():
        then = Cursor.decode(data)
        # Without what had failed until then: a message that is delivered anew starts anew.
        cursor = found[number] = Cursor(then.floor)
        for run in then.acked.runs():
            cursor.ack(*run)
        cursor.take_changes()
    return found
