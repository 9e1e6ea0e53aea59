"""Moves a stream between the data folder and the object store of a broker that is stopped.

    HERE --copied, checkpoint there--> BOTH --deleted here, checkpoint here--> THERE

Always true:
- offsets, messages with all they have, settings, producers, ids and cursors are there as they were
  here. Only numbers are others: those of the topic, and of subscriptions;
- until the checkpoint there, nothing there has changed; from then on the stream here is one too
  many, and all that is left to do is to delete it. A broker does not start with both;
- before anything is copied, the stream here gets the durability that it will have there. So a
  stream that is left of a move is told from another one of the same name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from ister.base import find_partition, namespace_of, partition_name
from ister.base.errors import BadRequestError, TopicNotFoundError
from ister.broker.state import (
    Change,
    CursorSaved,
    NamespaceCreated,
    PartitionedCreated,
    PartitionedDeleted,
    State,
    SubscriptionDeleted,
    SubscriptionPaused,
    SubscriptionRecord,
    TopicCreated,
    TopicDeleted,
    TopicRecord,
    decode_cursors,
    encode_cursors,
)
from ister.broker.storage.stopped_log import StoppedLog
from ister.log import plan_relocation
from ister.subscriptions import Cursor


@dataclass(slots=True)
class Relocated:
    """What was moved."""

    partitions: int = 0
    size_bytes: int = 0
    subscriptions: int = 0


def relocate(
    source: StoppedLog,
    target: StoppedLog,
    name: str,
    durability: str,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Relocated:
    """Move a stream, or all partitions of one, from one log to another. Blocks.

    A move that was interrupted is finished, and one that is finished already changes nothing.
    `on_progress` is called with the bytes copied since the last time.
    Raises `TopicNotFoundError`, `BadRequestError` when the other log has another stream of the
    name, and what the logs raise.
    """
    partition = find_partition(name)
    if (
        partition is not None
        and partition[0] in source.state.partitioned | target.state.partitioned
    ):
        raise BadRequestError(f"{name} is a partition: move {partition[0]}, with all of them")
    here, there = _records_of(source.state, name), _records_of(target.state, name)
    if not here:
        if not there:
            raise TopicNotFoundError(name)
        # A move the other way was given up before anything was copied, or there was none.
        _set_durability(target, there, durability)
        return Relocated()
    done = Relocated(partitions=len(here))
    if there:
        _check_same(here, there, name, durability)
    else:
        _set_durability(source, here, durability)
        _copy(source, target, here, name, done, on_progress)
    _delete(source, here, name)
    return done


def _records_of(state: State, name: str) -> list[TopicRecord]:
    """Return the topic of a name, or its partitions in order; none when it is not there."""
    by_name = {record.name: record for record in state.topics.values()}
    if name in state.partitioned:
        return [by_name[partition_name(name, n)] for n in range(state.partitioned[name])]
    return [by_name[name]] if name in by_name else []


def _set_durability(stopped: StoppedLog, records: list[TopicRecord], durability: str) -> None:
    """Have it in the journal; a file that was found at the start is sealed by that."""
    stopped.record(
        TopicCreated(one.topic, one.name, replace(one.settings, durability=durability))
        for one in records
    )


def _copy(
    source: StoppedLog,
    target: StoppedLog,
    here: list[TopicRecord],
    name: str,
    done: Relocated,
    on_progress: Callable[[int], None],
) -> None:
    # Seals a file that was found: what it says of the name is not replayed on what comes now.
    target.record()
    first = target.state.topic_number + 1
    numbers = {record.topic: first + slot for slot, record in enumerate(here)}
    for rewrite in plan_relocation(source.log, target.log, numbers, source.horizon):
        rewrite.run(on_progress)
        target.log.rewritten(rewrite)
        done.size_bytes += rewrite.figures.written_bytes
    done.subscriptions = _adopt(source, target.state, numbers, name)
    # Leases of consumers that are still there must not be taken for leases of the other log.
    target.checkpoint(epoch_min=source.log.epoch)


def _adopt(source: StoppedLog, state: State, numbers: Mapping[int, int], name: str) -> int:
    """Put what the source knows of topics into a state; return how many subscriptions follow."""
    # Of its own: what is here is still to be read, and to be deleted.
    copy = State(source.budgets)
    copy.restore(source.state.encode())
    changes: list[Change] = []
    if (namespace := namespace_of(name)) in copy.namespaces:
        changes.append(NamespaceCreated(namespace))
    if name in copy.partitioned:
        changes.append(PartitionedCreated(name, copy.partitioned[name]))
    state.on_changes(changes)
    for number, there in numbers.items():
        record = copy.topics.pop(number)
        record.topic = state.topic_number = there
        state.topics[there] = record
    followers = [one for one in copy.subscriptions.values() if one.cursors.keys() & numbers]
    for follower in followers:
        _adopt_subscription(follower, state, numbers)
    copy.close()
    return len(followers)


def _adopt_subscription(
    follower: SubscriptionRecord, state: State, numbers: Mapping[int, int]
) -> None:
    """Put the cursors of a subscription into a state, which may know it by its other topics."""
    record = next((o for o in state.subscriptions.values() if _is_same(o, follower)), None)
    if record is None:
        created = msgspec.structs.replace(
            follower.created, subscription=state.subscription_number + 1
        )
        state.on_changes([created, SubscriptionPaused(created.subscription, follower.paused)])
        record = state.subscriptions[created.subscription]
        record.redelivered = follower.redelivered
        record.dead_lettered = follower.dead_lettered
    record.cursors |= {
        there: follower.cursors[here] for here, there in numbers.items() if here in follower.cursors
    }
    for name, data in follower.saved.items():
        saved = decode_cursors(data)
        moved = {there: saved[here] for here, there in numbers.items() if here in saved}
        known = decode_cursors(record.saved[name]) if name in record.saved else {}
        if moved:
            raw = msgspec.Raw(_encode(known | moved))
            state.on_changes([CursorSaved(record.created.subscription, name, raw)])


def _encode(cursors: Mapping[int, bytes]) -> bytes:
    encoding = encode_cursors({number: Cursor.decode(data) for number, data in cursors.items()})
    while True:
        try:
            next(encoding)
        except StopIteration as end:
            return bytes(end.value)


def _is_same(record: SubscriptionRecord, other: SubscriptionRecord) -> bool:
    created, others = record.created, other.created
    return (created.pattern, created.name) == (others.pattern, others.name)


def _check_same(
    here: list[TopicRecord], there: list[TopicRecord], name: str, durability: str
) -> None:
    """Raise `BadRequestError` unless what is there was moved there, and has all that is here."""
    is_copy = len(here) == len(there) and all(
        record.settings.durability == durability and record.next_offset <= moved.next_offset
        for record, moved in zip(here, there, strict=True)
    )
    if not is_copy:
        raise BadRequestError(
            f"the data folder and the object store both have a stream {name!r}, and one is not a "
            "copy of the other: start a broker with one of the two, and delete it there"
        )


def _delete(source: StoppedLog, here: list[TopicRecord], name: str) -> None:
    state = source.state
    names = {name, *(record.name for record in here)}
    changes: list[Change] = [TopicDeleted(record.topic) for record in here]
    if name in state.partitioned:
        changes.append(PartitionedDeleted(name))
    changes += [
        SubscriptionDeleted(number)
        for number, record in state.subscriptions.items()
        if record.created.pattern in names
    ]
    source.record(changes)
    state.drop_dead_cursors()
    source.checkpoint()
