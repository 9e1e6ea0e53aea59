"""Dead letters: messages delivered too often, kept in a topic of their own until somebody looks.

Always true:
- the dead letter and the acknowledgement of its original are one entry of the journal, when both
  topics are in one storage; else the dead letter comes first, so that nothing is lost;
- a subscription by pattern does not cover the topics of its own dead letters, which would go
  round for ever.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from ister.base import AckSettings, StreamSettings, TopicName, find_partition, parse_topic
from ister.base.errors import BadRequestError, IsterError
from ister.base.limits import ATTRIBUTES_COUNT_MAX, MIB, NAME_BYTES_MAX
from ister.broker.durable.partition import Partition
from ister.broker.durable.poison import PoisonPolicy
from ister.broker.state import Acked, Change
from ister.broker.storage import Write
from ister.broker.streams import StreamTopic
from ister.codec import NO_SCHEMA, Batch, Column, encode
from ister.subscriptions import keys_of
from ister.subscriptions.planning import TTL_ATTRIBUTE, Purpose, State, runs_of, slots_of

OnTopic = Callable[[StreamTopic | IsterError], object]

# Letters looked at in one go, and the payloads of one batch of them, one large message apart.
DEAD_LETTERS_AT_ONCE = 1_024
DEAD_LETTERS_BYTES = 1 * MIB
# How topics of dead letters end that nobody has named.
DEAD_LETTERS_ENDING = "-dlq"


class DeadLetters:
    """Puts dead messages where they belong.

    `broker` is the name of this one; `find_topic` finds a stream topic or makes it.
    """

    def __init__(
        self, broker: str, find_topic: Callable[[TopicName, StreamSettings, OnTopic], None]
    ) -> None:
        self._broker = broker
        self._find_topic = find_topic

    def put(self, partition: Partition, policy: PoisonPolicy) -> None:
        """Put what was delivered too often among the dead letters, and tell `policy` of that.

        What has to be read first is left: call again when it is there.
        """
        dead = partition.deliveries.exhausted(DEAD_LETTERS_AT_ONCE)
        waiting = [letter for letter in dead if letter[0] not in partition.dead.pending]
        while waiting:
            batch = partition.batch_at(waiting[0][0], Purpose.DEAD_LETTER)
            if batch is None and partition.is_gone(Purpose.DEAD_LETTER):
                policy.on_gone(partition, [waiting.pop(0)[0]])
                continue
            if batch is None:
                return
            end = batch.offsets[-1] + 1
            here = {offset: failures for offset, failures in waiting if offset < end}
            waiting = waiting[len(here) :]
            slots = slots_of(batch, list(here))
            if partition.state is State.RESTORING and partition.gate is not None:
                keys = keys_of(batch)
                partition.gate.admit([keys[s] for s in slots], [batch.offsets[s] for s in slots])
            gone = sorted(here.keys() - {batch.offsets[s] for s in slots})
            if gone:
                policy.on_gone(partition, gone)
            for some in _bundles(batch, slots):
                self._put(partition, policy, batch, some, [here[batch.offsets[s]] for s in some])
            batch.forget_columns()
        partition.end_reading(Purpose.DEAD_LETTER)
        if len(dead) < DEAD_LETTERS_AT_ONCE and partition.state is State.RESTORING:
            partition.state = State.OPEN

    def _put(
        self,
        partition: Partition,
        policy: PoisonPolicy,
        batch: Batch,
        slots: list[int],
        failures: list[int],
    ) -> None:
        cursor = partition.cursor
        offsets = [batch.offsets[s] for s in slots]
        letters = dead_letters(partition, policy, batch, slots, failures, broker=self._broker)
        for run in runs_of(offsets):
            partition.dead.pending.add(*run)

        def done(error: IsterError | None) -> None:
            policy.on_dead_lettered(partition, cursor, offsets, error)

        def on_topic(topic: StreamTopic | IsterError) -> None:
            if isinstance(topic, IsterError):
                done(topic)
                return
            if cursor is not partition.cursor or partition.topic.deleted:
                return  # The subscription was moved meanwhile: the message is not dead any more.
            try:
                _store(partition, topic, letters, offsets, done)
            except IsterError as error:
                done(error)

        try:
            name = parse_topic(dead_letter_topic(partition, policy))
            settings = StreamSettings(durability=partition.topic.record.settings.durability)
            self._find_topic(name, settings, on_topic)
        except IsterError as error:
            done(error)


def _bundles(batch: Batch, slots: Sequence[int]) -> list[list[int]]:
    """Divide messages so that each bundle makes a batch of a reasonable size."""
    ends = batch.payload_column.offsets
    bundles: list[list[int]] = []
    size_bytes = 0
    for slot in slots:
        payload_bytes = ends[slot + 1] - ends[slot]
        if not bundles or size_bytes + payload_bytes > DEAD_LETTERS_BYTES:
            bundles.append([])
            size_bytes = 0
        bundles[-1].append(slot)
        size_bytes += payload_bytes
    return bundles


def _store(
    partition: Partition,
    topic: StreamTopic,
    letters: Batch,
    offsets: list[int],
    done: Callable[[IsterError | None], object],
) -> None:
    storage = topic.storage
    storage.committer.check_room()
    topic.stamp(letters)
    acked: list[Change] = []
    if storage is partition.topic.storage:
        acked.append(Acked(*partition.numbers, runs_of(offsets)))
    # Not published as by a producer: two topics may have messages with one id, which are two.
    storage.commit(Write(batches=[(topic, letters)], journal_only=acked), done)


def dead_letter_topic(partition: Partition, policy: PoisonPolicy) -> str:
    """Return the name of the topic that a subscription's dead letters go to."""
    return policy.topic or default_dead_letter_topic(partition.topic.name, policy.subscription)


