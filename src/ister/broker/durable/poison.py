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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from ister.base import Clock, Poison
from ister.base.errors import IsterError, StorageFailedError, StorageUncertainError
from ister.base.limits import NACK_REASON_BYTES_MAX, NACK_REASONS_MAX
from ister.broker.durable.deadlines import Alarm
from ister.broker.durable.partition import Again, Partition
from ister.broker.durable.selection import runs_of, slots_of
from ister.subscriptions import Cursor, keys_of
from ister.telemetry import Occasions

if TYPE_CHECKING:
    from ister.broker.durable.subscription import DurableSubscription

# How often dead letters that could not be written are tried again.
RETRY_MS = 1_000
# How long letters wait that their topic did not take, until an operator has seen to it.
BURY_AGAIN_MS = 30_000
# Messages looked at in one go, to find their keys.
SHOWN_AT_ONCE = 1_024


class Undertaker(Protocol):
    """Takes messages that were delivered too often."""

    def bury(self, partition: Partition) -> None:
        """Put them among the dead letters; `on_buried` is told, and `on_gone`."""


class Quarantine:
    """See the module."""

    __slots__ = (
        "_alarm",
        "_clock",
        "_logger",
        "_reasons",
        "_stuck",
        "_subscription",
        "_told",
        "_undertaker",
        "dropped",
    )

    def __init__(
        self,
        subscription: "DurableSubscription",
        *,
        clock: Clock,
        alarm: Alarm,
        undertaker: Undertaker,
        told: Occasions,
    ) -> None:
        """`told` throttles the log for all subscriptions together."""
        self.dropped = 0
        self._subscription = subscription
        self._clock = clock
        self._alarm = alarm
        self._undertaker = undertaker
        self._told = told
        self._logger: Any = structlog.get_logger("subscription")
        # Why messages were given back, by partition and offset, the oldest first.
        self._reasons: OrderedDict[tuple[Partition, int], str] = OrderedDict()
        # Partitions that may have messages which hold up everything.
        self._stuck: dict[Partition, None] = {}

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
        if self._subscription.acks.poison != Poison.BLOCK:
            return False
        return any(
            partition.deliveries.any_exhausted for partition in self._subscription.partitions
        )

    def on_reason(self, partition: Partition, offsets: range, reason: str) -> None:
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
        if self._subscription.acks.poison == Poison.BLOCK:
            self._block(partition)
        # Not at once: at the start of a broker, not all of it is there yet.
        self._alarm.watch(partition, self._clock.monotonic_ms())

    def on_set(self, partition: Partition) -> None:
        """The subscription is set otherwise."""
        self._stuck.pop(partition, None)
        partition.deliveries.change(self._subscription.acks, besides=partition.burying)
        partition.bury_again_ms = 0
        partition.held_back = partition.held_back and partition.deliveries.any_exhausted
        self.treat(partition)

    def treat(self, partition: Partition) -> None:
        """Do with a partition's messages what is to be done, unless that failed just now."""
        if (
            not partition.deliveries.any_exhausted
            or self._clock.monotonic_ms() < partition.bury_again_ms
        ):
            return
        poison = self._subscription.acks.poison
        if poison == Poison.BLOCK:
            self._block(partition)
        elif poison == Poison.DROP:
            self._drop(partition)
        else:
            self._undertaker.bury(partition)

    def watch(self, partition: Partition) -> None:
        """Look at a partition when dead letters are to be tried again."""
        if (
            partition.deliveries.any_exhausted
            and partition.bury_again_ms > self._clock.monotonic_ms()
        ):
            self._alarm.watch(partition, partition.bury_again_ms)

    # Dead letters

    def on_gone(self, partition: Partition, offsets: Sequence[int]) -> None:
        """Messages that were delivered too often are not there any more."""
        self._settle(partition, runs_of(offsets))

    def on_buried(
        self, partition: Partition, cursor: Cursor, offsets: Sequence[int], error: IsterError | None
    ) -> None:
        """Messages are among the dead letters, or could not be put there."""
        subscription = self._subscription
        runs = runs_of(offsets)
        if error is None:
            self._subscription.record.dead_lettered += len(offsets)
        if subscription.was_moved(partition, cursor, runs if error is None else ()):
            return
        for run in runs:
            partition.burying.discard(*run)
        now_ms = self._clock.monotonic_ms()
        if error is not None:
            # They wait, and nothing is lost.
            delay_ms = RETRY_MS
            if not isinstance(error, StorageFailedError | StorageUncertainError):
                # A topic that takes no letters, say.
                delay_ms = BURY_AGAIN_MS
                if times := self._told.times("not_buried"):
                    self._logger.warning(
                        "not_buried",
                        topic=partition.topic.name,
                        subscription=subscription.name,
                        reason=str(error),
                        times=times,
                    )
            partition.bury_again_ms = now_ms + delay_ms
            subscription.watch(partition)
            return
        self._settle(partition, runs)
        if partition.deliveries.any_exhausted:
            # In another turn: when none can be buried, each would tell of the next.
            self._alarm.watch(partition, now_ms)
        subscription.dispatch.add(partition)
        subscription.dispatch.pump()

    def _settle(self, partition: Partition, runs: Sequence[tuple[int, int]]) -> None:
        for start, end in runs:
            partition.deliveries.skip(start, end)
            self._subscription.on_acked(partition, start, end)

    # Dropping, blocking

    def _drop(self, partition: Partition) -> None:
        # What is among the letters as good as now is not dropped.
        dead = partition.deliveries.exhausted_besides(partition.burying)
        self.dropped += dead.count
        partition.held_back = False
        self._settle(partition, dead.runs())

    def _block(self, partition: Partition) -> None:
        if partition.gate is not None:
            if partition.held_back:
                self._show_gate(partition)
            return
        dead = partition.deliveries.exhausted(1)
        if dead and partition not in self._stuck:
            self._stuck[partition] = None
            if times := self._told.times("subscription_blocked"):
                self._logger.warning(
                    "subscription_blocked",
                    topic=partition.topic.name,
                    subscription=self._subscription.name,
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
            deliveries.exhausted_besides(partition.burying, partition.shown)
            .lowest(SHOWN_AT_ONCE)
            .offsets()
        ):
            batch = partition.old_batch(dead[0], Again.DEAD_LETTER)
            if batch is None and partition.is_gone(Again.DEAD_LETTER):
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
                partition.shown.add(*run)
            self.on_gone(partition, sorted(set(here).difference(shown)))
            batch.forget_columns()
        partition.end_reading(Again.DEAD_LETTER)
        partition.held_back = False
