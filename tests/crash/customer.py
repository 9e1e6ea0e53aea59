"""Somebody who uses a broker, writes down what was promised, and repeats what was refused.

Every method that returns a `Request` only prepares it: `do` asks, several at once if they are
given together, and asks again, in order, until the broker has taken them all.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.life import CREDIT, Delivery, Inbox, Life, nothing
from tests.crash.promises import MAYBE, NO, YES, Key, Promises, Sent, Stand, Transacted

from ister.base import (
    EARLIEST,
    AckSettings,
    Durability,
    Expected,
    Origin,
    Position,
    StreamSettings,
    partition_name,
)
from ister.base.errors import IsterError, StorageFailedError, StorageUncertainError
from ister.broker import Membership, Producer, SubscribeOptions, Transaction
from ister.broker.storage.committer import RETRY_S
from ister.codec import Batch, encode
from ister.wire import BACKOFF_DELAY

# A disk that fails for longer than one repetition is healed.
FAILURES_BEFORE_HEALING = 2
REPEATS_MAX = 12

Tell = Callable[..., None]
StorageError = StorageFailedError | StorageUncertainError


@dataclass
class Outcome:
    """Whether a request was refused for certain, over all its repetitions."""

    uncertain: bool = False

    def is_refused(self, error: StorageError) -> bool:
        """Take the next answer, and return whether nothing has happened so far."""
        self.uncertain |= isinstance(error, StorageUncertainError)
        return not self.uncertain


@dataclass(frozen=True)
class Request:
    """Something to ask for, and what to write down when it was answered."""

    issue: Callable[[Tell], object]
    kept: Callable[[Any], object] = nothing
    # Told of an error of the storage: that it has not happened, or that nobody knows.
    refused: Callable[[StorageError], object] = nothing


@dataclass
class Attached:
    """A consumer with what it was sent."""

    membership: Membership
    inbox: Inbox

    def last(self, topic: str, offset: int) -> Delivery:
        """Return the newest delivery of a message."""
        return next(
            d for d in reversed(self.inbox.deliveries) if (d.topic, d.offset) == (topic, offset)
        )


class Customer:
    """See the module."""

    def __init__(self, life: Life, promises: Promises) -> None:
        self.life = life
        self.promises = promises
        self.failures = 0
        self.attached: dict[Key, Attached] = {}
        self._sequences: dict[tuple[str, str], int] = defaultdict(int)
        self._producers: dict[tuple[str, str], Producer] = {}
        self._serial = 0

    def move_to(self, life: Life) -> None:
        """Go on with the next life of the broker: nothing of a connection is left."""
        self.life = life
        self.attached.clear()
        self._producers.clear()
        for stands in self.promises.stands.values():
            for stand in stands:
                stand.fresh.clear()

    # Asking

    def do(self, *requests: Request, apart: bool = False) -> None:
        """Ask for everything at once, or with `apart` each while the former is under way.

        What the storage refuses is repeated in its order.
        """
        left = list(requests)
        for _ in range(REPEATS_MAX):
            asked = []
            for request in left:
                asked.append((request, self.life.ask(request.issue, request.kept)))
                if apart:
                    self.life.turn()
            self.life.settle()
            left = []
            uncertain = False
            for request, answer in asked:
                assert answer.told == 1, f"{answer.told} answers to {request}"
                if isinstance(answer.value, StorageFailedError | StorageUncertainError):
                    request.refused(answer.value)
                    uncertain |= isinstance(answer.value, StorageUncertainError)
                    left.append(request)
                elif isinstance(answer.value, IsterError):
                    raise answer.value
            if not left:
                return
            error = self.life.broker.streams.error
            assert error or not uncertain, (
                "something is uncertain, and the broker calls itself fine"
            )
            self.recover()
        raise AssertionError("the disk is healed, and the broker still takes nothing")

    def recover(self) -> None:
        """The storage has failed: see that what is stored can be read, and wait for it."""
        life = self.life
        # Whatever goes on in the background does so while the storage has failed.
        life.tidy()
        topics = life.broker.streams.by_name
        stored = {
            name: {
                offset: bytes(payload)
                for batch in life.read(topic).values()
                for offset, payload in zip(batch.offsets, batch.payloads, strict=True)
            }
            for name, topic in topics.items()
        }
        for sent in self.promises.sent:
            if sent.answered is not None and sent.topic in topics:
                for offset, payload in zip(sent.answered, sent.payloads, strict=True):
                    if offset >= topics[sent.topic].first_offset:
                        assert stored[sent.topic].get(offset) == payload, f"{sent} is unreadable"
        self.failures += 1
        if self.failures >= FAILURES_BEFORE_HEALING:
            life.disk.heal()
        life.pass_time(RETRY_S)

    # Topics

    def create(
        self,
        name: str,
        *,
        partitions: int = 0,
        durability: str = Durability.FSYNC,
        retention: str = "limits",
    ) -> Request:
        """Make a stream."""
        promises = self.promises
        if not self.life.has_files:
            durability = Durability.OBJECT
        stream = StreamSettings(durability=durability, retention=retention)
        outcome = Outcome()

        def issue(tell: Tell) -> None:
            promises.topics[name] = MAYBE
            promises.partitions[name] = partitions
            self.life.broker.create_topic(
                name, tell, kind="stream", partitions=partitions, stream=stream
            )

        def kept(_: object) -> None:
            promises.topics[name] = YES
            self._synced()

        def refused(error: StorageError) -> None:
            if outcome.is_refused(error):
                promises.topics[name] = NO

        return Request(issue, kept, refused)

    def grow(self, name: str, partitions: int) -> Request:
        """Give a topic more partitions."""
        promises = self.promises

        def issue(tell: Tell) -> None:
            promises.growing[name] = partitions
            self.life.broker.grow_topic(name, partitions, tell, kind="stream")

        def kept(_: object) -> None:
            promises.partitions[name] = promises.growing.pop(name)
            self._synced()

        return Request(issue, kept)

    def create_namespace(self, name: str) -> Request:
        """Make a namespace."""

        def issue(tell: Tell) -> None:
            self.promises.namespaces[name] = MAYBE
            self.life.broker.create_namespace(name, tell)

        def kept(_: object) -> None:
            self.promises.namespaces[name] = YES
            self._synced()

        return Request(issue, kept)

    def delete_namespace(self, name: str) -> Request:
        """Delete a namespace."""

        def issue(tell: Tell) -> None:
            self.promises.namespaces[name] = MAYBE
            self.life.broker.delete_namespace(name, tell)

        def kept(_: object) -> None:
            self.promises.namespaces[name] = NO
            self._synced()

        return Request(issue, kept)

    def delete(self, name: str) -> Request:
        """Delete a topic."""

        def issue(tell: Tell) -> None:
            self.promises.topics[name] = MAYBE
            for key in self.promises.subscriptions:
                if key[0] == name:
                    self.promises.subscriptions[key] = MAYBE
            self.life.broker.delete_topic(name, tell)

        def kept(_: object) -> None:
            self.promises.topics[name] = NO
            for key in self.promises.subscriptions:
                if key[0] == name:
                    self.promises.subscriptions[key] = NO
            self.promises.forget_messages(name)
            for numbers in [n for n in self._sequences if n[0] == name]:
                del self._sequences[numbers], self._producers[numbers]
            self._synced()

        return Request(issue, kept)

    def purge(self, name: str, before: int) -> Request:
        """Drop the messages below an offset."""
        return self._purge(name, before, [name])

    def purge_all(self, name: str) -> Request:
        """Drop all messages of a partitioned topic."""
        return self._purge(name, -1, [part(name, n) for n in range(self.promises.partitions[name])])

    def _purge(self, name: str, before: int, topics: list[str]) -> Request:
        purged = self.promises.purged
        ends: dict[str, int] = {}

        def issue(tell: Tell) -> None:
            for topic in topics:
                stream = self.life.broker.streams.by_name[topic]
                ends[topic] = before if before >= 0 else stream.next_offset
                purged[topic] = (purged.get(topic, (0, 0))[0], ends[topic])
            self.life.broker.purge(name, before, tell)

        def kept(_: object) -> None:
            purged.update({topic: (end, end) for topic, end in ends.items()})
            self._synced()

        return Request(issue, kept)

    # Messages

    def send(
        self,
        topic: str,
        producer: str,
        *sizes: int,
        ids: tuple[str, ...] | None = None,
        repeats: Sequence[bytes] = (),
        expected: int | None = None,
    ) -> Request:
        """Send a batch: messages that were sent before, by their ids, and new ones.

        With `expected`, only if that is the offset of its first message.
        """
        payloads = (*repeats, *(self._payload(topic, size) for size in sizes))
        numbers = (topic, producer)
        stream = self.life.broker.streams.by_name[topic]
        soft = stream.record.settings.durability == Durability.OS
        sent = Sent(topic, producer, self._sequences[numbers], payloads, ids, expected, soft)
        self._sequences[numbers] += len(payloads)
        self.promises.sent.append(sent)
        return self.repeat(sent)

    def producer(self, topic: str, name: str) -> Producer:
        """Return the producer of a name, opened once in each life of the broker."""
        found = self._producers.get((topic, name))
        if found is None:
            found = self.life.broker.open_producer(topic, name)
            self._producers[topic, name] = found
        return found

    def repeat(self, sent: Sent) -> Request:
        """Send a batch, or send it once more."""

        def issue(tell: Tell) -> None:
            head, body = encode(
                sent.payloads,
                ids=sent.ids,
                producer=sent.producer.encode(),
                first_sequence=sent.sequence,
            )
            batch = Batch(head + body)

            def told(error: IsterError | None, offsets: list[int] | None) -> None:
                tell(error or offsets or [batch.base_offset + n for n in range(batch.count)])

            producer = self.producer(sent.topic, sent.producer)
            sent.refused = False
            expected = (
                Expected() if sent.expected is None else Expected(expected_offset=sent.expected)
            )
            self.life.broker.store(producer, batch, told, **expected)

        def refused(error: StorageError) -> None:
            sent.uncertain |= isinstance(error, StorageUncertainError)
            sent.refused = sent.answered is None and not sent.uncertain

        def kept(offsets: list[int]) -> None:
            # The bits of those known before are turned round.
            plain = [max(offset, ~offset) for offset in offsets]
            assert sent.answered in (None, plain), f"{sent} is now at {plain}"
            sent.answered = plain
            if not sent.soft:
                self._synced()

        return Request(issue, kept, refused)

    def transact(
        self,
        word: str,
        parts: Sequence[tuple[str, int]],
        acks: Sequence[tuple[Key, str, int]] = (),
    ) -> Request:
        """Send messages to several topics and acknowledge others, all or nothing."""
        sends: list[tuple[str, tuple[bytes, ...]]] = [
            (topic, (self._payload(topic, size),)) for topic, size in parts
        ]
        transaction = Transacted(word, sends, list(acks))
        self.promises.transactions.append(transaction)
        for key, topic, offset in acks:
            self._may(key, topic, [offset], fresh=False)
        return self.repeat_transaction(transaction)

    def repeat_transaction(self, transacted: Transacted, *, with_acks: bool = True) -> Request:
        """Commit a transaction, or commit it once more."""

        def issue(tell: Tell) -> None:
            transaction = Transaction(transacted.word)
            for slot, (_, payloads) in enumerate(transacted.parts):
                head, body = encode(payloads)
                self.life.broker.stage(transaction, slot, Batch(head + body))
            acks = []
            for key, topic, offset in transacted.acks if with_acks else ():
                attached = self.attached[key]
                lease = attached.last(topic, offset).lease
                acks.append((attached.membership.durables, lease, offset, offset + 1))
            names = [topic for topic, _ in transacted.parts]
            transacted.refused = False
            self.life.broker.commit(transaction, names, acks, tell)

        def refused(error: StorageError) -> None:
            transacted.uncertain |= isinstance(error, StorageUncertainError)
            transacted.refused = transacted.answered is None and not transacted.uncertain

        def kept(offsets: list[int]) -> None:
            assert transacted.answered in (None, offsets), f"{transacted} is now at {offsets}"
            transacted.answered = offsets
            for key, topic, offset in transacted.acks:
                for stand in self.promises.stands[key, topic]:
                    stand.must.add(offset)
            self._synced()

        return Request(issue, kept, refused)

    # Subscriptions

    def subscribe(
        self, pattern: str, name: str, *, type: str = "exclusive", max_deliveries: int = 0
    ) -> Request:
        """Make a durable subscription that starts with the first message, or come back to it."""
        key = (pattern, name)
        options = self.promises.options[key] = SubscribeOptions(
            topic=pattern,
            subscription=name,
            consumer="c",
            type=type,
            filters={},
            start=EARLIEST,
            acks=AckSettings(max_deliveries=max_deliveries),
        )
        inbox = Inbox()

        def issue(tell: Tell) -> None:
            if self.promises.subscriptions.get(key) != YES:
                self.promises.subscriptions[key] = MAYBE
            self.life.subscribe(options, tell, inbox)

        def kept(membership: Membership) -> None:
            self.promises.subscriptions[key] = YES
            self.attached[key] = Attached(membership, inbox)
            membership.consumer.grant(CREDIT, CREDIT)
            self._synced()

        return Request(issue, kept)

    def come_back(self) -> None:
        """Attach to every subscription there still is."""
        for key, options in self.promises.options.items():
            if self.promises.subscriptions[key] == YES:
                self.attached[key] = Attached(*self.life.attach(options))

    def unsubscribe(self, key: Key) -> Request:
        """Delete a subscription."""

        def issue(tell: Tell) -> None:
            self.promises.subscriptions[key] = MAYBE
            self.life.broker.durables.delete(*key, tell)

        def kept(_: object) -> None:
            self.promises.subscriptions[key] = NO
            self._synced()

        return Request(issue, kept)

    def ack(self, key: Key, topic: str, *offsets: int, confirm: bool = True) -> Request:
        """Acknowledge messages, and wait until that is on the disk if `confirm` says so."""
        before: list[tuple[Stand, set[int]]] = []

        def issue(tell: Tell) -> None:
            self._may(key, topic, offsets)
            attached = self.attached[key]
            runs = [(attached.last(topic, o).lease, o, o + 1) for o in offsets]
            assert attached.membership.ack(runs) == []
            if not confirm:
                tell(None)
                return
            before[:] = [(s, set(s.fresh)) for some in self.promises.stands.values() for s in some]
            self.life.broker.durables.confirm(self.life.storage, tell)

        def kept(_: object) -> None:
            for stand, acked in before:
                stand.must |= acked
            if confirm:
                self._synced()

        return Request(issue, kept)

    def bury(self, key: Key, topic: str, offset: int, *, letters: str) -> None:
        """Give a message back until it is a dead letter."""
        self._may(key, topic, [offset], fresh=False)
        self.promises.doomed[key, topic, offset] = letters
        for _ in range(REPEATS_MAX):
            attached = self.attached[key]
            last = attached.last(topic, offset)
            nack = (last.lease, offset, offset + 1, 0)
            if attached.membership.nack([nack], BACKOFF_DELAY):
                # It was given back often enough: the broker tries again to bury it.
                self.life.pass_time(RETRY_S)
            self.life.settle()
            if self.life.broker.streams.error:
                self.recover()
            found = self.life.broker.streams.by_name.get(letters)
            if found is not None and found.next_offset:
                for stand in self.promises.stands[key, topic]:
                    stand.must.add(offset)
                self._synced()
                return
        raise AssertionError(f"{offset} of {topic} does not die")

    def fail(self, key: Key, topic: str, offset: int) -> Request:
        """Give a message back once, and wait until that is on the disk."""

        def issue(tell: Tell) -> None:
            attached = self.attached[key]
            last = attached.last(topic, offset)
            if last.attempt == 1:
                attached.membership.nack([(last.lease, offset, offset + 1, 0)], BACKOFF_DELAY)
            self.life.broker.durables.confirm(self.life.storage, tell)

        def kept(_: object) -> None:
            self.promises.failures[key, topic, offset] = 1
            self._synced()

        return Request(issue, kept)

    def seek(self, key: Key, to: Position, stands: dict[str, Stand]) -> Request:
        """Move a subscription; afterwards it stands on each topic as `stands` says."""

        def issue(tell: Tell) -> None:
            for topic, stand in stands.items():
                known = self.promises.stands.setdefault((key, topic), [Stand()])
                if stand not in known:
                    known.append(stand)
                self._undo_transactions(key, topic)
            self.life.broker.durables.seek(*key, to, tell)

        def kept(_: object) -> None:
            for topic, stand in stands.items():
                self.promises.stands[key, topic] = [stand]
            self._synced()

        return Request(issue, kept)

    def save_cursor(self, key: Key, name: str) -> Request:
        """Keep where a subscription stands."""

        def issue(tell: Tell) -> None:
            self.promises.saved[key, name] = MAYBE
            self.life.broker.durables.save_cursor(*key, name, tell)

        def kept(_: object) -> None:
            self.promises.saved[key, name] = YES
            self._synced()

        return Request(issue, kept)

    def drop_cursor(self, key: Key, name: str) -> Request:
        """Forget a place."""

        def issue(tell: Tell) -> None:
            self.promises.saved[key, name] = MAYBE
            self.life.broker.durables.drop_cursor(*key, name, tell)

        def kept(_: object) -> None:
            self.promises.saved[key, name] = NO
            self._synced()

        return Request(issue, kept)

    def pause(self, key: Key, *, paused: bool) -> Request:
        """Let a subscription rest, or go on."""

        def issue(tell: Tell) -> None:
            self.promises.paused[key] = MAYBE
            self.life.broker.durables.pause(*key, tell, paused=paused)

        def kept(_: object) -> None:
            self.promises.paused[key] = YES if paused else NO
            self._synced()

        return Request(issue, kept)

    # Inner workings

    def _synced(self) -> None:
        self.promises.on_synced()

    def _may(self, key: Key, topic: str, offsets: Sequence[int], *, fresh: bool = True) -> None:
        for stand in self.promises.stands.setdefault((key, topic), [Stand()]):
            stand.may.update(offsets)
            if fresh:
                stand.fresh.update(offsets)

    def _undo_transactions(self, key: Key, topic: str) -> None:
        """Who goes back to an earlier place undoes what transactions have acknowledged there."""
        for transaction in self.promises.transactions:
            transaction.acks = [ack for ack in transaction.acks if ack[:2] != (key, topic)]

    def _payload(self, topic: str, size: int) -> bytes:
        # No two messages are alike, so that one that is lost or doubled is noticed.
        self._serial += 1
        return (b"%s/%d " % (topic.encode(), self._serial)).ljust(size, b".")


def part(topic: str, number: int) -> str:
    """Return the name of a partition."""
    return partition_name(topic, number)


def snapshot(name: str) -> Position:
    """Return the place of a saved cursor."""
    return Position(origin=Origin.SNAPSHOT, name=name)
