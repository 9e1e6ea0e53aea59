"""What becomes of messages that were delivered too often, as their subscription is set.

    dead_letter  they are put into the topic of the dead letters, then count as done
    drop         they count as done at once
    block        nothing is handed out while there are any: until somebody seeks, purges, or sets
                 the subscription otherwise. Where keys are shared, only the keys of such messages
                 wait, behind them in the gate

Always true: a message that is not done stays among the exhausted of its track, and is neither
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
from ister.broker.durable.partition import Again, Track
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

    def bury(self, track: Track) -> None:
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
        # Why messages were given back, by track and offset, the oldest first.
        self._reasons: OrderedDict[tuple[Track, int], str] = OrderedDict()
        # Tracks that may have messages which hold up everything.
        self._stuck: dict[Track, None] = {}

    @property
    def blocks(self) -> bool:
        """Whether nothing may be handed out."""
        while self._stuck:
            track = next(iter(self._stuck))
            if track.deliveries.any_exhausted:
                return True
            del self._stuck[track]
        return False

    @property
    def blocked(self) -> bool:
        """Whether something waits for somebody to see to it: all of it, or some keys."""
        if self._subscription.acks.poison != Poison.BLOCK:
            return False
        return any(track.deliveries.any_exhausted for track in self._subscription.tracks)

    def on_reason(self, track: Track, offsets: range, reason: str) -> None:
        """A consumer has said why it gave messages back. A restart forgets that."""
        reason = reason.encode(errors="replace")[:NACK_REASON_BYTES_MAX].decode(errors="ignore")
        for offset in offsets[:NACK_REASONS_MAX]:
            self._reasons.pop((track, offset), None)
            self._reasons[track, offset] = reason
            if len(self._reasons) > NACK_REASONS_MAX:
                self._reasons.popitem(last=False)

    def reason_of(self, track: Track, offset: int, failures: int) -> str:
        """Return why a message is dead, as its letter says."""
        default = f"not acknowledged in {failures} deliveries"
        return self._reasons.get((track, offset), default)

    def forget(self, track: Track) -> bool:
        """A track is gone, or starts over; return whether it may have held up the others."""
        for place in [place for place in self._reasons if place[0] is track]:
            del self._reasons[place]
        return self._stuck.pop(track, track) is None

    def on_begun(self, track: Track) -> None:
        """A track begins, maybe with messages that went wrong in a former life of the broker."""
        if not track.deliveries.any_exhausted:
            return
        if self._subscription.acks.poison == Poison.BLOCK:
            self._block(track)
        # Not at once: at the start of a broker, not all of it is there yet.
        self._alarm.watch(track, self._clock.monotonic_ms())

    def on_set(self, track: Track) -> None:
        """The subscription is set otherwise."""
        self._stuck.pop(track, None)
        track.deliveries.change(self._subscription.acks, besides=track.burying)
        track.bury_again_ms = 0
        track.held_back = track.held_back and track.deliveries.any_exhausted
        self.treat(track)

    def treat(self, track: Track) -> None:
        """Do with a track's messages what is to be done, unless that failed just now."""
        if not track.deliveries.any_exhausted or self._clock.monotonic_ms() < track.bury_again_ms:
            return
        poison = self._subscription.acks.poison
        if poison == Poison.BLOCK:
            self._block(track)
        elif poison == Poison.DROP:
            self._drop(track)
        else:
            self._undertaker.bury(track)

    def watch(self, track: Track) -> None:
        """Look at a track when dead letters are to be tried again."""
        if track.deliveries.any_exhausted and track.bury_again_ms > self._clock.monotonic_ms():
            self._alarm.watch(track, track.bury_again_ms)

    # Dead letters

    def on_gone(self, track: Track, offsets: Sequence[int]) -> None:
        """Messages that were delivered too often are not there any more."""
        self._settle(track, runs_of(offsets))

    def on_buried(
        self, track: Track, cursor: Cursor, offsets: Sequence[int], error: IsterError | None
    ) -> None:
        """Messages are among the dead letters, or could not be put there."""
        subscription = self._subscription
        runs = runs_of(offsets)
        if error is None:
            self._subscription.record.dead_lettered += len(offsets)
        if subscription.was_moved(track, cursor, runs if error is None else ()):
            return
        for run in runs:
            track.burying.discard(*run)
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
                        topic=track.topic.name,
                        subscription=subscription.name,
                        reason=str(error),
                        times=times,
                    )
            track.bury_again_ms = now_ms + delay_ms
            subscription.watch(track)
            return
        self._settle(track, runs)
        if track.deliveries.any_exhausted:
            # In another turn: when none can be buried, each would tell of the next.
            self._alarm.watch(track, now_ms)
        subscription.dispatch.add(track)
        subscription.dispatch.pump()

    def _settle(self, track: Track, runs: Sequence[tuple[int, int]]) -> None:
        for start, end in runs:
            track.deliveries.skip(start, end)
            self._subscription.on_acked(track, start, end)

    # Dropping, blocking

    def _drop(self, track: Track) -> None:
        # What is among the letters as good as now is not dropped.
        dead = track.deliveries.exhausted_besides(track.burying)
        self.dropped += dead.count
        track.held_back = False
        self._settle(track, dead.runs())

    def _block(self, track: Track) -> None:
        if track.gate is not None:
            if track.held_back:
                self._show_gate(track)
            return
        dead = track.deliveries.exhausted(1)
        if dead and track not in self._stuck:
            self._stuck[track] = None
            if times := self._told.times("subscription_blocked"):
                self._logger.warning(
                    "subscription_blocked",
                    topic=track.topic.name,
                    subscription=self._subscription.name,
                    offset=dead[0][0],
                    times=times,
                )

    def _show_gate(self, track: Track) -> None:
        """After a start, have later messages of their keys wait behind those that block them.

        What has to be read first is left: call again when it is there.
        """
        gate, deliveries = track.gate, track.deliveries
        assert gate is not None
        while dead := list(
            deliveries.exhausted_besides(track.burying, track.shown).lowest(SHOWN_AT_ONCE).offsets()
        ):
            batch = track.old_batch(dead[0], Again.DEAD_LETTER)
            if batch is None and track.is_gone(Again.DEAD_LETTER):
                self.on_gone(track, dead[:1])
                continue
            if batch is None:
                return
            here = [offset for offset in dead if offset <= batch.offsets[-1]]
            slots = slots_of(batch, here)
            shown = [batch.offsets[s] for s in slots]
            keys = keys_of(batch)
            gate.admit([keys[s] for s in slots], shown)
            for run in runs_of(shown):
                track.shown.add(*run)
            self.on_gone(track, sorted(set(here).difference(shown)))
            batch.forget_columns()
        track.end_reading(Again.DEAD_LETTER)
        track.held_back = False
