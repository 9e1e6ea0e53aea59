"""Cron rules as they are in the store, and what is to be changed about them. Calls of a store.

A rule is a row of a topic that nobody sees, beside the topic its messages go to. The row has the
state of the rule and the payload of its messages; its attributes and its group are theirs.

Always true:
- a message of a rule is made in the same step as the state that says so is stored, on the condition
  that the row is what it was when that was decided: one message for each slot, whoever tries;
- a message that was made ahead of its time is removed in the same step as its rule is changed;
- the version of a rule, as its owners see it, rises when one of them changes it, and not when it
  fires. It is never given twice, also to rules of one id made one after the other: it is the
  version of its row when it was made, and one above that of its row before it was changed.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from ister.base import CronReport
from ister.base.errors import (
    CorruptedError,
    IsterError,
    MessageChangedError,
    MessageNotFoundError,
    NotOwnerError,
    StorageFailedError,
)
from ister.timeline.calls import Call, as_ister_error
from ister.timeline.cron.firing import (
    CronState,
    Decision,
    decide,
    decode_state,
    encode_state,
    is_ahead,
    leave,
    pause,
    resume,
    revise,
    start_state,
    take_back,
)
from ister.timeline.cron.rule import CronRule, firing_id
from ister.timeline.model import FAR, Delete, Put, Row, Update
from ister.timeline.port import Store

# How long before they are due messages are made: the window of a timeline, so that consumers are
# sent them as early as any other.
AHEAD_MS = 10_000

RuleChange = Put | Update | Delete


class Place(NamedTuple):
    """Where rules are, and where their messages go: numbers of topics."""

    rules: int
    messages: int


class Found(NamedTuple):
    """A rule as it was read."""

    row: Row
    rule: CronRule
    state: CronState
    payload: bytes
    # The message of the slot that fired last, while it is not done.
    last: Row | None

    @property
    def id(self) -> str:
        """Its id."""
        return self.row.id

    @property
    def version(self) -> int:
        """Its version, as its owners see it."""
        return self.state.revision or self.row.seq


class Plan(NamedTuple):
    """What a rule does now: changes to be made together, and when to look again."""

    id: str
    changes: list[RuleChange]
    # None: when somebody changes it.
    wake_ms: int | None
    # The number of a message: when it is done, look at once.
    waits_for: int | None


class Edit(NamedTuple):
    """What a rule becomes by a change of its owner."""

    state: CronState
    payload: bytes
    attributes: bytes


# Returns what becomes of a rule at a time. None: it is to be removed.
Editing = Callable[[Found, CronState, int], Edit] | None


class RuleRow(NamedTuple):
    """A rule, told as a message is: due when it fires next."""

    row: Row
    report: CronReport


class Prepared(NamedTuple):
    """A change by an owner that is ready to be made."""

    changes: list[RuleChange]
    # The version of the rule afterwards.
    version: int
    # Whether there was something else to do first: then it is to be prepared again.
    again: bool = False


# Reading


def get(store: Store, place: Place, id: str) -> Found:
    """Return a rule, or raise `MessageNotFoundError`."""
    row = store.get(place.rules, id)
    if row is None:
        raise MessageNotFoundError(id)
    return read(store, place, row)


def read(store: Store, place: Place, row: Row) -> Found:
    """Return the rule that a row is of, or raise `CorruptedError`."""
    name = f"cron rule {row.id!r}"
    try:
        packed, payload = _decoder.decode(row.payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptedError(name, 0, f"it does not decode: {error}") from None
    rule, state = decode_state(packed, name)
    last = None
    if state.last_slot_ms:
        last = store.get(place.messages, firing_id(row.id, state.last_slot_ms))
    return Found(row, rule, state, payload, last)


def tell_one(store: Store, place: Place, id: str, now_ms: int) -> RuleRow:
    """Return what to tell of a rule, or raise `MessageNotFoundError`."""
    return _describe(get(store, place, id), now_ms)


def tell_page(
    store: Store, place: Place, after: tuple[int, int], limit: int, now_ms: int
) -> list[RuleRow]:
    """Return what to tell of a page of rules, as they were made, behind a place."""
    rows = page(store, place, after, limit)
    return [_describe(read(store, place, row), now_ms) for row in rows]


def page(store: Store, place: Place, after: tuple[int, int], limit: int) -> list[Row]:
    """Return the rows of rules behind a place: position and number of one."""
    return store.page(place.rules, -FAR, FAR, after, limit)


def preview_one(
    store: Store, place: Place, id: str, now_ms: int, count: int
) -> tuple[str, list[int]]:
    """Return the zone of a rule, and when its next messages are due."""
    found = get(store, place, id)
    return found.rule.zone, _coming(found, now_ms, count)


def preview_rule(_: Store, rule: CronRule, now_ms: int, count: int) -> tuple[str, list[int]]:
    """Return the zone of a rule that is in no topic, and its next slots."""
    return rule.zone, rule.preview(now_ms, count)


def _describe(found: Found, now_ms: int) -> RuleRow:
    report = report_of(found, now_ms)
    row = found.row._replace(version=found.version, due_ms=report.next_ms, payload=found.payload)
    return RuleRow(row, report)


def report_of(found: Found, now_ms: int) -> CronReport:
    """Return what to tell of a rule."""
    rule, state = found.rule, found.state
    coming = [] if state.paused else _coming(found, now_ms, 1)
    if _is_to_come(found, now_ms):
        state = take_back(state, now_ms)
    return CronReport(
        expression=rule.expression,
        zone=rule.zone,
        jitter_ms=rule.jitter_ms,
        catch_up_ms=rule.catch_up_ms,
        overlap=rule.overlap.value,
        paused=state.paused,
        next_ms=coming[0] if coming else 0,
        last_ms=state.last_slot_ms,
        buffered_ms=state.buffered_ms,
        fired=state.fired,
        missed=state.missed,
        skipped=state.skipped,
    )


def _coming(found: Found, now_ms: int, count: int) -> list[int]:
    """Return when the next messages of a rule are due; of one that is paused, if it were resumed.

    Slots that are due already and not decided yet are left out: whether they fire is not known.
    """
    rule, state = found.rule, found.state
    if _is_to_come(found, now_ms):
        slots = rule.preview(state.decided_ms, count)[: count - 1]
        return [state.ahead_due_ms, *(rule.due_ms(found.id, slot_ms) for slot_ms in slots)]
    after_ms = max(state.decided_ms, now_ms) if state.paused else _passed_ms(found, now_ms)
    return [rule.due_ms(found.id, slot_ms) for slot_ms in rule.preview(after_ms, count)]


def _is_to_come(found: Found, now_ms: int) -> bool:
    """Return whether the message of the last slot waits for its time."""
    # It is gone when it was dealt with before the clock was set back, or its owner deleted it.
    return found.last is not None and is_ahead(found.state, now_ms)


def _passed_ms(found: Found, now_ms: int) -> int:
    """Return up to when slots are decided, or were due before now."""
    rule = found.rule
    # With jitter the next message may be of a slot that has passed.
    start_ms = max(found.state.decided_ms, now_ms - rule.jitter_ms - 1)
    slot_ms = rule.next_slot(start_ms)
    if slot_ms is None or rule.due_ms(found.id, slot_ms) >= now_ms:
        return start_ms

    # Many have: each is due before the next one, so that the last of them decides.
    def is_behind(after_ms: int) -> bool:
        slot_ms = rule.next_slot(after_ms)
        return slot_ms is None or slot_ms > now_ms

    last_ms = start_ms + bisect_left(range(start_ms, now_ms), True, key=is_behind)
    return last_ms - (rule.due_ms(found.id, last_ms) >= now_ms)


# What a rule does


def plan_all(
    store: Store, place: Place, ids: Sequence[str], now_ms: int
) -> "list[Plan | IsterError]":
    """Return what rules do now, each for itself; `MessageNotFoundError` for one that is gone.

    Raises `StorageFailedError` for all: each might wait as long as the first one did, and what is
    found afterwards may be what another broker has made of it.
    """
    return [_planned(store, partial(plan_one, place=place, id=name, now_ms=now_ms)) for name in ids]


def plan_rows(
    store: Store, place: Place, rows: Sequence[Row], now_ms: int
) -> "list[Plan | IsterError]":
    """Return what the rules of some rows do now; raises as `plan_all`."""
    return [_planned(store, partial(plan_row, place=place, row=row, now_ms=now_ms)) for row in rows]


def plan_page(
    store: Store, place: Place, after: tuple[int, int], limit: int, now_ms: int
) -> "tuple[list[Row], list[Plan | IsterError]]":
    """Return a page of rows, and what their rules do now."""
    rows = page(store, place, after, limit)
    return rows, plan_rows(store, place, rows, now_ms)


def _planned(store: Store, call: Call[Plan]) -> Plan | IsterError:
    try:
        return call(store)
    except StorageFailedError:
        raise
    except Exception as error:  # noqa: BLE001 - one that is odd is not to keep others from firing
        return as_ister_error(error)


def plan_one(store: Store, place: Place, id: str, now_ms: int) -> Plan:
    """Return what a rule does now, or raise `MessageNotFoundError`."""
    return plan(store, place, get(store, place, id), now_ms)


def plan_row(store: Store, place: Place, row: Row, now_ms: int) -> Plan:
    """Return what the rule of a row does now."""
    return plan(store, place, read(store, place, row), now_ms)


def plan(store: Store, place: Place, found: Found, now_ms: int) -> Plan:
    """Return what a rule does now."""
    last = found.last
    decision = decide(
        found.rule,
        found.state,
        found.id,
        now_ms=now_ms,
        is_running=last is not None,
        ahead_ms=AHEAD_MS,
    )
    waits_for = last.seq if last is not None and decision.state.buffered_ms else None
    return Plan(found.id, _changes(store, place, found, decision), decision.wake_ms, waits_for)


def _changes(store: Store, place: Place, found: Found, decision: Decision) -> list[RuleChange]:
    if decision.state == found.state and not decision.firings:
        return []
    stored = Edit(decision.state, found.payload, found.row.attributes)
    return [_storing(place, found, stored), *_puts(store, place, found, decision)]


def _storing(place: Place, found: Found, edit: Edit) -> Update:
    row = found.row
    packed = pack(edit.state, edit.payload)
    return Update(place.rules, row.id, row.group, packed, edit.attributes, row.version)


def _puts(store: Store, place: Place, found: Found, decision: Decision) -> list[Put]:
    row = found.row
    return [
        Put(place.messages, name, row.group, due_ms, found.payload, row.attributes)
        for name, _, due_ms in decision.firings
        # It is there when somebody has put a copy of the rules back that is older than it.
        if store.get(place.messages, name) is None
    ]


# What its owner does


def first_row(
    place: Place,
    id: str,
    group: str,
    rule: CronRule,
    payload: bytes,
    attributes: bytes,
    now_ms: int,
) -> Put:
    """Return what makes a rule: it fires in the slots behind `now_ms`."""
    packed = pack(start_state(rule, now_ms), payload)
    # Listings go by the due time: rules are listed as they were made.
    return Put(place.rules, id, group, now_ms, packed, attributes)


def editing_rule(
    rule: CronRule | None, payload: bytes, attributes: bytes
) -> Callable[[Found, CronState, int], Edit]:
    """Return what gives a rule other messages, and other times if `rule` is given."""
    return partial(_revised, rule, payload, attributes)


def _revised(
    rule: CronRule | None,
    payload: bytes,
    attributes: bytes,
    _: Found,
    state: CronState,
    now_ms: int,
) -> Edit:
    return Edit(state if rule is None else revise(state, rule, now_ms), payload, attributes)


def pausing_rule(found: Found, state: CronState, _: int) -> Edit:
    """Have a rule make nothing."""
    paused = state if state.paused else pause(state)
    return Edit(paused, found.payload, found.row.attributes)


def resuming_rule(found: Found, state: CronState, now_ms: int) -> Edit:
    """Have a rule go on with the slots to come."""
    return Edit(resume(state, now_ms), found.payload, found.row.attributes)


def prepare(
    store: Store,
    place: Place,
    id: str,
    *,
    group: str,
    version: int,
    editing: Editing,
    now_ms: int,
    begun_ms: int,
) -> Prepared:
    """Return the changes that make one of an owner; raise why it is refused.

    What was due by `begun_ms` has begun, though the clock may be behind that.
    """
    row = store.get(place.rules, id)
    if row is None:
        raise MessageNotFoundError(id)
    if row.group != group:
        raise NotOwnerError(id, row.group)
    removing = Delete(place.rules, id, group, row.version)
    try:
        found = read(store, place, row)
    except CorruptedError:
        # It is good for nothing: its zone is not known any more, or worse.
        if editing is None:
            return Prepared([removing], row.version)
        raise
    if version not in (0, found.version):
        raise MessageChangedError(id, found.version)
    state, taken = _taken_back(place, found, now_ms, begun_ms)
    if editing is None:
        return Prepared([removing, *taken], found.version)
    if editing(found, found.state, now_ms) == (found.state, found.payload, row.attributes):
        return Prepared([], found.version)
    is_running = found.last is not None
    decision = decide(found.rule, state, id, now_ms=now_ms, is_running=is_running)
    if decision.wake_ms is not None and decision.wake_ms <= now_ms:
        # Far behind. What is due by the rule as it is comes first.
        return Prepared(_changes(store, place, found, decision), found.version, again=True)
    edit = editing(found, decision.state, now_ms)
    revision = row.version + 1
    edit = edit._replace(state=msgspec.structs.replace(edit.state, revision=revision))
    puts = _puts(store, place, found, decision)
    return Prepared([_storing(place, found, edit), *puts, *taken], revision)


def _taken_back(
    place: Place, found: Found, now_ms: int, begun_ms: int
) -> tuple[CronState, list[Delete]]:
    """Return the state without what was fired ahead, and what removes its message.

    Unless somebody has dealt with it: the clock may have been put back, or its due time. Then it
    stays for good, also when the broker that knows of this is gone.
    """
    state, last = found.state, found.last
    if last is None or not is_ahead(state, begun_ms):
        return leave(state), []
    is_prefetched = bool(last.holder) and begun_ms < last.due_ms
    if last.leases > is_prefetched:
        return leave(state), []
    return take_back(state, now_ms), [Delete(place.messages, last.id, last.group, last.version)]


def pack(state: CronState, payload: bytes) -> bytes:
    """Return what is stored of a rule, but its attributes."""
    return _encoder.encode((encode_state(state), payload))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[bytes, bytes])
