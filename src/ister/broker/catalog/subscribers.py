"""Who is subscribed to what: attaches consumers to live and to durable subscriptions.

Always true:
- a subscription on live topics lives as long as it has consumers, one on streams until it is
  deleted;
- a subscription by pattern is attached to every topic its pattern covers, from the moment the
  topic exists.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from ister.base import (
    AckSettings,
    Origin,
    Pattern,
    SubscriptionReport,
    check_not_reserved,
    is_wildcard,
    matches,
    namespace_of,
    parse_pattern,
    parse_plain,
)
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    NamespaceNotFoundError,
)
from ister.base.limits import Limits
from ister.broker.catalog.catalog import Catalog
from ister.broker.catalog.memberships import Membership, SubscribeOptions
from ister.broker.consumers import Consumer, QueueBudget, Sink, nothing
from ister.broker.durable import DurableSubscription
from ister.broker.live import RandomSlot, Subscription, Topic
from ister.broker.scheduling import Done, Steps
from ister.broker.state import SubscriptionCreated
from ister.broker.storage import Storage
from ister.broker.streams import StreamTopic
from ister.broker.subscriptions import Durables, Wanted, check_expire_after
from ister.subscriptions import Filter, KeyMatcher, Policy, SubscriptionType, check_globs

SubscriptionKey = tuple[Pattern, str]
OnAttached = Callable[[Membership | IsterError], object]


class Subscribers:
    """The consumers of a broker, and the subscriptions they are attached to."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        limits: Limits,
        budget: QueueBudget,
        durables: Durables,
        random_slot: RandomSlot,
    ) -> None:
        self._catalog = catalog
        self._limits = limits
        self._budget = budget
        self._durables = durables
        self._random_slot = random_slot
        self._subscriptions: dict[SubscriptionKey, Subscription] = {}
        self._wildcards: dict[SubscriptionKey, Subscription] = {}
        # Of consumers of live topics: those of a pattern may come to cover streams as well.
        self._memberships: dict[Subscription, dict[Consumer, Membership]] = {}

    def __len__(self) -> int:
        return len(self._subscriptions) + len(self._durables)

    def subscribe(
        self,
        options: SubscribeOptions,
        done: OnAttached,
        *,
        owner: str,
        sink: Sink,
        channel: int,
    ) -> None:
        """Attach a consumer; `done` gets what it is attached to, at once for live topics.

        It gets no messages before it is granted credit; until then those of live topics queue.
        """
        pattern = parse_pattern(options.topic)
        check_not_reserved(pattern)
        name = parse_plain(options.subscription, "a subscription name")
        parse_plain(options.consumer, "a consumer name")
        wanted = self._wanted(options, pattern, name)
        by_key = wanted.type is SubscriptionType.KEY_SHARED
        consumer = Consumer(
            name=options.consumer,
            owner=owner,
            sink=sink,
            channel=channel,
            # Key filters choose between the consumers of a key-shared subscription; elsewhere
            # they belong to the subscription as a whole.
            matcher=KeyMatcher(options.key_filters if by_key else ()),
            budget=self._budget,
        )
        if options.held is not None:
            consumer.held = frozenset(options.held)
        membership = Membership(consumer)
        consumer.on_closed = lambda: self.unsubscribe(membership)
        consumer.on_void = membership.on_void
        if not is_wildcard(pattern):
            self._catalog.partitions(pattern, known=options.partitions, kind=options.kind)
        found = self._catalog.find(pattern)
        streams = [topic for topic in found if isinstance(topic, StreamTopic)]
        streams = self._durables.covered_of(wanted, streams)
        if is_wildcard(pattern) or not streams:
            self._attach_live(membership, wanted, known=options.partitions)
        if not streams:
            consumer.held = None
            done(membership)
            return
        self._attach_durable(membership, wanted, streams, done)

    def update(self, options: SubscribeOptions, done: Done) -> None:
        """Give a durable subscription the settings that are given, consumers or not."""
        if options.given is not None and not options.given:
            raise BadRequestError("no setting is given: say what is to change")
        pattern = parse_pattern(options.topic)
        wanted = self._wanted(options, pattern, options.subscription)
        self._durables.update(wanted, done)
        live = self._subscriptions.get((pattern, wanted.name))
        if live is not None:
            _adapt(live, wanted)

    def _wanted(self, options: SubscribeOptions, pattern: Pattern, name: str) -> Wanted:
        type_ = _choice(SubscriptionType, options.type, "subscription type")
        # Who comes back has said before what it wants of the subscription.
        given = options.given if options.held is None else ()
        if given is not None and "type" not in given:
            type_ = self._find_type(pattern, name) or type_
        check_globs(options.filters, options.key_filters)
        by_key = type_ is SubscriptionType.KEY_SHARED
        return Wanted(
            pattern=pattern,
            name=name,
            type=type_,
            policy=_choice(Policy, options.policy, "shared policy"),
            filters=options.filters,
            key_filters=[] if by_key else list(options.key_filters),
            start=options.start,
            acks=options.acks,
            work_queues=options.work_queues,
            durable=options.durable,
            expire_after_ms=check_expire_after(options.expire_after_ms),
            given=given,
        )

    def _find_type(self, pattern: Pattern, name: str) -> SubscriptionType | None:
        live = self._subscriptions.get((pattern, name))
        return live.type if live is not None else self._durables.find_type(pattern, name)

    def unsubscribe(self, membership: Membership, *, graceful: bool = True) -> None:
        """Detach a consumer; a live subscription without consumers ends, a durable one stays."""
        membership.left = True
        for durable in membership.durables:
            durable.detach(membership.consumer, graceful=graceful)
            self._durables.expiry.on_left(durable, graceful=graceful)
        subscription = membership.live
        if subscription is None:
            return
        self._detach_live(subscription, membership.consumer)
        key = (subscription.pattern, subscription.name)
        if not subscription.consumers and self._subscriptions.get(key) is subscription:
            self._remove_subscription(key)

    def _detach_live(self, subscription: Subscription, consumer: Consumer) -> None:
        self._memberships.get(subscription, {}).pop(consumer, None)
        subscription.detach(consumer)

    def find_live(self, topic: str, name: str) -> Subscription | None:
        """Return the subscription of that name on a live topic, if there is one."""
        return self._subscriptions.get((Pattern(topic), name))

    def reports(self, topic: str) -> Iterator[tuple[str, Callable[[], SubscriptionReport]]]:
        """Yield a name for each subscription, of one topic or of all, and what makes its report.

        Those that come or go meanwhile may be left out.
        """
        live: Iterable[Subscription] = list(self._subscriptions.values())
        durables: Iterable[DurableSubscription] = list(self._durables)
        if topic:
            found = self._catalog.find(Pattern(topic))
            live = {s: None for t in found if isinstance(t, Topic) for s in t.subscriptions}
            live = [s for s in live if s.pattern == topic or found[0].name == topic]
            durables = self._durables.on_topic(topic, found)
        # Of a pattern that covers live topics and streams there is one row, with the cursor.
        for one in live:
            if not self._durables.has(one.pattern, one.name):
                yield f"{one.pattern} {one.name}", one.report
        here = (d for d in durables if not self._durables.expiry.is_ending(d))
        yield from ((f"{d.pattern} {d.name}", d.report) for d in here)

    # Topics that come and go

    def on_live(self, topics: Sequence[Topic]) -> None:
        """A live topic has appeared, or partitions of one, which the same patterns match."""
        for key, subscription in self._wildcards.items():
            if matches(key[0], topics[0].name):
                for topic in topics:
                    _attach(subscription, topic)

    def on_grown(self, name: str, first: Topic, grown: Iterable[Topic]) -> None:
        """A live topic has more partitions: those subscribed to it get them."""
        for subscription in first.subscriptions:
            if subscription.pattern == name:
                for topic in grown:
                    _attach(subscription, topic)

    def patterns(self) -> Iterator[str]:
        """Yield the pattern, or topic, of each subscription."""
        yield from (pattern for pattern, _ in self._subscriptions)
        yield from (durable.pattern for durable in self._durables)

    def on_streams(self, topics: Sequence[StreamTopic]) -> None:
        """A stream has appeared, or partitions of one, which the same patterns match.

        Have those by pattern that had only live topics so far get it.
        """
        storage = topics[0].storage
        matching = [
            key
            for key in self._wildcards
            if matches(key[0], topics[0].name) and self._durables.find(*key, storage) is None
        ]
        # A work queue may go to another subscription meanwhile, and keeps everything until then.
        coming = [topic for topic in topics if not topic.is_work_queue]
        if matching:
            for topic in coming:
                topic.partitions_coming += 1
            self._durables.do(self._cover(matching, topics, coming))

    def _cover(
        self,
        keys: Sequence[SubscriptionKey],
        topics: Sequence[StreamTopic],
        coming: Sequence[StreamTopic],
    ) -> Steps:
        """Have subscriptions cover streams, a subscription or a consumer of one in each step.

        Topics among `coming` keep their messages for these subscriptions until then.
        """
        try:
            for key in keys:
                if key in self._wildcards:
                    yield from self._cover_by(key, topics)
                yield
        finally:
            for topic in coming:
                topic.partitions_coming -= 1

    def _cover_by(self, key: SubscriptionKey, topics: Sequence[StreamTopic]) -> Steps:
        storage = topics[0].storage
        for membership in list(self._memberships.get(self._wildcards[key], {}).values()):
            if membership.left:
                continue
            wanted, late = membership.wanted_anew(), _on_late(membership)
            covered = self._coverable(wanted, [t for t in topics if not t.deleted])
            durable = self._durables.find(*key, storage)
            if covered and storage not in membership.asked:
                self._attach_durable(membership, wanted, covered, late)
            elif durable is not None:
                # It was made meanwhile, for other topics.
                try:
                    self._durables.cover_missing(durable, covered)
                except IsterError as error:
                    late(error)
            yield

    def on_topics_gone(self, names: Collection[str]) -> list[Subscription]:
        """Topics are gone: forget the live subscriptions on nothing else, those by pattern apart.

        Who subscribes from now on gets another subscription. Returns those that are forgotten:
        their consumers are still to be told, see `end`.
        """
        ended: list[Subscription] = []
        for key, subscription in self._subscriptions.items():
            # All topics of a subscription without wildcards are partitions of one.
            if key[0] in names and all(t.deleted for t in subscription.topics[:1]):
                ended.append(subscription)
        for subscription in ended:
            del self._subscriptions[subscription.pattern, subscription.name]
        return ended

    def end(self, subscriptions: list[Subscription], topics: Iterable[Topic], reason: str) -> Steps:
        """End the live subscriptions on deleted topics, one consumer in each step.

        There may be ten thousand. Those by pattern lose the topics.
        """
        for topic in topics:
            topic.subscriptions = [s for s in topic.subscriptions if is_wildcard(s.pattern)]
            while topic.subscriptions:
                topic.subscriptions.pop().topics.remove(topic)
                yield
            yield
        # Taken from the list one by one, so that they are not all freed in one turn.
        while subscriptions:
            subscription = subscriptions.pop()
            while subscription.consumers:
                consumer = subscription.consumers[0]
                consumer.sink.consumer_closed(consumer.channel, reason)
                self._detach_live(subscription, consumer)
                yield
            subscription.topics = []

    # Inner workings

    def _attach_live(self, membership: Membership, wanted: Wanted, *, known: int) -> None:
        pattern = Pattern(wanted.pattern)
        filter_ = Filter(wanted.filters, wanted.key_filters)
        subscription = self._subscriptions.get((pattern, wanted.name))
        if subscription is not None:
            _adapt(subscription, wanted, partial(self._admit, subscription, membership.consumer))
        else:
            subscription = self._add_subscription(
                Subscription(
                    pattern=pattern,
                    name=wanted.name,
                    type_=wanted.type,
                    policy=wanted.policy,
                    filter_=filter_,
                    random_slot=self._random_slot,
                    turns=self._budget.turns,
                ),
                known=known,
            )
        subscription.attach(
            membership.consumer, consumers_max=self._limits.consumers_per_subscription_max
        )
        membership.live = subscription
        membership.wanted = wanted
        self._memberships.setdefault(subscription, {})[membership.consumer] = membership

    def _attach_durable(
        self,
        membership: Membership,
        wanted: Wanted,
        topics: list[StreamTopic],
        done: OnAttached,
    ) -> None:
        """Attach a consumer to the durable subscription of each storage, one after the other."""
        storage = topics[0].storage
        membership.asked.update(topic.storage for topic in topics)
        here = [t for t in topics if t.storage is storage]
        rest = [t for t in topics if t.storage is not storage]
        at_once = True

        def on_found(found: DurableSubscription | IsterError) -> None:
            if not isinstance(found, IsterError):
                # Streams may have appeared while a time was looked up or another storage asked.
                waited = wanted.start.origin == Origin.TIME and not at_once
                looks_again = waited or bool(membership.durables)
                found = self._join(found, membership, wanted if looks_again else None)
            if membership.left:
                done(membership)
                return
            if isinstance(found, IsterError):
                self.unsubscribe(membership)
                done(found)
                return
            membership.durables.append(found)
            if rest:
                self._attach_durable(membership, wanted, rest, done)
                return
            # Everybody who could know them was asked; a client may name very many.
            membership.consumer.held = None
            done(membership)

        def admit(found: DurableSubscription) -> None:
            self._admit(found, membership.consumer)

        try:
            self._durables.open(wanted, here, on_found, admit)
        except IsterError as error:
            self.unsubscribe(membership)
            done(error)
        at_once = False

    def _streams_for(self, wanted: Wanted, storage: Storage) -> list[StreamTopic]:
        """Return the streams of a storage that a subscription covers."""
        found = self._catalog.find(Pattern(wanted.pattern))
        here = [t for t in found if isinstance(t, StreamTopic) and t.storage is storage]
        return self._coverable(wanted, here)

    def _coverable(self, wanted: Wanted, topics: Sequence[StreamTopic]) -> list[StreamTopic]:
        """Return the streams of one storage that a subscription covers, or can.

        A work queue that has appeared meanwhile may have gone to another subscription.
        """
        durables = self._durables
        covered = durables.covered_of(wanted, topics)
        if not covered:
            return []
        own = durables.find(wanted.pattern, wanted.name, covered[0].storage)
        return [
            topic
            for topic in covered
            if durables.is_free(topic) or (own is not None and own.coverage.covers(topic.name))
        ]

    def _join(
        self, found: DurableSubscription, membership: Membership, again: Wanted | None
    ) -> DurableSubscription | IsterError:
        """Attach a consumer; with `again`, look first for streams that have appeared meanwhile."""
        try:
            if not membership.left:
                if again is not None:
                    storage = found.storage
                    self._durables.cover_missing(found, self._streams_for(again, storage))
                most = self._limits.consumers_per_subscription_max
                found.attach(membership.consumer, consumers_max=most)
                self._durables.expiry.on_joined(found)
            return found
        except IsterError as error:
            return error
        finally:
            # Nobody else may want what was made for this one.
            self._durables.expiry.on_left(found, graceful=True)

    def _admit(self, to: Subscription | DurableSubscription, consumer: Consumer) -> None:
        """Raise why a consumer cannot join a subscription."""
        most = self._limits.consumers_per_subscription_max
        to.members.check(consumer, of=(to.pattern, to.name), consumers_max=most)

    def _add_subscription(self, subscription: Subscription, *, known: int) -> Subscription:
        pattern = subscription.pattern
        if len(self._subscriptions) >= self._limits.subscriptions_max:
            raise LimitReachedError("subscriptions_max", self._limits.subscriptions_max)
        if namespace_of(pattern) not in self._catalog.namespaces:
            raise NamespaceNotFoundError(namespace_of(pattern))
        if is_wildcard(pattern):
            if len(self._wildcards) >= self._limits.wildcards_max:
                raise LimitReachedError("wildcards_max", self._limits.wildcards_max)
            self._wildcards[pattern, subscription.name] = subscription
        else:
            self._catalog.partitions(pattern, known=known)
        for topic in self._catalog.find(pattern):
            if isinstance(topic, Topic):
                _attach(subscription, topic)
        self._subscriptions[pattern, subscription.name] = subscription
        return subscription

    def _remove_subscription(self, key: SubscriptionKey) -> None:
        subscription = self._subscriptions.pop(key)
        self._wildcards.pop(key, None)
        self._memberships.pop(subscription, None)
        for topic in subscription.topics:
            topic.detach(subscription)
        subscription.topics = []


