"""Redrive: dead letters go back to the topics they came from.

Always true: a letter is in the dead-letter topic or back where it came from, never both and never
neither: sending it and acknowledging it are one transaction.
"""

import re
from typing import TYPE_CHECKING

from ister.base import is_wildcard, matches
from ister.base.errors import BadRequestError, SubscriptionNotFoundError
from ister.client.aio.subscription import Message
from ister.client.session import check_count, check_text, check_topic
from ister.codec import Attributes

if TYPE_CHECKING:
    from ister.client.aio.client import Client

# The subscription that the letters are taken by.
REDRIVE = "redrive"

# One transaction: large enough that its one write to the disk costs little for each letter, small
# enough that letters of the largest size stay far below what a transaction may hold.
LETTERS_AT_ONCE = 500
LETTERS_BYTES = 8 * 1024 * 1024

ORIGIN = "x-original-topic"
OWNER = "x-original-subscription"
# What the broker adds to a message when it becomes a dead letter.
ADDED = frozenset(
    (
        ORIGIN,
        OWNER,
        "x-original-topic-offset",
        "x-original-producer",
        "x-original-producer-id",
        "x-original-broker-addr",
        "x-delivery-attempt",
        "x-failure-reason",
        "x-poison-policy",
    )
)


async def redrive(client: "Client", topic: str, subscription: str, count: int | None) -> int:
    """Move up to `count` dead letters of a subscription back; return how many it were.

    Those that are there now, when `count` is `None`. Raises `SubscriptionNotFoundError` when there
    is neither the subscription nor a topic of its dead letters.
    """
    if count is not None:
        check_count(count, "count", least=1)
    topic = check_topic(topic)
    check_text(subscription, "a subscription")
    letters = await _letters_topic(client, topic, subscription)
    if not any(row.topic == letters for row in await client.topics(letters)):
        # None was ever needed, or one of the names is wrong.
        if any(row.subscription == subscription for row in await client.subscriptions(topic)):
            return 0
        raise SubscriptionNotFoundError(topic, subscription)
    moved = 0
    async with client.subscribe(
        letters,
        REDRIVE,
        start="earliest",
        # A letter that cannot be moved stays where it is.
        max_deliveries=0,
        pull=True,
        buffer_bytes=LETTERS_BYTES,
    ) as sub:
        left = await _lag(client, letters)
        while left > 0 and (count is None or moved < count):
            some = await sub.fetch(min(left, LETTERS_AT_ONCE), timeout=client.link.timeout_s)
            if not some:
                break
            # Subscriptions may share a topic for their letters: the others' stay.
            own = [m for m in some if _is_of(m, topic, subscription)]
            if count is not None:
                own = own[: count - moved]
            async with client.transaction() as tx:
                for msg in own:
                    origin = msg.attributes.get(ORIGIN, topic)
                    # Without its id: the stream knows that one, and would not store it again.
                    tx.send(
                        origin,
                        msg.payload,
                        key=msg.key,
                        attributes=_original(msg),
                        schema=msg.schema,
                    )
                    tx.ack(msg)
            moved += len(own)
            left -= len(some)
        # Letters of other subscriptions were looked at, and nothing was wrong with them.
        await sub.close(release=True)
    return moved


def _is_of(msg: Message, topic: str, subscription: str) -> bool:
    """Whether a letter is one of a subscription on a topic, on its partitions, or on a pattern."""
    origin = msg.attributes.get(ORIGIN, topic)
    return msg.attributes.get(OWNER, subscription) == subscription and matches(topic, origin)


def _original(msg: Message) -> Attributes:
    """Return the attributes that a message had before it became a dead letter."""
    return {name: text for name, text in msg.attributes.items() if name not in ADDED}


async def _letters_topic(client: "Client", topic: str, subscription: str) -> str:
    for row in await client.subscriptions(topic):
        named = row.cursor.settings.dead_letter_topic if row.cursor is not None else ""
        if row.subscription == subscription and named:
            return named
    if is_wildcard(topic):
        raise BadRequestError(
            f"the dead letters of {topic} are kept topic by topic: name one without wildcards"
        )
    # As the broker names it; also of a subscription that was deleted since.
    word = re.sub(r"[^\w-]", "_", subscription)
    return f"{topic}-{word}-dlq"


async def _lag(client: "Client", letters: str) -> int:
    """Return how many letters there are that were not moved."""
    for row in await client.subscriptions(letters):
        if row.subscription == REDRIVE and row.cursor is not None:
            return row.cursor.lag
    return 0
