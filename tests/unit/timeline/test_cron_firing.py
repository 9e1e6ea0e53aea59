"""What cron rules decide: firings, misses, overlaps, pauses, and what is stored of them."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.base.errors import CorruptedError
from ister.timeline.cron.firing import (
    FIRINGS_MAX,
    SLOTS_MAX,
    CronState,
    Decision,
    decide,
    decode_state,
    encode_state,
    pause,
    resume,
    revise,
    start_state,
    take_back,
)
from ister.timeline.cron.rule import CronRule, parse_rule

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
# A minute of 2026, in which nothing happens to clocks.
START_MS = 1_780_000_020_000


def minutely(**kwargs: object) -> tuple[CronRule, CronState]:
    rule = parse_rule("* * * * *", **kwargs)  # type: ignore[arg-type]
    return rule, start_state(rule, START_MS)


def slots_of(decision: Decision) -> list[int]:
    return [(firing.slot_ms - START_MS) // MINUTE_MS for firing in decision.firings]


def at(rule: CronRule, state: CronState, now_ms: int, *, is_running: bool = False) -> Decision:
    return decide(rule, state, "r", now_ms=START_MS + now_ms, is_running=is_running)


def test_a_slot_fires_when_it_is_due_and_not_before() -> None:
    rule, state = minutely()

    assert at(rule, state, MINUTE_MS - 1) == (state, [], START_MS + MINUTE_MS)
    found = at(rule, state, MINUTE_MS)

    assert slots_of(found) == [1]
    assert found.firings[0].due_ms == START_MS + MINUTE_MS
    assert found.wake_ms == START_MS + 2 * MINUTE_MS


def test_a_slot_that_is_decided_does_not_fire_again() -> None:
    rule, state = minutely()
    found = at(rule, state, MINUTE_MS)

    assert at(rule, found.state, MINUTE_MS).firings == []
    assert at(rule, found.state, 2 * MINUTE_MS - 1).firings == []


def test_a_clock_that_goes_back_fires_nothing_twice() -> None:
    rule, state = minutely(overlap="allow")
    state = at(rule, state, HOUR_MS // 2).state

    back = at(rule, state, 5 * MINUTE_MS)

    assert back.firings == []
    assert back.wake_ms == START_MS + 31 * MINUTE_MS
    assert slots_of(at(rule, back.state, 31 * MINUTE_MS)) == [31]


def test_with_jitter_a_slot_fires_when_its_jitter_is_over() -> None:
    rule, state = minutely(jitter_ms=30_000)
    due_ms = rule.due_ms("r", START_MS + MINUTE_MS) - START_MS

    assert at(rule, state, due_ms - 1).firings == []
    assert at(rule, state, due_ms - 1).wake_ms == START_MS + due_ms
    assert slots_of(at(rule, state, due_ms)) == [1]


# After a time without a broker


def test_slots_inside_the_catch_up_window_fire_and_older_ones_are_missed() -> None:
    rule, state = minutely(catch_up_ms=3 * MINUTE_MS, overlap="allow")

    found = at(rule, state, 10 * MINUTE_MS)

    assert slots_of(found) == [7, 8, 9, 10]
    assert (found.state.missed, found.state.fired) == (6, 4)


def test_a_slot_at_the_edge_of_the_window_fires_and_a_millisecond_later_it_is_missed() -> None:
    rule, state = minutely(catch_up_ms=10_000)

    assert slots_of(at(rule, state, MINUTE_MS + 10_000)) == [1]
    late = at(rule, state, MINUTE_MS + 10_001)

    assert late.firings == []
    assert late.state.missed == 1


def test_many_slots_are_decided_in_parts_that_are_asked_for_at_once() -> None:
    rule, state = minutely(catch_up_ms=150 * MINUTE_MS, overlap="allow")
    now_ms = 2_000 * MINUTE_MS
    found: list[int] = []

    decision = at(rule, state, now_ms)
    parts = 1
    while decision.wake_ms == START_MS + now_ms:
        assert len(decision.firings) <= FIRINGS_MAX
        found += slots_of(decision)
        decision = at(rule, decision.state, now_ms, is_running=bool(found))
        parts += 1
    found += slots_of(decision)

    assert found == list(range(1_850, 2_001))
    assert decision.state.missed == 1_849
    assert 2_000 // SLOTS_MAX <= parts <= 10


# Overlaps


def test_skip_drops_slots_while_the_firing_before_is_not_done() -> None:
    rule, state = minutely(overlap="skip")

    found = at(rule, state, 3 * MINUTE_MS, is_running=True)
    assert found.firings == []
    assert found.state.skipped == 3
    assert slots_of(at(rule, found.state, 4 * MINUTE_MS)) == [4]


def test_skip_fires_the_first_of_several_slots_and_drops_the_rest() -> None:
    rule, state = minutely(overlap="skip")

    found = at(rule, state, 3 * MINUTE_MS)

    assert slots_of(found) == [1]
    assert found.state.skipped == 2


def test_buffer_has_one_slot_wait_until_the_firing_before_is_done() -> None:
    rule, state = minutely(overlap="buffer")

    waiting = at(rule, state, 3 * MINUTE_MS, is_running=True)
    assert waiting.firings == []
    assert waiting.state.skipped == 2
    done = at(rule, waiting.state, 3 * MINUTE_MS + 5)

    assert slots_of(done) == [1]
    assert done.state.buffered_ms == 0


def test_a_slot_that_becomes_due_when_another_waits_takes_its_place() -> None:
    rule, state = minutely(overlap="buffer")
    waiting = at(rule, state, MINUTE_MS, is_running=True).state

    found = at(rule, waiting, 2 * MINUTE_MS)

    assert slots_of(found) == [1]
    assert found.state.buffered_ms == START_MS + 2 * MINUTE_MS


def test_a_buffered_slot_waits_longer_than_the_catch_up_window() -> None:
    rule, state = minutely(overlap="buffer", catch_up_ms=10_000)
    waiting = at(rule, state, MINUTE_MS, is_running=True).state

    assert slots_of(at(rule, waiting, DAY_MS)) == [1]


def test_a_buffered_slot_does_not_fire_early_when_the_clock_went_back() -> None:
    rule, state = minutely(overlap="buffer")
    waiting = at(rule, state, MINUTE_MS, is_running=True).state

    assert at(rule, waiting, MINUTE_MS - 1) == (waiting, [], START_MS + MINUTE_MS)
    assert slots_of(at(rule, waiting, MINUTE_MS)) == [1]


def test_allow_fires_whatever_runs() -> None:
    rule, state = minutely(overlap="allow")

    assert slots_of(at(rule, state, 3 * MINUTE_MS, is_running=True)) == [1, 2, 3]


def test_a_slot_that_waits_goes_first_when_overlaps_become_allowed() -> None:
    rule, state = minutely(overlap="buffer")
    waiting = at(rule, state, MINUTE_MS, is_running=True).state
    allowed = parse_rule("* * * * *", overlap="allow")
    state = revise(waiting, allowed, START_MS + MINUTE_MS)

    assert slots_of(at(allowed, state, 2 * MINUTE_MS, is_running=True)) == [1, 2]


# Pauses and revisions


def test_a_paused_rule_fires_nothing_and_has_no_time_to_look_again() -> None:
    rule, state = minutely()

    assert at(rule, pause(state), HOUR_MS) == (pause(state), [], None)


def test_what_passed_during_a_pause_is_neither_fired_nor_missed() -> None:
    rule, state = minutely(overlap="allow")

    state = resume(pause(state), START_MS + 30 * MINUTE_MS)
    found = at(rule, state, 31 * MINUTE_MS)

    assert slots_of(found) == [31]
    assert found.state.missed == 0


def test_a_pause_drops_the_slot_that_waits() -> None:
    rule, state = minutely(overlap="buffer")
    waiting = at(rule, state, MINUTE_MS, is_running=True).state

    paused = pause(waiting)

    assert (paused.buffered_ms, paused.skipped) == (0, 1)
    assert pause(paused) == paused


def test_to_resume_what_is_not_paused_changes_nothing() -> None:
    _, state = minutely()

    assert resume(state, START_MS + HOUR_MS) == state


def test_a_revised_rule_goes_on_behind_what_was_decided_and_behind_now() -> None:
    rule, state = minutely()
    state = at(rule, state, 10 * MINUTE_MS).state
    hourly = parse_rule("0 * * * *")

    assert revise(state, hourly, START_MS).decided_ms == START_MS + 10 * MINUTE_MS
    assert revise(state, hourly, START_MS + DAY_MS).decided_ms == START_MS + DAY_MS
    assert revise(state, hourly, START_MS).expression == "0 * * * *"


def test_what_was_fired_ahead_is_taken_back_to_what_was_decided_before_it() -> None:
    rule, state = minutely(overlap="allow")
    before = at(rule, state, 3 * MINUTE_MS).state
    now_ms = START_MS + 4 * MINUTE_MS - 5_000
    ahead = decide(rule, before, "r", now_ms=now_ms, is_running=False, ahead_ms=10_000).state
    # As it was stored before that was noted.
    unnoted = msgspec.structs.replace(ahead, ahead_decided_ms=0)

    for clock_ms in (now_ms, START_MS):
        assert take_back(ahead, clock_ms).decided_ms == before.decided_ms
        assert slots_of(at(rule, take_back(unnoted, clock_ms), 4 * MINUTE_MS)) == [4]


# What is stored


def test_a_state_is_the_same_after_it_was_stored() -> None:
    rule, state = minutely(jitter_ms=5, catch_up_ms=20_000, overlap="buffer")
    state = at(rule, state, 5 * MINUTE_MS).state

    assert decode_state(encode_state(state), "r") == (rule, state)


def test_a_state_of_a_later_version_is_read_for_what_is_known_of_it() -> None:
    _, state = minutely()
    fields = msgspec.msgpack.decode(encode_state(state))

    data = msgspec.msgpack.encode({**fields, "colour": "red"})

    assert decode_state(data, "r")[1] == state


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expression", "61 * * * *"),
        ("expression", 5),
        ("zone", "../etc/passwd"),
        ("overlap", "both"),
        ("jitter_ms", -1),
        ("catch_up_ms", 2**63),
        ("decided_ms", -1),
        ("decided_ms", 2**63),
        ("buffered_ms", "x"),
        ("missed", -1),
        ("skipped", 2**63),
        ("paused", None),
    ],
)
def test_a_state_with_a_wrong_field_is_refused_with_its_name(name: str, value: object) -> None:
    _, state = minutely()
    fields = msgspec.msgpack.decode(encode_state(state))

    with pytest.raises(CorruptedError, match="rule-7"):
        decode_state(msgspec.msgpack.encode({**fields, name: value}), "rule-7")


@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptedError):
        decode_state(data, "r")


@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_state_is_refused_or_another_state(place: float, byte: int, cut: bool) -> None:
    _, state = minutely()
    data = bytearray(encode_state(state))
    position = int(place * len(data))
    data[position] = byte

    try:
        rule, found = decode_state(bytes(data[:position] if cut else data), "r")
    except CorruptedError:
        return
    decide(rule, found, "r", now_ms=START_MS, is_running=False)


def test_deeply_nested_bytes_are_refused() -> None:
    with pytest.raises(CorruptedError):
        decode_state(b"\x81\xa1x" + b"\x91" * 1_000_000, "r")


# Whole lives of rules


@dataclass
class Life:
    """A rule, the clock, and the messages that were made."""

    rule: CronRule
    state: CronState
    now_ms: int = START_MS
    wake_ms: int | None = None
    running: bool = False
    fired: list[int] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def look(self, *, lost: bool = False) -> None:
        """Decide, and store all of it, or, after a crash, nothing of it."""
        decision = decide(self.rule, self.state, "r", now_ms=self.now_ms, is_running=self.running)
        if lost:
            return
        for firing in decision.firings:
            assert firing.slot_ms <= firing.due_ms <= self.now_ms
            assert firing.id not in self.ids
            self.fired.append(firing.slot_ms)
            self.ids.add(firing.id)
            self.running = True
        self.state, self.wake_ms = decision.state, decision.wake_ms

    def restart(self) -> None:
        self.rule, self.state = decode_state(encode_state(self.state), "r")


EVENTS = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 3 * HOUR_MS)),
    st.tuples(st.just("wake"), st.just(0)),
    st.tuples(st.just("late"), st.integers(1, 50)),
    st.tuples(st.just("back"), st.integers(1, HOUR_MS)),
    st.tuples(st.sampled_from(["done", "crash", "restart"]), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(
    expression=st.sampled_from(["* * * * *", "*/7 * * * *", "0 */2 * * *", "15,45 2 * * *"]),
    zone=st.sampled_from(["UTC", "Europe/Vienna", "Australia/Lord_Howe"]),
    overlap=st.sampled_from(["skip", "buffer", "allow"]),
    jitter_ms=st.sampled_from([0, 5_000, 10 * MINUTE_MS]),
    catch_up_ms=st.sampled_from([10_000, 20 * MINUTE_MS, 12 * HOUR_MS]),
    # Shortly before the clocks are put in Vienna, and at Lord Howe.
    start_ms=st.sampled_from([1_774_742_400_000, 1_792_886_400_000, 1_791_039_600_000]),
    events=st.lists(EVENTS, max_size=60),
)
def test_each_slot_is_decided_once_and_fires_in_order_whatever_happens(
    expression: str,
    zone: str,
    overlap: str,
    jitter_ms: int,
    catch_up_ms: int,
    start_ms: int,
    events: list[tuple[str, int]],
) -> None:
    rule = parse_rule(
        expression, zone, jitter_ms=jitter_ms, catch_up_ms=catch_up_ms, overlap=overlap
    )
    life = Life(rule, start_state(rule, start_ms), start_ms)
    for event, amount in events:
        match event:
            case "pass":
                life.now_ms += amount
            case "back":
                life.now_ms = max(life.now_ms - amount, start_ms)
            case "wake" | "late":
                life.now_ms = max(life.now_ms, (life.wake_ms or 0) + amount)
            case "done":
                life.running = False
            case "crash":
                life.look(lost=True)
            case _:
                life.restart()
        life.look()

    slots = []
    slot_ms = rule.next_slot(start_ms)
    while slot_ms is not None and slot_ms <= life.state.decided_ms:
        slots.append(slot_ms)
        slot_ms = rule.next_slot(slot_ms)
    state = life.state
    assert life.fired == sorted(set(life.fired))
    assert set(life.fired) <= set(slots)
    assert state.fired == len(life.fired)
    assert state.last_slot_ms == (life.fired[-1] if life.fired else 0)
    waiting = 1 if state.buffered_ms else 0
    assert state.fired + state.missed + state.skipped + waiting == len(slots)


def decided(rule: CronRule, state: CronState, now_ms: int) -> tuple[list[Decision], CronState]:
    """Return the decisions it takes until nothing is due any more."""
    found = [at(rule, state, now_ms)]
    while found[-1].wake_ms is not None and found[-1].wake_ms <= START_MS + now_ms:
        found.append(at(rule, found[-1].state, now_ms))
    return found, found[-1].state


def test_a_year_of_missed_seconds_takes_no_more_decisions_than_an_hour() -> None:
    rule = parse_rule("@every 1s", overlap="allow")
    state = start_state(rule, START_MS)

    found, after = decided(rule, state, 365 * DAY_MS)

    assert len(found) == 11
    assert (after.fired, after.missed) == (1_001, 365 * 86_400 - 1_001)


@given(
    every_s=st.integers(1, 100),
    jitter_ms=st.sampled_from([0, 1, 999, 5_000]),
    catch_up_ms=st.integers(10_000, 300_000),
    away_ms=st.integers(0, 3_600_000),
)
def test_missed_slots_of_an_interval_are_counted_as_one_by_one(
    every_s: int, jitter_ms: int, catch_up_ms: int, away_ms: int
) -> None:
    options = {"jitter_ms": jitter_ms, "catch_up_ms": catch_up_ms}
    rule = parse_rule(f"@every {every_s}s", overlap="allow", **options)  # type: ignore[arg-type]

    found, after = decided(rule, start_state(rule, START_MS), away_ms)

    due = [
        rule.due_ms("r", slot_ms)
        for slot_ms in range(
            START_MS + every_s * 1_000 - START_MS % (every_s * 1_000),
            START_MS + away_ms + 1,
            every_s * 1_000,
        )
    ]
    now_ms = START_MS + away_ms
    fired = [one for one in due if now_ms - catch_up_ms <= one <= now_ms]
    assert [one.due_ms for decision in found for one in decision.firings] == fired
    assert after.missed == sum(one < now_ms - catch_up_ms for one in due)
