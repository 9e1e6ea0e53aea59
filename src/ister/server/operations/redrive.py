"""Redrive: dead letters go back to the topics they came from.

Always true: a letter is in the dead-letter topic or back where it came from, never both and never
neither: sending it and acknowledging it are one transaction.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4

from ister.base import (
    DEAD_LETTER_ATTRIBUTES,
    EARLIEST,
    ORIGIN_ATTRIBUTE,
    OWNER_ATTRIBUTE,
    AckSettings,
    Pattern,
    TopicName,
    is_wildcard,
    matches,
    parse_pattern,
    parse_plain,
    parse_topic,
)
from ister.base.errors import BadRequestError, IsterError
from ister.base.limits import MIB
from ister.broker import (
    Broker,
    Membership,
    StreamTopic,
    SubscribeOptions,
    Transaction,
    default_dead_letter_topic,
)
from ister.codec import NO_SCHEMA, Attributes, Batch, encode
from ister.server.operations import waiting
from ister.server.operations.consuming import Inbox, Taken, attach

# The subscription that the letters are taken by: the same one whoever asks, so that two who ask
# at once do not move the same letters.
REDRIVE = "redrive"
# As much as is written at once: one write to the disk costs little for each of so many letters.
LETTERS_AT_ONCE = 500
LETTERS_BYTES = 8 * MIB
# Letters that are there are sent at once, or when the disk has read them.
WAIT_S = 10.0


async def redrive(broker: Broker, topic: str, subscription: str, count: int | None) -> int:
    """Move up to `count` dead letters of a subscription back; return how many it were.

    All that are there now, when `count` is `None`. Raises `SubscriptionNotFoundError` when there is
    neither the subscription nor a topic of its dead letters.
    """
    if count is not None and count < 1:
        raise BadRequestError(f"count is a number above 0, or none for all, not {count}")
    letters = _letters_topic(broker, parse_pattern(topic), subscription)
    if not any(isinstance(t, StreamTopic) for t in broker.catalog.find(Pattern(letters))):
        # None was ever needed, or one of the names is wrong.
        if broker.subscribers.find_live(topic, subscription) is None:
            broker.durables.get(topic, subscription)
        return 0
    inbox = Inbox()
    options = SubscribeOptions(
        topic=letters,
        subscription=REDRIVE,
        consumer="admin",
        filters={},
        start=EARLIEST,
        # A letter that cannot be moved stays where it is.
        acks=AckSettings(max_deliveries=0),
    )
    membership = await attach(broker, options, inbox)
    try:
        left = sum(_lag(durable.report().cursor) for durable in membership.durables)
        moved = 0
        while left > 0 and (count is None or moved < count):
            membership.consumer.grant(min(left, LETTERS_AT_ONCE), LETTERS_BYTES)
            some = await inbox.take(WAIT_S)
            if not some:
                break
            left -= sum(taken.batch.count for taken in some)
            # Subscriptions may share a topic for their letters: the others' stay.
            own = [one for taken in some for one in _own_letters(taken, topic, subscription)]
            if count is not None:
                own = own[: count - moved]
            await _move(broker, membership, own)
            moved += len(own)
        return moved
    finally:
        broker.subscribers.unsubscribe(membership)


def _letters_topic(broker: Broker, topic: Pattern, subscription: str) -> TopicName:
    parse_plain(subscription, "a subscription name")
    try:
        named = broker.durables.get(topic, subscription)[0].acks.dead_letter_topic
    except IsterError:
        named = ""  # Also of a subscription that was deleted since, as long as they are there.
    if named:
        return parse_topic(named)
    if is_wildcard(topic):
        raise BadRequestError(
            f"the dead letters of {topic} are kept topic by topic: name one without wildcards"
        )
    return parse_topic(default_dead_letter_topic(topic, subscription))


class _Letter(NamedTuple):
    """One dead letter: where it lies, and where it came from."""

    taken: Taken
    slot: int
    origin: str


def _own_letters(taken: Taken, topic: str, subscription: str) -> list[_Letter]:
    """Return the letters of a subscription on a topic, its partitions, or a pattern."""
    rows = taken.batch.attributes or [{}] * taken.batch.count
    found = [
        _Letter(taken, slot, _origin(row, topic))
        for slot, row in enumerate(rows)
        if row.get(OWNER_ATTRIBUTE, subscription) == subscription
    ]
    return [letter for letter in found if letter.origin and matches(topic, letter.origin)]


def _origin(row: Attributes, topic: str) -> str:
    """Return where a letter came from; empty when what is written there is no topic."""
    try:
        return parse_topic(row.get(ORIGIN_ATTRIBUTE, topic))
    except IsterError:
        return ""


async def _move(broker: Broker, membership: Membership, letters: Sequence[_Letter]) -> None:
    """Send letters back and acknowledge them, in one transaction."""
    if not letters:
        return
    topics: dict[str, int] = {}
    # Letters of one batch for one topic stay together: they have one producer and one schema.
    together: dict[tuple[Batch, int], list[int]] = {}
    acks = []
    for taken, slot, origin in letters:
        number = topics.setdefault(origin, len(topics))
        together.setdefault((taken.batch, number), []).append(slot)
        offset = taken.batch.offsets[slot]
        acks.append((membership.durables, taken.lease, offset, offset + 1))
    transaction = Transaction(f"redrive-{uuid4()}")
    for (batch, number), slots in together.items():
        broker.stage(transaction, number, _originals(batch, slots))
    names = list(topics)
    checked = await waiting.checked(broker.long_commit_check(transaction, names))
    offsets: list[int] = await waiting.result(
        lambda done: broker.commit(transaction, names, acks, done, checked=checked)
    )
    assert len(offsets) == len(together)


def _originals(batch: Batch, slots: list[int]) -> Batch:
    """Return letters as they were before they became letters, in a batch of their own."""
    payloads, keys = batch.payloads, batch.keys
    rows = batch.attributes or [{}] * batch.count
    head, body = encode(
        [payloads[s] for s in slots],
        keys=None if keys is None else [keys[s] for s in slots],
        attributes=[
            {name: text for name, text in rows[s].items() if name not in DEAD_LETTER_ATTRIBUTES}
            for s in slots
        ],
        # Without its id: the stream knows that one, and would not store it again.
        producer=batch.producer_bytes,
        numbered=False,
        schema=batch.schema or NO_SCHEMA,
    )
    return Batch(head + body)


def _lag(cursor: object) -> int:
    return getattr(cursor, "lag", 0)
