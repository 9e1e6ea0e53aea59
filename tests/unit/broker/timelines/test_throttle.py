"""While others publish, a burst is handed out with rests, and a steady load is not."""

import pytest

from ister.broker.timelines.leasing.throttle import (
    GENTLE_COUNT_MAX,
    LATE_MS,
    REST_MS_MAX,
    RESTS,
    ROUND_COUNT_MAX,
    ROUNDS_MAX,
    WATCH_MS,
    Throttle,
)
from ister.timeline import FAR

NOW_MS = 1_000_000


@pytest.fixture
def throttle() -> Throttle:
    return Throttle(lambda _: True)


def round_of(throttle: Throttle, position_ms: int, now_ms: int, took_ms: int = 2) -> int:
    """Have a round; return how long the rest after it is."""
    throttle.begin(position_ms, now_ms)
    throttle.end(now_ms + took_ms)
    next_ms = throttle.next_ms(now_ms + took_ms)
    return 0 if next_ms == FAR else next_ms - now_ms - took_ms


def test_while_nobody_publishes_there_are_many_large_rounds() -> None:
    throttle = Throttle(lambda _: False)
    for _ in range(ROUNDS_MAX):
        assert throttle.room(NOW_MS) == ROUND_COUNT_MAX
        throttle.begin(NOW_MS - 60_000, NOW_MS)

    assert throttle.room(NOW_MS) == 0
    throttle.end(NOW_MS + 1)
    assert throttle.room(NOW_MS + 1) == ROUND_COUNT_MAX


def test_while_others_publish_there_is_one_small_round_at_a_time(throttle: Throttle) -> None:
    assert throttle.room(NOW_MS) == GENTLE_COUNT_MAX
    throttle.begin(NOW_MS, NOW_MS)

    assert (throttle.room(NOW_MS), throttle.next_ms(NOW_MS)) == (0, FAR)
    throttle.end(NOW_MS + 1)
    assert throttle.room(NOW_MS + 1) == GENTLE_COUNT_MAX


def test_after_a_round_of_a_burst_there_is_a_rest_of_some_times_what_it_took(
    throttle: Throttle,
) -> None:
    position_ms = NOW_MS - LATE_MS

    assert round_of(throttle, position_ms + 1, NOW_MS) == 0
    assert round_of(throttle, position_ms, NOW_MS, took_ms=4) == 4 * RESTS
    end_ms = NOW_MS + 4 + 4 * RESTS
    assert throttle.room(end_ms - 1) == 0
    assert throttle.room(end_ms) == GENTLE_COUNT_MAX


def test_a_round_of_a_burst_is_for_few_consumers_while_others_publish() -> None:
    publishing = True
    throttle = Throttle(lambda _: publishing)
    assert throttle.run_max(NOW_MS) == 1

    round_of(throttle, NOW_MS - LATE_MS, NOW_MS)
    assert throttle.run_max(NOW_MS) == GENTLE_COUNT_MAX
    publishing = False
    assert throttle.run_max(NOW_MS) == 1
    publishing = True
    round_of(throttle, NOW_MS - LATE_MS + 1, NOW_MS)
    assert throttle.run_max(NOW_MS) == 1


def test_a_slow_disk_makes_no_long_rest(throttle: Throttle) -> None:
    assert round_of(throttle, NOW_MS - LATE_MS, NOW_MS, took_ms=10_000) == REST_MS_MAX


@pytest.mark.parametrize(("step_ms", "rests"), [(0, True), (24, True), (25, False), (80, False)])
def test_who_falls_behind_a_steady_load_does_not_rest(
    throttle: Throttle, step_ms: int, rests: bool
) -> None:
    """Each 100 ms, messages that stand `step_ms` later than those before them."""
    now_ms, position_ms = NOW_MS, NOW_MS - 5_000
    for _ in range(2 * WATCH_MS // 100 + 1):
        rest_ms = round_of(throttle, position_ms, now_ms)
        now_ms, position_ms = now_ms + 100, position_ms + step_ms

    assert bool(rest_ms) is rests


def test_who_has_caught_up_rests_at_the_next_burst(throttle: Throttle) -> None:
    for step in range(11):
        round_of(throttle, NOW_MS - 5_000 + 90 * step, NOW_MS + 100 * step)
    now_ms = NOW_MS + 2_000
    assert round_of(throttle, now_ms, now_ms) == 0

    assert round_of(throttle, now_ms, now_ms + LATE_MS) > 0


def test_a_clock_that_is_set_back_makes_no_long_rest(throttle: Throttle) -> None:
    round_of(throttle, NOW_MS - LATE_MS, NOW_MS)

    assert throttle.room(NOW_MS - 3_600_000) == GENTLE_COUNT_MAX
    assert round_of(throttle, NOW_MS - 7_200_000, NOW_MS - 3_600_000) <= REST_MS_MAX
