"""The streams of a broker: their topics, and the upkeep of what they keep.

Always true:
- a new topic is in the runtime at once and in the ledger once it is committed; when it is not, the
  runtime takes it back, because everything that came after it in the journal failed as well;
- a topic is deleted once that is committed;
- retention runs in the background, and never below what a work queue has not acknowledged.
"""

from collections.abc import Callable, Sequence

from ister.base import Clock, Durability, Retention, StreamSettings, TopicName
from ister.base.errors import BadRequestError, IsterError
from ister.broker.changes import (
    Change,
    CursorMoved,
    PartitionedCreated,
    PartitionedDeleted,
    TopicCreated,
    TopicDeleted,
    TopicTrimmed,
)
from ister.broker.committer import Done, ignore
from ister.broker.durables import Durables
from ister.broker.ledger import TopicRecord
from ister.broker.stream import StreamTopic
from ister.broker.vault import Vault
from ister.subscriptions import Cursor

TEND_S = 1.0


class Streams:
    """See the module."""

    def __init__(
        self,
        *,
        clock: Clock,
        new_number: Callable[[], int],
        durables: Durables,
        open_local: Callable[[], Vault] | None = None,
        on_opened: Callable[[Vault], object] | None = None,
    ) -> None:
        """`on_opened` has the vault that `open_local` gives adopted, by this and whoever else."""
        self.vaults: list[Vault] = []
        # See `Committer.after_commit`.
        self.after_commit: list[Callable[[], object]] = []
        self.by_name: dict[str, StreamTopic] = {}
        self.durables = durables
        self._clock = clock
        self._new_number = new_number
        self._open_local = open_local
        self._on_opened = on_opened or self.adopt
        self._local: Vault | None = None
        self._object: Vault | None = None
        self._closed = False

    # Vaults

    def adopt(self, vault: Vault, *, is_object: bool = False) -> None:
        """Take over a vault with everything its ledger knows."""
        self.vaults.append(vault)
        vault.committer.after_commit = self.after_commit
        if is_object:
            vault.name = "object"
            self._object = vault
        else:
            self._local = vault
        for record in vault.ledger.topics.values():
            self._add(record, vault)
        self.durables.adopt(vault)
        if len(self.vaults) == 1:
            self._clock.call_later(TEND_S, self._tend)

    def vault_for(self, durability: str) -> Vault:
        """Return where topics of a durability are kept, making the data folder if needed."""
        if durability == Durability.OBJECT:
            if self._object is None:
                raise BadRequestError(
                    "durability 'object' needs an object store: start the broker with "
                    "`--object-store URL`"
                )
            return self._object
        if self._local is None:
            if self._open_local is None:
                raise BadRequestError("this broker keeps no streams: start it with `--data DIR`")
            self._on_opened(self._open_local())
        assert self._local is not None
        return self._local

    @property
    def error(self) -> str:
        """Why durable writes are not taken, empty when they are."""
        return "; ".join(str(v.committer.error) for v in self.vaults if v.committer.error)

    # Topics

    def create(
        self,
        names: Sequence[TopicName],
        settings: StreamSettings,
        done: Done,
        *,
        partitioned: str = "",
        partitions: int = 0,
    ) -> list[StreamTopic]:
        """Make stream topics; they are there at once, and for good when `done` says so.

        They may be of a topic `partitioned`, which has so many `partitions` with them.
        """
        settings.check()
        vault = self.vault_for(settings.durability)
        vault.committer.check()
        ledger = vault.ledger
        changes: list[Change] = []
        topics = []
        if partitioned:
            changes.append(PartitionedCreated(partitioned, partitions))
        for name in names:
            ledger.topic_number += 1
            record = TopicRecord(ledger.topic_number, name, settings)
            changes.append(TopicCreated(record.topic, name, settings))
            topic = self._add(record, vault)
            topics.append(topic)
            for durable in self.durables.matching(topic):
                cursor = durable.record.cursors[record.topic] = Cursor(0)
                changes.append(CursorMoved(durable.number, record.topic, 0))
                durable.add_topic(topic, cursor)

        def on_done(error: IsterError | None) -> None:
            if error is None:
                for topic in topics:
                    ledger.topics[topic.record.topic] = topic.record
                if partitioned:
                    ledger.partitioned[partitioned] = partitions
            else:
                for topic in topics:
                    self._remove(topic)
            done(error)

        vault.record(changes, on_done, apply=False)
        return topics

    def delete(self, topics: Sequence[StreamTopic], done: Done, *, partitioned: str = "") -> None:
        """Remove topics with everything in them, once that is in the journal.

        Not before: what is closed and forgotten cannot be taken back.
        """
        vault = topics[0].vault
        changes: list[Change] = [TopicDeleted(t.record.topic) for t in topics]
        if partitioned:
            changes.append(PartitionedDeleted(partitioned))

        def on_done(error: IsterError | None) -> None:
            if error is None:
                for topic in topics:
                    # Two may have asked for it.
                    if not topic.deleted:
                        self._remove(topic)
                vault.trimmed = True
            done(error)

        vault.record(changes, on_done)

    def trim(self, topic: StreamTopic, first_offset: int, done: Done) -> None:
        """Drop the messages of a topic below an offset."""
        record = topic.record
        first_offset = min(first_offset, record.next_offset)
        if first_offset <= record.first_offset:
            done(None)
            return

        def on_done(error: IsterError | None) -> None:
            if error is None:
                topic.vault.trimmed = True
                self.durables.on_trimmed(topic)
            done(error)

        topic.vault.record([TopicTrimmed(record.topic, first_offset)], on_done)

    def _add(self, record: TopicRecord, vault: Vault) -> StreamTopic:
        topic = StreamTopic(record, self._new_number(), vault)
        vault.topics[record.topic] = topic
        self.by_name[record.name] = topic
        return topic

    def _remove(self, topic: StreamTopic) -> None:
        topic.deleted = True
        topic.vault.topics.pop(topic.record.topic, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        topic.vault.budget.forget(topic.tail)
        for follower in list(topic.followers):
            follower.on_topic_deleted()
        topic.followers.clear()

    # Upkeep

    def close(self) -> None:
        """Stop the upkeep."""
        self._closed = True

    def _tend(self) -> None:
        if self._closed:
            return
        for vault in self.vaults:
            if vault.committer.error is None:
                for topic in list(vault.topics.values()):
                    self._retain(topic)
            vault.tend()
        self._clock.call_later(TEND_S, self._tend)

    def _retain(self, topic: StreamTopic) -> None:
        """Drop what a topic need not keep any more."""
        settings = topic.record.settings
        if topic.record.ids:
            # Where nothing more is published, nobody else would.
            topic.record.ids.forget(older_than_ms=self._clock.now_ms() - settings.dedup_window_ms)
        if settings.retention in (Retention.INTEREST, Retention.WORKQUEUE):
            floors = self.durables.floors(topic)
            if floors:
                self._trim_quietly(topic, min(floors))
            elif settings.retention == Retention.INTEREST:
                self._trim_quietly(topic, topic.next_offset)
        if settings.retention == Retention.WORKQUEUE:
            return
        if settings.max_messages:
            self._trim_quietly(topic, topic.next_offset - settings.max_messages)
        if settings.max_bytes:
            log = topic.vault.log
            self._trim_quietly(topic, log.offset_within(topic.record.topic, settings.max_bytes))
        max_age_ms = min((age for age in (settings.max_age_ms, settings.ttl_ms) if age), default=0)
        if max_age_ms and settings.retention != Retention.COMPACT:
            self._trim_by_age(topic, self._clock.now_ms() - max_age_ms)

    def _trim_by_age(self, topic: StreamTopic, older_than_ms: int) -> None:
        oldest_ms = topic.time_of(topic.first_offset)
        if topic.first_offset >= topic.next_offset or (
            oldest_ms is not None and oldest_ms >= older_than_ms
        ):
            return

        def on_found(offset: int | Exception) -> None:
            if isinstance(offset, int) and not topic.deleted:
                self._trim_quietly(topic, offset)

        topic.find_time(older_than_ms, on_found)

    def _trim_quietly(self, topic: StreamTopic, first_offset: int) -> None:
        """Drop what lies below an offset, if there is anything and the journal takes it."""
        if first_offset > topic.first_offset and topic.vault.committer.error is None:
            self.trim(topic, first_offset, ignore)
