"""A stream topic: gives offsets, stores, and serves from memory or from the log.

Always true:
- offsets rise by one per message; `appended` is the next one to give, `record.next_offset` the
  next one to become visible;
- a batch is seen by consumers and readers, and its producer is told, only once its group is
  committed;
- a batch that was sent before is not stored again: it is answered as it was the first time.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol, Unpack

from ister.base import Durability, Expected, Retention, StreamReport, StreamSettings, TopicReport
from ister.base.errors import (
    IsterError,
    MessagesMissingError,
    OffsetMismatchError,
    SequenceError,
    ShardMovedError,
)
from ister.broker.scheduling.turns import Turns
from ister.broker.schema_checks import Guard, check
from ister.broker.state.changes import Sequenced, encode_changes
from ister.broker.state.key_offsets import PendingKeys, check_keys
from ister.broker.state.message_ids import keys_of
from ister.broker.state.state import TopicRecord
from ister.broker.streams.recent import RecentBatches
from ister.codec import Batch, Column
from ister.log import Kind

if TYPE_CHECKING:
    from ister.broker.storage.storage import Storage

# What a producer is told: an error; or nothing, and the batch says where it is; or the offset of
# each message, when some were known before.
Told = Callable[[IsterError | None, list[int] | None], object]

# Followers told of new messages without a look at the clock: 2 µs each, once their turn is over.
TOLD_AT_ONCE = 64
# One read of what is not in memory any more.
READ_BYTES = 4 * 1024 * 1024
# Above every offset.
ALL_OFFSETS = 2**63 - 1


class Follower(Protocol):
    """Whoever wants to know of new messages: a partition of a subscription, or a reader."""

    @property
    def listening(self) -> bool:
        """Whether somebody is there to take them."""

    @property
    def is_durable(self) -> bool:
        """Whether it belongs to a subscription."""

    def on_new(self) -> None:
        """Messages have become visible."""

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
        "_pending_ids",
        "_pending_keys",
        "_pending_sequences",
        "_stamped_ms",
        "_sync",
        "_turns",
        "_untold",
        "appended",
        "bytes_in",
        "changed",
        "deleted",
        "followers",
        "guard",
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
        "settings",
        "storage",
    )

    def __init__(self, record: TopicRecord, number: int, storage: "Storage", turns: Turns) -> None:
        self.record = record
        self.name = record.name
        # What deliver frames call this topic.
        self.number = number
        self.storage = storage
        self.recent = RecentBatches(storage.budget)
        self.appended = record.next_offset
        self.followers: dict[Follower, None] = {}
        self.is_work_queue = record.settings.retention == Retention.WORKQUEUE
        # Subscriptions that cover it, and have their partition still to be made.
        self.partitions_coming = 0
        self.producers = 0
        # Who last opened a producer of a name: the others are fenced.
        self.owners: dict[str, object] = {}
        self.deleted = False
        # Whether its storage knows that it is to be looked at: see `upkeep`.
        self.changed = False
        self.guard: Guard | None = None
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
        # Of batches that are not committed yet: by producer, the first number and the end of each.
        self._pending_sequences: dict[str, dict[int, int]] = {}
        # Of batches with ids: the offset by the key of an id, and the keys by the first offset of a
        # batch. A long id takes as long to turn into its key as all else: that is done once.
        self._pending_ids: dict[str, int] = {}
        self._pending_keys: dict[int, list[str | None]] = {}
        self.keys = PendingKeys(record)
        self._turns = turns
        # Followers that are told of new messages in a later turn of the loop.
        self._untold: OrderedDict[Follower, None] = OrderedDict()

    @property
    def next_offset(self) -> int:
        """The offset of the next message to become visible."""
        return self.record.next_offset

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message kept."""
        return self.record.first_offset

    # Producing

    def publish(
        self,
        name: str,
        batch: Batch,
        told: Told,
        *,
        guard: Guard | None = None,
        **expected: Unpack[Expected],
    ) -> None:
        """Store a checked batch of the producer `name`; `told` is called once, maybe at once.

        What is stored already is answered without asking the `guard`, which may know better now.
        """
        self.storage.committer.check_room()
        if self.is_repeated(name, batch):
            self._answer_again(name, batch, told)
            return
        if guard is not None:
            check(guard, batch)
        if self.record.key_offsets is not None:
            check_keys([batch])
        if (offset := expected.get("expected_offset", self.appended)) != self.appended:
            raise OffsetMismatchError(self.name, offset, self.appended)
        if "expected_key_offset" in expected:
            self.keys.check(batch, expected["expected_key_offset"])
        new, offsets = self.sort_out(batch)
        if offsets is not None:
            self._publish_rest(batch, new, offsets, told)
        else:
            self._store(batch, told)

    def sort_out(self, batch: Batch) -> tuple[Batch | None, list[int] | None]:
        """Return what of a batch is new by its ids, to be stamped next.

        When some of it is not, also the offset of each message: of one that was stored before as a
        negative number, its bits turned round.
        """
        if not batch.columns & Column.ID or not self.record.settings.dedup_window_ms:
            return batch, None
        keys = keys_of(batch.ids or ())
        known = self._known_offsets(keys)
        new = [slot for slot, offset in enumerate(known) if offset is None]
        if len(new) == batch.count:
            self._expect_ids(keys)
            return batch, None
        offsets = [~o if o is not None else 0 for o in known]
        for place, slot in enumerate(new):
            offsets[slot] = self.appended + place
        rest = batch.unstamped(new) if new else None
        if rest is not None:
            self._expect_ids([keys[slot] for slot in new])
        return rest, offsets

    def plan_offsets(self, batches: Sequence[Batch]) -> list[int]:
        """Return the offset of the first new message of each of some batches, stored in turn."""
        dedup = self.record.settings.dedup_window_ms
        ids = [keys_of(b.ids or ()) if b.columns & Column.ID and dedup else [] for b in batches]
        known = iter(self._known_offsets(list(chain.from_iterable(ids))))
        offset, offsets = self.appended, []
        for batch, keys in zip(batches, ids, strict=True):
            offsets.append(offset)
            offset += sum(o is None for o in islice(known, len(keys))) if keys else batch.count
        return offsets

    def is_repeated(self, name: str, batch: Batch) -> bool:
        """Whether a batch of a producer was stored before, or is about to be."""
        if not name or not batch.numbered:
            return False
        sequence, due = batch.first_sequence, self.next_sequence(name)
        # A higher one is new: what lies between was refused; and so is that when it comes again.
        if sequence >= due or self._is_hole(name, batch):
            return False
        if sequence + batch.count <= due:
            return True
        # Some of a batch with ids may have been left out: the ids will tell.
        if not batch.columns & Column.ID:
            raise SequenceError(self.name, name, sequence, due)
        return False

    def _is_hole(self, name: str, batch: Batch) -> bool:
        """Whether none of a batch is stored or about to be, though later ones are."""
        first, end = batch.first_sequence, batch.first_sequence + batch.count
        pending = self._pending_sequences.get(name, {})
        if any(other < end and other_end > first for other, other_end in pending.items()):
            return False
        return self.record.producers.is_hole(name, first, batch.count)

    def _store(self, batch: Batch, told: Told) -> None:
        self.stamp(batch)
        self._expect(batch)
        self.storage.log.append(
            Kind.BATCH,
            self.record.topic,
            (batch.stamp_bytes(), batch.tail),
            count=batch.count,
            base_offset=batch.base_offset,
            time_ms=batch.publish_time_ms,
            sync=self._sync,
        )
        if self._in_memory:
            # The application chose to be told before anything is safe.
            self.storage.committer.add(lambda error: None if error else self.on_committed(batch))
            told(None, None)
            return

        def done(error: IsterError | None) -> None:
            # First of all: the producer need not wait for what is to be done here.
            try:
                told(error, None)
            finally:
                if error is None:
                    self.on_committed(batch)

        self.storage.committer.add(done)

    def _expect(self, batch: Batch) -> None:
        """A batch is about to be stored: its numbers are taken."""
        if batch.numbered and (name := batch.producer_bytes):
            first = batch.first_sequence
            pending = self._pending_sequences.setdefault(name.decode(errors="replace"), {})
            pending[first] = first + batch.count

    def _expected(self, batch: Batch) -> None:
        """It is stored."""
        name = batch.producer_bytes.decode(errors="replace")
        pending = self._pending_sequences.get(name)
        if pending is not None:
            pending.pop(batch.first_sequence, None)
            if not pending:
                del self._pending_sequences[name]

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

    def part(self, batch: Batch) -> tuple[int, int, int, int, tuple[bytes, memoryview]]:
        """Return a stamped batch as a part of a journal transaction."""
        return (
            self.record.topic,
            batch.base_offset,
            batch.publish_time_ms,
            batch.count,
            (batch.stamp_bytes(), batch.tail),
        )

    def on_committed(self, batch: Batch, *, sequenced: bool = True) -> None:
        """A batch is in the journal: from now on it is there for everybody."""
        if self.deleted:
            return
        keys = None
        if self._pending_keys and batch.columns & Column.ID:
            keys = self._pending_keys.pop(batch.base_offset, None)
        self.record.on_stored(batch, sequenced=sequenced, keys=keys)
        self.messages_in += batch.count
        self.bytes_in += batch.size_bytes
        if sequenced and self._pending_sequences and batch.numbered:
            self._expected(batch)
        for key in keys or ():
            if key is not None:
                self._pending_ids.pop(key, None)
        if self.record.key_offsets is not None:
            self.keys.on_stored(batch)
        self._keep([batch])
        if not self.changed:
            self.on_changed()
        self._tell_followers()

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
        self._tell_followers()

    def _tell_followers(self) -> None:
        if len(self.followers) > TOLD_AT_ONCE:
            waits = bool(self._untold)
            self._untold.update(self.followers)
            if not waits:
                self.go_through()
            return
        # A copy: a reader that has come to its end leaves.
        for follower in tuple(self.followers):
            follower.on_new()

    def go_through(self) -> None:
        """Tell followers of new messages as long as there is time, and the others later."""
        untold, followers = self._untold, self.followers
        while untold:
            for _ in range(min(len(untold), TOLD_AT_ONCE)):
                follower, _ = untold.popitem(last=False)
                if follower in followers:
                    follower.on_new()
            if untold and not self._turns.join():
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
        """Have the upkeep look at this topic soon: it may keep too much by now."""
        if not self.changed:
            self.changed = True
            self.storage.changed.append(self)

    def on_failed(self) -> None:
        """Nothing that was not committed will be."""
        self.appended = self.record.next_offset
        self._pending_sequences.clear()
        self._pending_ids.clear()
        self._pending_keys.clear()
        self.keys.clear()

    def next_sequence(self, name: str) -> int:
        """Return the number the next message of a producer should have."""
        stored = self.record.producers.next_sequence(name)
        pending = self._pending_sequences.get(name)
        return stored if pending is None else max(stored, *pending.values())

    def _answer_again(self, name: str, batch: Batch, told: Told) -> None:
        """Tell a producer of a batch that is stored, or about to be, where it is."""
        sequence, record = batch.first_sequence, self.record.producers
        if batch.columns & Column.ID:
            known = self._known_offsets(keys_of(batch.ids or ()))
            if None not in known:
                # What it repeats may still be on its way to the disk.
                offsets = [~offset for offset in known if offset is not None]
                self.storage.committer.add(lambda error: told(error, None if error else offsets))
                return
        batch.publish_time_ms = self.storage.clock.now_ms()

        def done(error: IsterError | None) -> None:
            batch.base_offset = record.offset_of(name, sequence)
            told(error, None)

        if sequence + batch.count <= record.next_sequence(name):
            done(None)
        else:
            self.storage.committer.add(done)

    def _known_offsets(self, keys: Sequence[str | None]) -> list[int | None]:
        """Return for each key of an id the offset it was stored at before, `None` for a new one."""
        window_ms = self.record.settings.dedup_window_ms
        newer_than_ms = self.storage.clock.now_ms() - window_ms
        find, pending = self.record.ids.find, self._pending_ids
        known: list[int | None] = []
        fresh: dict[str, int] = {}
        # The offset of the next message that is new.
        following = self.appended
        for key in keys:
            if key is None:
                known.append(None)
                following += 1
                continue
            offset = pending.get(key)
            if offset is None:
                offset = find(key, newer_than_ms=newer_than_ms)
            if offset is None:
                # The second of two in one batch is known by the first, whose offset this will be.
                offset = fresh.get(key)
                if offset is None:
                    fresh[key] = following
                    following += 1
            known.append(offset)
        return known

    def _expect_ids(self, keys: list[str | None]) -> None:
        """A batch with these keys of ids is about to be stamped and stored."""
        self._pending_keys[self.appended] = keys
        for offset, key in enumerate(keys, self.appended):
            if key is not None:
                self._pending_ids[key] = offset

    def _publish_rest(
        self, batch: Batch, rest: Batch | None, offsets: list[int], told: Told
    ) -> None:
        """Store the messages of a batch that are new, and tell the offset of each."""
        self._expect(batch)
        taken = Sequenced(self.record.topic, batch.producer, batch.first_sequence, batch.count)
        changes = encode_changes([taken])
        if rest is None:
            self.storage.log.append(Kind.CHANGES, 0, (changes,), sync=self._sync)
        else:
            self.stamp(rest)
            # One entry: with the numbers alone, what is new would never be stored; without them,
            # a repetition from after the window of the ids would be stored again.
            self.storage.log.append_transaction([self.part(rest)], changes, sync=self._sync)

        def done(error: IsterError | None) -> None:
            if error is None:
                self.storage.state.on_changes([taken])
                self._expected(batch)
                if rest is not None:
                    self.on_committed(rest, sequenced=False)
            told(error, None if error else offsets)

        self.storage.committer.add(done)

    # Reading

    def find(self, offset: int) -> Batch | None:
        """Return the batch with the message at `offset`, if it is in memory."""
        return self.recent.find(offset)

    def load(
        self, offset: int, bytes_max: int, done: Callable[[list[Batch] | Exception], object]
    ) -> bool:
        """Read the batch with the message at `offset`, or the next there is, and those after it.

        `done` is told in a later turn of the loop. Returns whether there is anything to read.
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