def dead_letter_name(topic: str, subscription: str) -> str:
    """Return where the dead letters of a topic, or of a partition of one, go if nobody says."""
    partition = find_partition(topic)
    base = partition[0] if partition is not None else topic
    return base + _ending(subscription)


def default_dead_letter_topic(topic: str, subscription: str) -> str:
    """Return `<topic>-<subscription>-dlq`, with what a topic's name cannot hold replaced."""
    name = dead_letter_name(topic, subscription)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise BadRequestError(f"{name!r} is too long: set `dead_letter_topic`")
    return name


def holds_own_dead_letters(topic: str, subscription: str, acks: AckSettings | None) -> bool:
    """Whether a topic is one for the dead letters of a subscription."""
    if acks is not None and acks.dead_letter_topic:
        return topic == acks.dead_letter_topic
    return topic.endswith(_ending(subscription))


def takes_dead_letters(name: str, named: Iterable[str | None]) -> bool:
    """Whether dead letters go to a topic of that name, or may do so when a subscription is made.

    `named` are the topics that subscriptions have named for them.
    """
    return name.endswith(DEAD_LETTERS_ENDING) or name in named


@lru_cache(maxsize=1_024)
def _ending(subscription: str) -> str:
    word = re.sub(r"[^\w-]", "_", subscription)
    return f"-{word}{DEAD_LETTERS_ENDING}"


def dead_letters(
    partition: Partition,
    policy: PoisonPolicy,
    batch: Batch,
    slots: Sequence[int],
    failures: Sequence[int],
    *,
    broker: str,
) -> Batch:
    """Return messages as dead letters: as they were, with where they come from and why."""
    rows = batch.attributes or [{}] * batch.count
    attributes = []
    for slot, attempts in zip(slots, failures, strict=True):
        added = {
            "x-original-topic": partition.topic.name,
            "x-original-subscription": policy.subscription,
            "x-original-topic-offset": str(batch.offsets[slot]),
            "x-original-producer": batch.producer,
            "x-original-producer-id": str(batch.producer_id),
            "x-original-broker-addr": broker,
            "x-delivery-attempt": str(attempts),
            "x-failure-reason": policy.reason_of(partition, batch.offsets[slot], attempts),
            "x-poison-policy": "dead_letter",
        }
        # A message may be a dead letter for the second time, and has them already. A limit of its
        # life ends here: a letter is kept until somebody looks.
        dropped = added.keys() | {TTL_ATTRIBUTE}
        row = {name: text for name, text in rows[slot].items() if name not in dropped}
        while len(row) + len(added) > ATTRIBUTES_COUNT_MAX:
            row.popitem()
        attributes.append(row | added)
    payloads, keys, ids = batch.payload_column, batch.keys, batch.ids
    ends = payloads.offsets
    times = batch.timestamps_ms if batch.columns & Column.TIMESTAMP else None
    head, body = encode(
        [bytes(payloads.blob[ends[s] : ends[s + 1]]) for s in slots],
        keys=[keys[s] for s in slots] if keys is not None else None,
        attributes=attributes,
        timestamps_ms=[times[s] for s in slots] if times is not None else None,
        ids=[ids[s] for s in slots] if ids is not None else None,
        schema=batch.schema or NO_SCHEMA,
    )
    return Batch(head + body)
