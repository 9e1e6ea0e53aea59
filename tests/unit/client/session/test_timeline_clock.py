"""What a client knows of the broker's clock, and how it counts lateness."""

from hypothesis import given
from hypothesis import strategies as st

from ister.base.limits import DRIFT_US_MAX
from ister.client.session import ClockOffset, Lateness
from ister.client.session.timelines.clock import JUMP_US, SAMPLES


def test_nothing_is_known_before_the_first_answer() -> None:
    assert not ClockOffset().known


def test_what_all_of_the_last_rounds_leave_open_counts() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=1_500, received_us=1_000)
    clock.add(sent_us=2_000, told_us=3_050, received_us=2_100)
    clock.add(sent_us=4_000, told_us=5_400, received_us=4_900)

    assert (clock.offset_us, clock.spread_us) == (1_000, 100)
    assert clock.now_us(10_000) == 10_950


def test_an_old_round_is_forgotten_however_quick_it_was() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=0, received_us=2)
    for second in range(1, SAMPLES + 1):
        start = second * 1_000_000
        clock.add(sent_us=start, told_us=start + 100, received_us=start + 200)

    assert clock.spread_us == 200


@given(
    offset_us=st.integers(-(10**12), 10**12),
    rounds=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1),
)
def test_the_broker_is_never_thought_to_be_later_than_it_is(
    offset_us: int, rounds: list[tuple[int, int]]
) -> None:
    clock = ClockOffset()
    now_us = 10**15
    for there_us, back_us in rounds:
        told_us = now_us + there_us + offset_us
        clock.add(sent_us=now_us, told_us=told_us, received_us=now_us + there_us + back_us)
        now_us += 1_000_000

        assert clock.now_us(now_us) <= now_us + offset_us


def test_a_slow_answer_after_quick_ones_changes_nothing() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=50, received_us=100)
    clock.add(sent_us=1_000, told_us=1_050, received_us=101_000)

    assert clock.now_us(200_000) == 199_950
    assert clock.jumps == 0


def test_a_slow_round_is_no_drift() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=10, received_us=4 * DRIFT_US_MAX)

    assert not clock.drifted


def test_a_clock_that_was_set_anew_makes_earlier_rounds_void() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=50, received_us=100)
    clock.add(sent_us=1_000, told_us=1_000 + 3_600_000_000, received_us=1_400)

    assert clock.jumps == 1
    assert clock.now_us(2_000) == 2_000 + 3_600_000_000 - 400


def test_rounds_that_agree_within_the_limit_are_no_jump() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=0, received_us=0)
    clock.add(sent_us=1_000, told_us=1_000 + JUMP_US, received_us=1_000)

    assert clock.jumps == 0


def test_an_answer_from_before_our_own_clock_was_set_back_says_nothing() -> None:
    clock = ClockOffset()
    clock.add(sent_us=1_000, told_us=1_000, received_us=999)

    assert not clock.known


def test_clocks_that_differ_by_more_than_the_limit_have_drifted() -> None:
    clock = ClockOffset()
    clock.add(sent_us=0, told_us=DRIFT_US_MAX, received_us=0)
    assert not clock.drifted

    clock.add(sent_us=10, told_us=11 + DRIFT_US_MAX, received_us=10)
    clock.forget()
    clock.add(sent_us=10, told_us=11 + DRIFT_US_MAX, received_us=10)
    assert clock.drifted


def test_lateness_is_told_by_bounds_of_its_histogram() -> None:
    lateness = Lateness()
    for lateness_us in (50, 60, 70, 1_500):
        lateness.add(lateness_us)

    assert lateness.quantile_us(0.5) == 100
    assert lateness.quantile_us(1.0) == lateness.max_us == 1_500
    assert lateness.count == 4


def test_lateness_above_all_bounds_is_the_largest_there_was() -> None:
    lateness = Lateness()
    lateness.add(10**9)

    assert lateness.quantile_us(0.5) == 10**9
