"""The running broker without a network: owns namespaces, topics and subscriptions.

Doors call it from one thread; nothing in here waits. Always true:
- a topic's name is taken by a topic or by a partitioned topic, never both;
- a subscription on a live topic lives as long as it has consumers;
- a wildcard subscription is attached to every topic its pattern covers, from the moment the
  topic exists.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import cast

from ister.base import (
    DEFAULT_NAMESPACE,
    BrokerReport,
    Clock,
    Pattern,
    StreamSettings,
    SubscriptionReport,
    TopicName,
    TopicReport,
    find_partition,
    is_wildcard,
    matches,
    namespace_of,
    parse_pattern,
    parse_plain,
    parse_topic,
    partition_name,
)
from ister.base.errors import (
    BadBatchError,
    BadNameError,
    BadRequestError,
    BatchTooLargeError,
    IsterError,
    LimitReachedError,
    MessageTooLargeError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    ProducerFencedError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import PARTITIONS_MAX, Limits
from ister.broker.changes import NamespaceCreated
from ister.broker.committer import Done, ignore
from ister.broker.consumer import QueueBudget
from ister.broker.deadletters import DeadLetters, OnTopic
from ister.broker.durables import Durables
from ister.broker.listing import Totals, page_of, subscription_page
from ister.broker.replies import Replies
from ister.broker.stream import StreamTopic, Told
from ister.broker.streams import Streams
from ister.broker.subscribers import Subscribers
from ister.broker.subscription import RandomSlot
from ister.broker.topic import AnyTopic, Topic
from ister.broker.transactions import Offsets, Transaction, TransactionAck, Transactions
from ister.broker.vault import Vault
from ister.codec import Batch, Column

# With more connections than this, a commit never holds up the event loop.
QUIET_CONNECTIONS_MAX = 4
# Nobody sends so many messages; above it, sums would not fit where they are kept.
SEQUENCE_MAX = 2**62


@dataclass(slots=True)
class Producer:
    """Somebody's right to publish to one topic under one name."""

    topic: AnyTopic
    name: str
    name_bytes: bytes
    id: int
    # The topic, if it is a stream.
    stream: StreamTopic | None


