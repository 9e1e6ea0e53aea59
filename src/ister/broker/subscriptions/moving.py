"""Moves a durable subscription: every topic to another cursor, some topics in each step.

Always true:
- from the first step to the last, the subscription delivers nothing, and leases from before the
  move are void for its consumers;
- a topic moves at once, in the same step that writes its new cursor to the journal. So no
  acknowledgement from before the move comes after it in the journal;
- a crash between two steps leaves some topics moved and others not. The client has no answer then,
  and a retry moves all of them.
"""

from collections.abc import Callable, Sequence

from ister.base import Position
from ister.base.errors import IsterError, SubscriptionNotFoundError
from ister.broker.durable import DurableSubscription, Partition
from ister.broker.scheduling import Done, Latch, Steps
from ister.broker.state import Acked, Change, CursorMoved
from ister.broker.storage import Write
from ister.broker.streams import resolving
from ister.subscriptions import Cursor

# Topics moved in one step, at 50 µs each: below 2 ms.
TOPICS_PER_STEP = 32
# Runs of acknowledged messages that count as one more topic, at 0.4 µs each.
RUNS_PER_TOPIC = 128


def move(
    durable: DurableSubscription,
    partitions: Sequence[Partition],
    cursor_of: Callable[[Partition], Cursor | None],
    done: Done,
) -> Steps:
    """Have a subscription go on from other cursors; `None` leaves a topic where it is."""
    try:
        durable.storage.committer.check()
    except IsterError as error:
        done(error)
        return

    def on_moved(error: IsterError | None) -> None:
        # The answer first: a client drops everything that it received before.
        done(error)
        durable.end_move()

    latch = Latch(on_moved)
    durable.begin_move()
    part: list[tuple[Partition, Cursor]] = []
    changes: list[Change] = []
    work = 0
    for partition in partitions:
        # Gone, together with the subscription or alone.
        cursor = cursor_of(partition) if partition in partition.topic.followers else None
        if cursor is None:
            continue
        cursor.trim(partition.topic.first_offset)
        part.append((partition, cursor))
        changes.append(CursorMoved(*partition.numbers, cursor.floor))
        if cursor.acked:
            runs = cursor.acked.runs()
            changes.append(Acked(*partition.numbers, runs))
            work += len(runs) // RUNS_PER_TOPIC
        work += 1
        if work >= TOPICS_PER_STEP:
            _move_part(durable, part, changes, latch.add())
            part, changes, work = [], [], 0
            yield
    if durable.closed:
        latch.close(SubscriptionNotFoundError(durable.pattern, durable.name))
        return
    if part:
        _move_part(durable, part, changes, latch.add())
    latch.close()


def seek(
    durable: DurableSubscription,
    to: Position,
    do: Callable[[Steps], object],
    done: Done,
) -> Steps:
    """Find the offsets of a position, and have `do` move a subscription there."""
    partitions = list(durable.partitions)

    def on_resolved(found: dict[int, int] | IsterError) -> None:
        if isinstance(found, IsterError):
            done(found)
            return

        def cursor_of(partition: Partition) -> Cursor | None:
            offset = found.get(partition.topic.record.topic)
            return None if offset is None else Cursor(offset)

        do(move(durable, partitions, cursor_of, done))

    yield from resolving([partition.topic for partition in partitions], to, on_resolved)


def _move_part(
    durable: DurableSubscription,
    part: Sequence[tuple[Partition, Cursor]],
    changes: Sequence[Change],
    done: Done,
) -> None:
    def on_done(error: IsterError | None) -> None:
        if error is not None and not durable.closed:
            undo()
        done(error)

    # Not applied by the state, whose cursors these are: moving does that.
    durable.storage.commit(Write(journal_only=changes), on_done)
    undo = durable.move(dict(part))
