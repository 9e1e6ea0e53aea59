"""Who is subscribed to what: attaches consumers to live and to durable subscriptions.

Always true:
- a subscription on live topics lives as long as it has consumers, one on streams until it is
  deleted;
- a subscription by pattern is attached to every topic its pattern covers, from the moment the
  topic exists.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ister.base import (
    Pattern,
    SubscriptionReport,
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
from ister.broker.attachments import Attachment, SubscribeOptions
from ister.broker.catalog import Catalog
from ister.broker.consumer import Consumer, QueueBudget, Sink
from ister.broker.durable import DurableSubscription
from ister.broker.durables import Durables, Wanted
from ister.broker.stream import StreamTopic
from ister.broker.subscription import RandomSlot, Subscription
from ister.broker.topic import Topic
from ister.subscriptions import Filter, KeyMatcher, Policy, SubscriptionType, check_globs

SubscriptionKey = tuple[Pattern, str]
OnAttached = Callable[[Attachment | IsterError], object]


class Subscribers:
    """See the module."""

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
        name = parse_plain(options.subscription, "a subscription name")
        parse_plain(options.consumer, "a consumer name")
        type_ = _choice(SubscriptionType, options.type, "subscription type")
        policy = _choice(Policy, options.policy, "shared policy")
        check_globs(options.filters, options.key_filters)
        by_key = type_ is SubscriptionType.KEY_SHARED
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
        wanted = Wanted(
            pattern=pattern,
            name=name,
            type=type_,
            policy=policy,
            filters=options.filters,
            key_filters=[] if by_key else list(options.key_filters),
            start=options.start,
            acks=options.acks,
        )
        if options.held is not None:
            consumer.held = frozenset(options.held)
        attachment = Attachment(consumer)
        consumer.on_closed = lambda: self.unsubscribe(attachment)
        consumer.on_void = attachment.on_void
        streams = [
            topic
            for topic in self._catalog.find(pattern)
            if isinstance(topic, StreamTopic) and self._durables.is_covered(wanted, topic)
        ]
        if is_wildcard(pattern) or not streams:
            self._attach_live(attachment, wanted, known=options.partitions)
        if not streams:
            consumer.held = None
            done(attachment)
            return
        self._attach_durable(attachment, wanted, streams, done)

    def unsubscribe(self, attachment: Attachment, *, graceful: bool = True) -> None:
        """Detach a consumer; a live subscription without consumers ends, a durable one stays."""
        attachment.left = True
        for durable in attachment.durables:
            durable.detach(attachment.consumer, graceful=graceful)
        subscription = attachment.live
        if subscription is None:
            return
        subscription.detach(attachment.consumer)
        key = (subscription.pattern, subscription.name)
        if not subscription.consumers and self._subscriptions.get(key) is subscription:
            self._remove_subscription(key)

    def find_live(self, topic: str, name: str) -> Subscription | None:
        """Return the subscription of that name on a live topic, if there is one."""
        return self._subscriptions.get((Pattern(topic), name))

    def reports(self, topic: str) -> dict[str, Callable[[], SubscriptionReport]]:
        """Return what makes the report of each subscription, of one topic or of all, by name."""
        live = {
            f"{pattern} {name}": subscription.report
            for (pattern, name), subscription in self._subscriptions.items()
            if not topic or pattern == topic or any(t.name == topic for t in subscription.topics)
        }
        durable = {
            f"{durable.pattern} {durable.name}": durable.report
            for durable in self._durables
            if not topic or durable.pattern == topic or durable.covers(topic)
        }
        return live | durable

    # Topics that come and go

    def on_live(self, topic: Topic) -> None:
        """A live topic has appeared."""
        for key, subscription in self._wildcards.items():
            if matches(key[0], topic.name):
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

    def on_stream(self, topic: StreamTopic) -> None:
        """A stream has appeared: have those by pattern that had only live topics so far get it."""
        for key, subscription in self._wildcards.items():
            if not matches(key[0], topic.name):
                continue
            durable = self._durables.find(*key, topic.vault)
            if durable is not None:
                # Made for another topic that appeared together with this one.
                self._durables.cover_new(durable, topic)
                continue
            for attachment in list(subscription.attachments.values()):
                wanted = attachment.wanted_anew()
                if self._durables.is_covered(wanted, topic):
                    self._attach_durable(attachment, wanted, [topic], _on_late(attachment))

    def on_topics_gone(self, reason: str) -> None:
        """Topics are gone: end the subscriptions on nothing, those by pattern apart."""
        for key in [k for k in self._subscriptions if not is_wildcard(k[0])]:
            if not self._subscriptions[key].topics:
                self._close_subscription(key, reason)
        self._durables.on_topics_gone(reason)

    # Inner workings

    def _attach_live(self, attachment: Attachment, wanted: Wanted, *, known: int) -> None:
        pattern = Pattern(wanted.pattern)
        filter_ = Filter(wanted.filters, wanted.key_filters)
        subscription = self._subscriptions.get((pattern, wanted.name))
        if subscription is not None:
            subscription.check_same(type_=wanted.type, policy=wanted.policy, filter_=filter_)
        else:
            subscription = self._add_subscription(
                Subscription(
                    pattern=pattern,
                    name=wanted.name,
                    type_=wanted.type,
                    policy=wanted.policy,
                    filter_=filter_,
                    random_slot=self._random_slot,
                ),
                known=known,
            )
        subscription.attach(
            attachment.consumer, consumers_max=self._limits.consumers_per_subscription_max
        )
        attachment.live = subscription
        attachment.wanted = wanted
        subscription.attachments[attachment.consumer] = attachment

    def _attach_durable(
        self,
        attachment: Attachment,
        wanted: Wanted,
        topics: list[StreamTopic],
        done: OnAttached,
    ) -> None:
        """Attach a consumer to the durable subscription of each vault, one after the other."""
        vault = topics[0].vault
        here = [t for t in topics if t.vault is vault]
        rest = [t for t in topics if t.vault is not vault]

        def on_found(found: DurableSubscription | IsterError) -> None:
            if attachment.left:
                done(attachment)
                return
            if not isinstance(found, IsterError):
                try:
                    found.attach(
                        attachment.consumer,
                        consumers_max=self._limits.consumers_per_subscription_max,
                    )
                except IsterError as error:
                    found = error
            if isinstance(found, IsterError):
                self.unsubscribe(attachment)
                done(found)
                return
            attachment.durables.append(found)
            if rest:
                self._attach_durable(attachment, wanted, rest, done)
                return
            # Everybody who could know them was asked; a client may name very many.
            attachment.consumer.held = None
            done(attachment)

        try:
            self._durables.open(wanted, here, on_found)
        except IsterError as error:
            self.unsubscribe(attachment)
            done(error)

    def _add_subscription(self, subscription: Subscription, *, known: int) -> Subscription:
        pattern = subscription.pattern
        if len(self._subscriptions) >= self._limits.subscriptions_max:
            raise LimitReachedError("subscriptions_max", self._limits.subscriptions_max)
        if namespace_of(pattern) not in self._catalog.namespaces:
            raise NamespaceNotFoundError(namespace_of(pattern))
        if is_wildcard(pattern):
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
        for topic in subscription.topics:
            topic.subscriptions.remove(subscription)
        subscription.topics = []

    def _close_subscription(self, key: SubscriptionKey, reason: str) -> None:
        subscription = self._subscriptions[key]
        for consumer in list(subscription.consumers):
            consumer.sink.consumer_closed(consumer.channel, reason)
            subscription.detach(consumer)
        self._remove_subscription(key)


_Choice = TypeVar("_Choice", SubscriptionType, Policy)


def _choice(kind: Callable[[str], _Choice], word: str, what: str) -> _Choice:
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(repr(choice.value) for choice in kind)  # type: ignore[attr-defined]
        raise BadRequestError(f"{what} {word[:40]!r} is not one of {words}") from None


def _attach(subscription: Subscription, topic: Topic) -> None:
    topic.subscriptions.append(subscription)
    subscription.topics.append(topic)


def _on_late(attachment: Attachment) -> OnAttached:
    """For a consumer that asked for nothing: it is attached because a topic has appeared."""
    consumer = attachment.consumer

    def done(found: Attachment | IsterError) -> None:
        if isinstance(found, IsterError):
            consumer.close(f"a topic has appeared that it cannot have: {found}")
        elif not attachment.left:
            # What its leases belong to, now that it can have some; and it has credit already.
            attachment.on_void()
            consumer.resume()

    return done
