"""The topics that a durable subscription covers, those included whose partitions are to be made."""

from collections.abc import Collection, Iterable, Iterator

from ister.base import is_wildcard
from ister.broker.durable.partition import Owner, Partition
from ister.broker.durable.rules import Rules
from ister.broker.durable.slots import Slots
from ister.broker.state import SubscriptionRecord
from ister.broker.streams import ReadAheadBudget, StreamTopic
from ister.subscriptions import Cursor


class Coverage:
    """The partitions of a durable subscription, by topic and by lease number."""

    def __init__(
        self, owner: Owner, record: SubscriptionRecord, slots: Slots, shared: ReadAheadBudget
    ) -> None:
        self._owner = owner
        self._record = record
        self._slots = slots
        self._shared = shared
        # By the name of the topic; and topics whose partitions are to be made.
        self._partitions: dict[str, Partition] = {}
        self._coming: dict[str, StreamTopic] = {}

    @property
    def partitions(self) -> Collection[Partition]:
        """A partition for each topic that is covered."""
        return self._partitions.values()

    @property
    def is_whole(self) -> bool:
        """Whether there is a partition for each topic that is covered."""
        return not self._coming

    @property
    def is_gone(self) -> bool:
        """Whether its only topic was deleted, so that the subscription is about to be, too."""
        if is_wildcard(self._record.created.pattern):
            return False
        known = all(partition.topic.deleted for partition in self._partitions.values())
        return known and all(topic.deleted for topic in self._coming.values())

    def covers(self, topic: str) -> bool:
        """Whether a topic is covered."""
        return topic in self._partitions or topic in self._coming

    def has(self, partition: Partition) -> bool:
        """Whether a partition is the one of its topic: a new topic may have the name by now."""
        return self._partitions.get(partition.topic.name) is partition

    def find(self, lease: int) -> Partition | None:
        """Return the partition that a lease number belongs to, if there is one."""
        return self._slots.find(lease)

    def add(self, topic: StreamTopic, cursor: Cursor, rules: Rules) -> Partition:
        """Cover a topic from where its cursor stands."""
        slot, leases = self._slots.take()
        partition = Partition(
            self._owner,
            topic,
            cursor,
            rules.acks,
            rules.filter,
            number=self._record.created.subscription,
            ordered=rules.ordered,
            slot=slot,
            leases=leases,
            shared=self._shared,
        )
        self._partitions[topic.name] = partition
        self._slots.put(partition)
        topic.followers[partition] = None
        return partition

    def expect(self, topics: Iterable[StreamTopic]) -> None:
        """Have `take_expected` return these topics in its turn."""
        for topic in topics:
            topic.partitions_coming += 1
            self._coming[topic.name] = topic

    def take_expected(self, count_max: int) -> Iterator[StreamTopic]:
        """Yield topics whose partitions are to be made, without those that are gone."""
        for _ in range(min(len(self._coming), count_max)):
            topic = self._coming.pop(next(iter(self._coming)))
            topic.partitions_coming -= 1
            if topic.deleted:
                self._record.cursors.pop(topic.record.topic, None)
            else:
                yield topic

    def remove(self, topic: StreamTopic) -> None:
        """Cover a topic no more. Harmless if that is so."""
        if self._coming.get(topic.name) is topic:
            del self._coming[topic.name]
            topic.partitions_coming -= 1
        partition = self._partitions.get(topic.name)
        if partition is not None and partition.topic is topic:
            topic.followers.pop(partition, None)
            partition.on_topic_deleted()

    def forget(self, partition: Partition) -> None:
        """The topic of a partition is gone."""
        if self.has(partition):
            del self._partitions[partition.topic.name]
        self._slots.free(partition)
        self._record.cursors.pop(partition.topic.record.topic, None)

    def clear(self) -> None:
        """Cover nothing: the subscription is gone."""
        for partition in self._partitions.values():
            partition.close()
            partition.topic.followers.pop(partition, None)
        for topic in self._coming.values():
            topic.partitions_coming -= 1
        self._coming.clear()
        self._partitions.clear()
        self._slots.clear()
