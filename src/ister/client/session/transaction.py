"""A transaction before it leaves, without I/O: messages and acknowledgements, then their frames.

    collecting --stage--> staged --frames, as often as it takes--> committed, or not

Always true:
- nothing is sent while it is collected, so that leaving it is giving it up;
- once staged it never changes: a repetition under the same word is the same transaction;
- it holds at most `TRANSACTION_BYTES_MAX`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.base import partition_name
from ister.base.errors import (
    BadRequestError,
    LeaseLostError,
    LimitReachedError,
    MessageTooLargeError,
)
from ister.base.limits import (
    TRANSACTION_ACKS_MAX,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_IDS_MAX,
    TRANSACTION_TOPICS_MAX,
)
from ister.client.session.checks import (
    as_bytes,
    attributes_size,
    check_expected_of_partitions,
    check_extras,
    check_schema,
    check_topic,
    expected_offset_of,
    no_lease_in_transaction,
)
from ister.client.session.ids import MessageIds, Stored, places_of
from ister.client.session.producing.producer import MESSAGE_OVERHEAD_BYTES, cut_batches
from ister.codec import NO_SCHEMA, Attributes, SchemaRef, encode
from ister.topics import Router
from ister.wire import Opcode, expecting, publish_frame

if TYPE_CHECKING:
    from ister.client.session.consuming.leases import Lease, Leases

# The channel of a consumer, and a run of messages that it has leased: lease, first offset, end.
AckRun = tuple[int, int, int, int]

# A lease that no message ever had. A transaction that acknowledges under it is refused, unless it
# was carried out before: which is what a repetition wants to know once its leases are void. Their
# own numbers must not be used, as the broker may have given them to others since.
NO_LEASE = 2**64 - 1


class Leased(Protocol):
    """A message that its consumer can acknowledge."""

    def leased(self) -> "Lease":
        """Return its lease; raise when it is no message of a stream."""

    def run(self) -> AckRun:
        """Return the consumer's channel and what the lease is on."""

    def on_acked(self) -> None:
        """It was acknowledged, in a transaction: its lease needs no more care."""


class _Message(NamedTuple):
    topic: str
    payload: bytes
    key: str | None
    attributes: Attributes | None
    id: str | None
    schema: SchemaRef
    # As `expecting` takes it.
    expected: int | None

    @property
    def size_bytes(self) -> int:
        """About how many bytes it adds to a batch, but for the overhead."""
        return (
            len(self.payload)
            + len(self.key or "")
            + attributes_size(self.attributes)
            + len(self.id or "")
        )


