"""What becomes of messages that were delivered too often, as their subscription is set.

    dead_letter  they are put into the topic of the dead letters, then count as done
    drop         they count as done at once
    block        nothing is handed out while there are any: until somebody seeks, purges, or sets
                 the subscription otherwise. Where keys are shared, only the keys of such messages
                 wait, behind them in the gate

Always true: a message that is not done stays among the exhausted of its partition, and is neither
handed out nor forgotten.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import structlog

from ister.base import AckSettings, Clock, Poison
from ister.base.errors import IsterError, StorageFailedError, StorageUncertainError
from ister.base.limits import NACK_REASON_BYTES_MAX, NACK_REASONS_MAX
from ister.broker.durable.deadlines import Deadlines
from ister.broker.durable.partition import Partition
from ister.broker.state import SubscriptionRecord
from ister.subscriptions import Cursor, keys_of
from ister.subscriptions.planning import Purpose, State, runs_of, slots_of
from ister.telemetry import Occasions

# How often dead letters that could not be written are tried again.
RETRY_MS = 1_000
# How long dead letters wait that their topic did not take, until an operator has seen to it.
REFUSED_RETRY_MS = 30_000
# Messages looked at in one go, to find their keys.
SHOWN_AT_ONCE = 1_024


class DeadLetterSink(Protocol):
    """Takes messages that were delivered too often."""

    def put(self, partition: Partition, policy: "PoisonPolicy") -> None:
        """Put them into the topic of the dead letters; `policy` is told of each outcome."""


class Host(Protocol):
    """A subscription, as the treatment of its dead messages sees it."""

    record: SubscriptionRecord

    @property
    def name(self) -> str:
        """What consumers call it."""

    @property
    def acks(self) -> AckSettings:
        """How it treats what is not acknowledged."""

    @property
    def partitions(self) -> Collection[Partition]:
        """Its topics."""

    def was_moved(
        self, partition: Partition, cursor: Cursor, acked: Sequence[tuple[int, int]]
    ) -> bool:
        """Whether a partition has another cursor than when something was begun."""

    def skip(self, partition: Partition, runs: Sequence[tuple[int, int]]) -> None:
        """Count messages as done that nobody holds."""


class PoisonPolicy:
    """What a subscription does with messages that were delivered too often."""

    __slots__ = (
        "_clock",
        "_deadlines",
        "_host",
        "_logger",
        "_reasons",
        "_sink",
        "_stuck",
        "_throttle",
        "_treating",
        "dropped",
    )

    def __init__(
        self,
        host: Host,
        *,
        clock: Clock,
        deadlines: Deadlines,
        sink: DeadLetterSink,
        throttle: Occasions,
    ) -> None:
        """`throttle` limits the log for all subscriptions together."""
        self.dropped = 0
        self._treating = False
        self._host = host
        self._clock = clock
        self._deadlines = deadlines
        self._sink = sink
        self._throttle = throttle
        self._logger: Any = structlog.get_logger("subscription")
        # Why messages were given back, by partition and offset, the oldest first.
        self._reasons: OrderedDict[tuple[Partition, int], str] = OrderedDict()
        # Partitions that may have messages which hold up everything.
        self._stuck: dict[Partition, None] = {}

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._host.name

    @property
    def topic(self) -> str | None:
        """The topic of the dead letters, if it was named."""
        return self._host.acks.dead_letter_topic or None

    @property
    def blocks(self) -> bool:
        """Whether nothing may be handed out."""
        while self._stuck:
            partition = next(iter(self._stuck))
            if partition.deliveries.any_exhausted:
                return True
            del self._stuck[partition]
        return False

    @property
    def blocked(self) -> bool:
        """Whether something waits for somebody to see to it: all of it, or some keys."""
        if self._host.acks.poison != Poison.BLOCK:
            return False
        return any(partition.deliveries.any_exhausted for partition in self._host.partitions)

    def record_reason(self, partition: Partition, offsets: range, reason: str) -> None:
        """A consumer has said why it gave messages back. A restart forgets that."""
        reason = reason.encode(errors="replace")[:NACK_REASON_BYTES_MAX].decode(errors="ignore")
        for offset in offsets[:NACK_REASONS_MAX]:
            self._reasons.pop((partition, offset), None)
            self._reasons[partition, offset] = reason
            if len(self._reasons) > NACK_REASONS_MAX:
                self._reasons.popitem(last=False)

    def reason_of(self, partition: Partition, offset: int, failures: int) -> str:
        """Return why a message is dead, as its letter says."""
        default = f"not acknowledged in {failures} deliveries"
        return self._reasons.get((partition, offset), default)

    def forget(self, partition: Partition) -> bool:
        """A partition is gone, or starts over; return whether it may have held up the others."""
        for place in [place for place in self._reasons if place[0] is partition]:
            del self._reasons[place]
        return self._stuck.pop(partition, partition) is None

    def on_begun(self, partition: Partition) -> None:
        """A partition begins, maybe with messages that failed before the broker was restarted."""
        if not partition.deliveries.any_exhausted:
            return
        if self._host.acks.poison == Poison.BLOCK:
            self._block(partition)
        # Not at once: at the start of a broker, not all of it is there yet.
        self._deadlines.schedule(partition, self._clock.monotonic_ms())

    def on_changed(self, partition: Partition) -> None:
        """The subscription has another policy, or other limits: `treat` follows."""
        self._stuck.pop(partition, None)
        partition.deliveries.change(self._host.acks, besides=partition.dead.pending)
        partition.dead.retry_ms = 0

    def treat(self, partition: Partition) -> None:
        """Do with a partition's dead messages what is to be done, unless that failed just now."""
        if self._treating:
            return  # One of them is skipped, which changes the partition.
        if self._clock.monotonic_ms() < partition.dead.retry_ms:
            self._deadlines.schedule(partition, partition.dead.retry_ms)
            return
        poison = self._host.acks.poison
        self._treating = True
        try:
            if poison == Poison.BLOCK:
                self._block(partition)
            elif poison == Poison.DROP:
                self._drop(partition)
            else:
                self._sink.put(partition, self)
        finally:
            self._treating = False

    # Dead letters

    def on_gone(self, partition: Partition, offsets: Sequence[int]) -> None:
        """Messages that were delivered too often are not there any more."""
        self._host.skip(partition, runs_of(offsets))

    def on_dead_lettered(
        self, partition: Partition, cursor: Cursor, offsets: Sequence[int], error: IsterError | None
    ) -> None:
        """Messages are among the dead letters, or could not be put there."""
        runs = runs_of(offsets)
        if error is None:
            self._host.record.dead_lettered += len(offsets)
        if self._host.was_moved(partition, cursor, runs if error is None else ()):
            return
        for run in runs:
            partition.dead.pending.discard(*run)
        now_ms = self._clock.monotonic_ms()
        if error is None:
            self._host.skip(partition, runs)
            if partition.deliveries.any_exhausted:
                # In another turn: when none can be put there, each would tell of the next.
                self._deadlines.schedule(partition, now_ms)
            return
        # They wait, and nothing is lost.
        delay_ms = RETRY_MS
        if not isinstance(error, StorageFailedError | StorageUncertainError):
            # A topic that takes no dead letters, say.
            delay_ms = REFUSED_RETRY_MS
            if times := self._throttle.times("not_buried"):
                self._logger.warning(
                    "not_buried",
                    topic=partition.topic.name,
                    subscription=self._host.name,
                    reason=str(error),
                    times=times,
                )
        partition.dead.retry_ms = now_ms + delay_ms
        self._deadlines.schedule(partition, partition.dead.retry_ms)

    # Dropping, blocking

    def _drop(self, partition: Partition) -> None:
        # What is among the letters as good as now is not dropped.
        dead = partition.deliveries.exhausted_besides(partition.dead.pending)
        self.dropped += dead.count
        self._host.skip(partition, dead.runs())

    def _block(self, partition: Partition) -> None:
        if partition.gate is not None:
            if partition.state is State.RESTORING:
                self._show_gate(partition)
            return
        if partition not in self._stuck and (dead := partition.deliveries.exhausted(1)):
            self._stuck[partition] = None
            if times := self._throttle.times("subscription_blocked"):
                self._logger.warning(
                    "subscription_blocked",
                    topic=partition.topic.name,
                    subscription=self._host.name,
                    offset=dead[0][0],
                    times=times,
                )

    def _show_gate(self, partition: Partition) -> None:
        """After a start, have later messages of their keys wait behind those that block them.

        What has to be read first is left: call again when it is there.
        """
        gate, deliveries = partition.gate, partition.deliveries
        assert gate is not None
        while dead := list(
            deliveries.exhausted_besides(partition.dead.pending, partition.dead.shown)
            .lowest(SHOWN_AT_ONCE)
            .offsets()
        ):
            batch = partition.batch_at(dead[0], Purpose.DEAD_LETTER)
            if batch is None and partition.is_gone(Purpose.DEAD_LETTER):
                self.on_gone(partition, dead[:1])
                continue
            if batch is None:
                return
            here = [offset for offset in dead if offset <= batch.offsets[-1]]
            slots = slots_of(batch, here)
            shown = [batch.offsets[s] for s in slots]
            keys = keys_of(batch)
            gate.admit([keys[s] for s in slots], shown)
            for run in runs_of(shown):
                partition.dead.shown.add(*run)
            self.on_gone(partition, sorted(set(here).difference(shown)))
            batch.forget_columns()
        partition.end_reading(Purpose.DEAD_LETTER)
        partition.state = State.OPEN
