"""The streams of a broker: their topics, and the upkeep of what they keep.

Always true:
- a new topic is in the runtime at once and in the state once it is committed; when it is not, the
  runtime takes it back, because everything that came after it in the journal failed as well;
- a topic is deleted once that is committed;
- retention runs in the background, and never below what a work queue has not acknowledged;
- what goes wrong with the upkeep of one topic is logged and counted, and the others, and the next
  time, go on.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import structlog

from ister.base import (
    Clock,
    Durability,
    Retention,
    StreamChanges,
    StreamSettings,
    Timer,
    TopicName,
    housekeeping,
)
from ister.base.errors import BadRequestError, IsterError, ShardMovedError
from ister.broker.durable.subscriptions import Durables
from ister.broker.scheduling.chores import Chores, Steps
from ister.broker.state.changes import (
    Change,
    PartitionedCreated,
    PartitionedDeleted,
    TopicCreated,
    TopicDeleted,
    TopicTrimmed,
)
from ister.broker.state.message_ids import ALL_TIMES_MS
from ister.broker.state.state import Budgets, TopicRecord
from ister.broker.storage.committer import Done, ignore
from ister.broker.storage.storage import Storage
from ister.broker.streams.stream import StreamTopic
from ister.broker.streams.upkeep import Upkeep

TEND_S = 1.0
# How often a line tells that ids are forgotten before their time.
FORGOTTEN_TOLD_MS = 60_000


class Streams:
    """See the module."""

    def __init__(
        self,
        *,
        clock: Clock,
        new_number: Callable[[], int],
        durables: Durables,
        open_local: Callable[[], Storage] | None = None,
        on_opened: Callable[[Storage], object] | None = None,
    ) -> None:
        """`on_opened` has the storage that `open_local` gives adopted, by this and by others."""
        self.storages: list[Storage] = []
        # See `Committer.after_commit`.
        self.after_commit: list[Callable[[], object]] = [self._tend_if_short]
        self.by_name: dict[str, StreamTopic] = {}
        self.durables = durables
        self._clock = clock
        self._new_number = new_number
        self._open_local = open_local
        self._on_opened = on_opened or self.adopt
        self._local: Storage | None = None
        self._object: Storage | None = None
        self._closed = False
        # How often something went wrong in retention, or in the upkeep of a storage.
        self.upkeep_failures = 0
        self._logger: Any = structlog.get_logger("storage")
        self._upkeep = Upkeep()
        # Topics whose oldest message to keep is being looked for: a store may take its time.
        self._finding: set[StreamTopic] = set()
        self._chores = Chores(clock, self._on_chore_failed)
        # What deleted topics leave behind, which may take several turns of the loop.
        self.deletions = Chores(clock, self._on_deletion_failed)
        # Message ids that are to be let go of, step by step.
        self._forgetting: list[Steps] = []
        # How many ids, bytes of producers and keys had been forgotten at the last log line, and
        # its time.
        self._told_forgotten = (0, 0, 0)
        self._told_forgotten_ms = -FORGOTTEN_TOLD_MS
        # Until the next upkeep; none while there is one.
        self._timer: Timer | None = None

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
        for record in storage.state.topics.values():
            self._add(record, storage)
        self.durables.adopt(storage)
        storage.on_lost = lambda error: self._on_lost(storage, error)
        if len(self.storages) == 1:
            self._timer = self._clock.call_later(TEND_S, self._tend)

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

    def _on_lost(self, storage: Storage, error: ShardMovedError) -> None:
        """Another broker has a storage: end the readers and subscriptions of its messages."""
        self.durables.on_lost(storage, error)
        for topic in list(storage.topics.values()):
            for follower in list(topic.followers):
                follower.on_lost(error)
            storage.budget.forget(topic.recent)

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
    ) -> list[StreamTopic]:
        """Make stream topics; they are there at once, and for good when `done` says so.

        They may be of a topic `partitioned`, which has so many `partitions` with them.
        """
        settings.check()
        storage = self.storage_for(settings.durability)
        storage.committer.check_room()
        state = storage.state
        changes: list[Change] = []
        topics = []
        # Partitions are covered by the same subscriptions, all of them.
        covering = self.durables.matching(
            names[0], storage, is_queue=settings.retention == Retention.WORKQUEUE
        )
        self.durables.check_covered(len(names) * len(covering))
        if partitioned:
            changes.append(PartitionedCreated(partitioned, partitions))
        for name in names:
            state.topic_number += 1
            record = TopicRecord(state.topic_number, name, settings, state.budgets)
            changes.append(TopicCreated(record.topic, name, settings))
            topic = self._add(record, storage)
            topics.append(topic)
        if covering:
            changes.append(self.durables.cover_new(covering, topics))

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

        storage.record(changes, on_done, apply=False)
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

        storage.record([TopicCreated(t.record.topic, t.name, wanted) for t in topics], on_done)
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

        storage.record(changes, on_done)

    def end_followers(self, topics: Sequence[StreamTopic]) -> Steps:
        """Tell readers and subscriptions that topics were deleted, one of them in each step."""
        for topic in topics:
            while topic.followers:
                follower = next(iter(topic.followers))
                del topic.followers[follower]
                follower.on_topic_deleted()
                yield

    def trim(self, topic: StreamTopic, first_offset: int, done: Done) -> None:
        """Drop the messages of a topic below an offset."""
        record = topic.record
        # A hole at the start of a stream is nobody's to explain once what was before it is gone.
        first_offset = topic.first_stored(min(first_offset, record.next_offset))
        if first_offset <= record.first_offset:
            done(None)
            return

        def on_done(error: IsterError | None) -> None:
            if error is None:
                topic.storage.trimmed = True
                self.durables.on_trimmed(topic)
            done(error)

        topic.storage.record([TopicTrimmed(record.topic, first_offset)], on_done)

    def _add(self, record: TopicRecord, storage: Storage) -> StreamTopic:
        topic = StreamTopic(record, self._new_number(), storage, self.durables.turns)
        storage.topics[record.topic] = topic
        self.by_name[record.name] = topic
        return topic

    def _remove(self, topic: StreamTopic) -> None:
        topic.deleted = True
        topic.storage.topics.pop(topic.record.topic, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        topic.storage.budget.forget(topic.recent)
        # To free a million of them at once takes 0.1 s.
        self._forgetting.append(topic.record.ids.forget(older_than_ms=ALL_TIMES_MS))
        if topic.record.key_offsets is not None:
            self._forgetting.append(topic.record.key_offsets.forget(below=topic.next_offset))

    # Upkeep

    def close(self) -> None:
        """Stop the upkeep."""
        self._closed = True

    def _tend_if_short(self) -> None:
        """Where there is little room, have retention follow what is written, not the clock alone.

        A fast producer fills a small disk in less than a second.
        """
        timer = self._timer
        if timer is not None and self._local is not None and self._local.wants_room:
            timer.cancel()
            self._timer = None
            self._clock.call_later(0.0, self._tend)

    @housekeeping
    def _tend(self) -> None:
        self._timer = None
        if self._closed:
            return
        self.durables.expiry.tend()
        for storage in self.storages:
            if storage.committer.error is None:
                self._upkeep.begin(storage)
        self._tell_forgotten()
        self._go_on()

    @property
    def budgets(self) -> Budgets | None:
        """What counts the message ids and producers of all streams; `None` before there is any.

        All storages of a broker process share it.
        """
        return self.storages[0].state.budgets if self.storages else None

    def _tell_forgotten(self) -> None:
        """Log that message ids, producers or keys are forgotten before their time."""
        budgets = self.budgets
        now_ms = self._clock.monotonic_ms()
        if budgets is None or now_ms - self._told_forgotten_ms < FORGOTTEN_TOLD_MS:
            return
        told_ids, told_bytes, told_keys = self._told_forgotten
        ids, size_bytes = budgets.ids.forgotten, budgets.producers.forgotten
        keys = budgets.keys.forgotten
        self._told_forgotten = (ids, size_bytes, keys)
        if ids > told_ids:
            self._told_forgotten_ms = now_ms
            self._logger.warning(
                "message_ids_forgotten",
                count=ids - told_ids,
                hint="shorten the dedup window of the topics with the most ids, or raise "
                "message_ids_max",
            )
        if size_bytes > told_bytes:
            self._told_forgotten_ms = now_ms
            self._logger.warning(
                "producers_forgotten",
                size_bytes=size_bytes - told_bytes,
                hint="give the producers of a topic the same names again after a restart, or raise "
                "producers_bytes_max",
            )
        if keys > told_keys:
            self._told_forgotten_ms = now_ms
            self._logger.warning(
                "key_offsets_forgotten",
                count=keys - told_keys,
                hint="expected_key_offset is refused for keys that are not known; raise "
                "key_offsets_max",
            )

    def _on_chore_failed(self, error: Exception) -> None:
        self.upkeep_failures += 1
        self._logger.error("upkeep_failed", where="message ids", count=1, exc_info=error)

    def _on_deletion_failed(self, error: Exception) -> None:
        self._logger.error("internal_error", where="deletion of a topic", exc_info=error)

    def _go_on(self) -> None:
        """Look at some topics in each turn of the loop, and at the journals after the last."""
        if self._closed:
            return
        topics = self._upkeep.take()
        # Before anything that may fail: upkeep goes on in any case.
        if topics:
            self._clock.call_later(0.0, self._go_on)
        else:
            self._timer = self._clock.call_later(TEND_S, self._tend)
        failed: list[tuple[str, Exception]] = []
        for topic in topics:
            if not topic.deleted and topic.storage.committer.error is None:
                try:
                    self._retain(topic)
                except Exception as error:  # noqa: BLE001 - logged below, once for all
                    failed.append((topic.name, error))
        if self._forgetting:
            forgetting, self._forgetting = self._forgetting, []
            self._chores.do(chain.from_iterable(forgetting))
        for storage in self.storages if not topics else ():
            try:
                storage.tend()
            except Exception as error:  # noqa: BLE001 - logged below
                failed.append((storage.name, error))
        if failed:
            self.upkeep_failures += len(failed)
            where, first = failed[0]
            self._logger.error("upkeep_failed", where=where, count=len(failed), exc_info=first)

    def _retain(self, topic: StreamTopic) -> None:
        """Drop what a topic need not keep any more."""
        settings = topic.record.settings
        if topic.record.ids:
            # Where nothing more is published, nobody else would.
            older_than_ms = self._clock.now_ms() - settings.dedup_window_ms
            self._forgetting.append(topic.record.ids.forget(older_than_ms=older_than_ms))
        if topic.record.key_offsets is not None:
            self._forgetting.append(topic.record.key_offsets.forget(below=topic.first_offset))
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
            log = topic.storage.log
            self._trim_quietly(topic, log.offset_within(topic.record.topic, settings.max_bytes))
        max_age_ms = min((age for age in (settings.max_age_ms, settings.ttl_ms) if age), default=0)
        if max_age_ms and settings.retention != Retention.COMPACT:
            self._trim_by_age(topic, self._clock.now_ms() - max_age_ms)

    def _trim_by_age(self, topic: StreamTopic, older_than_ms: int) -> None:
        if topic in self._finding:
            return
        oldest_ms = topic.time_of(topic.first_offset)
        if topic.first_offset >= topic.next_offset or (
            oldest_ms is not None and oldest_ms >= older_than_ms
        ):
            return

        def on_found(offset: int | Exception) -> None:
            self._finding.discard(topic)
            if isinstance(offset, int) and not topic.deleted:
                self._trim_quietly(topic, offset)

        topic.find_time(older_than_ms, on_found)
        self._finding.add(topic)

    def _trim_quietly(self, topic: StreamTopic, first_offset: int) -> None:
        """Drop what lies below an offset, if there is anything and the journal takes it."""
        if first_offset > topic.first_offset and topic.storage.committer.error is None:
            self.trim(topic, first_offset, ignore)
