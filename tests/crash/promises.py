"""What a broker was asked and what it answered, and the check of what a later life has of it.

An answer is a promise; what was asked and not answered may have happened, all of it or nothing.
So may what was answered with `StorageUncertainError`. What was refused with `StorageFailedError`
has not happened, unless the answer before it left that open.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.crash.life import Life

from ister.base import is_wildcard, partition_name
from ister.broker import StreamTopic, SubscribeOptions
from ister.broker.state.state import State
from ister.subscriptions import Cursor

# Pattern and name of a subscription.
Key = tuple[str, str]
YES, NO, MAYBE = frozenset({True}), frozenset({False}), frozenset({True, False})


@dataclass(slots=True)
class Sent:
    """A batch of a named producer."""

    topic: str
    producer: str
    sequence: int
    payloads: tuple[bytes, ...]
    ids: tuple[str, ...] | None = None
    expected: int | None = None
    # Acknowledged before it is on the disk.
    soft: bool = False
    # The offset of each message.
    answered: list[int] | None = None
    # Whether the answer outlives a power cut.
    safe: bool = False
    # The last answer was that it is not stored; and whether that is worth anything.
    refused: bool = False
    uncertain: bool = False


@dataclass(slots=True)
class Transacted:
    """A transaction: messages to several topics, and acknowledgements."""

    word: str
    parts: list[tuple[str, tuple[bytes, ...]]]
    acks: list[tuple[Key, str, int]]
    # The offset of the first message of each part.
    answered: list[int] | None = None
    # As of `Sent`.
    refused: bool = False
    uncertain: bool = False


@dataclass(slots=True)
class Stand:
    """Where a subscription may stand on one topic.

    Acknowledged is everything below `floor`, and beyond it what `must` says, and nothing that `may`
    does not say. What this life of the broker has in its memory is `fresh`.
    """

    floor: int = 0
    must: set[int] = field(default_factory=set)
    may: set[int] = field(default_factory=set)
    fresh: set[int] = field(default_factory=set)

    def fits(self, acked: set[int], offsets: range) -> bool:
        """Tell whether these acknowledged ones of `offsets` are as they should be."""
        below = range(offsets.start, min(self.floor, offsets.stop))
        required = {offset for offset in self.must if offset in offsets}.union(below)
        return required <= acked <= self.may.union(below)


@dataclass
class Promises:
    """See the module."""

    topics: dict[str, frozenset[bool]] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    # Of topics that are getting more of them.
    growing: dict[str, int] = field(default_factory=dict)
    namespaces: dict[str, frozenset[bool]] = field(default_factory=dict)
    subscriptions: dict[Key, frozenset[bool]] = field(default_factory=dict)
    options: dict[Key, SubscribeOptions] = field(default_factory=dict)
    saved: dict[tuple[Key, str], frozenset[bool]] = field(default_factory=dict)
    paused: dict[Key, frozenset[bool]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    transactions: list[Transacted] = field(default_factory=list)
    stands: dict[tuple[Key, str], list[Stand]] = field(default_factory=dict)
    # Deliveries that went wrong, as far as that was confirmed.
    failures: dict[tuple[Key, str, int], int] = field(default_factory=dict)
    # Given back until they are dead: acknowledged as soon as the letter is there, and not before.
    doomed: dict[tuple[Key, str, int], str] = field(default_factory=dict)
    # Messages below are gone for sure; those below the second may be.
    purged: dict[str, tuple[int, int]] = field(default_factory=dict)

    def on_synced(self) -> None:
        """Something was answered after a sync: what was written before it is on the disk too."""
        for sent in self.sent:
            sent.safe = sent.safe or sent.answered is not None

    def forget_messages(self, topic: str) -> None:
        """A topic is gone with everything in it, and may be made anew."""
        self.sent = [sent for sent in self.sent if sent.topic != topic]
        self.stands = {place: s for place, s in self.stands.items() if place[1] != topic}


@dataclass(frozen=True)
class Stored:
    """A topic as a reader sees it."""

    offsets: range
    payloads: dict[int, bytes]
    # First offset of each batch, so that a second look finds the same batches.
    batches: tuple[int, ...]
    # Of dead letters: the offset that each message had.
    origins: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """All that a life has found on its disk."""

    topics: dict[str, Stored]
    partitions: dict[str, int]
    namespaces: list[str]
    cursors: dict[Key, dict[str, Cursor]]
    saved: dict[Key, list[str]]
    paused: set[Key]
    transactions: dict[str, list[int]]
    state: bytes

    def is_same(self, other: "Found") -> bool:
        """Tell whether another life has found the same."""
        return (self.topics, self.partitions, self.state) == (
            other.topics,
            other.partitions,
            other.state,
        )


def look(life: Life) -> Found:
    """Look at everything there is."""
    state = life.storage.state
    names = [record.name for record in state.topics.values()]
    assert len(names) == len(set(names)), f"two topics of one name: {names}"
    assert set(names) == set(life.broker.streams.by_name)
    topics = {name: _stored(life, life.broker.streams.by_name[name]) for name in names}
    cursors: dict[Key, dict[str, Cursor]] = {}
    saved = {}
    paused = set()
    for record in state.subscriptions.values():
        key = (record.created.pattern, record.created.name)
        if not record.cursors and not is_wildcard(key[0]):
            continue  # Its topic is gone, and so is it at the next start.
        assert key not in cursors, f"two subscriptions {key}"
        cursors[key] = {state.topics[n].name: cursor for n, cursor in record.cursors.items()}
        saved[key] = sorted(record.saved)
        if record.paused:
            paused.add(key)
    return Found(
        topics,
        dict(state.partitioned),
        life.broker.namespaces(),
        cursors,
        saved,
        paused,
        _commits(state),
        state.encode(),
    )


def _commits(state: State) -> dict[str, list[int]]:
    words = [word for rows in state.commits.rows() for _, word, _ in rows]
    answers = {word: state.commits.find(word) for word in words}
    return {word: answer.offsets for word, answer in answers.items() if answer is not None}


def _stored(life: Life, topic: StreamTopic) -> Stored:
    offsets = range(topic.first_offset, topic.next_offset)
    batches = life.read(topic)
    payloads = {
        offset: bytes(payload)
        for batch in batches.values()
        for offset, payload in zip(batch.offsets, batch.payloads, strict=True)
    }
    assert list(payloads) == list(offsets), f"{topic.name} has {list(payloads)} of {offsets}"
    origins = tuple(
        int(attributes["x-original-topic-offset"])
        for batch in batches.values()
        for attributes in batch.attributes or ()
        if "x-original-topic-offset" in attributes
    )
    return Stored(offsets, payloads, tuple(batches), origins)


def check(found: Found, promises: Promises, *, power_cut: bool = True) -> None:
    """Fail unless everything promised is there, and the rest whole or absent."""
    _check_topics(found, promises)
    _check_namespaces(found, promises)
    letters = set(promises.doomed.values())
    for name, stored in found.topics.items():
        if name not in letters:
            _check_messages(name, stored, promises, power_cut=power_cut)
    for transaction in promises.transactions:
        _check_transaction(found, transaction)
    _check_subscriptions(found, promises)


def _check_topics(found: Found, promises: Promises) -> None:
    for name, allowed in promises.topics.items():
        count = promises.partitions.get(name, 0)
        if found.partitions.get(name, 0) == promises.growing.get(name):
            count = promises.growing[name]
        parts = [partition_name(name, n) for n in range(count)] if count else [name]
        present = [part in found.topics for part in parts]
        assert len(set(present)) == 1, f"{name} is half there: {present}"
        assert present[0] in allowed, f"{name} is {'' if present[0] else 'not '}there"
        assert (found.partitions.get(name, 0) == count) is present[0] or not count
    known = {
        part
        for name in promises.topics
        for part in (
            name,
            *(partition_name(name, n) for n in range(found.partitions.get(name, 0))),
        )
    }
    known.update(promises.doomed.values())
    assert set(found.topics) <= known, f"nobody made {set(found.topics) - known}"


def _check_namespaces(found: Found, promises: Promises) -> None:
    for name, allowed in promises.namespaces.items():
        assert (name in found.namespaces) in allowed, f"{name} is there: {found.namespaces}"
    assert set(found.namespaces) <= {"default", "system", *promises.namespaces}


def _check_messages(name: str, stored: Stored, promises: Promises, *, power_cut: bool) -> None:
    gone, going = promises.purged.get(name, (0, 0))
    assert gone <= stored.offsets.start <= going, f"{name} begins at {stored.offsets.start}"
    where = _where(name, stored)
    seen: set[bytes] = set()
    last: dict[str, int] = {}
    known: set[bytes] = set()
    for sent in (s for s in promises.sent if s.topic == name):
        known.update(sent.payloads)
        # Of messages with ids, those sent before are not stored again.
        new = [p for p in sent.payloads if p not in seen]
        seen.update(new)
        if sent.answered is not None and (sent.safe or not power_cut):
            for offset, payload in zip(sent.answered, sent.payloads, strict=True):
                if offset >= going or offset in stored.offsets:
                    assert stored.payloads.get(offset) == payload, f"{name} lost {offset}: {sent}"
        places = [where[p] for p in new if p in where]
        assert not places or not sent.refused, f"{name} has {sent}, which was refused"
        if not places:
            continue
        first = places[0]
        kept = [first + n for n in range(len(new)) if first + n in stored.offsets]
        assert places == kept or first == stored.offsets.start, f"{name}: half of {sent}: {places}"
        assert last.get(sent.producer, -1) < first, f"{name}: {sent} came before its turn"
        last[sent.producer] = places[-1]
    for transaction in promises.transactions:
        known.update(p for topic, payloads in transaction.parts if topic == name for p in payloads)
    assert set(where) <= known, f"{name} has what nobody sent: {set(where) - known}"


def _where(name: str, stored: Stored) -> dict[bytes, int]:
    where: dict[bytes, int] = {}
    for offset, payload in stored.payloads.items():
        assert payload not in where, f"{name} has {payload!r} at {where[payload]} and {offset}"
        where[payload] = offset
    return where


def _check_transaction(found: Found, transaction: Transacted) -> None:
    signs = list(_signs(found, transaction))
    assert len(set(signs)) <= 1, f"{transaction.word} is half there: {signs}"
    assert not any(signs) or not transaction.refused, f"{transaction.word} was refused: {signs}"
    if transaction.answered is None:
        return
    assert all(signs), f"{transaction.word} was answered and is gone"
    assert found.transactions[transaction.word] == transaction.answered
    for offset, (topic, payloads) in zip(transaction.answered, transaction.parts, strict=True):
        if topic in found.topics and offset in found.topics[topic].offsets:
            for slot, payload in enumerate(payloads):
                assert found.topics[topic].payloads[offset + slot] == payload


def _signs(found: Found, transaction: Transacted) -> Iterator[bool]:
    """Yield of every part of a transaction whether it is there."""
    yield transaction.word in found.transactions
    for slot, (topic, payloads) in enumerate(transaction.parts):
        stored = found.topics.get(topic)
        if stored is None:
            continue
        if transaction.answered is None or transaction.answered[slot] >= stored.offsets.start:
            for payload in payloads:
                yield payload in stored.payloads.values()
    for key, topic, offset in transaction.acks:
        if topic in found.cursors.get(key, ()):
            yield found.cursors[key][topic].is_acked(offset)


def _check_subscriptions(found: Found, promises: Promises) -> None:
    for key, allowed in promises.subscriptions.items():
        assert (key in found.cursors) in allowed, f"{key} is there: {key in found.cursors}"
    assert set(found.cursors) <= set(promises.subscriptions)
    for (pattern, name), cursors in found.cursors.items():
        if pattern in found.partitions:
            parts = {partition_name(pattern, n) for n in range(found.partitions[pattern])}
            assert set(cursors) == parts, f"{name} has a place on {set(cursors)} of {parts}"
    for (key, name), allowed in promises.saved.items():
        if key in found.saved:
            assert (name in found.saved[key]) in allowed, f"{name} of {key} is not as it should"
    for key, allowed in promises.paused.items():
        if key in found.cursors:
            assert (key in found.paused) in allowed, f"{key} rests: {key in found.paused}"
    for (key, topic), stands in promises.stands.items():
        if key in found.cursors and topic in found.topics:
            cursor = found.cursors[key].get(topic)
            assert cursor is not None, f"{key} has no place on {topic}"
            _check_stand(key, topic, cursor, found.topics[topic].offsets, stands)
    for (key, topic, offset), count in promises.failures.items():
        if key in found.cursors and topic in found.topics:
            cursor = found.cursors[key][topic]
            assert cursor.is_acked(offset) or cursor.failures_of(offset) >= count
    for (key, topic, offset), letters in promises.doomed.items():
        if key in found.cursors and topic in found.topics:
            origins = found.topics[letters].origins if letters in found.topics else ()
            acked = found.cursors[key][topic].is_acked(offset)
            assert origins.count(offset) == acked, f"{offset}: acked {acked}, letters {origins}"


def _check_stand(
    key: Key, topic: str, cursor: Cursor, offsets: range, stands: Iterable[Stand]
) -> None:
    acked = {offset for offset in offsets if cursor.is_acked(offset)}
    # Beyond the end it would take messages for acknowledged that are yet to come.
    assert not cursor.is_acked(offsets.stop), f"{key} on {topic} stands beyond its end"
    assert any(stand.fits(acked, offsets) for stand in stands), (
        f"{key} on {topic} has acknowledged {sorted(acked)} of {offsets}: {stands}"
    )
