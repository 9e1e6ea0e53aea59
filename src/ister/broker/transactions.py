"""Transactions: batches to several topics and acknowledgements, as one entry of the journal.

    OPEN --stage()--> OPEN --commit()--> COMMITTING --journal has it--> DONE
    OPEN --abort(), too old, too large--> gone

Always true:
- nothing of a transaction is visible before all of it is in the journal;
- an acknowledgement whose lease is over aborts all of it, which fences a zombie; so does one that
  another transaction, which is on its way to the journal, has made;
- a commit repeated under the same word is answered as the first one was, also while that is on
  its way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ister.base import parse_topic
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    TransactionError,
)
from ister.base.limits import TRANSACTION_BATCHES_MAX, TRANSACTION_BYTES_MAX
from ister.broker.changes import Acked, Change, TransactionDone, encode_changes
from ister.broker.durable import DurableSubscription, Run
from ister.broker.guarding import Guard, check
from ister.broker.stream import StreamTopic
from ister.broker.track import Track
from ister.broker.vault import Vault
from ister.codec import Batch
from ister.subscriptions import Cursor

Offsets = Callable[[list[int] | IsterError], object]
FindTopic = Callable[[str], StreamTopic]
_Part = tuple[StreamTopic, Batch]
# The durable subscriptions of a consumer and a run: lease, first offset, end.
TransactionAck = tuple[Sequence[DurableSubscription], int, int, int]


@dataclass(slots=True)
class Transaction:
    """What a client has staged."""

    word: str
    batches: list[tuple[int, Batch]] = field(default_factory=list)
    size_bytes: int = 0
    # What went wrong with a batch: told at the commit, which then does nothing.
    error: IsterError | None = None
    # Once it is committed: of batches with messages that were known before by their ids, the
    # offset of each message; of those known as a negative number, its bits turned round.
    each: dict[int, list[int]] = field(default_factory=dict)

    def fail(self, error: IsterError) -> None:
        """Have nothing of it carried out."""
        self.error = error
        self.batches.clear()

    def stage(self, slot: int, batch: Batch) -> None:
        """Add a checked batch for the topic that will be listed at `slot`."""
        self.size_bytes += batch.size_bytes
        if self.size_bytes > TRANSACTION_BYTES_MAX:
            raise LimitReachedError("transaction_bytes_max", TRANSACTION_BYTES_MAX)
        if len(self.batches) >= TRANSACTION_BATCHES_MAX:
            raise LimitReachedError("transaction_batches_max", TRANSACTION_BATCHES_MAX)
        self.batches.append((slot, batch.detached()))


class _Ack(NamedTuple):
    """A run that a transaction acknowledges, and the cursor its track had then."""

    track: Track
    cursor: Cursor
    run: Run


class Transactions:
    """Carries transactions out. `find_topic` finds a stream topic by name."""

    def __init__(self, vaults: Sequence[Vault], find_topic: FindTopic) -> None:
        self._vaults = vaults
        self._find_topic = find_topic
        # By word: on their way to the journal, with everybody who is to be told.
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
        word = transaction.word
        if not word:
            raise BadRequestError("a transaction needs a word that tells it from others")
        for journal in self._vaults:
            known = journal.ledger.transactions.get(word)
            if known is not None:
                transaction.each = journal.ledger.transactions_each.get(word, {})
                done(known)
                return
        if word in self._committing:
            self._committing[word].append((transaction, done))
            return
        parts = self._parts(transaction, names)
        if not checked:
            for topic, batch in parts:
                if topic.guard is not None:
                    check(topic.guard, batch)
        found = [_leased(word, *ack) for ack in acks]
        vault = _one_vault(word, parts, found)
        if vault is None:
            done([])
            return
        vault.committer.check()
        self._carry_out(vault, parts, found, (transaction, done))

    def guarded(self, transaction: Transaction, names: Sequence[str]) -> list[tuple[Guard, Batch]]:
        """Return the batches of a transaction that are to be checked; of one repeated, none."""
        word = transaction.word
        if word in self._committing or any(word in v.ledger.transactions for v in self._vaults):
            return []
        return [
            (topic.guard, batch)
            for topic, batch in self._parts(transaction, names)
            if topic.guard is not None
        ]

    def _parts(self, transaction: Transaction, names: Sequence[str]) -> list[_Part]:
        topics = [self._find_topic(parse_topic(name)) for name in names]
        return [(_at(topics, slot), batch) for slot, batch in transaction.batches]

    def _carry_out(
        self,
        vault: Vault,
        parts: list[_Part],
        acks: list[_Ack],
        asker: tuple[Transaction, Offsets],
    ) -> None:
        word = asker[0].word
        offsets, each, stored = _stamp(parts)
        changes: list[Change] = [Acked(*ack.track.numbers, [ack.run[1:]]) for ack in acks]
        changes.append(TransactionDone(word, offsets, vault.clock.now_ms(), each))
        vault.log.append_transaction(
            [topic.part(batch) for topic, batch in stored], encode_changes(changes)
        )
        self._committing[word] = [asker]
        for ack in acks:
            ack.track.committing.add(*ack.run[1:])

        def on_done(error: IsterError | None) -> None:
            waiting = self._committing.pop(word)
            for track, cursor, run in acks:
                if track.cursor is cursor:
                    track.committing.discard(*run[1:])
            if error is None:
                vault.ledger.on_changes([changes[-1]])
                for track, cursor, run in acks:
                    track.subscription.on_transaction(track, cursor, run)
                for topic, batch in stored:
                    topic.on_committed(batch, sequenced=False)
            else:
                for track, _, _ in acks:
                    track.subscription.on_not_committed(track)
            for transaction, told in waiting:
                transaction.each = each
                told(error or offsets)

        vault.committer.add(on_done)


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


def _at(topics: list[StreamTopic], slot: int) -> StreamTopic:
    if slot >= len(topics):
        raise BadRequestError(f"a batch was staged for topic {slot} of {len(topics)}")
    return topics[slot]


def _one_vault(word: str, parts: Sequence[_Part], acks: Sequence[_Ack]) -> Vault | None:
    """Return where all of it is kept, `None` when there is nothing."""
    vaults = {id(topic.vault): topic.vault for topic, _ in parts}
    vaults |= {id(ack.track.topic.vault): ack.track.topic.vault for ack in acks}
    if len(vaults) > 1:
        raise TransactionError(word, "its topics are kept in different places (durability)")
    return next(iter(vaults.values()), None)


def _leased(
    word: str, durables: Sequence[DurableSubscription], number: int, start: int, end: int
) -> _Ack:
    """Return a run that is still leased, or raise."""
    for durable in durables:
        track = durable.track_of_lease(number)
        if track is not None and track.deliveries.is_leased(number, start, end):
            if track.committing.count_within(start, end):
                raise TransactionError(word, f"another one is acknowledging message {start}")
            return _Ack(track, track.cursor, (number, start, end))
    raise TransactionError(word, f"message {start} is not leased to this consumer any more")
