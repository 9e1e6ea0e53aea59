"""The running broker without a network: owns a catalog of topics, and who is subscribed to them.

Doors call it from one thread; nothing in here waits. Whoever may have to wait gives a `done`, which
is called once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from importlib.metadata import version
from itertools import count
from typing import Unpack

from ister.base import (
    AutoCreate,
    BrokerReport,
    Clock,
    DelayReport,
    Expected,
    Pattern,
    StreamChanges,
    StreamSettings,
    SubscriptionReport,
    TimelineSettings,
    TopicName,
    TopicReport,
    check_not_reserved,
    find_partition,
    parse_pattern,
    parse_plain,
)
from ister.base.errors import (
    BadBatchError,
    BadRequestError,
    BatchTooLargeError,
    IsterError,
    LimitReachedError,
    MessageTooLargeError,
    ProducerFencedError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import BATCH_REPLIES_MAX, Limits
from ister.broker.catalog import (
    Catalog,
    Steps,
    Subscribers,
    Totals,
    run_through,
    subscription_page,
    timeline_report,
    topic_page,
)
from ister.broker.connections import ConnectionCounts
from ister.broker.consumers import QueueBudget
from ister.broker.delayed import DelayedBatch, Delays
from ister.broker.durable import DeadLetters, OnTopic
from ister.broker.live import AnyTopic, Pieces, RandomSlot, Replies, Topic
from ister.broker.scheduling import Done, EndOfTurn, Turns, after_all, ignore
from ister.broker.schema_checks import LongCheck, SchemaCheckOf, check, long_check
from ister.broker.state import check_ids
from ister.broker.storage import Storage
from ister.broker.streams import OnStored, RecentBudget, Streams, StreamTopic, Watching
from ister.broker.subscriptions import Durables
from ister.broker.timelines import StoreWorker, Timelines
from ister.broker.transactions import (
    Offsets,
    SeriesPublisher,
    Spooling,
    Staging,
    Transaction,
    TransactionAck,
    Transactions,
)
from ister.codec import Batch, Column
from ister.timeline import TopicRow

# With more connections than this, a commit never holds up the event loop.
CALM_CONNECTIONS_MAX = 4
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
    """The running broker, as its doors see it."""

    def __init__(
        self,
        *,
        name: str,
        limits: Limits,
        clock: Clock,
        random_slot: RandomSlot,
        recent: RecentBudget | None = None,
        open_local: Callable[[], Storage] | None = None,
        spooling: Spooling | None = None,
        auto_create: AutoCreate | None = None,
        call_soon: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self.connections = 0
        # Those of the gRPC doors, which `connections` leaves out.
        self.grpc = ConnectionCounts()
        self.replies = Replies()
        self._started_ms = clock.monotonic_ms()
        self._producer_id = 0
        new_number = count(1).__next__
        # What handing out may take of each turn of the loop.
        after_this = partial(clock.call_later, 0)
        self.turns = Turns(call_soon=after_this, now_ns=lambda: clock.monotonic_ms() * 1_000_000)
        self.end_of_turn = EndOfTurn(call_soon or after_this)
        self.budget = QueueBudget(limits, self.turns)
        self.durables = Durables(
            clock=clock,
            turns=self.turns,
            end_of_turn=self.end_of_turn,
            random_slot=random_slot,
            dead_letter_sink=DeadLetters(name, self._find_stream),
            limits=limits,
            check_dead_letters=lambda names: self.catalog.check_dead_letters(names),  # noqa: PLW0108 - made below
        )
        self.streams = Streams(
            clock=clock,
            new_number=new_number,
            turns=self.turns,
            recent=recent or RecentBudget(),
            open_local=open_local,
            on_opened=self.adopt,
        )
        self.streams.after_commit.append(self.end_of_turn.run)
        self.streams.upkeep.before_round.append(self.durables.expiry.maintain)
        self.catalog = Catalog(
            limits=limits,
            streams=self.streams,
            durables=self.durables,
            new_number=new_number,
            auto_create=auto_create or AutoCreate(),
        )
        self.subscribers = self.catalog.subscribers = Subscribers(
            self.catalog,
            limits=limits,
            budget=self.budget,
            durables=self.durables,
            random_slot=random_slot,
        )
        self.watching = Watching(self.catalog.streams_of, clock)
        self.catalog.on_partitions_added = self.watching.on_partitions_added
        self._transactions = Transactions(self.streams.storages, self.catalog.stream_to_write)
        self.staging = self._new_staging(spooling)
        self.series = SeriesPublisher(self.staging, self.streams)
        # Of a broker that has a store for timelines.
        self.delays: Delays | None = None
        # How many batches were published, by connections: timelines give way to those.
        self._published = 0

    def _new_staging(self, spooling: Spooling | None) -> Staging:
        return Staging(
            clock=self.clock,
            spooling=spooling,
            find_topic=self.catalog.stream_to_write,
            check_batch=lambda batch: self._check_batch("(stage)", batch, None),
        )

    def adopt(self, storage: Storage, *, is_object: bool = False) -> None:
        """Take over a storage: the namespaces, topics and subscriptions its state knows.

        Raises `ConfigError`, with nothing changed, when it has topics of names that are taken.
        """
        self.catalog.check_adoptable(storage.state)
        self.streams.adopt(storage, is_object=is_object)
        self.durables.adopt(storage, self.streams.topics_of(storage))
        if not is_object:
            storage.committer.at_once = self._may_wait
        self.catalog.adopt(storage)

    def adopt_timelines(
        self,
        worker: StoreWorker,
        topics: Sequence[TopicRow],
        *,
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        """Keep timelines in a store, which has some already."""
        timelines = Timelines(
            worker,
            clock=self.clock,
            call_soon=call_soon,
            find_kind=self.catalog.find_kind,
            count_published=lambda: self._published,
            after_commit=self.streams.after_commit,
        )
        timelines.adopt(topics)
        self.catalog.adopt_timelines(timelines)
        self.delays = Delays(
            timelines,
            clock=self.clock,
            find_topic=self.catalog.topics.get,
            batch_bytes_max=self.limits.batch_bytes_max,
        )
        self.delays.start()

    @property
    def timelines(self) -> Timelines:
        """The timelines; raises `BadRequestError` when this broker has no store for them."""
        if self.catalog.timelines is None:
            raise BadRequestError("this broker has no place for timelines")
        return self.catalog.timelines

    # Namespaces and topics

    def create_namespace(self, namespace: str, done: Done = ignore) -> None:
        """Make a namespace, or raise `NamespaceExistsError`."""
        self.catalog.namespaces.create(namespace, done)

    def delete_namespace(self, namespace: str, done: Done = ignore) -> None:
        """Remove a namespace, or raise `NamespaceNotEmptyError` while it has topics."""
        self.catalog.namespaces.delete(namespace, done)

    def namespaces(self) -> list[str]:
        """Return the namespaces by name."""
        return self.catalog.namespaces.names()

    def create_topic(
        self,
        name: str,
        done: Done = ignore,
        *,
        kind: str = "live",
        partitions: int = 0,
        stream: StreamSettings | None = None,
        timeline: TimelineSettings | None = None,
    ) -> None:
        """Make a topic; see `Catalog.create`."""
        self.catalog.create(
            name, done, kind=kind, partitions=partitions, stream=stream, timeline=timeline
        )

    def grow_topic(
        self,
        name: str,
        partitions: int,
        done: Done = ignore,
        *,
        kind: str = "live",
        stream: StreamSettings | None = None,
    ) -> None:
        """Have a topic with that many partitions at least; see `Catalog.grow`."""
        self.catalog.grow(name, partitions, done, kind=kind, stream=stream)

    def update_topic(self, name: str, changes: StreamChanges, done: Done = ignore) -> None:
        """Change settings of a stream, those of all its partitions; see `Streams.update`."""
        check_not_reserved(name)
        part = find_partition(name)
        if part is not None and self.partition_count(part[0]):
            raise BadRequestError(f"{name} is a partition: update {part[0]!r}, with all of them")
        self.streams.update(self.streams_of(name), changes, done)

    def delete_topic(self, name: str, done: Done = ignore) -> None:
        """Remove a topic with its partitions. Consumers of nothing else are closed."""
        self.catalog.delete(name, done)

    def partitions(self, name: str, *, known: int = 0, kind: str = "") -> int:
        """Return the number of partitions, 0 for none, making the topic if needed."""
        return self.catalog.partitions(name, known=known, kind=kind)

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of a topic, 0 for any other topic or pattern."""
        return self.catalog.partition_count(name)

    def streams_of(self, name: str) -> list[StreamTopic]:
        """Return a stream topic or the partitions of one, or raise what is wrong with the name."""
        return self.catalog.streams_of(name)

    def purge(self, name: str, before: int, done: Callable[[int | IsterError], object]) -> None:
        """Drop the messages of a stream before an offset, all of them if that is negative."""
        check_not_reserved(name)
        topics = self.streams_of(name)
        if before >= 0 and len(topics) > 1:
            raise BadRequestError(
                f"{name} is partitioned: purge one of its partitions to an offset"
            )
        ends = [t.next_offset if before < 0 else min(before, t.next_offset) for t in topics]
        purged = sum(max(end - t.first_offset, 0) for t, end in zip(topics, ends, strict=True))
        each = after_all(len(topics), lambda error: done(error or purged))
        for topic, end in zip(topics, ends, strict=True):
            topic.trim(end, each)

    # Producing

    def open_producer(self, topic: str, name: str) -> Producer:
        """Return a producer for a topic that is not partitioned, making the topic if needed.

        On a stream, it fences an earlier one of the same name.
        """
        parse_plain(name, "a producer name")
        check_not_reserved(topic)
        if self.partitions(topic):
            raise BadRequestError(f"topic {topic!r} is partitioned: open its partitions")
        found = self.catalog.topics[topic]
        stream = found if isinstance(found, StreamTopic) else None
        if stream is not None:
            stream.storage.committer.check_owned()
        found.producers += 1
        self._producer_id += 1
        if stream is not None:
            stream.owners[name] = self._producer_id
        return Producer(found, name, name.encode(), self._producer_id, stream)

    def close_producer(self, producer: Producer) -> None:
        """Give a producer back."""
        producer.topic.producers -= 1
        stream = producer.stream
        if stream is not None and stream.owners.get(producer.name) == producer.id:
            del stream.owners[producer.name]

    def publish(self, producer: Producer, batch: Batch, *, checked: bool = False) -> Pieces | None:
        """Check and publish a batch to a live topic; afterwards it carries its offsets and time.

        Returns the steps to take when that takes longer than others may wait: very many messages
        have to be looked at, or there are very many subscriptions.
        Raises without any effect when the batch breaks a rule. `checked` says that `long_check`
        has found nothing.
        """
        topic = self._check_live(producer, batch, checked=checked)
        if topic.busy or topic.is_long(batch):
            return self._publish_in_steps(topic, batch)
        self._publish_live(topic, batch)
        return None

    def _check_live(self, producer: Producer, batch: Batch, *, checked: bool) -> Topic:
        topic = producer.topic
        if not checked:
            self._check_batch(topic.name, batch, producer)
        assert isinstance(topic, Topic)
        if topic.deleted:
            raise TopicNotFoundError(topic.name)
        if topic.schema_check is not None and not checked:
            check(topic.schema_check, batch)
        self._published += 1
        return topic

    def _publish_in_steps(self, topic: Topic, batch: Batch) -> Pieces:
        while topic.busy:
            yield True
        if topic.deleted:
            raise TopicNotFoundError(topic.name)
        reached = yield from topic.publish_in_steps(batch, self.clock.now_ms())
        if batch.columns & Column.REPLY and not all(reached):
            slots = {slot for slot, is_reached in enumerate(reached) if is_reached}
            self.replies.report_no_responder(batch, slots)

    def _publish_live(self, topic: Topic, batch: Batch) -> None:
        reached = topic.publish(batch, self.clock.now_ms())
        if batch.columns & Column.REPLY and reached < batch.count:
            self.replies.report_no_responder(batch, topic.wanted(batch))

    def store(
        self,
        producer: Producer,
        batch: Batch,
        told: OnStored,
        *,
        checked: bool = False,
        **expected: Unpack[Expected],
    ) -> None:
        """Check a batch and publish it to a stream; `told` is called when it is safe, or not.

        `checked` says that `long_check` has found nothing.
        """
        topic = producer.stream
        assert topic is not None
        _check_may_publish(producer)
        if not checked:
            self._check_batch(topic.name, batch, producer)
        if batch.columns & Column.REPLY:
            raise WrongKindError(topic.name, "stream", "requests are for live topics")
        if batch.first_sequence > SEQUENCE_MAX:
            raise BadBatchError(f"sequence number {batch.first_sequence} is not below 2^62")
        check_ids(batch)
        self._published += 1
        schema_check = None if checked else topic.schema_check
        topic.publish(producer.name, batch, told, schema_check=schema_check, **expected)

    def delay(
        self, producer: Producer, delayed: DelayedBatch, done: Done, *, checked: bool = False
    ) -> None:
        """Check messages and keep them, to be published when they are due.

        `done` is told when they are on the disk. `checked` says that `long_check` has found
        nothing.
        """
        topic, batch = producer.topic, delayed.batch
        if self.delays is None:
            raise BadRequestError("this broker has no place for messages that are due later")
        _check_may_publish(producer)
        if not checked:
            self._check_batch(topic.name, batch, producer)
            if topic.schema_check is not None:
                check(topic.schema_check, batch)
        if batch.columns & Column.REPLY:
            raise BadRequestError("a request cannot be delayed: nobody would wait for the answer")
        self.delays.add(producer, delayed, done)

    def long_check(self, producer: Producer, batch: Batch) -> LongCheck | None:
        """Return what to do in a thread before this batch is published as `checked`.

        `None` when it need not be. Raises when the batch breaks another rule than its schema's.
        """
        topic, stream = producer.topic, producer.stream
        schema_check = topic.schema_check
        check = long_check([(schema_check, batch)]) if schema_check is not None else None
        if check is None:
            return None
        self._check_batch(topic.name, batch, producer)
        if stream is not None and stream.sent.is_repeated(producer.name, batch):
            return None
        return check

    def stage(
        self, transaction: Transaction, slot: int, batch: Batch, **expected: Unpack[Expected]
    ) -> None:
        """Check a batch and add it to a transaction, with what it expects."""
        self._check_batch("(transaction)", batch, None)
        if batch.columns & Column.REPLY:
            raise BadBatchError("requests are not for transactions")
        transaction.stage(slot, batch, **expected)

    def commit(
        self,
        transaction: Transaction,
        topics: Sequence[str],
        acks: Sequence[TransactionAck],
        done: Offsets,
        *,
        checked: bool = False,
    ) -> None:
        """Carry out a transaction, all of it or nothing.

        `checked` says that `long_commit_check` has found nothing.
        """
        self._transactions.commit(transaction, topics, acks, done, checked=checked)

    def long_commit_check(
        self, transaction: Transaction, topics: Sequence[str]
    ) -> LongCheck | None:
        """Return what to do in a thread before this is committed as `checked`, if anything."""
        return long_check(self._transactions.batches_to_check(transaction, topics))

    # Schemas

    @property
    def schema_check_of(self) -> SchemaCheckOf:
        """The function that finds a topic's schema check, when it is made or its schema changes."""
        return self.catalog.schema_check_of

    @schema_check_of.setter
    def schema_check_of(self, schema_check_of: SchemaCheckOf) -> None:
        self.catalog.schema_check_of = schema_check_of
        self.catalog.refresh_schema_checks(self.catalog.topics.values())

    def on_bound(self, topic: str) -> None:
        """The schema of a topic has changed, whether that is there or not."""
        self.catalog.refresh_schema_checks(self.catalog.find(Pattern(topic)))

    # Requests and replies

    def reply(self, batch: Batch) -> None:
        """Send each answer to the client that asked; answers to clients that left are dropped."""
        for _ in self.reply_in_steps(batch):
            pass

    def reply_in_steps(self, batch: Batch) -> Steps[None]:
        """As `reply`, step by step: a batch may answer thousands of clients."""
        self._check_batch("(reply)", batch, None)
        batch.stamp(0, self.clock.now_ms())
        yield from self.replies.send(batch)

    # Reports

    def topics(self, pattern: str, *, after: str, limit: int) -> tuple[list[TopicReport], str]:
        """Return a page of topics that match `pattern` (empty: all), and where the next starts."""
        return run_through(self.list_topics(pattern, after=after, limit=limit))

    def list_topics(
        self, pattern: str, *, after: str, limit: int
    ) -> Steps[tuple[list[TopicReport], str]]:
        """As `topics`, step by step: there may be very many."""
        if pattern:
            parse_pattern(pattern)
        timelines = sorted(name for name in self.catalog.timeline_names() if name > after)
        names = merge(self.catalog.names.after(after), timelines)
        return topic_page(names, pattern=pattern, limit=limit, report=self._find_report)

    def _find_report(self, name: str) -> TopicReport | None:
        timelines = self.catalog.timelines
        there = name in self.catalog.topics or (timelines is not None and timelines.has(name))
        return self.topic_report(name) if there else None

    def topic_report(self, name: str) -> TopicReport:
        """Return what to tell of a topic, a partition or a timeline that is there."""
        topic = self.catalog.topics.get(name)
        return timeline_report(self.timelines.report(name)) if topic is None else topic.report()

    def subscriptions(
        self, topic: str, *, after: str, limit: int
    ) -> tuple[list[SubscriptionReport], str]:
        """Return a page of subscriptions, of one topic or of all, and where the next starts."""
        return run_through(self.list_subscriptions(topic, after=after, limit=limit))

    def list_subscriptions(
        self, topic: str, *, after: str, limit: int
    ) -> Steps[tuple[list[SubscriptionReport], str]]:
        """As `subscriptions`, step by step: there may be very many."""
        return subscription_page(self.subscribers.reports(topic), after=after, limit=limit)

    def report(self) -> BrokerReport:
        """Return the figures of the broker as a whole."""
        totals = Totals()
        totals.add(self.catalog.gone)
        for topic in self.catalog.topics.values():
            totals.add(topic)
        return BrokerReport(
            broker=self.name,
            version=version("ister"),
            uptime_s=(self.clock.monotonic_ms() - self._started_ms) / 1000,
            connections=self.connections,
            topics=len(self.catalog.topics) + len(self.catalog.timeline_names()),
            subscriptions=len(self.subscribers),
            messages_in=totals.messages_in,
            bytes_in=totals.bytes_in,
            messages_out=totals.messages_out,
            messages_dropped=totals.messages_dropped,
            queued_bytes=self.budget.queued_bytes,
            storage_error=self.streams.error,
            stored_bytes=sum(v.log.total_bytes for v in self.streams.storages),
            tail_bytes=self.streams.recent.size_bytes,
            delayed=self.delays.report() if self.delays is not None else DelayReport(),
        )

    def is_calm(self) -> bool:
        """Whether so few are connected that nobody minds if the loop waits for a quick disk."""
        return 0 < self.connections + self.grpc.open <= CALM_CONNECTIONS_MAX

    # Inner workings

    def _may_wait(self) -> bool:
        """Whether the loop may wait for the disk: while timelines are being written it is slow."""
        timelines = self.catalog.timelines
        return self.is_calm() and not (timelines is not None and timelines.is_writing)

    def _find_stream(self, name: TopicName, settings: StreamSettings, done: OnTopic) -> None:
        self.catalog.find_stream(name, settings, done)

    def _check_batch(self, topic: str, batch: Batch, producer: Producer | None) -> None:
        limits = self.limits
        if batch.size_bytes > limits.batch_bytes_max or batch.codec:
            # Both as it came and as it will be unpacked: a small one may claim to be huge.
            size_bytes = max(batch.size_bytes, batch.columns_bytes)
            if size_bytes > limits.batch_bytes_max:
                raise BatchTooLargeError(size_bytes, limits.batch_bytes_max)
        if batch.columns & Column.OFFSET:
            raise BadBatchError("offsets are given by the broker, not by a producer")
        if batch.columns & Column.REPLY and batch.count > BATCH_REPLIES_MAX:
            raise LimitReachedError("batch_replies_max", BATCH_REPLIES_MAX)
        if producer is not None and batch.producer_bytes != producer.name_bytes:
            raise BadBatchError("the producer's name in the batch is not the one it opened with")
        too_large = batch.verify(message_bytes_max=limits.message_bytes_max)
        if too_large:
            raise MessageTooLargeError(topic, too_large, limits.message_bytes_max)


def _check_may_publish(producer: Producer) -> None:
    """Raise when a topic is gone, or when another producer of the name has taken over."""
    topic, stream = producer.topic, producer.stream
    if topic.deleted:
        raise TopicNotFoundError(topic.name)
    if stream is not None and stream.owners.get(producer.name) != producer.id:
        raise ProducerFencedError(topic.name, producer.name)
