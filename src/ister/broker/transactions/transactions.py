"""Transactions: batches to several topics and acknowledgements, as one entry of the journal.

    OPEN --stage()--> OPEN --commit()--> COMMITTING --journal has it--> DONE
    OPEN --abort(), too old, too large--> gone

Always true:
- nothing of a transaction is visible before all of it is in the journal;
- an acknowledgement whose lease is over aborts all of it, which fences a zombie; so does a batch
  that would not get the offset it expects;
- a message that is acknowledged belongs to the transaction, and to nobody else, until the journal
  has it or has refused it. So two transactions cannot acknowledge one message;
- a commit repeated under the same id is answered as the first one was, also while that is on
  its way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Unpack

from ister.base import Expected, parse_topic
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    IsterError,
    LimitReachedError,
    OffsetMismatchError,
    TransactionError,
)
from ister.base.limits import (
    BATCH_IDS_MAX,
    TRANSACTION_ACKS_MAX,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_IDS_MAX,
    TRANSACTION_TOPICS_MAX,
    TRANSACTION_WORD_BYTES_MAX,
)
from ister.broker.durable import DurableSubscription, Partition, Run
from ister.broker.schema_checks import SchemaCheck, check
from ister.broker.state import Acked, Change, TransactionDone, check_keys
from ister.broker.storage import Storage, Write
from ister.broker.streams import StreamTopic
from ister.codec import Batch, Column
from ister.subscriptions import OffsetSet

Offsets = Callable[[list[int] | IsterError], object]
FindTopic = Callable[[str], StreamTopic]
_Part = tuple[StreamTopic, Batch]
# The durable subscriptions of a consumer and a run: lease, first offset, end.
TransactionAck = tuple[Sequence[DurableSubscription], int, int, int]


@dataclass(slots=True)
class Transaction:
    """What a client has staged."""

    id: str
    batches: list[tuple[int, Batch]] = field(default_factory=list)
    size_bytes: int = 0
    # What went wrong with a batch: the answer to the commit, which then does nothing.
    error: IsterError | None = None
    # Once it is committed: of batches with messages that were known before by their ids, the
    # offset of each message; of those known as a negative number, its bits turned round.
    each: dict[int, list[int]] = field(default_factory=dict)
    # Whose answer it is: how many are kept for one client is limited. An id alone does not
    # suffice, because another client with the same id could fill the limit.
    client: str = ""
    # What batches expect, by their place in `batches`.
    expected: dict[int, Expected] = field(default_factory=dict)
    # Messages with ids, and all messages of the batches they are in.
    ids: int = 0
    beside_ids: int = 0

    def __post_init__(self) -> None:
        size_bytes = len(self.id.encode(errors="replace"))
        if size_bytes > TRANSACTION_WORD_BYTES_MAX:
            raise BadNameError(
                self.id[:40] + "...",
                f"the id of a transaction is at most {TRANSACTION_WORD_BYTES_MAX} bytes",
            )

    def fail(self, error: IsterError) -> None:
        """Have nothing of it carried out."""
        self.error = error
        self.batches.clear()

    def stage(self, slot: int, batch: Batch, **expected: Unpack[Expected]) -> None:
        """Add a checked batch for the topic that will be listed at `slot`, and what it expects."""
        self.size_bytes += batch.size_bytes
        if self.size_bytes > TRANSACTION_BYTES_MAX:
            raise LimitReachedError("transaction_bytes_max", TRANSACTION_BYTES_MAX)
        if len(self.batches) >= TRANSACTION_BATCHES_MAX:
            raise LimitReachedError("transaction_batches_max", TRANSACTION_BATCHES_MAX)
        if batch.columns & Column.ID:
            self.beside_ids += batch.count
            if self.beside_ids > BATCH_IDS_MAX:
                raise LimitReachedError("batch_ids_max", BATCH_IDS_MAX)
            self.ids += batch.count - (batch.ids or []).count(None)
            if self.ids > TRANSACTION_IDS_MAX:
                raise LimitReachedError("transaction_ids_max", TRANSACTION_IDS_MAX)
        if expected:
            self.expected[len(self.batches)] = expected
        self.batches.append((slot, batch.detached()))


def check_commit(topics: int, acks: int) -> None:
    """Raise `LimitReachedError` for a commit that names too much to be checked in one go."""
    if topics > TRANSACTION_TOPICS_MAX:
        raise LimitReachedError("transaction_topics_max", TRANSACTION_TOPICS_MAX)
    if acks > TRANSACTION_ACKS_MAX:
        raise LimitReachedError("transaction_acks_max", TRANSACTION_ACKS_MAX)


class _Ack(NamedTuple):
    """A run that a transaction acknowledges: lease, first offset, end."""

    durable: DurableSubscription
    partition: Partition
    run: Run


class Transactions:
    """Carries transactions out. `find_topic` finds a stream topic by name."""

    def __init__(self, storages: Sequence[Storage], find_topic: FindTopic) -> None:
        self._storages = storages
        self._find_topic = find_topic
        # By id: on their way to the journal, with everybody who waits for the answer.
        self._committing: dict[str, list[tuple[Transaction, Offsets]]] = {}

    def commit(
        self,
        transaction: Transaction,
        names: Sequence[str],
        acks: Sequence[TransactionAck],
        done: Offsets,
        *,
        checked: bool = False,
    ) -> None:
        """Carry out a transaction; `done` gets the base offset of each batch, or why it was not.

        Raises, with nothing done, when it cannot be carried out. `checked` says that its batches
        follow the schemas of their topics.
        """
        check_commit(len(names), len(acks))
        transaction_id = transaction.id
        if not transaction_id:
            raise BadRequestError("a transaction needs an id that no other transaction has")
        for journal in self._storages:
            known = journal.state.commits.find(transaction_id)
            if known is not None:
                transaction.each = known.each
                done(known.offsets)
                return
        if transaction_id in self._committing:
            self._committing[transaction_id].append((transaction, done))
            return
        parts = self._parts(transaction, names)
        if not checked:
            for topic, batch in parts:
                if topic.schema_check is not None:
                    check(topic.schema_check, batch)
        for durables, *_ in acks:
            for durable in durables:
                # First: that a lease is over would mean that nothing of it was carried out, and
                # an earlier attempt may still be found by the next start.
                durable.storage.committer.check()
        found = _find_leased(transaction_id, acks)
        check_keys(batch for topic, batch in parts if topic.record.key_offsets is not None)
        _check_expected(parts, transaction.expected)
        storage = _one_storage(transaction_id, parts, found)
        if storage is None:
            done([])
            return
        if parts:
            storage.committer.check_room()
        else:
            storage.committer.check()
        self._carry_out(storage, parts, found, (transaction, done))

    def batches_to_check(
        self, transaction: Transaction, names: Sequence[str]
    ) -> list[tuple[SchemaCheck, Batch]]:
        """Return the batches of a transaction that are to be checked; of one repeated, none."""
        transaction_id = transaction.id
        if transaction_id in self._committing or any(
            transaction_id in v.state.commits for v in self._storages
        ):
            return []
        return [
            (topic.schema_check, batch)
            for topic, batch in self._parts(transaction, names)
            if topic.schema_check is not None
        ]

    def _parts(self, transaction: Transaction, names: Sequence[str]) -> list[_Part]:
        topics = [self._find_topic(parse_topic(name)) for name in names]
        return [(_at(topics, slot), batch) for slot, batch in transaction.batches]

    def _carry_out(
        self,
        storage: Storage,
        parts: list[_Part],
        acks: list[_Ack],
        asker: tuple[Transaction, Offsets],
    ) -> None:
        transaction_id = asker[0].id
        offsets, each, stored = _stamp(parts)
        acked: list[Change] = [Acked(*ack.partition.numbers, [ack.run[1:]]) for ack in acks]
        client = asker[0].client
        time_ms = storage.state.commits.stamp(storage.clock.monotonic_ms())
        answer = TransactionDone(transaction_id, offsets, time_ms, each, client)
        self._committing[transaction_id] = [asker]
        commits = [
            (durable, partition, partition.cursor, partition.deliveries.begin_commit(*run))
            for durable, partition, run in acks
        ]

        def on_done(error: IsterError | None) -> None:
            waiting = self._committing.pop(transaction_id)
            for durable, partition, cursor, commit in commits:
                if error is None:
                    durable.on_committed(partition, cursor, commit)
                else:
                    durable.on_not_committed(partition, cursor, commit)
            for transaction, answer_to in waiting:
                transaction.each = each
                answer_to(error or offsets)

        storage.commit(Write(batches=stored, changes=[answer], journal_only=acked), on_done)


def _stamp(
    parts: Sequence[_Part],
) -> tuple[list[int], dict[int, list[int]], list[_Part]]:
    """Give batches their offsets; return the first of each, and what is to be stored of them.

    What is known by its id is left out. Then the offset of each message is returned as well, by the
    slot of the batch.
    """
    bases: list[int] = []
    each: dict[int, list[int]] = {}
    stored: list[_Part] = []
    for slot, (topic, batch) in enumerate(parts):
        new, offsets = topic.sort_out(batch)
        if new is not None:
            topic.stamp(new)
            stored.append((topic, new))
        if offsets is not None:
            each[slot] = offsets
            bases.append(max(offsets[0], ~offsets[0]))
        else:
            bases.append(batch.base_offset)
    return bases, each, stored


def _check_expected(parts: Sequence[_Part], expected: Mapping[int, Expected]) -> None:
    """Raise unless each batch gets the offset that it expects, if it does.

    The newest message of a key is the one from before the transaction: all that is sent for the
    key may expect the same.
    """
    for slot, one in expected.items():
        if "expected_key_offset" in one:
            topic, batch = parts[slot]
            topic.keys.check(batch, one["expected_key_offset"])
    asked = {slot: e["expected_offset"] for slot, e in expected.items() if "expected_offset" in e}
    expecting = {parts[slot][0] for slot in asked}
    by_topic: dict[StreamTopic, dict[int, Batch]] = {}
    for slot, (topic, batch) in enumerate(parts):
        if topic in expecting:
            by_topic.setdefault(topic, {})[slot] = batch
    for topic, batches in by_topic.items():
        offsets = topic.plan_offsets(list(batches.values()))
        for slot, offset in zip(batches, offsets, strict=True):
            if asked.get(slot, offset) != offset:
                raise OffsetMismatchError(topic.name, asked[slot], offset)


def _at(topics: list[StreamTopic], slot: int) -> StreamTopic:
    if slot >= len(topics):
        raise BadRequestError(f"a batch was staged for topic {slot} of {len(topics)}")
    return topics[slot]


def _one_storage(
    transaction_id: str, parts: Sequence[_Part], acks: Sequence[_Ack]
) -> Storage | None:
    """Return where all of it is kept, `None` when there is nothing."""
    storages = {id(topic.storage): topic.storage for topic, _ in parts}
    storages |= {id(ack.partition.topic.storage): ack.partition.topic.storage for ack in acks}
    if len(storages) > 1:
        raise TransactionError(
            transaction_id, "its topics are kept in different places (durability)"
        )
    return next(iter(storages.values()), None)


def _find_leased(transaction_id: str, acks: Sequence[TransactionAck]) -> list[_Ack]:
    """Return the runs, each with its partition, if all of them are still leased; else raise."""
    found: list[_Ack] = []
    named: dict[Partition, OffsetSet] = {}
    for durables, number, start, end in acks:
        ack = _find_ack(durables, (number, start, end))
        if ack is None:
            raise TransactionError(
                transaction_id, f"message {start} is not leased to this consumer any more"
            )
        of_partition = named.setdefault(ack.partition, OffsetSet())
        if of_partition.count_within(start, end):
            raise TransactionError(transaction_id, f"it acknowledges message {start} twice")
        of_partition.add(start, end)
        found.append(ack)
    return found


def _find_ack(durables: Sequence[DurableSubscription], run: Run) -> _Ack | None:
    """Return a run with where it is leased."""
    for durable in durables:
        partition = durable.coverage.find(run[0])
        if partition is not None and partition.deliveries.is_leased(*run):
            return _Ack(durable, partition, run)
    return None
