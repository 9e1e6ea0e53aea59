"""The running broker without a network: owns namespaces, topics and subscriptions.

Doors call it from one thread; nothing in here waits. Always true:
- a topic's name is taken by a topic or by a partitioned topic, never both;
- a subscription on a live topic lives as long as it has consumers;
- a wildcard subscription is attached to every topic its pattern covers, from the moment the
  topic exists.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol, TypeVar

from ister.base import (
    DEFAULT_NAMESPACE,
    BrokerReport,
    Clock,
    Pattern,
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
    LimitReachedError,
    MessageTooLargeError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from ister.base.limits import LISTING_BYTES, PARTITIONS_MAX, Limits
from ister.broker.consumer import Consumer, QueueBudget, Sink
from ister.broker.subscription import RandomSlot, Subscription
from ister.broker.topic import Topic
from ister.codec import Batch, Column
from ister.subscriptions import Filter, KeyMatcher, Policy, SubscriptionType, check_globs

SubscriptionKey = tuple[Pattern, str]


class ReplySink(Protocol):
    """The way back to a client that asks: a door implements it for one connection."""

    def reply(self, batch: Batch) -> None:
        """Send answers to requests of this client."""

    def no_responder(self, requests: list[int]) -> None:
        """Tell the client that these requests reached nobody."""


@dataclass(slots=True)
class Producer:
    """Somebody's right to publish to one topic under one name."""

    topic: Topic
    name_bytes: bytes
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """What a consumer asks for. Words are checked here, so that every door refuses alike."""

    topic: str
    subscription: str
    consumer: str
    type: str = "exclusive"
    policy: str = "least_loaded"
    key_filters: Sequence[str] = ()
    filters: dict[str, str]
    # As the client remembers them from before a restart of the broker.
    partitions: int = 0