class Broker:
    """See the module."""

    def __init__(
        self,
        *,
        name: str,
        limits: Limits,
        clock: Clock,
        random_slot: RandomSlot,
        open_local: Callable[[], Vault] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self.budget = QueueBudget(limits)
        self.connections = 0
        self.replies = Replies()
        self._started_ms = clock.monotonic_ms()
        self._namespaces = {DEFAULT_NAMESPACE}
        self._topics: dict[str, AnyTopic] = {}
        self._partitioned: dict[str, Sequence[AnyTopic]] = {}
        self._topic_number = 0
        self._producer_id = 0
        # What deleted topics had counted: totals never fall.
        self._gone = Totals()
        self.durables = Durables(
            clock=clock,
            random_slot=random_slot,
            undertaker=DeadLetters(self._find_stream),
            subscriptions_max=limits.subscriptions_max,
        )
        self.streams = Streams(
            clock=clock,
            new_number=self._new_number,
            durables=self.durables,
            open_local=open_local,
            on_opened=self.adopt,
        )

        self._transactions = Transactions(self.streams.vaults, self._plain_stream)
        self.subscribers = Subscribers(
            self, durables=self.durables, streams=self.streams, random_slot=random_slot
        )

    def adopt(self, vault: Vault, *, is_object: bool = False) -> None:
        """Take over a vault: the namespaces, topics and subscriptions its ledger knows."""
        self.streams.adopt(vault, is_object=is_object)
        if not is_object:
            vault.committer.at_once = self._is_quiet
        ledger = vault.ledger
        self._namespaces |= ledger.namespaces
        for topic in vault.topics.values():
            self._topics[topic.name] = topic
        for name, partitions in ledger.partitioned.items():
            self._partitioned[name] = [
                self._topics[partition_name(name, n)] for n in range(partitions)
            ]

    # Namespaces and topics

    def create_namespace(self, namespace: str, done: Done = ignore) -> None:
        """Make a namespace, or raise `NamespaceExistsError`."""
        parse_topic(f"/{namespace}/x")
        if namespace in self._namespaces:
            raise NamespaceExistsError(namespace)
        if len(self._namespaces) >= self.limits.namespaces_max:
            raise LimitReachedError("namespaces_max", self.limits.namespaces_max)
        self._record_namespaces(namespace, done)
        self._namespaces.add(namespace)

    def namespaces(self) -> list[str]:
        """Return the namespaces by name."""
        return sorted(self._namespaces)

    def create_topic(
        self,
        name: str,
        done: Done = ignore,
        *,
        kind: str = "live",
        partitions: int = 0,
        stream: StreamSettings | None = None,
    ) -> None:
        """Make a topic. Nothing happens when it exists with the same settings.

        It is there on return, and for good when `done` is told so.
        """
        topic = parse_topic(name)
        if kind not in ("live", "stream"):
            raise BadRequestError(f"topic kind {kind[:40]!r} is not available: 'live', 'stream'")
        if stream is not None and kind == "live":
            raise BadRequestError("durability and retention are settings of kind 'stream'")
        if not 0 <= partitions <= PARTITIONS_MAX:
            raise BadRequestError(f"{partitions} partitions are not 0 to {PARTITIONS_MAX}")
        existing = self._partitioned.get(topic)
        if existing is not None or topic in self._topics:
            first = self._check_same(topic, kind, partitions, stream)
            if isinstance(first, StreamTopic):
                first.vault.committer.after(done)
            else:
                done(None)
            return
        if find_partition(topic) is not None:
            raise BadNameError(topic, "names ending in '-part-N' belong to partitioned topics")
        names = [partition_name(topic, n) for n in range(partitions)] or [topic]
        parse_topic(names[-1])  # The longest of the names.
        self._check_room(topic, len(names))
        if kind == "stream":
            self._create_streams(topic, names, stream or StreamSettings(), done)
            return
        topics = [self._add_live(n) for n in names]
        if partitions:
            self._partitioned[topic] = topics
        done(None)

    def delete_topic(self, name: str, done: Done = ignore) -> None:
        """Remove a topic with its partitions. Consumers of nothing else are closed."""
        topic = parse_topic(name)
        partitioned = topic in self._partitioned
        if partitioned:
            gone = list(self._partitioned[topic])
        elif topic in self._topics and not self._is_partition(topic):
            gone = [self._topics[topic]]
        else:
            raise TopicNotFoundError(name)
        streams = [t for t in gone if isinstance(t, StreamTopic)]

        def on_deleted(error: IsterError | None) -> None:
            if error is None:
                self._on_deleted(topic, gone)
            done(error)

        if streams:
            self.streams.delete(streams, on_deleted, partitioned=topic if partitioned else "")
        else:
            on_deleted(None)

    def purge(self, name: str, before: int, done: Callable[[int | IsterError], object]) -> None:
        """Drop the messages of a stream before an offset, all of them if that is negative."""
        topics = self.streams_of(name)
        if before >= 0 and len(topics) > 1:
            raise BadRequestError(
                f"{name} is partitioned: purge one of its partitions to an offset"
            )
        left, purged = len(topics), 0
        failed: list[IsterError] = []

        def on_done(error: IsterError | None, count: int) -> None:
            nonlocal left, purged
            left -= 1
            purged += count
            if error is not None:
                failed.append(error)
            if left == 0:
                done(failed[0] if failed else purged)

        for topic in topics:
            end = topic.next_offset if before < 0 else min(before, topic.next_offset)
            count = max(end - topic.first_offset, 0)
            self.streams.trim(topic, end, lambda error, count=count: on_done(error, count))  # type: ignore[misc]

    def partitions(self, name: str, *, known: int = 0) -> int:
        """Return the number of partitions, 0 for a topic without, making the topic if needed.

        `known` is the number a client remembers from before this broker was started anew: the
        topic, or that of which `name` is a partition, is made with as many again.
        """
        topic = parse_topic(name)
        if topic not in self._partitioned and topic not in self._topics:
            partition = find_partition(topic)
            forgotten = partition[0] if partition is not None and known else topic
            self.create_topic(forgotten, partitions=known)
        if topic in self._partitioned:
            return len(self._partitioned[topic])
        if topic not in self._topics:
            raise TopicNotFoundError(topic)
        return 0

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of a topic, 0 for any other topic or pattern."""
        return len(self._partitioned.get(name, ()))

    def find_topics(self, pattern: Pattern) -> list[AnyTopic]:
        """Return every topic that a name or pattern covers; none when there is none."""
        if is_wildcard(pattern):
            return [t for t in self._topics.values() if matches(pattern, t.name)]
        if pattern in self._partitioned:
            return list(self._partitioned[pattern])
        topic = self._topics.get(pattern)
        return [topic] if topic is not None else []

    def has_namespace(self, namespace: str) -> bool:
        """Whether a namespace exists."""
        return namespace in self._namespaces

    def streams_of(self, name: str) -> list[StreamTopic]:
        """Return a stream topic or the partitions of one, or raise what is wrong with the name."""
        topic = parse_topic(name)
        if topic in self._partitioned:
            found = list(self._partitioned[topic])
        elif topic in self._topics:
            found = [self._topics[topic]]
        else:
            raise TopicNotFoundError(topic)
        streams = [t for t in found if isinstance(t, StreamTopic)]
        if not streams:
            raise WrongKindError(name, "live", "this works on kind 'stream' only")
        return streams

    def _plain_stream(self, name: str) -> StreamTopic:
        """Return a stream topic that has no partitions, or raise what is wrong with the name."""
        found = self.streams_of(name)
        if found[0].name != name:
            raise BadRequestError(f"topic {name!r} is partitioned: name its partitions")
        return found[0]

    # Producing

    def open_producer(self, topic: str, name: str) -> Producer:
        """Return a producer for a topic that is not partitioned, making the topic if needed.

        On a stream, it fences an earlier one of the same name.
        """
        parse_plain(name, "a producer name")
        if self.partitions(topic):
            raise BadRequestError(f"topic {topic!r} is partitioned: open its partitions")
        found = self._topics[topic]
        found.producers += 1
        self._producer_id += 1
        stream = found if isinstance(found, StreamTopic) else None
        if stream is not None:
            stream.owners[name] = self._producer_id
        return Producer(found, name, name.encode(), self._producer_id, stream)

    def close_producer(self, producer: Producer) -> None:
        """Give a producer back."""
        producer.topic.producers -= 1
        stream = producer.stream
        if stream is not None and stream.owners.get(producer.name) == producer.id:
            del stream.owners[producer.name]

    def publish(self, producer: Producer, batch: Batch) -> None:
        """Check and publish a batch to a live topic; afterwards it carries its offsets and time.

        Raises without any effect when the batch breaks a rule.
        """
        topic = producer.topic
        self._check_batch(topic.name, batch, producer)
        assert isinstance(topic, Topic)
        if topic.deleted:
            raise TopicNotFoundError(topic.name)
        reached = topic.publish(batch, self.clock.now_ms())
        if batch.columns & Column.REPLY and reached < batch.count:
            self.replies.report_no_responder(topic.subscriptions, batch)

    def store(
        self, producer: Producer, batch: Batch, told: Told, *, expected_offset: int | None = None
    ) -> None:
        """Check a batch and publish it to a stream; `told` is called when it is safe, or not."""
        topic = producer.stream
        assert topic is not None
        if topic.deleted:
            raise TopicNotFoundError(topic.name)
        if topic.owners.get(producer.name) != producer.id:
            raise ProducerFencedError(topic.name, producer.name)
        self._check_batch(topic.name, batch, producer)
        if batch.columns & Column.REPLY:
            raise WrongKindError(topic.name, "stream", "requests are for live topics")
        if batch.first_sequence > SEQUENCE_MAX:
            raise BadBatchError(f"sequence number {batch.first_sequence} is not below 2^62")
        topic.publish(producer.name, batch, told, expected_offset=expected_offset)

    def stage(self, transaction: Transaction, slot: int, batch: Batch) -> None:
        """Check a batch and add it to a transaction."""
        self._check_batch("(transaction)", batch, None)
        if batch.columns & Column.REPLY:
            raise BadBatchError("requests are not for transactions")
        transaction.stage(slot, batch)

    def commit(
        self,
        transaction: Transaction,
        topics: Sequence[str],
        acks: Sequence[TransactionAck],
        done: Offsets,
    ) -> None:
        """Carry out a transaction, all of it or nothing."""
        self._transactions.commit(transaction, topics, acks, done)

    # Requests and replies

    def reply(self, batch: Batch) -> None:
        """Send each answer to the client that asked; answers to clients that left are dropped."""
        self._check_batch("(reply)", batch, None)
        batch.stamp(0, self.clock.now_ms())
        self.replies.send(batch)

    # Reports

    def topics(self, pattern: str, *, after: str, limit: int) -> tuple[list[TopicReport], str]:
        """Return a page of topics that match `pattern` (empty: all), and where the next starts."""
        if pattern:
            parse_pattern(pattern)
        names = sorted(n for n in self._topics if not pattern or matches(pattern, n))
        page, more = page_of(names, after=after, limit=limit)
        return [self._topics[name].report() for name in page], more

    def subscriptions(
        self, topic: str, *, after: str, limit: int
    ) -> tuple[list[SubscriptionReport], str]:
        """Return a page of subscriptions, of one topic or of all, and where the next starts."""
        return subscription_page(self.subscribers.reports(topic), after=after, limit=limit)

    def report(self) -> BrokerReport:
        """Return the figures of the broker as a whole."""
        totals = Totals()
        totals.add(self._gone)
        for topic in self._topics.values():
            totals.add(topic)
        return BrokerReport(
            broker=self.name,
            version=version("ister"),
            uptime_s=(self.clock.monotonic_ms() - self._started_ms) / 1000,
            connections=self.connections,
            topics=len(self._topics),
            subscriptions=len(self.subscribers),
            messages_in=totals.messages_in,
            bytes_in=totals.bytes_in,
            messages_out=totals.messages_out,
            messages_dropped=totals.messages_dropped,
            queued_bytes=self.budget.queued_bytes,
            storage_error=self.streams.error,
            stored_bytes=sum(v.log.total_bytes for v in self.streams.vaults),
            tail_bytes=max((v.budget.size_bytes for v in self.streams.vaults), default=0),
        )

    # Inner workings

    def _is_quiet(self) -> bool:
        """Whether so few are connected that nobody minds if the loop waits for a quick disk."""
        return 0 < self.connections <= QUIET_CONNECTIONS_MAX

    def _new_number(self) -> int:
        self._topic_number += 1
        return self._topic_number

    def _record_namespaces(self, namespace: str, done: Done) -> None:
        """Keep a namespace, if there is a place to keep it."""

        def on_done(error: IsterError | None) -> None:
            if error is not None:
                self._namespaces.discard(namespace)
            done(error)

        if self.streams.vaults:
            self.streams.vaults[0].record([NamespaceCreated(namespace)], on_done)
        else:
            done(None)

    def _create_streams(
        self, topic: TopicName, names: list[TopicName], settings: StreamSettings, done: Done
    ) -> None:
        partitioned = topic if names != [topic] else ""
        vault = self.streams.vault_for(settings.durability)
        if topic in self._topics or topic in self._partitioned:
            # It was in the data folder, which was opened only now: somebody else has filled it.
            partitions = len(names) if partitioned else 0
            first = self._check_same(topic, "stream", partitions, settings)
            cast("StreamTopic", first).vault.committer.after(done)
            return
        namespace = namespace_of(topic)
        if namespace != DEFAULT_NAMESPACE and namespace not in vault.ledger.namespaces:
            vault.record([NamespaceCreated(namespace)], ignore)

        def on_done(error: IsterError | None) -> None:
            if error is not None:
                self._partitioned.pop(topic, None)
                for name in names:
                    self._topics.pop(name, None)
            done(error)

        made = self.streams.create(names, settings, on_done, partitioned=partitioned)
        for part in made:
            self._topics[part.name] = part
        if partitioned:
            self._partitioned[topic] = made
        for part in made:
            self.subscribers.on_stream(part)

    def _find_stream(self, name: TopicName, settings: StreamSettings, done: OnTopic) -> None:
        """Find a stream topic, or make it."""
        found = self._topics.get(name)
        if isinstance(found, StreamTopic):
            done(found)
        elif found is not None or name in self._partitioned:
            done(WrongKindError(name, "live or partitioned", "dead letters need a plain stream"))
        else:

            def on_done(error: IsterError | None) -> None:
                done(error or self.streams.by_name[name])

            self.create_topic(name, on_done, kind="stream", stream=settings)

    def _check_same(
        self, topic: TopicName, kind: str, partitions: int, stream: StreamSettings | None
    ) -> AnyTopic:
        """Return the topic, or its first partition; raise when it is not the one asked for."""
        parts = self._partitioned.get(topic)
        has = len(parts or ())
        first = parts[0] if parts is not None else self._topics[topic]
        if has != partitions:
            raise TopicExistsError(topic, f"with {has} partitions")
        if first.kind != kind:
            raise TopicExistsError(topic, f"as a {first.kind} topic")
        if isinstance(first, StreamTopic) and stream not in (None, first.record.settings):
            raise TopicExistsError(topic, _difference(first.record.settings))
        return first

    def _add_live(self, name: TopicName) -> Topic:
        topic = self._topics[name] = Topic(name, self._new_number())
        self.subscribers.on_live(topic)
        return topic

    def _on_deleted(self, name: TopicName, parts: list[AnyTopic]) -> None:
        """Forget a topic that is no more, unless somebody else who asked for it has done so."""
        gone = [part for part in parts if self._topics.get(part.name) is part]
        if not gone:
            return
        self._partitioned.pop(name, None)
        for part in gone:
            self._forget_topic(part)
        self.subscribers.on_topics_gone(f"topic {name} was deleted")
        # Last: closing has counted what was still queued as dropped.
        for part in gone:
            self._gone.add(part)

    def _forget_topic(self, topic: AnyTopic) -> None:
        topic.deleted = True
        self._topics.pop(topic.name, None)
        if isinstance(topic, Topic):
            for subscription in topic.subscriptions:
                subscription.topics.remove(topic)
            topic.subscriptions = []

    def _check_batch(self, topic: str, batch: Batch, producer: Producer | None) -> None:
        limits = self.limits
        if batch.size_bytes > limits.batch_bytes_max or batch.codec:
            # Both as it came and as it will be unpacked: a small one may claim to be huge.
            size_bytes = max(batch.size_bytes, batch.columns_bytes)
            if size_bytes > limits.batch_bytes_max:
                raise BatchTooLargeError(size_bytes, limits.batch_bytes_max)
        if batch.columns & Column.OFFSET:
            raise BadBatchError("offsets are given by the broker, not by a producer")
        if producer is not None and batch.producer_bytes != producer.name_bytes:
            raise BadBatchError("the producer's name in the batch is not the one it opened with")
        too_large = batch.verify(message_bytes_max=limits.message_bytes_max)
        if too_large:
            raise MessageTooLargeError(topic, too_large, limits.message_bytes_max)

    def _check_room(self, name: TopicName, count: int) -> None:
        if namespace_of(name) not in self._namespaces:
            raise NamespaceNotFoundError(namespace_of(name))
        if len(self._topics) + count > self.limits.topics_max:
            raise LimitReachedError("topics_max", self.limits.topics_max)

    def _is_partition(self, name: str) -> bool:
        found = find_partition(name)
        return found is not None and found[0] in self._partitioned


def _difference(settings: StreamSettings) -> str:
    """Return how a stream is set that somebody wants to be otherwise."""
    told = [f"{name} {value}" for name, value in asdict(settings).items() if value]
    return f"with {', '.join(told)}: use it as it is, or delete it first"
