"""The streams of a broker: their storages, and topics that are made, changed and deleted.

Always true:
- a new topic is in the runtime at once and in the state once it is committed; when it is not, the
  runtime takes it back, because everything that came after it in the journal failed as well;
- a topic is deleted once that is committed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from ister.base import Clock, Durability, StreamChanges, StreamSettings, TopicName
from ister.base.errors import BadRequestError, IsterError, ShardMovedError
from ister.broker.scheduling import Chores, Done, Steps, Turns
from ister.broker.state import (
    ALL_TIMES_MS,
    Budgets,
    Change,
    PartitionedCreated,
    PartitionedDeleted,
    TopicCreated,
    TopicDeleted,
    TopicRecord,
)
from ister.broker.storage import Storage, Write
from ister.broker.streams.recent import RecentBudget
from ister.broker.streams.stream import StreamTopic
from ister.broker.streams.upkeep import Upkeep

# Has subscriptions cover new topics; returns that for the journal.
Cover = Callable[[Sequence[StreamTopic]], Change]


class Streams:
    """All storages of a broker, and the streams in them by name."""

    def __init__(
        self,
        *,
        clock: Clock,
        new_number: Callable[[], int],
        turns: Turns,
        recent: RecentBudget,
        open_local: Callable[[], Storage] | None = None,
        on_opened: Callable[[Storage], object] | None = None,
    ) -> None:
        """`on_opened` has the storage that `open_local` gives adopted, by this and by others."""
        self.storages: list[Storage] = []
        self.by_name: dict[str, StreamTopic] = {}
        self.upkeep = Upkeep(clock)
        # What the newest messages of all streams take in memory.
        self.recent = recent
        # See `Committer.after_commit`.
        self.after_commit: list[Callable[[], object]] = [self.upkeep.hurry_if_short]
        # What deleted topics leave behind, which may take several turns of the loop.
        self.deletions = Chores(clock, self._on_deletion_failed)
        self._turns = turns
        self._new_number = new_number
        self._open_local = open_local
        self._on_opened = on_opened or self.adopt
        self._local: Storage | None = None
        self._object: Storage | None = None
        # By their numbers in the journal.
        self._topics: dict[Storage, dict[int, StreamTopic]] = {}
        self._logger: Any = structlog.get_logger("storage")

    # Storages

    def adopt(self, storage: Storage, *, is_object: bool = False) -> None:
        """Take over a storage with everything its state knows."""
        self.storages.append(storage)
        storage.committer.after_commit = self.after_commit
        if is_object:
            storage.name = "object"
            self._object = storage
        else:
            self._local = storage
        topics = self._topics[storage] = {}
        for record in storage.state.topics.values():
            self._add(record, storage)
        storage.committer.on_failure.append(lambda: _on_failure(topics.values()))
        storage.on_loss.append(lambda error: self._on_lost(topics.values(), error))
        self.upkeep.add(storage, topics)

    def topics_of(self, storage: Storage) -> Mapping[int, StreamTopic]:
        """Return the streams of a storage by their numbers in its journal."""
        return self._topics[storage]

    def storage_for(self, durability: str) -> Storage:
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

    def _on_lost(self, topics: Collection[StreamTopic], error: ShardMovedError) -> None:
        """Another broker has a storage: end those who read its messages."""
        for topic in list(topics):
            for follower in list(topic.followers):
                follower.on_lost(error)
            self.recent.forget(topic.recent)

    @property
    def error(self) -> str:
        """Why durable writes are not taken, empty when they are."""
        return "; ".join(
            reason for storage in self.storages if (reason := storage.committer.trouble)
        )

    # Topics

    def create(
        self,
        names: Sequence[TopicName],
        settings: StreamSettings,
        done: Done,
        *,
        partitioned: str = "",
        partitions: int = 0,
        cover: Cover | None = None,
    ) -> list[StreamTopic]:
        """Make stream topics; they are there at once, and for good when `done` says so.

        They may be of a topic `partitioned`, which has so many `partitions` with them. `cover` has
        subscriptions cover them from their first message on.
        """
        settings.check()
        storage = self.storage_for(settings.durability)
        storage.committer.check_room()
        state = storage.state
        changes: list[Change] = []
        topics = []
        if partitioned:
            changes.append(PartitionedCreated(partitioned, partitions))
        for name in names:
            state.topic_number += 1
            record = TopicRecord(state.topic_number, name, settings, state.budgets)
            changes.append(TopicCreated(record.topic, name, settings))
            topic = self._add(record, storage)
            topics.append(topic)
        if cover is not None:
            changes.append(cover(topics))

        def on_done(error: IsterError | None) -> None:
            if error is None:
                for topic in topics:
                    state.topics[topic.record.topic] = topic.record
                if partitioned:
                    state.partitioned[partitioned] = partitions
            else:
                for topic in topics:
                    self._remove(topic)
                for _ in self.end_followers(topics):
                    pass
            done(error)

        storage.commit(Write(journal_only=changes), on_done)
        return topics

    def update(self, topics: Sequence[StreamTopic], changes: StreamChanges, done: Done) -> None:
        """Change settings of a topic, or of all partitions of one, once that is in the journal.

        What retention drops by the new ones is gone within seconds. `done` comes before that.
        """
        storage = topics[0].storage
        wanted = changes.apply(topics[0].settings)

        def on_done(error: IsterError | None) -> None:
            for topic in topics:
                topic.on_settings(wanted)
                if error is None and not topic.deleted:
                    topic.on_changed()
            done(error)

        updated = [TopicCreated(t.record.topic, t.name, wanted) for t in topics]
        storage.commit(Write(changes=updated), on_done)
        for topic in topics:
            topic.settings = wanted

    def delete(self, topics: Sequence[StreamTopic], done: Done, *, partitioned: str = "") -> None:
        """Remove topics with everything in them, once that is in the journal.

        Not before: what is closed and forgotten cannot be taken back. Call `end_followers` then, so
        that readers and subscriptions learn that the topics are gone.
        """
        storage = topics[0].storage
        changes: list[Change] = [TopicDeleted(t.record.topic) for t in topics]
        if partitioned:
            changes.append(PartitionedDeleted(partitioned))

        def on_done(error: IsterError | None) -> None:
            if error is None:
                for topic in topics:
                    # Two may have asked for it.
                    if not topic.deleted:
                        self._remove(topic)
                storage.trimmed = True
            done(error)

        storage.commit(Write(changes=changes), on_done)

    def end_followers(self, topics: Sequence[StreamTopic]) -> Steps:
        """Tell readers and subscriptions that topics were deleted, one of them in each step."""
        for topic in topics:
            while topic.followers:
                follower = next(iter(topic.followers))
                del topic.followers[follower]
                follower.on_topic_deleted()
                yield

    def _add(self, record: TopicRecord, storage: Storage) -> StreamTopic:
        topic = StreamTopic(
            record,
            self._new_number(),
            storage,
            turns=self._turns,
            recent=self.recent,
            on_changed=self.upkeep.mark_changed,
        )
        self._topics[storage][record.topic] = topic
        self.by_name[record.name] = topic
        return topic

    def _remove(self, topic: StreamTopic) -> None:
        topic.deleted = True
        self._topics[topic.storage].pop(topic.record.topic, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        self.recent.forget(topic.recent)
        # To free a million of them at once takes 0.1 s.
        self.upkeep.forget(topic.record.ids.forget(older_than_ms=ALL_TIMES_MS))
        if topic.record.key_offsets is not None:
            self.upkeep.forget(topic.record.key_offsets.forget(below=topic.next_offset))

    def close(self) -> None:
        """Stop the upkeep."""
        self.upkeep.close()

    @property
    def budgets(self) -> Budgets | None:
        """What counts the message ids and producers of all streams; `None` before there is any.

        All storages of a broker process share it.
        """
        return self.storages[0].state.budgets if self.storages else None

    def _on_deletion_failed(self, error: Exception) -> None:
        self._logger.error("internal_error", where="deletion of a topic", exc_info=error)


def _on_failure(topics: Iterable[StreamTopic]) -> None:
    for topic in topics:
        topic.on_failed()
