"""What is told of cron rules: when their next messages are due."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ister.timeline import MemoryStore, Place, Work, parse_rule, preview_one, tell_one
from ister.timeline.cron.firing import start_state
from ister.timeline.cron.rows import first_row, pack

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
# A day of 2026 in which clocks are put back in Vienna.
START_MS = 1_792_886_400_000


@settings(max_examples=300, deadline=None)
@given(
    expression=st.sampled_from(
        ["* * * * *", "*/7 * * * *", "0 * * * *", "* 9 * * *", "30 2 * * *", "0 0 29 2 *"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Vienna"]),
    jitter_ms=st.sampled_from([0, 1, 30_000, 59_000, HOUR_MS, 24 * HOUR_MS]),
    decided_ms=st.integers(0, 30 * HOUR_MS),
    # At a slot, between it and its due time, and long behind what is decided.
    now_ms=st.one_of(
        st.integers(0, 30 * 60).map(lambda minute: minute * MINUTE_MS),
        st.integers(0, 30 * HOUR_MS),
    ),
)
def test_the_preview_of_a_rule_begins_with_its_next_message_and_leaves_none_out(
    expression: str, zone: str, jitter_ms: int, decided_ms: int, now_ms: int
) -> None:
    rule = parse_rule(expression, zone, jitter_ms=jitter_ms)
    now_ms += START_MS
    state = start_state(rule, START_MS + decided_ms)
    store = MemoryStore()
    names = ("rules", "jobs")
    place = Place(*(store.create_topic(name, "cron", b"").number for name in names))
    put = first_row(place, "r", "shop", rule, b"", b"", START_MS)
    store.apply(START_MS, [Work([put._replace(payload=pack(state, b""))])])

    _, preview = preview_one(store, place, "r", now_ms, 3)

    expected: list[int] = []
    slot_ms = rule.next_slot(state.decided_ms)
    while slot_ms is not None and len(expected) < 3:
        due_ms = rule.due_ms("r", slot_ms)
        expected += [due_ms] if due_ms >= now_ms else []
        slot_ms = rule.next_slot(slot_ms)
    assert preview == expected
    assert tell_one(store, place, "r", now_ms).report.next_ms == preview[0]