_Choice = TypeVar("_Choice", SubscriptionType, Policy)


def _choice(kind: Callable[[str], _Choice], word: str, what: str) -> _Choice:
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(repr(choice.value) for choice in kind)  # type: ignore[attr-defined]
        raise BadRequestError(f"{what} {word[:40]!r} is not one of {words}") from None


def _adapt(
    subscription: Subscription, wanted: Wanted, admit: Callable[[], object] = nothing
) -> None:
    """Give a live subscription the settings that are given, unless `admit` raises."""
    policy, filter_ = subscription.policy, subscription.filter
    former = SubscriptionCreated(
        0,
        subscription.pattern,
        subscription.name,
        subscription.type.value,
        policy.value,
        filter_.attributes,
        list(filter_.key_globs),
        AckSettings(),
    )
    changed = wanted.applied_to(former, consumers=len(subscription.consumers))
    if changed == former:
        return
    admit()
    filter_ = Filter(changed.filters, changed.key_filters)
    subscription.change(policy=Policy(changed.policy), filter_=filter_)


def _attach(subscription: Subscription, topic: Topic) -> None:
    topic.attach(subscription)
    subscription.topics.append(topic)


def _on_late(membership: Membership) -> OnAttached:
    """For a consumer that asked for nothing: it is attached because a topic has appeared."""
    consumer = membership.consumer

    def done(found: Membership | IsterError) -> None:
        if isinstance(found, IsterError):
            consumer.close(f"a topic has appeared that it cannot have: {found}")
        elif not membership.left:
            # What its leases belong to, now that it can have some; and it has credit already.
            membership.on_void()
            consumer.resume()

    return done
