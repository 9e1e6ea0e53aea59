"""What a cron rule does next: which slots fire now, which are missed, when to look again.

Always true:
- a slot is decided once: up to `decided_ms` all of them are, and it never goes back, also when the
  clock does. Whoever makes the messages of a decision stores the new state together with them;
- slots fire in their order, each as a message of its own id. One slot of a rule at most is fired
  *ahead*: its message is made shortly before it is due, so that it can be sent to a consumer in
  time. Until then it can be taken back, and the slot is as if it had never been decided;
- a slot that is due for longer than the catch-up window is missed, and counted;
- `skip` and `buffer` hold among slots that are caught up with as well: of some that are due at
  once the first fires, and the others meet it running;
- while a rule is paused nothing fires, and what passes by is neither fired later nor missed.
"""

from typing import Annotated, NamedTuple

import msgspec

from ister.base.errors import BadRequestError, CorruptedError
from ister.timeline.cron.rule import CronRule, Overlap, firing_id, parse_rule
from ister.timeline.cron.zone import TIME_MS_MAX

# Of one decision. A slot takes 10 µs of the event loop, with jitter 20: 10 ms at most; and so many
# messages are well made in one transaction. Who is further behind is to come again at once.
SLOTS_MAX = 500
FIRINGS_MAX = 100

_Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class CronState(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as it is stored, and how far it is."""

    expression: str
    zone: str
    jitter_ms: int
    catch_up_ms: int
    overlap: str
    # Slots up to here are decided: at first, when the rule was made.
    decided_ms: _Time
    paused: bool = False
    # The slot that fired last, and the one before it; 0: none has.
    last_slot_ms: _Time = 0
    prior_slot_ms: _Time = 0
    # When the message of the last slot is due, if it was made before that; else 0. And up to where
    # slots were decided then; 0: that was not noted yet.
    ahead_due_ms: _Time = 0
    ahead_decided_ms: _Time = 0
    # The slot that waits until the firing before it is done; 0: none does.
    buffered_ms: _Time = 0
    fired: _Count = 0
    # Nobody was there in time.
    missed: _Count = 0
    # The firing before was not done in time.
    skipped: _Count = 0
    # What tells this rule from what it was before its owner changed it; 0: nobody has.
    revision: _Count = 0


class Firing(NamedTuple):
    """A message to be made, of that id, due at that time."""

    id: str
    slot_ms: int
    due_ms: int


class Decision(NamedTuple):
    """What to do: make these messages and store the state, in one step, and look again."""

    state: CronState
    firings: list[Firing]
    # When to look again; at once if it is not later than now. None: there is no slot to come.
    wake_ms: int | None


def start_state(rule: CronRule, now_ms: int) -> CronState:
    """Return the state of a new rule: it fires in the slots behind `now_ms`."""
    return CronState(
        expression=rule.expression,
        zone=rule.zone,
        jitter_ms=rule.jitter_ms,
        catch_up_ms=rule.catch_up_ms,
        overlap=rule.overlap.value,
        decided_ms=now_ms,
    )


def revise(state: CronState, rule: CronRule, now_ms: int) -> CronState:
    """Return the state of a rule that was given another expression, zone or policy.

    What is due by the old one and not decided yet goes by the new one: call `decide` before.
    """
    return msgspec.structs.replace(
        state,
        expression=rule.expression,
        zone=rule.zone,
        jitter_ms=rule.jitter_ms,
        catch_up_ms=rule.catch_up_ms,
        overlap=rule.overlap.value,
        decided_ms=max(state.decided_ms, now_ms),
    )


def pause(state: CronState) -> CronState:
    """Have nothing fire until `resume`; a slot that waits is dropped.

    So is what is due and not decided yet: call `decide` before.
    """
    return msgspec.structs.replace(
        state, paused=True, buffered_ms=0, skipped=state.skipped + bool(state.buffered_ms)
    )


def resume(state: CronState, now_ms: int) -> CronState:
    """Have the slots behind `now_ms` fire again. Harmless when it is not paused."""
    if not state.paused:
        return state
    return msgspec.structs.replace(state, paused=False, decided_ms=max(state.decided_ms, now_ms))


def is_ahead(state: CronState, now_ms: int) -> bool:
    """Return whether the message of the last slot was made, and is not due yet."""
    return now_ms < state.ahead_due_ms


def take_back(state: CronState, now_ms: int) -> CronState:
    """Return the state without the slot that was fired ahead, whose message is to be removed."""
    assert is_ahead(state, now_ms)
    return msgspec.structs.replace(
        state,
        # What was decided before it stays so, also when the clock is behind that by now.
        decided_ms=state.ahead_decided_ms or state.last_slot_ms - 1,
        last_slot_ms=state.prior_slot_ms,
        prior_slot_ms=0,
        ahead_due_ms=0,
        ahead_decided_ms=0,
        fired=state.fired - 1,
    )


def leave(state: CronState) -> CronState:
    """Return the state whose last slot is not to be taken back any more."""
    return msgspec.structs.replace(state, ahead_due_ms=0, ahead_decided_ms=0)


def decide(
    rule: CronRule,
    state: CronState,
    id: str,
    *,
    now_ms: int,
    is_running: bool,
    ahead_ms: int = 0,
) -> Decision:
    """Return what fires now, and what is due in the next `ahead_ms`.

    `is_running`: the firing before is not done. While it is, nothing fires ahead: whether it will
    be in time is not known. To be asked when it is `wake_ms`, after a start, and when a firing is
    done.
    """
    if state.paused:
        return Decision(state, [], None)
    turn = _Turn(rule, state, id, is_running=is_running)
    waits_until_ms = turn.fire_buffered(now_ms)
    if waits_until_ms is not None:
        return Decision(state, [], waits_until_ms)
    turn.miss_slots(now_ms)
    slots = 0
    slot_ms, due_ms = turn.next_slot()
    while due_ms is not None and due_ms <= now_ms:
        if slots == SLOTS_MAX or len(turn.firings) >= FIRINGS_MAX:
            return Decision(turn.state(), turn.firings, now_ms)
        slots += 1
        turn.decide(slot_ms, due_ms, late=now_ms - due_ms > rule.catch_up_ms)
        slot_ms, due_ms = turn.next_slot()
    if due_ms is None:
        return Decision(turn.state(), turn.firings, None)
    if due_ms - ahead_ms > now_ms:
        return Decision(turn.state(), turn.firings, due_ms - ahead_ms)
    if is_ahead(state, now_ms):
        return Decision(turn.state(), turn.firings, min(state.ahead_due_ms, due_ms))
    if not turn.is_free:
        return Decision(turn.state(), turn.firings, due_ms)
    turn.decide_ahead(slot_ms, due_ms)
    # No other one is fired ahead before this one is due.
    _, next_ms = turn.next_slot()
    wake_ms = None if next_ms is None else max(next_ms - ahead_ms, due_ms)
    return Decision(turn.state(), turn.firings, wake_ms)


def encode_state(state: CronState) -> bytes:
    """Return a state as bytes."""
    return _encoder.encode(state)


def decode_state(data: bytes, name: str) -> tuple[CronRule, CronState]:
    """Return a rule and its state, or raise `CorruptedError` that names `name`."""
    try:
        state = _decoder.decode(data)
        rule = parse_rule(
            state.expression,
            state.zone,
            jitter_ms=state.jitter_ms,
            catch_up_ms=state.catch_up_ms,
            overlap=state.overlap,
        )
    except (msgspec.MsgspecError, ValueError, RecursionError, BadRequestError) as error:
        raise CorruptedError(name, 0, f"the cron rule does not decode: {error}") from None
    return rule, state


class _Turn:
    """A decision being made."""

    def __init__(self, rule: CronRule, state: CronState, id: str, *, is_running: bool) -> None:
        self._rule = rule
        self._state = state
        self._id = id
        self._running = is_running
        self._decided_ms = state.decided_ms
        self._buffered_ms = state.buffered_ms
        self._missed = 0
        self._skipped = 0
        self._ahead_due_ms = state.ahead_due_ms
        self._ahead_decided_ms = state.ahead_decided_ms
        self.firings: list[Firing] = []

    @property
    def is_free(self) -> bool:
        """Whether a slot that is due fires."""
        return self._rule.overlap is Overlap.ALLOW or not self._running

    def next_slot(self) -> tuple[int, int | None]:
        """Return the next slot and when it is due; that is None when there is no slot."""
        slot_ms = self._rule.next_slot(self._decided_ms)
        if slot_ms is None or slot_ms > TIME_MS_MAX:
            return 0, None
        return slot_ms, self._rule.due_ms(self._id, slot_ms)

    def fire_buffered(self, now_ms: int) -> int | None:
        """Fire the slot that waits, if it may; return its time when that is still to come."""
        # A rule that was revised to allow overlaps may still have one, and those behind it would
        # overtake it.
        if self._buffered_ms and self.is_free:
            due_ms = self._rule.due_ms(self._id, self._buffered_ms)
            # The clock has gone back; all slots behind it are due later.
            if due_ms > now_ms:
                return due_ms
            self._fire(self._buffered_ms, due_ms)
            self._buffered_ms = 0
        return None

    def decide(self, slot_ms: int, due_ms: int, *, late: bool) -> None:
        self._decided_ms = slot_ms
        # The one before it is due as well, and would take this one back with it.
        self._leave()
        if late:
            self._missed += 1
        elif self.is_free:
            self._fire(slot_ms, due_ms)
        elif self._rule.overlap is Overlap.BUFFER and not self._buffered_ms:
            self._buffered_ms = slot_ms
        else:
            self._skipped += 1

    def miss_slots(self, now_ms: int) -> None:
        """Decide at once what an interval has missed: in a year of downtime 30 million slots."""
        # Later than any slot of these is due, with its jitter.
        until_ms = now_ms - self._rule.catch_up_ms - self._rule.jitter_ms - 1
        count, last_ms = self._rule.count_slots(self._decided_ms, until_ms)
        if count:
            self._decided_ms = last_ms
            self._missed += count
            self._leave()

    def decide_ahead(self, slot_ms: int, due_ms: int) -> None:
        self._fire(slot_ms, due_ms)
        self._ahead_due_ms, self._ahead_decided_ms = due_ms, self._decided_ms
        self._decided_ms = slot_ms

    def state(self) -> CronState:
        old, fired = self._state, self.firings
        if self._decided_ms == old.decided_ms and not fired:
            return old
        slots = [old.prior_slot_ms, old.last_slot_ms, *(firing.slot_ms for firing in fired)]
        return msgspec.structs.replace(
            old,
            decided_ms=self._decided_ms,
            last_slot_ms=slots[-1],
            prior_slot_ms=slots[-2],
            ahead_due_ms=self._ahead_due_ms,
            ahead_decided_ms=self._ahead_decided_ms,
            buffered_ms=self._buffered_ms,
            fired=old.fired + len(fired),
            missed=old.missed + self._missed,
            skipped=old.skipped + self._skipped,
        )

    def _fire(self, slot_ms: int, due_ms: int) -> None:
        self.firings.append(Firing(firing_id(self._id, slot_ms), slot_ms, due_ms))
        self._running = True
        self._leave()

    def _leave(self) -> None:
        self._ahead_due_ms = self._ahead_decided_ms = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CronState)
