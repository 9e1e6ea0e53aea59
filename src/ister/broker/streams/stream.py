"""A stream topic: gives offsets, stores, and serves from memory or from the log.

Always true:
- offsets rise by one per message; `appended` is the next one to give, `record.next_offset` the
  next one to become visible;
- a batch is seen by consumers and readers, and its producer answered, only once its group is
  committed;
- a batch that was sent before is not stored again: it is answered as it was the first time.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, Unpack

from ister.base import Durability, Expected, Retention, StreamReport, StreamSettings, TopicReport
from ister.base.errors import (
    IsterError,
    MessagesMissingError,
    OffsetMismatchError,
    ShardMovedError,
)
from ister.broker.scheduling import Done, Turns, ignore
from ister.broker.schema_checks import SchemaCheck, check
from ister.broker.state import (
    PendingKeys,
    Sequenced,
    TopicRecord,
    TopicTrimmed,
    check_keys,
    keys_of,
)
from ister.broker.storage import Publish, Storage, Write
from ister.broker.streams.deduplication import Deduplication
from ister.broker.streams.recent import RecentBatches, RecentBudget
from ister.codec import Batch, Column

# Called when a batch is stored or refused: with an error; or with nothing, and the batch says where
# it is; or with the offset of each message, when some were known before.
OnStored = Callable[[IsterError | None, list[int] | None], object]

# Followers notified of new messages without a look at the clock, 2 µs each, once their turn is
# over.
NOTIFIED_AT_ONCE = 64
# One read of what is not in memory any more.
READ_BYTES = 4 * 1024 * 1024
# Above every offset.
ALL_OFFSETS = 2**63 - 1


class Follower(Protocol):
    """What is notified of new messages: a partition of a subscription, a reader, a watch."""

    @property
    def listening(self) -> bool:
        """Whether somebody is there to take them."""

    @property
    def is_durable(self) -> bool:
        """Whether it belongs to a subscription."""

    @property
    def floor(self) -> int | None:
        """The offset below which it has acknowledged everything; `None` if it keeps no count."""

    def on_new(self) -> None:
        """Messages have become visible."""

    def on_trimmed(self) -> None:
        """Messages at the start of the topic are gone."""

    def on_topic_deleted(self) -> None:
        """The topic is gone."""

    def on_lost(self, error: ShardMovedError) -> None:
        """Another broker has the topic."""


class Stamped(Protocol):
    """A batch as far as giving it offsets goes."""

    base_offset: int
    publish_time_ms: int
    count: int


class StreamTopic:
    """One stream topic, or one partition of one."""

    kind = "stream"

    __slots__ = (
        "_in_memory",
        "_on_changed",
        "_stamped_ms",
        "_sync",
        "_turns",
        "_unnotified",
        "appended",
        "bytes_in",
        "changed",
        "deleted",
        "followers",
        "is_work_queue",
        "keys",
        "messages_dropped",
        "messages_in",
        "messages_out",
        "name",
        "number",
        "owners",
        "partitions_coming",
        "producers",
        "recent",
        "record",
        "schema_check",
        "sent",
        "settings",
        "storage",
    )

    def __init__(
        self,
        record: TopicRecord,
        number: int,
        storage: Storage,
        *,
        turns: Turns,
        recent: RecentBudget,
        on_changed: "Callable[[StreamTopic], object]",
    ) -> None:
        """`on_changed` is called once until `changed` is reset: it may keep too much by now."""
        self.record = record
        self.name = record.name
        # What deliver frames call this topic.
        self.number = number
        self.storage = storage
        self.recent = RecentBatches(recent)
        self.appended = record.next_offset
        self.followers: dict[Follower, None] = {}
        self.is_work_queue = record.settings.retention == Retention.WORKQUEUE
        # Subscriptions that cover it, and have their partition still to be made.
        self.partitions_coming = 0
        self.producers = 0
        # Who last opened a producer of a name: the others are fenced.
        self.owners: dict[str, object] = {}
        self.deleted = False
        # Whether retention has been asked to check it: see `upkeep`.
        self.changed = False
        self._on_changed = on_changed
        self.schema_check: SchemaCheck | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.messages_dropped = 0
        # Those of the record, or others that are on their way into the journal.
        self.settings = record.settings
        self._sync = record.settings.durability in (Durability.FSYNC, Durability.OBJECT)
        self._in_memory = record.settings.durability == Durability.MEMORY
        # The last time that was given, to a batch that is stored or on its way.
        self._stamped_ms = record.last_ms
        # What producers have sent before.
        self.sent = Deduplication(record, storage.clock.now_ms)
        self.keys = PendingKeys(record)
        self._turns = turns
        # Followers that are notified of new messages in a later turn of the loop.
        self._unnotified: OrderedDict[Follower, None] = OrderedDict()

    @property
    def next_offset(self) -> int:
        """The offset of the next message to become visible."""
        return self.record.next_offset

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message kept."""
        return self.record.first_offset

    def floors(self) -> list[int]:
        """Return the floor of every subscription; where the topic begins for those to come."""
        floors = [floor for one in self.followers if (floor := one.floor) is not None]
        return [*floors, self.first_offset] if self.partitions_coming else floors

    def trim(self, first_offset: int, done: Done) -> None:
        """Drop the messages below an offset, if there are any."""
        # A hole at the start of a stream is nobody's to explain once what was before it is gone.
        first_offset = self.first_stored(min(first_offset, self.next_offset))
        if first_offset <= self.first_offset:
            done(None)
            return

        def on_done(error: IsterError | None) -> None:
            if error is None:
                self.storage.trimmed = True
                for follower in list(self.followers):
                    follower.on_trimmed()
            done(error)

        self.storage.commit(Write(changes=[TopicTrimmed(self.record.topic, first_offset)]), on_done)

    # Producing

    def publish(
        self,
        name: str,
        batch: Batch,
        on_stored: OnStored,
        *,
        schema_check: SchemaCheck | None = None,
        **expected: Unpack[Expected],
    ) -> None:
        """Store a checked batch of the producer `name`; `on_stored` is called once, maybe at once.

        What is stored already is answered without a `schema_check`: the schema may be another now.
        """
        self.storage.committer.check_room()
        if self.sent.is_repeated(name, batch):
            self._answer_again(name, batch, on_stored)
            return
        if schema_check is not None:
            check(schema_check, batch)
        if self.record.key_offsets is not None:
            check_keys([batch])
        if (offset := expected.get("expected_offset", self.appended)) != self.appended:
            raise OffsetMismatchError(self.name, offset, self.appended)
        if "expected_key_offset" in expected:
            self.keys.check(batch, expected["expected_key_offset"])
        new, offsets = self.sent.sort_out(batch, self.appended)
        if offsets is not None:
            self._publish_rest(name, batch, new, offsets, on_stored)
        else:
            self._store(name, batch, on_stored)

    def sort_out(self, batch: Batch) -> tuple[Batch | None, list[int] | None]:
        """Return what of a batch is new by its ids, to be stamped next: see `Deduplication`."""
        return self.sent.sort_out(batch, self.appended)

    def plan_offsets(self, batches: Sequence[Batch]) -> list[int]:
        """Return the offset of the first new message of each of some batches, stored in turn."""
        return self.sent.plan_offsets(batches, self.appended)

    def _store(self, name: str, batch: Batch, on_stored: OnStored) -> None:
        self.stamp(batch)
        self.sent.take_numbers(name, batch)
        write = Publish(self, batch, sync=self._sync)
        if self._in_memory:
            # The application chose to be answered before anything is safe.
            self.storage.commit(write, ignore)
            on_stored(None, None)
        else:
            self.storage.commit(write, lambda error: on_stored(error, None))

    def stamp(self, batch: Stamped) -> None:
        """Give a batch its offsets and time."""
        batch.base_offset = self.appended
        # Times never go back within a topic, or finding a time could miss messages.
        batch.publish_time_ms = self._stamped_ms = max(
            self.storage.clock.now_ms(), self._stamped_ms
        )
        self.appended += batch.count
        if self.record.key_offsets is not None:
            # No stage is for such a topic.
            assert isinstance(batch, Batch)
            self.keys.add(batch, self.record.key_offsets)

    def on_committed(self, batch: Batch, *, sequenced: bool = True) -> None:
        """A batch is in the journal: from now on it is there for everybody."""
        if self.deleted:
            return
        self.sent.on_committed(batch, sequenced=sequenced)
        self.messages_in += batch.count
        self.bytes_in += batch.size_bytes
        if self.record.key_offsets is not None:
            self.keys.on_stored(batch)
        self._keep([batch])
        if not self.changed:
            self.on_changed()
        self._notify_followers()

    def on_series(
        self, end_offset: int, *, count: int, size_bytes: int, held: Sequence[Batch] = ()
    ) -> None:
        """Batches of a series up to `end_offset` are in the journal, and are read from there.

        But for those that happen to be in memory: `held`, stamped.
        """
        if self.deleted:
            return
        self._keep(held)
        self.record.next_offset = max(self.record.next_offset, end_offset)
        self.record.last_ms = self._stamped_ms
        self.messages_in += count
        self.bytes_in += size_bytes
        self.on_changed()
        self._notify_followers()

    def _notify_followers(self) -> None:
        if len(self.followers) > NOTIFIED_AT_ONCE:
            waits = bool(self._unnotified)
            self._unnotified.update(self.followers)
            if not waits:
                self.go_through()
            return
        # A copy: a reader that has come to its end leaves.
        for follower in tuple(self.followers):
            follower.on_new()

    def go_through(self) -> None:
        """Notify followers of new messages as long as there is time, and the others later."""
        unnotified, followers = self._unnotified, self.followers
        while unnotified:
            for _ in range(min(len(unnotified), NOTIFIED_AT_ONCE)):
                follower, _ = unnotified.popitem(last=False)
                if follower in followers:
                    follower.on_new()
            if unnotified and not self._turns.join():
                self._turns.wait(self)
                return

    def _keep(self, batches: Sequence[Batch]) -> None:
        """Keep new batches in memory, unless nobody listens: who comes later reads the log."""
        if any(follower.listening for follower in self.followers):
            for batch in batches:
                self.recent.append(batch)

    def on_settings(self, wanted: StreamSettings) -> None:
        """Settings have reached the journal or not: those of the record count from now on."""
        if self.settings is wanted:
            self.settings = self.record.settings
        durability = self.record.settings.durability
        self._sync = durability in (Durability.FSYNC, Durability.OBJECT)
        self._in_memory = durability == Durability.MEMORY

    def on_changed(self) -> None:
        """Have retention check this topic soon: it may keep too much by now."""
        if not self.changed:
            self.changed = True
            self._on_changed(self)

    def on_failed(self) -> None:
        """Nothing that was not committed will be."""
        self.appended = self.record.next_offset
        self.sent.clear()
        self.keys.clear()

    def _answer_again(self, name: str, batch: Batch, on_stored: OnStored) -> None:
        """Answer a producer of a batch that is stored, or about to be, with where it is."""
        sequence, record = batch.first_sequence, self.record.producers
        if batch.columns & Column.ID:
            known = self.sent.find_offsets(keys_of(batch.ids or ()), self.appended)
            if None not in known:
                # What it repeats may still be on its way to the disk.
                offsets = [~offset for offset in known if offset is not None]
                self.storage.committer.add(
                    lambda error: on_stored(error, None if error else offsets)
                )
                return
        batch.publish_time_ms = self.storage.clock.now_ms()

        def done(error: IsterError | None) -> None:
            batch.base_offset = record.offset_of(name, sequence)
            on_stored(error, None)

        if sequence + batch.count <= record.next_sequence(name):
            done(None)
        else:
            self.storage.committer.add(done)

    def _publish_rest(
        self, name: str, batch: Batch, rest: Batch | None, offsets: list[int], on_stored: OnStored
    ) -> None:
        """Store the messages of a batch that are new, and tell the offset of each."""
        self.sent.take_numbers(name, batch)
        taken = Sequenced(self.record.topic, batch.producer, batch.first_sequence, batch.count)
        batches = []
        if rest is not None:
            self.stamp(rest)
            batches.append((self, rest))

        def done(error: IsterError | None) -> None:
            if error is None:
                self.sent.on_numbers_stored(batch)
            on_stored(error, None if error else offsets)

        # One entry: with the numbers alone, what is new would never be stored; without them, a
        # repetition from after the window of the ids would be stored again.
        self.storage.commit(Write(batches=batches, changes=[taken], sync=self._sync), done)

    # Reading

    def find(self, offset: int) -> Batch | None:
        """Return the batch with the message at `offset`, if it is in memory."""
        return self.recent.find(offset)

    def load(
        self, offset: int, bytes_max: int, done: Callable[[list[Batch] | Exception], object]
    ) -> bool:
        """Read the batch with the message at `offset`, or the next there is, and those after it.

        `done` is called in a later turn of the loop. Returns whether there is anything to read.
        Only where compaction or salvage have left holes they are passed over: any other is a
        `MessagesMissingError`, unless what was asked for has been trimmed meanwhile.
        """
        plan = self.storage.log.plan(self.record.topic, offset, bytes_max)
        holes_end = self.holes_end
        is_stored = self.first_offset <= offset < self.next_offset
        if plan is None and (offset < holes_end or not is_stored):
            return False

        def on_read(result: list[Batch] | Exception) -> None:
            done(self._without_holes(offset, result, holes_end))

        if plan is None:
            self.storage.reading.run(list, on_read)
        else:
            self.storage.reading_of(plan.segment.place).run(plan.run, on_read)
        return True

    @property
    def holes_end(self) -> int:
        """Below it, messages may be missing that compaction has dropped or salvage not found."""
        if self.record.settings.retention == Retention.COMPACT:
            return ALL_OFFSETS
        end = self.storage.log.index.gaps_end(self.record.topic)
        return ALL_OFFSETS if end is None else end

    def first_stored(self, offset: int) -> int:
        """Return where to go on instead of an offset that is in such a hole."""
        if self.record.settings.retention == Retention.COMPACT or offset >= self.holes_end:
            return offset
        found = self.storage.log.index.find_from(self.record.topic, offset)
        return self.next_offset if found is None else found

    def _without_holes(
        self, offset: int, result: list[Batch] | Exception, holes_end: int
    ) -> list[Batch] | Exception:
        """Return what was read from `offset` on up to the first hole, or the error for it."""
        if isinstance(result, Exception) or self.deleted:
            return result
        expected = max(offset, self.first_offset, holes_end)
        for slot, batch in enumerate(result):
            offsets = batch.offsets
            if offsets[0] > expected:
                if slot:
                    return result[:slot]  # Who reads on from there meets it.
                return MessagesMissingError(self.name, expected, offsets[0])
            expected = max(expected, offsets[-1] + 1)
        if not result and expected < self.next_offset:
            return MessagesMissingError(self.name, expected, self.next_offset)
        return result

    def find_time(self, time_ms: int, done: Callable[[int | Exception], object]) -> None:
        """Find the offset of the first message published at or after a time."""

        def on_found(found: int | Exception) -> None:
            if isinstance(found, FileNotFoundError):
                # Rewritten and removed since this was planned; once more, by the present index.
                self._find_time(time_ms, done)
            else:
                done(found)

        self._find_time(time_ms, on_found)

    def _find_time(self, time_ms: int, done: Callable[[int | Exception], object]) -> None:
        log, topic = self.storage.log, self.record.topic
        worker = self.storage.reading_of(log.place_of_time(topic, time_ms))
        worker.run(log.plan_time(topic, time_ms), done)

    def time_of(self, offset: int) -> int | None:
        """Return about when the message at `offset` was published, if that is known cheaply."""
        batch = self.recent.find(offset)
        if batch is not None:
            return batch.publish_time_ms
        return self.storage.log.time_of(self.record.topic, offset)

    def report(self) -> TopicReport:
        """Return the figures of this topic."""
        return TopicReport(
            topic=self.name,
            kind="stream",
            partitions=0,
            producers=self.producers,
            subscriptions=sum(follower.is_durable for follower in self.followers),
            messages_in=self.messages_in,
            bytes_in=self.bytes_in,
            messages_out=self.messages_out,
            messages_dropped=self.messages_dropped,
            next_offset=self.next_offset,
            stream=StreamReport(
                settings=self.record.settings,
                first_offset=self.first_offset,
                stored_bytes=self.storage.log.stored_bytes(self.record.topic),
                tail_bytes=self.recent.size_bytes,
                segments=self.storage.log.segment_count(self.record.topic),
            ),
        )
