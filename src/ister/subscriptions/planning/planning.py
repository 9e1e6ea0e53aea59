"""Decides what of a partition is handed out next: new messages, and those that came back.

Always true:
- nothing is planned beyond `room`, nor beyond the credit of its consumer;
- what is passed over on the way is skipped or stays due: no message is forgotten;
- work is done by batches and runs, for as long as there is time for it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

from ister.codec import Batch, Column
from ister.subscriptions.planning.effects import Deliver, Effect, Plannable, Purpose, Skip, State
from ister.subscriptions.planning.selection import fresh, runs_between, slots_between, slots_of
from ister.subscriptions.portions import NewRun

# Redeliveries of one batch looked at in one go.
REPEATS_AT_ONCE = 1_024
# Columns that tell which messages are handed out, or that there are holes between their offsets.
_LOOKED_AT = Column.ATTRIBUTES | Column.OFFSET


class Times(NamedTuple):
    """The clocks, and how long planning may take."""

    # For the age of messages.
    now_ms: int
    # For deadlines.
    elapsed_ms: Callable[[], int]
    # When the time for planning ends, by `elapsed_ms`.
    end_ms: int


class Strategy(Protocol):
    """How the messages of a batch are divided: one for each type of subscription."""

    # Whether messages leave in the order of their offsets, those that came back before others.
    in_order: bool

    @property
    def is_ready(self) -> bool:
        """Whether somebody can be sent something now."""

    @property
    def credit(self) -> int:
        """How many messages can be dealt with now."""

    def share(
        self, partition: Plannable, batch: Batch, slots: Sequence[int], attempt: int
    ) -> Iterator[Effect]:
        """Divide the messages at `slots`, as far as there is credit."""


def plan_new(
    partition: Plannable, strategy: Strategy, *, room: int, times: Times
) -> Iterator[Effect]:
    """Plan what is handed out for the first time, of one batch."""
    deliveries = partition.deliveries
    if partition.state is State.RESTORING and not deliveries.any_exhausted:
        # The last of them is among the dead letters by now, or retention has removed it.
        partition.state = State.OPEN
    if partition.state is not State.OPEN:
        return
    runs = deliveries.next_new(partition.end_offset, runs_max=1)
    if not runs:
        return
    start, end, attempt = runs[0]
    batch = partition.batch_at(start, Purpose.NEW)
    if batch is None:
        if partition.is_gone(Purpose.NEW):
            # Compaction has left nothing up to the end.
            yield Skip(start, partition.end_offset)
        return
    if strategy.in_order and _is_whole(batch, runs[0], partition, room, strategy.credit):
        # What most batches are: one consumer takes all of it, as it is.
        yield from strategy.share(partition, batch, range(batch.count), attempt)
        return
    batch_end = batch.offsets[-1] + 1
    slots: Sequence[int]
    if end >= batch_end:
        end = batch_end
        slots = slots_between(batch, start, end)
    else:
        # Some of the batch is acknowledged: go over the holes, not from hole to hole.
        more = deliveries.next_new(batch_end)
        runs = list(takewhile(lambda run: run.attempt == attempt, more))
        slots = [s for run in runs for s in slots_between(batch, run.start, run.end)]
        end = runs[-1].end
    wanted, looked = partition.selector.choose(
        batch,
        slots,
        ttl_ms=partition.ttl_ms,
        now_ms=times.now_ms,
        elapsed_ms=times.elapsed_ms,
        end_ms=times.end_ms,
    )
    if looked < len(slots):
        # The rest in another turn.
        end = batch.offsets[slots[looked - 1]] + 1
    chosen = wanted[: min(room, strategy.credit)]
    if len(wanted) != end - start:
        cut = end if len(chosen) == len(wanted) else batch.offsets[chosen[-1]] + 1
        yield from _pass_over(runs, cut, [batch.offsets[s] for s in chosen])
    if chosen:
        yield from strategy.share(partition, batch, chosen, attempt)
    if deliveries.position >= batch_end:
        # What was cut out of it or looked up in it is of no use any more.
        batch.forget_columns()


def _is_whole(batch: Batch, run: NewRun, partition: Plannable, room: int, credit: int) -> bool:
    """Whether a batch can go to the one consumer without a look at its messages."""
    count = batch.count
    return (
        not batch.columns & _LOOKED_AT
        and batch.base_offset == run.start
        and run.end - run.start >= count <= room
        and count <= credit
        and not partition.ttl_ms
        and partition.selector.takes_all
    )


def _pass_over(runs: Sequence[NewRun], cut: int, offsets: Sequence[int]) -> Iterator[Skip]:
    """Skip what is in `runs` below `cut` but not among `offsets` (rising)."""
    for start, run_end, _ in runs:
        end = min(run_end, cut)
        if start >= end:
            break
        within = offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]
        for passed in runs_between(start, end, within):
            yield Skip(*passed)


def plan_again(partition: Plannable, strategy: Strategy, *, times: Times) -> Iterator[Effect]:
    """Plan which messages that came back are handed out again, of one batch."""
    deliveries, purpose = partition.deliveries, Purpose.REDELIVERY
    now_ms = times.elapsed_ms()
    first = deliveries.due(now_ms, 1)
    if not first:
        partition.end_reading(purpose)
        if partition.state is State.REDELIVERING:
            partition.state = State.OPEN
        return
    offset = first[0].offsets[0]
    batch = partition.batch_at(offset, purpose)
    if batch is None and partition.is_gone(purpose):
        yield Skip(offset, offset + 1)
        return
    if strategy.in_order:
        # While it is read nothing that lies behind it may go, when order is all that counts.
        partition.state = State.REDELIVERING if batch is None else State.OPEN
    if batch is None:
        return
    end = batch.offsets[-1] + 1
    offsets, attempt = deliveries.due(now_ms, REPEATS_AT_ONCE, end=end)[0]
    slots = fresh(batch, slots_of(batch, offsets), ttl_ms=partition.ttl_ms, now_ms=times.now_ms)
    if len(slots) < len(offsets):
        # Gone in the meantime, by retention, compaction or age.
        left = [batch.offsets[s] for s in slots]
        for offset in sorted(set(offsets).difference(left)):
            yield Skip(offset, offset + 1)
    if slots:
        yield from strategy.share(partition, batch, slots, attempt)
    batch.forget_columns()


def cut(effect: Deliver) -> Batch:
    """Return the messages to deliver as a batch: the producer's own when it is all of one."""
    batch, slots = effect.batch, effect.slots
    if len(slots) == batch.count:
        return batch
    if isinstance(slots, range):
        return batch.slice(slots.start, slots.stop)
    return batch.select(slots)
