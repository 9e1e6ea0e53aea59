"""What a journal says beside batches: changes of topics, subscriptions and cursors.

Changes are MessagePack arrays with their name first. They say what is true afterwards, not what
to add to what was before, so that replaying some of them twice changes nothing. Fields are only
ever added at the end, with a default.
"""

from typing import TypeAlias

import msgspec

from ister.base import AckSettings, StreamSettings

Runs: TypeAlias = list[tuple[int, int]]
# Start, end, failures.
FailedRuns: TypeAlias = list[tuple[int, int, int]]


class _Change(msgspec.Struct, array_like=True, tag=True, tag_field="change", frozen=True):
    """One change."""


class NamespaceCreated(_Change, frozen=True):
    """A namespace exists."""

    namespace: str


class NamespaceDeleted(_Change, frozen=True):
    """A namespace is gone."""

    namespace: str


class PartitionedCreated(_Change, frozen=True):
    """A partitioned topic has so many partitions, which are topics of their own."""

    name: str
    partitions: int


class PartitionedDeleted(_Change, frozen=True):
    """A partitioned topic is gone."""

    name: str


class TopicCreated(_Change, frozen=True):
    """A stream topic exists, with these settings. Its number is never used again.

    Of a topic that is known already: it has other settings from here on.
    """

    topic: int
    name: str
    settings: StreamSettings


class TopicDeleted(_Change, frozen=True):
    """A stream topic is gone, with its messages and every cursor on it."""

    topic: int


class TopicTrimmed(_Change, frozen=True):
    """Messages below an offset are gone."""

    topic: int
    first_offset: int


class SubscriptionCreated(_Change, frozen=True):
    """A durable subscription exists."""

    subscription: int
    pattern: str
    name: str
    type: str
    policy: str
    filters: dict[str, str]
    key_filters: list[str]
    acks: AckSettings
    # Of a pattern: whether it covers work queues that are made later.
    work_queues: bool = False
    # One that is not ends with its last consumer.
    durable: bool = True
    # After so long without consumers it ends; 0: never.
    expire_after_ms: int = 0
    # Since when it has had none, by the wall clock; 0: it has some, or that is not known.
    idle_since_ms: int = 0


class SubscriptionDeleted(_Change, frozen=True):
    """A durable subscription is gone."""

    subscription: int


class SubscriptionPaused(_Change, frozen=True):
    """Deliveries of a subscription rest, or go on."""

    subscription: int
    paused: bool


class CursorMoved(_Change, frozen=True):
    """A cursor stands at an offset, with nothing acknowledged beyond it."""

    subscription: int
    topic: int
    offset: int


class TopicsCovered(_Change, frozen=True):
    """Each of the subscriptions covers each of the topics, from its first message on.

    A topic with many partitions may appear under many subscriptions with wildcards: a `CursorMoved`
    for each of both would hold up the event loop.
    """

    subscriptions: list[int]
    topics: list[int]


class Acked(_Change, frozen=True):
    """Runs of messages are acknowledged."""

    subscription: int
    topic: int
    runs: Runs


class Failed(_Change, frozen=True):
    """Deliveries of runs of messages went wrong so many times."""

    subscription: int
    topic: int
    runs: FailedRuns


class Confirmed(_Change, frozen=True):
    """Runs of messages were acknowledged under leases of a subscription: lease, start, end.

    `Acked` says that they are acknowledged. With this, a repeated acknowledgement is told after a
    restart from one of a consumer that had lost the message.
    """

    subscription: int
    runs: list[tuple[int, int, int]]


class CursorSaved(_Change, frozen=True):
    """Where the cursors of a subscription stood, under a name."""

    subscription: int
    name: str
    # See `cursormaps.py`.
    cursors: msgspec.Raw


class CursorDropped(_Change, frozen=True):
    """A saved cursor is forgotten."""

    subscription: int
    name: str


class TransactionDone(_Change, frozen=True):
    """A transaction was carried out; a repetition is answered with these offsets.

    `time_ms` is from `CommitAnswers.stamp`, not a wall time.
    """

    transaction: str
    offsets: list[int]
    time_ms: int
    # By batch, when some of it was known before by its ids: the offset of each message, of those
    # known as a negative number, its bits turned round.
    each: dict[int, list[int]] = {}
    # Who committed it, as the client calls itself.
    client: str = ""


class Sequenced(_Change, frozen=True):
    """Messages of a producer were taken, though not all were stored: some had known ids.

    Of delayed messages: those that were leased under these versions, of the timeline that is named
    as the producer, are stored.
    """

    topic: int
    producer: str
    first_sequence: int
    count: int


class SeriesPublished(_Change, frozen=True):
    """Number `number` of a series is published, and so nothing up to it ever will be again."""

    series: str
    number: int
    time_ms: int


Change: TypeAlias = (
    NamespaceCreated
    | NamespaceDeleted
    | PartitionedCreated
    | PartitionedDeleted
    | TopicCreated
    | TopicDeleted
    | TopicTrimmed
    | SubscriptionCreated
    | SubscriptionDeleted
    | SubscriptionPaused
    | CursorMoved
    | TopicsCovered
    | Acked
    | Failed
    | Confirmed
    | CursorSaved
    | CursorDropped
    | TransactionDone
    | Sequenced
    | SeriesPublished
)

encode_changes = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[list[Change]] = msgspec.msgpack.Decoder(list[Change])


def decode_changes(body: bytes | memoryview) -> list[Change]:
    """Return the changes of a journal entry, or raise `ValueError` (msgspec's own)."""
    return _decoder.decode(body)