class Broker:
    """See the module."""

    def __init__(self, *, name: str, limits: Limits, clock: Clock, random_slot: RandomSlot) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self.budget = QueueBudget(limits)
        self.connections = 0
        self._random_slot = random_slot
        self._started_ms = clock.monotonic_ms()
        self._namespaces = {DEFAULT_NAMESPACE}
        self._topics: dict[str, Topic] = {}
        self._partitioned: dict[str, list[Topic]] = {}
        self._subscriptions: dict[SubscriptionKey, Subscription] = {}
        self._wildcards: dict[SubscriptionKey, Subscription] = {}
        self._reply_sinks: dict[int, ReplySink] = {}
        self._topic_number = 0
        self._producer_id = 0
        # What deleted topics had counted: totals never fall.
        self._gone = _Totals()

    # Namespaces and topics

    def create_namespace(self, namespace: str) -> None:
        """Make a namespace, or raise `NamespaceExistsError`."""
        parse_topic(f"/{namespace}/x")
        if namespace in self._namespaces:
            raise NamespaceExistsError(namespace)
        if len(self._namespaces) >= self.limits.namespaces_max:
            raise LimitReachedError("namespaces_max", self.limits.namespaces_max)
        self._namespaces.add(namespace)

    def namespaces(self) -> list[str]:
        """Return the namespaces by name."""
        return sorted(self._namespaces)

    def create_topic(self, name: str, *, kind: str = "live", partitions: int = 0) -> None:
        """Make a topic. Nothing happens when it exists with the same settings."""
        topic = parse_topic(name)
        if kind != "live":
            raise BadRequestError(f"topic kind {kind[:40]!r} is not available: use 'live'")
        if not 0 <= partitions <= PARTITIONS_MAX:
            raise BadRequestError(f"{partitions} partitions are not 0 to {PARTITIONS_MAX}")
        existing = self._partitioned.get(topic)
        if existing is not None or topic in self._topics:
            has = len(existing or ())
            if has != partitions:
                raise TopicExistsError(topic, f"with {has} partitions")
            return
        if find_partition(topic) is not None:
            raise BadNameError(topic, "names ending in '-part-N' belong to partitioned topics")
        if partitions == 0:
            self._add_topic(topic)
            return
        parse_topic(partition_name(topic, partitions - 1))  # The longest of the names.
        self._check_room(topic, partitions)
        self._partitioned[topic] = [
            self._add_topic(partition_name(topic, n)) for n in range(partitions)
        ]

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its partitions. Consumers of nothing else are closed."""
        topic = parse_topic(name)
        if topic in self._partitioned:
            gone = self._partitioned.pop(topic)
        elif topic in self._topics and not self._is_partition(topic):
            gone = [self._topics[topic]]
        else:
            raise TopicNotFoundError(name)
        for part in gone:
            part.deleted = True
            del self._topics[part.name]
            for subscription in part.subscriptions:
                subscription.topics.remove(part)
            part.subscriptions = []
        for key in [k for k in self._subscriptions if not is_wildcard(k[0])]:
            if not self._subscriptions[key].topics:
                self._close_subscription(key, f"topic {name} was deleted")
        # Last: closing has counted what was still queued as dropped.
        for part in gone:
            self._gone.add(part)

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

    # Producing

    def open_producer(self, topic: str, name: str) -> Producer:
        """Return a producer for a topic that is not partitioned, making the topic if needed."""
        parse_plain(name, "a producer name")
        if self.partitions(topic):
            raise BadRequestError(f"topic {topic!r} is partitioned: open its partitions")
        found = self._topics[topic]
        found.producers += 1
        self._producer_id += 1
        return Producer(found, name.encode(), self._producer_id)

    def close_producer(self, producer: Producer) -> None:
        """Give a producer back."""
        producer.topic.producers -= 1

    def publish(self, producer: Producer, batch: Batch) -> None:
        """Check and publish a batch; afterwards it carries its offsets and time.

        Raises without any effect when the batch breaks a rule.
        """
        topic, limits = producer.topic, self.limits
        if topic.deleted:
            raise TopicNotFoundError(topic.name)
        if batch.size_bytes > limits.batch_bytes_max or batch.codec:
            self._check_size(batch)
        if batch.columns & Column.OFFSET:
            raise BadBatchError("offsets are given by the broker, not by a producer")
        if batch.producer_bytes != producer.name_bytes:
            raise BadBatchError("the producer's name in the batch is not the one it opened with")
        too_large = batch.verify(message_bytes_max=limits.message_bytes_max)
        if too_large:
            raise MessageTooLargeError(topic.name, too_large, limits.message_bytes_max)
        reached = topic.publish(batch, self.clock.now_ms())
        if batch.columns & Column.REPLY and reached < batch.count:
            self._report_no_responder(topic, batch)

    # Consuming

    def subscribe(
        self, options: SubscribeOptions, *, owner: str, sink: Sink, channel: int
    ) -> tuple[Subscription, Consumer, bool]:
        """Attach a consumer; returns its subscription, itself, and whether it is active now.

        It gets no messages before it is granted credit; until then they queue.
        """
        pattern = parse_pattern(options.topic)
        name = parse_plain(options.subscription, "a subscription name")
        parse_plain(options.consumer, "a consumer name")
        type_ = _choice(SubscriptionType, options.type, "subscription type")
        policy = _choice(Policy, options.policy, "shared policy")
        check_globs(options.filters, options.key_filters)
        by_key = type_ is SubscriptionType.KEY_SHARED
        # Key filters choose between the consumers of a key-shared subscription; elsewhere they
        # belong to the subscription as a whole.
        filter_ = Filter(options.filters, () if by_key else options.key_filters)
        consumer = Consumer(
            name=options.consumer,
            owner=owner,
            sink=sink,
            channel=channel,
            matcher=KeyMatcher(options.key_filters if by_key else ()),
            budget=self.budget,
        )
        subscription = self._subscriptions.get((pattern, name))
        if subscription is not None:
            subscription.check_same(type_=type_, policy=policy, filter_=filter_)
        else:
            subscription = self._add_subscription(
                Subscription(
                    pattern=pattern,
                    name=name,
                    type_=type_,
                    policy=policy,
                    filter_=filter_,
                    random_slot=self._random_slot,
                ),
                known=options.partitions,
            )
        active = subscription.attach(
            consumer, consumers_max=self.limits.consumers_per_subscription_max
        )
        return subscription, consumer, active

    def unsubscribe(self, subscription: Subscription, consumer: Consumer) -> None:
        """Detach a consumer; a subscription without consumers ends."""
        subscription.detach(consumer)
        key = (subscription.pattern, subscription.name)
        if not subscription.consumers and self._subscriptions.get(key) is subscription:
            self._remove_subscription(key)

    # Requests and replies

    def register(self, session: int, sink: ReplySink) -> None:
        """Let replies find the client of `session`."""
        self._reply_sinks[session] = sink

    def unregister(self, session: int) -> None:
        """Drop replies to `session` from now on."""
        self._reply_sinks.pop(session, None)

    def reply(self, batch: Batch) -> None:
        """Send each answer to the client that asked; answers to clients that left are dropped."""
        self._check_size(batch)
        too_large = batch.verify(message_bytes_max=self.limits.message_bytes_max)
        if too_large:
            raise MessageTooLargeError("(reply)", too_large, self.limits.message_bytes_max)
        addresses = batch.replies
        if addresses is None:
            raise BadBatchError("replies without addresses")
        batch.stamp(0, self.clock.now_ms())
        # One pass: a batch may answer as many sessions as it has messages. Mostly it is one.
        slots: dict[int, list[int]] = {}
        for slot, (session, _) in enumerate(addresses):
            slots.setdefault(session, []).append(slot)
        for session, its_slots in slots.items():
            sink = self._reply_sinks.get(session)
            if sink is not None:
                sink.reply(batch.select(its_slots))

    # Reports

    def topics(self, pattern: str, *, after: str, limit: int) -> tuple[list[TopicReport], str]:
        """Return a page of topics that match `pattern` (empty: all), and where the next starts."""
        if pattern:
            parse_pattern(pattern)
        names = sorted(n for n in self._topics if not pattern or matches(pattern, n))
        page, more = _page(names, after=after, limit=limit)
        return [self._topics[name].report() for name in page], more

    def subscriptions(
        self, topic: str, *, after: str, limit: int
    ) -> tuple[list[SubscriptionReport], str]:
        """Return a page of subscriptions, of one topic or of all, and where the next starts."""
        by_name = {
            f"{pattern} {name}": subscription
            for (pattern, name), subscription in self._subscriptions.items()
            if not topic or pattern == topic or any(t.name == topic for t in subscription.topics)
        }
        page, more = _page(sorted(by_name), after=after, limit=limit)
        rows: list[SubscriptionReport] = []
        size_bytes = 0
        for name in page:
            if size_bytes > LISTING_BYTES:
                return rows, page[len(rows) - 1]
            rows.append(by_name[name].report())
            size_bytes += _listed_bytes(rows[-1])
        return rows, more

    def report(self) -> BrokerReport:
        """Return the figures of the broker as a whole."""
        totals = _Totals()
        totals.add(self._gone)
        for topic in self._topics.values():
            totals.add(topic)
        return BrokerReport(
            broker=self.name,
            version=version("ister"),
            uptime_s=(self.clock.monotonic_ms() - self._started_ms) / 1000,
            connections=self.connections,
            topics=len(self._topics),
            subscriptions=len(self._subscriptions),
            messages_in=totals.messages_in,
            bytes_in=totals.bytes_in,
            messages_out=totals.messages_out,
            messages_dropped=totals.messages_dropped,
            queued_bytes=self.budget.queued_bytes,
        )

    # Inner workings

    def _add_topic(self, name: TopicName) -> Topic:
        self._check_room(name, 1)
        self._topic_number += 1
        topic = self._topics[name] = Topic(name, self._topic_number)
        for key, subscription in self._wildcards.items():
            if matches(key[0], name):
                _attach(subscription, topic)
        return topic

    def _check_size(self, batch: Batch) -> None:
        # Both as it came and as it will be unpacked: a small batch may claim to be a huge one.
        size_bytes_max = self.limits.batch_bytes_max
        if batch.size_bytes > size_bytes_max:
            raise BatchTooLargeError(batch.size_bytes, size_bytes_max)
        if batch.columns_bytes > size_bytes_max:
            raise BatchTooLargeError(batch.columns_bytes, size_bytes_max)

    def _check_room(self, name: TopicName, count: int) -> None:
        if namespace_of(name) not in self._namespaces:
            raise NamespaceNotFoundError(namespace_of(name))
        if len(self._topics) + count > self.limits.topics_max:
            raise LimitReachedError("topics_max", self.limits.topics_max)

    def _is_partition(self, name: str) -> bool:
        found = find_partition(name)
        return found is not None and found[0] in self._partitioned

    def _add_subscription(self, subscription: Subscription, *, known: int) -> Subscription:
        pattern = subscription.pattern
        if len(self._subscriptions) >= self.limits.subscriptions_max:
            raise LimitReachedError("subscriptions_max", self.limits.subscriptions_max)
        if namespace_of(pattern) not in self._namespaces:
            raise NamespaceNotFoundError(namespace_of(pattern))
        if is_wildcard(pattern):
            topics = [t for t in self._topics.values() if matches(pattern, t.name)]
            self._wildcards[pattern, subscription.name] = subscription
        elif self.partitions(pattern, known=known):
            topics = self._partitioned[pattern]
        else:
            topics = [self._topics[pattern]]
        for topic in topics:
            _attach(subscription, topic)
        self._subscriptions[pattern, subscription.name] = subscription
        return subscription

    def _remove_subscription(self, key: SubscriptionKey) -> None:
        subscription = self._subscriptions.pop(key)
        self._wildcards.pop(key, None)
        for topic in subscription.topics:
            topic.subscriptions.remove(subscription)
        subscription.topics = []

    def _close_subscription(self, key: SubscriptionKey, reason: str) -> None:
        subscription = self._subscriptions[key]
        for consumer in list(subscription.consumers):
            consumer.sink.consumer_closed(consumer.channel, reason)
            subscription.detach(consumer)
        self._remove_subscription(key)

    def _report_no_responder(self, topic: Topic, batch: Batch) -> None:
        """Tell the askers of requests that reached nobody, whichever of the batch these are."""
        reached: set[int] = set()
        for subscription in topic.subscriptions:
            reached |= subscription.wanted(batch)
        by_session: dict[int, list[int]] = {}
        for slot, (session, request) in enumerate(batch.replies or ()):
            if slot not in reached:
                by_session.setdefault(session, []).append(request)
        for session, requests in by_session.items():
            sink = self._reply_sinks.get(session)
            if sink is not None:
                sink.no_responder(requests)


class _Totals:
    """Sums of what topics count."""

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.messages_dropped = 0

    def add(self, other: "Topic | _Totals") -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.messages_dropped += other.messages_dropped


_Choice = TypeVar("_Choice", SubscriptionType, Policy)


def _choice(kind: Callable[[str], _Choice], word: str, what: str) -> _Choice:
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(repr(choice.value) for choice in kind)  # type: ignore[attr-defined]
        raise BadRequestError(f"{what} {word[:40]!r} is not one of {words}") from None


def _page(names: list[str], *, after: str, limit: int) -> tuple[list[str], str]:
    start = bisect_right(names, after) if after else 0
    page = names[start : start + max(1, min(limit, 1_000))]
    more = page[-1] if page and start + len(page) < len(names) else ""
    return page, more


def _listed_bytes(row: SubscriptionReport) -> int:
    """Return about how large a row is when it is sent: names of 255 B, and figures."""
    filters = sum(map(len, (*row.filters, *row.filters.values(), *row.key_filters)))
    return 1_000 + 450 * len(row.consumers) + 4 * filters


def _attach(subscription: Subscription, topic: Topic) -> None:
    topic.subscriptions.append(subscription)
    subscription.topics.append(topic)
