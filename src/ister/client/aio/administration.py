"""What a client asks of its broker beside messages: topics, subscriptions, namespaces, reports."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Unpack

from ister.base import (
    LATEST,
    BrokerReport,
    Origin,
    Position,
    SubscriptionReport,
    TopicReport,
)
from ister.base.errors import BadRequestError
from ister.client.aio.connection.link import BrokerLink
from ister.client.aio.layouts import heads, locate
from ister.client.session import (
    DurabilityName,
    Place,
    PolicyName,
    RetentionName,
    Seconds,
    SubscriptionSettings,
    SubscriptionTypeName,
    check_count,
    check_topic,
    chosen_settings,
    offset_of,
    position_of,
    stream_changes,
    topic_command,
)
from ister.wire import (
    BrokerDescription,
    CreateNamespace,
    DeleteNamespace,
    DeleteSubscription,
    DeleteTopic,
    DescribeBroker,
    Done,
    DropCursor,
    ListNamespaces,
    ListSubscriptions,
    ListTopics,
    Namespaces,
    PauseSubscription,
    Purged,
    PurgeTopic,
    RedriveSubscription,
    SaveCursor,
    Seek,
    StreamHead,
    StreamLocated,
    SubscriptionRedriven,
    Subscriptions,
    Topics,
    UpdateSubscription,
    UpdateTopic,
)


class Administration(ABC):
    """The part of `Client` that needs nothing but its link."""

    @property
    @abstractmethod
    def link(self) -> BrokerLink:
        """The connection, once open."""

    async def create_topic(
        self,
        topic: str,
        *,
        kind: str = "live",
        partitions: int = 0,
        durability: DurabilityName | None = None,
        retention: RetentionName | None = None,
        max_age: Seconds | None = None,
        max_bytes: int | None = None,
        max_messages: int | None = None,
        ttl: Seconds | None = None,
        dedup_window: Seconds | None = None,
        min_compaction_lag: Seconds | None = None,
        key_offsets: bool = False,
        max_lease: Seconds | None = None,
        max_leases: int | None = None,
        dead_letter_topic: str | None = None,
        exist_ok: bool = True,
    ) -> None:
        """Make a topic; nothing happens when it exists with the same settings.

        With other settings `TopicExistsError` names what differs; `exist_ok=False` raises it for
        every topic that exists.

        Most is for `kind="stream"`. `durability` says what an acknowledgement means: 'fsync'
        (the default), 'memory', 'os' or 'object'. `retention` says what is kept: 'limits' (the
        default: everything within `max_age`, `max_bytes` and `max_messages`), 'interest',
        'workqueue' or 'compact' (which drops nothing younger than `min_compaction_lag`). A message
        older than `ttl` is not delivered any more. Message ids are remembered for `dedup_window`
        (2 minutes). With `key_offsets` messages may have an `expected_key_offset`. Of the kinds
        'timeline', 'priority' and 'cron', no lease is longer than `max_lease`, and a message that
        was leased `max_leases` times goes to `dead_letter_topic`.
        """
        command = topic_command(
            check_topic(topic),
            kind,
            partitions,
            durability=durability,
            retention=retention,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            ttl=ttl,
            dedup_window=dedup_window,
            min_compaction_lag=min_compaction_lag,
            key_offsets=key_offsets,
            max_lease=max_lease,
            max_leases=max_leases,
            dead_letter_topic=dead_letter_topic,
            exist_ok=exist_ok,
        )
        await self.link.call(command, Done)

    async def update_topic(
        self,
        topic: str,
        *,
        durability: DurabilityName | None = None,
        max_age: Seconds | None = None,
        max_bytes: int | None = None,
        max_messages: int | None = None,
        ttl: Seconds | None = None,
        dedup_window: Seconds | None = None,
        min_compaction_lag: Seconds | None = None,
    ) -> None:
        """Change settings of a stream and of all its partitions; what is not given stays.

        0 takes a limit away. Retention obeys the new limits within seconds: what is beyond them is
        dropped, and what was dropped before stays so. `ttl` counts for deliveries from now on,
        `dedup_window` and `durability` from the next message on; a longer window knows the ids
        that the shorter one still knew. `min_compaction_lag`, of a topic with retention 'compact',
        counts for what is not compacted yet. 'object' cannot become another durability, nor
        another one 'object'. When this returns, the change survives a restart.
        """
        changes = stream_changes(
            durability=durability,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            ttl=ttl,
            dedup_window=dedup_window,
            min_compaction_lag=min_compaction_lag,
        )
        await self.link.call(UpdateTopic(topic=check_topic(topic), changes=changes), Done)

    async def purge(self, topic: str, *, before: int | None = None) -> int:
        """Drop the messages of a stream before an offset, or all; return how many it were."""
        at = -1 if before is None else offset_of(before, "before")
        command = PurgeTopic(topic=check_topic(topic), before=at)
        return (await self.link.call(command, Purged)).messages

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its partitions; its consumers are closed."""
        await self.link.call(DeleteTopic(topic=check_topic(topic)), Done)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Remove a durable subscription with its position; its consumers are closed."""
        command = DeleteSubscription(topic=check_topic(topic), subscription=subscription)
        await self.link.call(command, Done)

    async def update_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionTypeName | None = None,
        policy: PolicyName | None = None,
        filters: Mapping[str, str] | None = None,
        key_filters: Sequence[str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Change the settings of a durable subscription that are given; the others stay.

        They are those of `subscribe`, and count at once, also for the consumers it has. Its type
        can change only while it has no consumers.
        """
        chosen = chosen_settings(
            type=type, policy=policy, filters=filters, key_filters=key_filters, **settings
        )
        command = UpdateSubscription(topic=check_topic(topic), subscription=subscription, **chosen)
        await self.link.call(command, Done)

    async def pause_subscription(self, topic: str, subscription: str) -> None:
        """Let the deliveries of a durable subscription rest, to all of its consumers."""
        name = check_topic(topic)
        command = PauseSubscription(topic=name, subscription=subscription, paused=True)
        await self.link.call(command, Done)

    async def resume_subscription(self, topic: str, subscription: str) -> None:
        """Let the deliveries of a durable subscription go on."""
        name = check_topic(topic)
        command = PauseSubscription(topic=name, subscription=subscription, paused=False)
        await self.link.call(command, Done)

    async def seek(
        self,
        topic: str,
        subscription: str,
        to: Place | None = None,
        *,
        snapshot: str | None = None,
    ) -> None:
        """Move a durable subscription: see `Subscription.seek`."""
        if (to is None) == (snapshot is None):
            raise BadRequestError("seek to a place, or to a saved cursor by its name")
        if snapshot is not None:
            place = Position(origin=Origin.SNAPSHOT, name=snapshot)
        else:
            place = position_of(to, "seek") if to is not None else LATEST
        command = Seek(topic=check_topic(topic), subscription=subscription, to=place)
        await self.link.call(command, Done)

    async def save_cursor(self, topic: str, subscription: str, name: str) -> None:
        """Keep the place of a durable subscription under a name, to seek to it later."""
        command = SaveCursor(topic=check_topic(topic), subscription=subscription, name=name)
        await self.link.call(command, Done)

    async def drop_cursor(self, topic: str, subscription: str, name: str) -> None:
        """Forget a saved cursor."""
        command = DropCursor(topic=check_topic(topic), subscription=subscription, name=name)
        await self.link.call(command, Done)

    async def redrive(self, topic: str, subscription: str, *, count: int | None = None) -> int:
        """Move dead letters of a subscription back to where they came from: all, or `count`.

        Returns how many it were. Each is sent back and taken from the dead letters in one step.
        Raises `SubscriptionNotFoundError` if there is neither the subscription nor a dead letter.
        """
        if count is not None:
            check_count(count, "count", least=1)
        command = RedriveSubscription(
            topic=check_topic(topic), subscription=subscription, count=count or 0
        )
        return (await self.link.call(command, SubscriptionRedriven)).messages

    async def create_namespace(self, namespace: str) -> None:
        """Make a namespace."""
        await self.link.call(CreateNamespace(namespace=namespace), Done)

    async def delete_namespace(self, namespace: str) -> None:
        """Remove a namespace; raise `NamespaceNotEmptyError` while it has topics."""
        await self.link.call(DeleteNamespace(namespace=namespace), Done)

    async def namespaces(self) -> list[str]:
        """Return the namespaces."""
        return (await self.link.call(ListNamespaces(), Namespaces)).rows

    async def topics(self, pattern: str = "") -> list[TopicReport]:
        """Return the topics that match `pattern`, all by default."""
        wanted = check_topic(pattern, "a pattern")
        rows: list[TopicReport] = []
        after = ""
        while True:
            page = await self.link.call(ListTopics(pattern=wanted, after=after), Topics)
            rows += page.rows
            after = page.after
            if not after:
                return rows

    async def subscriptions(self, topic: str = "") -> list[SubscriptionReport]:
        """Return the subscriptions of `topic`, all by default."""
        wanted = check_topic(topic)
        rows: list[SubscriptionReport] = []
        after = ""
        while True:
            command = ListSubscriptions(topic=wanted, after=after)
            page = await self.link.call(command, Subscriptions)
            rows += page.rows
            after = page.after
            if not after:
                return rows

    async def heads(
        self,
        topics: Sequence[str],
        beyond: Mapping[str, int] | None = None,
        timeout: Seconds = 0.0,
    ) -> list[StreamHead]:
        """Return where streams begin and end; of a partitioned topic, its partitions one by one.

        With a `timeout` it waits that long for messages beyond what is known: `beyond` has the
        next offset by the name of a stream or partition, and one that is missing is new.
        """
        return await heads(self.link, topics, beyond, timeout)

    async def locate(self, topic: str, start: int, end: int) -> StreamLocated:
        """Return which sealed segments have the messages `start` to `end` of a stream.

        Of a partitioned topic, ask for one partition. A segment may be gone by the time somebody
        reads it; what no segment has is to be had from a reader.
        """
        return await locate(self.link, check_topic(topic), start, end)

    async def broker(self) -> BrokerReport:
        """Return the broker's own figures."""
        return (await self.link.call(DescribeBroker(), BrokerDescription)).report
