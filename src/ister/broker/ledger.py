"""The durable state of one log, apart from the messages: what a restart finds again.

A ledger is a fold over the journal: `apply` takes entries in order, at the start of a broker and
while it runs. Always true:
- only what is in the journal is in the ledger, acknowledgements apart, which may be ahead of it:
  forgetting them delivers again, which was never promised not to happen before a confirmation;
- applying an entry again changes nothing, so that a snapshot may be newer than the entries that
  are replayed on top of it.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from typing import assert_never

import msgspec

from ister.base import StreamSettings
from ister.base.errors import BadBatchError, CorruptedError
from ister.broker.changes import (
    Acked,
    Change,
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
    TopicTrimmed,
    TransactionDone,
    decode_changes,
)
from ister.broker.idwindow import IdWindow
from ister.broker.producers import OFFSET_UNKNOWN, ProducerRecord, Producers
from ister.codec import Batch, Column
from ister.log import Entry, Kind, parse_transaction
from ister.subscriptions import Cursor

# Repetitions of a commit are known for so many transactions.
TRANSACTIONS_REMEMBERED_MAX = 10_000
# A series is a query that writes to us, for as long as it lives: with a name of 60 bytes it takes
# 300 B here, so that all of them take 30 MB. The one that was silent longest makes room.
SERIES_REMEMBERED_MAX = 100_000
# Topics or subscriptions that are encoded in one go: about 3 ms, at 12 µs.
ROWS_AT_ONCE = 256
# Marks of series that are: at 0.2 µs.
MARKS_AT_ONCE = 16_384

_encode = msgspec.msgpack.Encoder().encode


class TopicRecord:
    """A stream topic as the journal knows it."""

    __slots__ = ("first_offset", "ids", "name", "next_offset", "producers", "settings", "topic")

    def __init__(self, topic: int, name: str, settings: StreamSettings) -> None:
        self.topic = topic
        self.name = name
        self.settings = settings
        self.first_offset = 0
        self.next_offset = 0
        self.producers = Producers()
        self.ids = IdWindow()

    def on_stored(self, batch: Batch, *, sequenced: bool = True) -> None:
        """A batch is in the journal. Those of transactions have no sequence numbers."""
        self.next_offset = max(self.next_offset, batch.base_offset + batch.count)
        name = batch.producer_bytes
        if name and sequenced and batch.numbered:
            self.producers.record(name.decode(errors="replace")).on_stored(
                batch.first_sequence, batch.base_offset, batch.count
            )
        if batch.columns & Column.ID and self.settings.dedup_window_ms:
            self._remember_ids(batch)

    def _remember_ids(self, batch: Batch) -> None:
        time_ms = batch.publish_time_ms
        for offset, message_id in zip(batch.offsets, batch.ids or (), strict=False):
            if message_id is not None:
                self.ids.add(message_id, offset, time_ms)
        self.ids.forget(older_than_ms=time_ms - self.settings.dedup_window_ms)


class SubscriptionRecord:
    """A durable subscription as the journal knows it."""

    __slots__ = ("created", "cursors", "paused", "saved")

    def __init__(self, created: SubscriptionCreated) -> None:
        self.created = created
        self.paused = False
        # By topic number.
        self.cursors: dict[int, Cursor] = {}
        self.saved: dict[str, dict[int, bytes]] = {}


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.namespaces: set[str] = set()
        self.partitioned: dict[str, int] = {}
        self.topics: dict[int, TopicRecord] = {}
        self.subscriptions: dict[int, SubscriptionRecord] = {}
        # By word, the base offset of each batch; and of batches with messages that were known
        # before, the offset of each.
        self.transactions: OrderedDict[str, list[int]] = OrderedDict()
        self.transactions_each: dict[str, dict[int, list[int]]] = {}
        # By series, the highest number that was published and when; the longest silent first.
        self.series: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self.topic_number = 0
        self.subscription_number = 0

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
                self.subscriptions.pop(number, None)
            case TransactionDone(transaction=transaction, offsets=offsets, each=each):
                self.transactions[transaction] = offsets
                if each:
                    self.transactions_each[transaction] = each
                while len(self.transactions) > TRANSACTIONS_REMEMBERED_MAX:
                    self.transactions_each.pop(self.transactions.popitem(last=False)[0], None)
            case SeriesPublished():
                self._on_series(change)
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
                if number not in self.topics:
                    self.topics[number] = TopicRecord(number, name, settings)
            case TopicDeleted():
                self.topics.pop(number, None)
                for record in self.subscriptions.values():
                    record.cursors.pop(number, None)
            case TopicTrimmed(first_offset=first_offset):
                topic = self.topics.get(number)
                if topic is not None:
                    topic.first_offset = max(topic.first_offset, first_offset)
            case Sequenced(producer=producer, first_sequence=first, count=count):
                topic = self.topics.get(number)
                if topic is not None:
                    topic.producers.record(producer).on_stored(first, OFFSET_UNKNOWN, count)

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
                record.saved[name] = cursors
            case CursorDropped(name=name):
                record.saved.pop(name, None)

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
        topics, subscriptions, series = _Rows(), _Rows(), _Rows()
        for number in list(self.topics):
            topic = self.topics.get(number)
            if topic is not None:
                ids = _Rows()
                for rows in topic.ids.rows():
                    if ids.count:
                        yield
                    ids.add(rows)
                topics.add_joined(_topic_row(topic), ids)
                if topics.count % ROWS_AT_ONCE == 0:
                    yield
        for number in list(self.subscriptions):
            subscription = self.subscriptions.get(number)
            if subscription is not None:
                subscriptions.add([_subscription_row(subscription)])
                if subscriptions.count % ROWS_AT_ONCE == 0:
                    yield
        marks = list(self.series.items())
        for start in range(0, len(marks), MARKS_AT_ONCE):
            series.add(marks[start : start + MARKS_AT_ONCE])
            yield
        rest = {
            "namespaces": sorted(self.namespaces),
            "partitioned": self.partitioned,
            "transactions": list(self.transactions.items()),
            "transactions_each": self.transactions_each,
            "topic_number": self.topic_number,
            "subscription_number": self.subscription_number,
        }
        # One copy of what may be many megabytes: a map of 9, after the head of a map of 6.
        return b"".join(
            (
                b"\x89",
                memoryview(_encode(rest))[1:],
                _encode("topics"),
                *topics.whole(),
                _encode("subscriptions"),
                *subscriptions.whole(),
                _encode("series"),
                *series.whole(),
            )
        )

    def restore(self, snapshot: bytes) -> None:
        """Become what `encode` was called on. Raises `ValueError` when these are other bytes."""
        rows = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        self.namespaces = set(rows.namespaces)
        self.partitioned = rows.partitioned
        self.topics = {row.topic: _topic_of(row) for row in rows.topics}
        for row in rows.subscriptions:
            record = self.subscriptions[row.created.subscription] = SubscriptionRecord(row.created)
            record.paused = row.paused
            record.cursors = {topic: Cursor.decode(c) for topic, c in row.cursors.items()}
            record.saved = row.saved
        self.transactions = OrderedDict(rows.transactions)
        self.transactions_each = rows.transactions_each
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
    ids: list[tuple[str, int, int]]


class _SubscriptionRow(msgspec.Struct, array_like=True):
    created: SubscriptionCreated
    paused: bool
    cursors: dict[int, bytes]
    saved: dict[str, dict[int, bytes]]


class _Snapshot(msgspec.Struct):
    namespaces: list[str]
    partitioned: dict[str, int]
    topics: list[_TopicRow]
    subscriptions: list[_SubscriptionRow]
    transactions: list[tuple[str, list[int]]]
    topic_number: int
    subscription_number: int
    transactions_each: dict[str, dict[int, list[int]]] = {}
    series: list[tuple[str, tuple[int, int]]] = []


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

    def add_joined(self, row: tuple[object, ...], last: "_Rows") -> None:
        """Encode an element that is an array itself; its last field is encoded already."""
        self.count += 1
        length = 0x90 + len(row) + 1
        self._parts += (length.to_bytes(1), memoryview(_encode(row))[1:], *last.whole())

    def whole(self) -> list[memoryview | bytes]:
        """Return the array in pieces."""
        return [b"\xdd", self.count.to_bytes(4), *self._parts]


def _topic_row(topic: TopicRecord) -> tuple[object, ...]:
    """Return a `_TopicRow`, but for its ids."""
    return (
        topic.topic,
        topic.name,
        topic.settings,
        topic.first_offset,
        topic.next_offset,
        list(topic.producers.records.items()),
    )


def _subscription_row(subscription: SubscriptionRecord) -> _SubscriptionRow:
    return _SubscriptionRow(
        created=subscription.created,
        paused=subscription.paused,
        cursors={topic: c.encode() for topic, c in subscription.cursors.items()},
        saved=subscription.saved,
    )


def _topic_of(row: _TopicRow) -> TopicRecord:
    record = TopicRecord(row.topic, row.name, row.settings)
    record.first_offset = row.first_offset
    record.next_offset = row.next_offset
    record.producers.records = OrderedDict(row.producers)
    for message_id, offset, time_ms in row.ids:
        record.ids.add(message_id, offset, time_ms)
    return record