class Draft:
    """A transaction that is being collected."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._messages: list[_Message] = []
        self._topics: dict[str, None] = {}
        # How many of them have ids.
        self._ids = 0
        self._acked: list[Leased] = []
        # Whether it takes nothing more.
        self.ended = False

    @property
    def topics(self) -> list[str]:
        """The topics that messages go to, as they were named."""
        return list(self._topics)

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None,
        attributes: Attributes | None,
        id: str | None,
        message_bytes_max: int,
        schema: SchemaRef = NO_SCHEMA,
        expected_offset: int | None = None,
        expected_key_offset: int | None = None,
    ) -> None:
        """Add a message. Raises what a producer would, and `LimitReachedError` when it is full."""
        self.check_open()
        topic = check_topic(topic)
        payload = as_bytes(payload)
        if len(payload) > message_bytes_max:
            raise MessageTooLargeError(topic, len(payload), message_bytes_max)
        check_extras(key, attributes, id)
        check_schema(schema)
        expected = expected_offset_of(expected_offset, expected_key_offset, key)
        # A copy: callers fill one dictionary again for the next message.
        attributes = attributes and dict(attributes)
        message = _Message(topic, payload, key, attributes, id, schema, expected)
        size_bytes = self.size_bytes + message.size_bytes + MESSAGE_OVERHEAD_BYTES
        if size_bytes > TRANSACTION_BYTES_MAX:
            raise LimitReachedError("transaction_bytes_max", TRANSACTION_BYTES_MAX)
        if topic not in self._topics and len(self._topics) >= TRANSACTION_TOPICS_MAX:
            raise LimitReachedError("transaction_topics_max", TRANSACTION_TOPICS_MAX)
        if id is not None and self._ids >= TRANSACTION_IDS_MAX:
            raise LimitReachedError("transaction_ids_max", TRANSACTION_IDS_MAX)
        self._ids += id is not None
        self.size_bytes = size_bytes
        self._messages.append(message)
        self._topics[topic] = None

    def ack(self, msg: Leased) -> None:
        """Add an acknowledgement. Raises `LeaseLostError` when it is known to come too late."""
        self.check_open()
        if not hasattr(msg, "leased"):
            raise no_lease_in_transaction(msg)
        _check_lease(msg)
        self._acked.append(msg)

    def end(self) -> None:
        """Take nothing more; harmless when ended."""
        self.ended = True

    def stage(self, routers: Mapping[str, Router], batch_bytes: int) -> "Staged":
        """Encode everything and take nothing more.

        `routers` has the partitioned ones among the topics. Raises `LimitReachedError` when the
        messages make too many batches or go to too many topics, or when the acknowledgements make
        too many runs.
        """
        self.end()
        messages, self._messages = self._messages, []
        routed: dict[str, list[int]] = {}
        for slot, message in enumerate(messages):
            topic = message.topic
            if (router := routers.get(topic)) is not None:
                if message.expected is not None:
                    check_expected_of_partitions(topic, router.partitions, message.expected)
                topic = partition_name(topic, router.route(message.key))
            routed.setdefault(topic, []).append(slot)
        if len(routed) > TRANSACTION_TOPICS_MAX:
            raise LimitReachedError("transaction_topics_max", TRANSACTION_TOPICS_MAX)
        staged = Staged(self._acked)
        if len(self._acked) > TRANSACTION_ACKS_MAX < len(staged.acks()):
            raise LimitReachedError("transaction_acks_max", TRANSACTION_ACKS_MAX)
        for topic, slots in routed.items():
            staged.add(topic, slots, [messages[slot] for slot in slots], batch_bytes)
        return staged

    def check_open(self) -> None:
        """Raise `BadRequestError` when it has ended."""
        if self.ended:
            raise BadRequestError("the transaction has ended: begin another one")


class Staged:
    """A transaction as it is sent, once or again."""

    def __init__(self, acked: list[Leased]) -> None:
        self._acked = acked
        # What the broker knows the batches' topics by: their slot in here.
        self.topics: list[str] = []
        # Opcode, slot of the topic, and the batch.
        self._batches: list[tuple[int, int, bytes, bytes]] = []
        self._counts: list[int] = []
        # The messages, in the order of the batches.
        self._order: list[int] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self._batches and not self._acked

    @property
    def leases(self) -> "list[Leases]":
        """Those that its acknowledgements depend on, as far as they are not void already."""
        found = (msg.leased() for msg in self._acked)
        return list(dict.fromkeys(lease.leases for lease in found if not lease.void))

    def add(self, topic: str, slots: list[int], messages: list[_Message], batch_bytes: int) -> None:
        """Add the messages of one topic, which were sent in the order of `slots`."""
        number = len(self.topics)
        self.topics.append(topic)
        self._order += slots
        for some in _runs(messages):
            for start, end, _ in cut_batches([m.size_bytes for m in some], batch_bytes):
                if len(self._batches) == TRANSACTION_BATCHES_MAX:
                    raise LimitReachedError("transaction_batches_max", TRANSACTION_BATCHES_MAX)
                self._batches.append(_stage(number, some[start:end]))
                self._counts.append(end - start)

    def check_leases(self) -> None:
        """Raise `LeaseLostError` when a message is known to be somebody else's by now."""
        for msg in self._acked:
            _check_lease(msg)

    def acks(self) -> list[AckRun]:
        """Return the acknowledgements as they are sent now."""
        runs = []
        for msg in self._acked:
            channel, lease, start, end = msg.run()
            runs.append((channel, NO_LEASE if msg.leased().void else lease, start, end))
        return merge_runs(runs)

    def frames(self, channel: int) -> list[bytes]:
        """Return the frames that stage the batches on `channel`."""
        frames: list[bytes] = []
        for opcode, number, head, body in self._batches:
            frames += publish_frame(channel, number, head, body, opcode=opcode)
        return frames

    def on_committed(
        self, offsets: Sequence[int], each: Mapping[int, list[int]] | None = None
    ) -> MessageIds:
        """It was carried out: return the ids of the messages, in the order they were sent.

        `each` has the offsets of all messages of those batches of which some were known by their
        ids. Raises `BadRequestError` when the broker has told of another number of batches.
        """
        if len(offsets) != len(self._batches):
            raise BadRequestError(
                f"broker stored {len(offsets)} batches of {len(self._batches)}: see its log"
            )
        each = each or {}
        counts = dict(enumerate(self._counts))
        if any(len(some) != counts.get(slot) for slot, some in each.items()):
            raise BadRequestError("broker told of more or fewer messages than there were")
        stored = [
            Stored(self.topics[number], offset, count, each.get(slot))
            for slot, ((_, number, _, _), count, offset) in enumerate(
                zip(self._batches, self._counts, offsets, strict=True)
            )
        ]
        for msg in self._acked:
            msg.on_acked()
        return MessageIds(stored, places_of(self._order))


def merge_runs(runs: Sequence[AckRun]) -> list[AckRun]:
    """Return the same acknowledgements in as few runs as possible."""
    merged: list[AckRun] = []
    for run in sorted(runs):
        channel, lease, start, end = run
        if merged and merged[-1][:2] == (channel, lease) and start <= merged[-1][3]:
            merged[-1] = (*merged[-1][:3], max(end, merged[-1][3]))
        else:
            merged.append(run)
    return merged


def _check_lease(msg: Leased) -> None:
    lease = msg.leased()
    if lease.void:
        raise LeaseLostError(lease.topic, msg.run()[2])


def _runs(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    """Cut messages into runs of one schema; one that expects something is a run of its own."""
    run: list[_Message] = []
    for message in messages:
        if run and (
            message.expected is not None
            or run[0].expected is not None
            or message.schema != run[0].schema
        ):
            yield run
            run = []
        run.append(message)
    if run:
        yield run


def _stage(number: int, messages: list[_Message]) -> tuple[int, int, bytes, bytes]:
    """Return what the frame is made of that stages messages for the topic at slot `number`."""
    head, body = _encode(messages)
    expected = messages[0].expected
    if expected is None:
        return Opcode.STAGE, number, head, body
    return Opcode.STAGE_EXPECT, number, expecting(head, expected), body


def _encode(messages: list[_Message]) -> tuple[bytes, bytes]:
    """Return a batch without a producer: a transaction is known by its word alone."""
    keys = [message.key for message in messages]
    attributes = [message.attributes for message in messages]
    ids = [message.id for message in messages]
    return encode(
        [message.payload for message in messages],
        keys=keys if any(key is not None for key in keys) else None,
        attributes=attributes if any(attributes) else None,
        ids=ids if any(id_ is not None for id_ in ids) else None,
        schema=messages[0].schema,
    )
