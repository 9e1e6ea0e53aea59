"""The durable state of one log, apart from the messages: what a restart finds again.

A state is a fold over the journal: `apply` takes entries in order, at the start of a broker and
while it runs. Always true:
- only what is in the journal is in the state, acknowledgements apart, which may be ahead of it:
  forgetting them delivers again, which was never promised not to happen before a confirmation;
- applying an entry again changes nothing, so that a snapshot may be newer than the entries that
  are replayed on top of it.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from typing import assert_never

import msgspec

from ister.base import Retention, StreamSettings
from ister.base.errors import BadBatchError, CorruptedError
from ister.base.limits import KIB, Limits
from ister.broker.state.changes import (
    Acked,
    Change,
    Confirmed,
    CursorDropped,
    CursorMoved,
    CursorSaved,
    Failed,
    NamespaceCreated,
    NamespaceDeleted,
    PartitionedCreated,
    PartitionedDeleted,
    Sequenced,
    SeriesPublished,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPaused,
    TopicCreated,
    TopicDeleted,
    TopicsCovered,
    TopicTrimmed,
    TransactionDone,
    decode_changes,
)
from ister.broker.state.commit_answers import CommitAnswers
from ister.broker.state.cursor_maps import decode_cursors, encode_cursors
from ister.broker.state.key_offsets import KeyOffsetRow, KeyOffsets
from ister.broker.state.message_ids import MessageIds, key_of, keys_of
from ister.broker.state.producers import OFFSET_UNKNOWN, ProducerRecord, Producers
from ister.broker.state.shared_budget import SharedBudget
from ister.codec import Batch, Column
from ister.log import Entry, Kind, parse_transaction
from ister.subscriptions import Confirmations, Cursor

# A series is a query that writes to us, for as long as it lives: with a name of 60 bytes it takes
# 300 B here, so that all of them take 30 MB. The one that was silent longest makes room.
SERIES_REMEMBERED_MAX = 100_000
# Topics or subscriptions that are encoded in one go: about 3 ms, at 12 µs.
ROWS_AT_ONCE = 256
# Ids of messages, or producers and their runs, that are: at 0.7 µs.
WORK_AT_ONCE = 4_096
# Marks of series that are: at 0.2 µs.
MARKS_AT_ONCE = 16_384

_encode = msgspec.msgpack.Encoder().encode


class Budgets:
    """Of what all topics of a broker remember: message ids, the bytes of producers, and keys."""

    __slots__ = ("ids", "keys", "producers")

    def __init__(self, limits: Limits) -> None:
        self.ids = SharedBudget(limits.message_ids_max)
        self.keys = SharedBudget(limits.key_offsets_max)
        self.producers = SharedBudget(limits.producers_bytes_max, forget_size=64 * KIB)


class TopicRecord:
    """A stream topic as the journal knows it."""

    __slots__ = (
        "first_offset",
        "ids",
        "key_offsets",
        "last_ms",
        "name",
        "next_offset",
        "producers",
        "settings",
        "topic",
    )

    def __init__(self, topic: int, name: str, settings: StreamSettings, budgets: Budgets) -> None:
        self.topic = topic
        self.name = name
        self.settings = settings
        self.first_offset = 0
        self.next_offset = 0
        # When the last message was published: none that comes later is older.
        self.last_ms = 0
        self.producers = Producers(budgets.producers)
        self.ids = MessageIds(budgets.ids)
        self.key_offsets: KeyOffsets | None = None
        if settings.key_offsets is True:
            is_compact = settings.retention == Retention.COMPACT
            self.key_offsets = KeyOffsets(budgets.keys, is_compact=is_compact)

    def on_stored(
        self, batch: Batch, *, sequenced: bool = True, keys: Sequence[str | None] | None = None
    ) -> None:
        """A batch is in the journal. Those of transactions have no sequence numbers.

        `keys` are those of its message ids, if the caller has them.
        """
        self.next_offset = max(self.next_offset, batch.base_offset + batch.count)
        self.last_ms = max(self.last_ms, batch.publish_time_ms)
        name = batch.producer_bytes
        if name and sequenced and batch.numbered:
            self.producers.on_stored(
                name.decode(errors="replace"),
                batch.first_sequence,
                batch.base_offset,
                batch.count,
            )
        if batch.columns & Column.ID and self.settings.dedup_window_ms:
            self._remember_ids(batch, keys_of(batch.ids or ()) if keys is None else keys)
        if self.key_offsets is not None:
            self.key_offsets.on_stored(batch)

    def close(self) -> None:
        """The topic is gone: give back what it takes of shared budgets."""
        self.ids.close()
        if self.key_offsets is not None:
            self.key_offsets.close()
        self.producers.close()

    def _remember_ids(self, batch: Batch, keys: Sequence[str | None]) -> None:
        time_ms = batch.publish_time_ms
        for offset, key in zip(batch.offsets, keys, strict=False):
            if key is not None:
                self.ids.add(key, offset, time_ms)
        self.ids.settle(batch.count, older_than_ms=time_ms - self.settings.dedup_window_ms)


class SubscriptionRecord:
    """A durable subscription as the journal knows it."""

    __slots__ = ("created", "cursors", "dead_lettered", "paused", "redelivered", "saved")

    def __init__(self, created: SubscriptionCreated) -> None:
        self.created = created
        self.paused = False
        # By topic number.
        self.cursors: dict[int, Cursor] = {}
        # By name; see `cursormaps.py`.
        self.saved: dict[str, bytes] = {}
        # Messages since it was made. These are in snapshots, not in the journal: a crash forgets
        # what they have counted since the last one.
        self.redelivered = 0
        self.dead_lettered = 0


class State:
    """What the journal of one log says, apart from the messages."""

    def __init__(self, budgets: Budgets | None = None) -> None:
        # Of its topics, and of those of the broker's other state.
        self.budgets = budgets or Budgets(Limits())
        self.namespaces: set[str] = set()
        self.partitioned: dict[str, int] = {}
        self.topics: dict[int, TopicRecord] = {}
        self.subscriptions: dict[int, SubscriptionRecord] = {}
        # What commits were answered.
        self.commits = CommitAnswers()
        # Under which leases messages were acknowledged.
        self.confirmations = Confirmations()
        # By series, the highest number that was published and when; the longest silent first.
        self.series: OrderedDict[str, tuple[int, int]] = OrderedDict()
        # Of the saved cursors of all subscriptions.
        self.saved_bytes = 0
        self.topic_number = 0
        self.subscription_number = 0

    def names(self) -> set[str]:
        """Return the names of all topics: streams, partitioned topics and their partitions."""
        return {*(record.name for record in self.topics.values()), *self.partitioned}

    def apply(self, entry: Entry) -> None:
        """Take an entry of the journal, or raise `CorruptedError` when it makes no sense."""
        try:
            if entry.kind == Kind.BATCH:
                self.on_batch(entry.topic, Batch(entry.body))
            elif entry.kind == Kind.PART:
                self.on_batch(entry.topic, Batch(entry.body), sequenced=False)
            elif entry.kind == Kind.CHANGES:
                self.on_changes(decode_changes(entry.body))
            elif entry.kind == Kind.TRANSACTION:
                batches, changes = parse_transaction(entry.body)
                for part in batches:
                    self.on_batch(part.topic, Batch(part.body), sequenced=False)
                self.on_changes(decode_changes(changes))
        except (ValueError, BadBatchError) as error:
            raise CorruptedError(
                f"segment {entry.segment}", entry.position, f"entry makes no sense: {error}"
            ) from error

    def on_batch(self, topic: int, batch: Batch, *, sequenced: bool = True) -> None:
        """A batch is stored. That of a topic deleted since is of no interest."""
        record = self.topics.get(topic)
        if record is not None:
            record.on_stored(batch, sequenced=sequenced)

    def on_changes(self, changes: Iterable[Change]) -> None:
        """Changes are stored."""
        for change in changes:
            self._on_change(change)

    def _on_change(self, change: Change) -> None:
        match change:
            case NamespaceCreated(namespace=namespace):
                self.namespaces.add(namespace)
            case NamespaceDeleted(namespace=namespace):
                self.namespaces.discard(namespace)
            case PartitionedCreated(name=name, partitions=partitions):
                self.partitioned[name] = partitions
            case PartitionedDeleted(name=name):
                self.partitioned.pop(name, None)
            case TopicCreated() | TopicDeleted() | TopicTrimmed() | Sequenced():
                self._on_topic(change)
            case SubscriptionCreated(subscription=number):
                self.subscription_number = max(self.subscription_number, number)
                known = self.subscriptions.get(number)
                if known is None:
                    self.subscriptions[number] = SubscriptionRecord(change)
                else:
                    known.created = change
            case SubscriptionDeleted(subscription=number):
                deleted = self.subscriptions.pop(number, None)
                if deleted is not None:
                    self.saved_bytes -= sum(map(len, deleted.saved.values()))
            case TransactionDone():
                self.commits.add(
                    change.client,
                    change.transaction,
                    change.time_ms,
                    change.offsets,
                    change.each,
                )
            case Confirmed(subscription=number, runs=runs):
                for run in runs:
                    self.confirmations.add(number, *run)
            case SeriesPublished():
                self._on_series(change)
            case TopicsCovered():
                self._on_covered(change)
            case (
                SubscriptionPaused()
                | CursorMoved()
                | Acked()
                | Failed()
                | CursorSaved()
                | CursorDropped()
            ):
                record = self.subscriptions.get(change.subscription)
                if record is not None:
                    self._on_cursor(record, change)
            case _:
                assert_never(change)

    def _on_topic(self, change: TopicCreated | TopicDeleted | TopicTrimmed | Sequenced) -> None:
        number = change.topic
        match change:
            case TopicCreated(name=name, settings=settings):
                self.topic_number = max(self.topic_number, number)
                found = self.topics.get(number)
                if found is None:
                    self.topics[number] = TopicRecord(number, name, settings, self.budgets)
                else:
                    found.settings = settings
            case TopicDeleted():
                # Its cursors go with the partitions, or with `drop_dead_cursors`.
                deleted = self.topics.pop(number, None)
                if deleted is not None:
                    deleted.close()
            case TopicTrimmed(first_offset=first_offset):
                topic = self.topics.get(number)
                if topic is not None:
                    topic.first_offset = max(topic.first_offset, first_offset)
            case Sequenced(producer=producer, first_sequence=first, count=count):
                topic = self.topics.get(number)
                if topic is not None:
                    topic.producers.on_stored(producer, first, OFFSET_UNKNOWN, count)

    def _on_covered(self, change: TopicsCovered) -> None:
        topics = [number for number in change.topics if number in self.topics]
        for subscription in change.subscriptions:
            record = self.subscriptions.get(subscription)
            if record is not None:
                for number in topics:
                    record.cursors.setdefault(number, Cursor(0))

    def drop_dead_cursors(self) -> None:
        """Drop the cursors on topics that are gone, once everything is replayed."""
        for record in self.subscriptions.values():
            for number in record.cursors.keys() - self.topics.keys():
                del record.cursors[number]

    def _on_series(self, change: SeriesPublished) -> None:
        # A snapshot may be newer than the entries that are replayed on top of it.
        known = self.series.get(change.series, (change.number, change.time_ms))
        self.series[change.series] = max(known, (change.number, change.time_ms))
        self.series.move_to_end(change.series)
        while len(self.series) > SERIES_REMEMBERED_MAX:
            self.series.popitem(last=False)

    def _on_cursor(
        self,
        record: SubscriptionRecord,
        change: SubscriptionPaused | CursorMoved | Acked | Failed | CursorSaved | CursorDropped,
    ) -> None:
        match change:
            case SubscriptionPaused(paused=paused):
                record.paused = paused
            case CursorMoved(topic=topic, offset=offset):
                if topic in self.topics:
                    record.cursors.setdefault(topic, Cursor(offset)).seek(offset)
            case Acked(topic=topic, runs=runs):
                cursor = record.cursors.get(topic)
                if cursor is not None:
                    for start, end in runs:
                        cursor.ack(start, end)
                    cursor.take_changes()
            case Failed(topic=topic, runs=failed):
                cursor = record.cursors.get(topic)
                if cursor is not None:
                    for start, end, failures in failed:
                        cursor.fail_run(start, end, failures)
                    cursor.take_failures()
            case CursorSaved(name=name, cursors=cursors):
                self.saved_bytes -= len(record.saved.pop(name, b""))
                # A copy: the change holds all of the entry that it was read from.
                record.saved[name] = bytes(cursors)
                self.saved_bytes += len(record.saved[name])
            case CursorDropped(name=name):
                self.saved_bytes -= len(record.saved.pop(name, b""))

    # Snapshots

    def encode(self) -> bytes:
        """Return all of it as bytes for `restore`."""
        encoding = self.encoding()
        while True:
            try:
                next(encoding)
            except StopIteration as end:
                return bytes(end.value)

    def encoding(self) -> Generator[None, None, bytes]:
        """Encode all of it bit by bit, each a few milliseconds of work; return what `encode` does.

        What changes meanwhile may be in the result or not. So it is newer than the journal was
        when this began, here and there, and nowhere older.
        """
        topics = yield from self._encoding_topics()
        subscriptions, series, commits, confirmed = _Rows(), _Rows(), _Rows(), _Rows()
        key_offsets = _Rows()
        work = 0
        for number in list(self.subscriptions):
            subscription = self.subscriptions.get(number)
            if subscription is not None:
                cursors = yield from encode_cursors(subscription.cursors)
                subscriptions.add([_subscription_row(subscription, cursors)])
                work += WORK_AT_ONCE // ROWS_AT_ONCE + len(subscription.cursors)
                if work >= WORK_AT_ONCE:
                    work = 0
                    yield
        marks = list(self.series.items())
        for start in range(0, len(marks), MARKS_AT_ONCE):
            series.add(marks[start : start + MARKS_AT_ONCE])
            yield
        for some in self.commits.rows():
            commits.add(some)
            yield
        runs = list(self.confirmations)
        for start in range(0, len(runs), MARKS_AT_ONCE):
            confirmed.add(runs[start : start + MARKS_AT_ONCE])
            yield
        for topic in list(self.topics.values()):
            for row in topic.key_offsets.rows(topic.topic) if topic.key_offsets is not None else ():
                key_offsets.add([row])
                yield
        rest = {
            "namespaces": sorted(self.namespaces),
            "partitioned": self.partitioned,
            "topic_number": self.topic_number,
            "subscription_number": self.subscription_number,
        }
        keyed = (_encode("key_offsets"), *key_offsets.whole()) if key_offsets.count else ()
        # One copy of what may be many megabytes: a map of 9 or 10, after the head of a map of 4.
        return b"".join(
            (
                b"\x8a" if keyed else b"\x89",
                memoryview(_encode(rest))[1:],
                _encode("topics"),
                *topics.whole(),
                _encode("subscriptions"),
                *subscriptions.whole(),
                _encode("series"),
                *series.whole(),
                _encode("commits"),
                *commits.whole(),
                _encode("confirmed"),
                *confirmed.whole(),
                *keyed,
            )
        )

    def _encoding_topics(self) -> Generator[None, None, "_Rows"]:
        topics = _Rows()
        # Since the last step. A topic counts as what its row takes of `WORK_AT_ONCE`.
        work = 0
        for number in list(self.topics):
            topic = self.topics.get(number)
            if topic is None:
                continue
            row, producers, ids = _topic_row(topic), _Rows(), _Rows()
            for known in topic.producers.rows():
                producers.add(known)
                if (work := work + sum(1 + len(p.runs) for _, p in known)) >= WORK_AT_ONCE:
                    work = 0
                    yield
            for rows in topic.ids.rows():
                ids.add(rows)
                if (work := work + len(rows)) >= WORK_AT_ONCE:
                    work = 0
                    yield
            topics.add_joined(row, [producers, ids], topic.last_ms)
            if (work := work + WORK_AT_ONCE // ROWS_AT_ONCE) >= WORK_AT_ONCE:
                work = 0
                yield
        return topics

    def close(self) -> None:
        """Give back what it takes of a shared budget; it is used no more."""
        for topic in self.topics.values():
            topic.close()

    def restore(self, snapshot: bytes, *, now_ms: int = 0) -> None:
        """Become what `encode` was called on. Raises `ValueError` when these are other bytes.

        Commits in snapshots of the first versions have no time: they count as of `now_ms`.
        """
        rows = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        self.namespaces = set(rows.namespaces)
        self.partitioned = rows.partitioned
        self.topics = {row.topic: _topic_of(row, self.budgets) for row in rows.topics}
        for row in rows.subscriptions:
            record = self.subscriptions[row.created.subscription] = SubscriptionRecord(row.created)
            record.paused = row.paused
            record.redelivered, record.dead_lettered = row.redelivered, row.dead_lettered
            cursors = decode_cursors(bytes(row.cursors))
            record.cursors = {topic: Cursor.decode(data) for topic, data in cursors.items()}
            record.saved = {name: bytes(saved) for name, saved in row.saved.items()}
            self.saved_bytes += sum(map(len, record.saved.values()))
        self.commits.restore(rows.commits)
        for transaction_id, offsets in rows.transactions:
            self.commits.add(
                "", transaction_id, now_ms, offsets, rows.transactions_each.get(transaction_id, {})
            )
        for run in rows.confirmed:
            self.confirmations.add(*run)
        for key_row in rows.key_offsets:
            # A topic that was made while the snapshot was written may be here and not above.
            topic = self.topics.get(key_row.topic)
            if topic is not None and topic.key_offsets is not None:
                topic.key_offsets.restore(key_row)
        self.series = OrderedDict(rows.series)
        self.topic_number = rows.topic_number
        self.subscription_number = rows.subscription_number


class _TopicRow(msgspec.Struct, array_like=True):
    topic: int
    name: str
    settings: StreamSettings
    first_offset: int
    next_offset: int
    producers: list[tuple[str, ProducerRecord]]
    # The keys of ids. In snapshots of the first versions, the ids themselves.
    ids: list[tuple[str, int, int]]
    last_ms: int = 0


class _SubscriptionRow(msgspec.Struct, array_like=True):
    created: SubscriptionCreated
    paused: bool
    # See `cursormaps.py`.
    cursors: msgspec.Raw
    saved: dict[str, msgspec.Raw]
    redelivered: int = 0
    dead_lettered: int = 0


class _Snapshot(msgspec.Struct):
    namespaces: list[str]
    partitioned: dict[str, int]
    topics: list[_TopicRow]
    subscriptions: list[_SubscriptionRow]
    topic_number: int
    subscription_number: int
    series: list[tuple[str, tuple[int, int]]] = []
    commits: list[tuple[str, str, bytes]] = []
    # Subscription, lease, start, end.
    confirmed: list[tuple[int, int, int, int]] = []
    # Only where some topic has them.
    key_offsets: list[KeyOffsetRow] = []
    # Commits in snapshots of the first versions, without client and time.
    transactions: list[tuple[str, list[int]]] = []
    transactions_each: dict[str, dict[int, list[int]]] = {}


class _Rows:
    """A MessagePack array that is encoded bit by bit."""

    __slots__ = ("_parts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[memoryview | bytes] = []

    def add(self, rows: Sequence[object]) -> None:
        """Encode some elements."""
        count = len(rows)
        self.count += count
        # Without the length of this list: in its first byte, or behind that in 2 or 4.
        head_bytes = 1 if count < 16 else 3 if count < 1 << 16 else 5
        self._parts.append(memoryview(_encode(rows))[head_bytes:])

    def add_joined(self, row: tuple[object, ...], encoded: "Sequence[_Rows]", last: object) -> None:
        """Encode an element that is an array itself; fields before the last are encoded already."""
        self.count += 1
        length = 0x90 + len(row) + len(encoded) + 1
        self._parts += (length.to_bytes(1), memoryview(_encode(row))[1:])
        for rows in encoded:
            self._parts += rows.whole()
        self._parts.append(_encode(last))

    def whole(self) -> list[memoryview | bytes]:
        """Return the array in pieces."""
        return [b"\xdd", self.count.to_bytes(4), *self._parts]


def _topic_row(topic: TopicRecord) -> tuple[object, ...]:
    """Return a `_TopicRow`, but for its last three fields."""
    return (
        topic.topic,
        topic.name,
        topic.settings,
        topic.first_offset,
        topic.next_offset,
    )


def _subscription_row(subscription: SubscriptionRecord, cursors: bytes) -> _SubscriptionRow:
    return _SubscriptionRow(
        created=subscription.created,
        paused=subscription.paused,
        cursors=msgspec.Raw(cursors),
        saved={name: msgspec.Raw(saved) for name, saved in subscription.saved.items()},
        redelivered=subscription.redelivered,
        dead_lettered=subscription.dead_lettered,
    )


def _topic_of(row: _TopicRow, budgets: Budgets) -> TopicRecord:
    record = TopicRecord(row.topic, row.name, row.settings, budgets)
    record.first_offset = row.first_offset
    record.next_offset = row.next_offset
    record.last_ms = row.last_ms
    record.producers.restore(row.producers)
    for message_id, offset, time_ms in row.ids:
        # A key is its own key.
        record.ids.add(key_of(message_id), offset, time_ms)
    record.ids.settle(0, older_than_ms=row.last_ms - row.settings.dedup_window_ms)
    return record
