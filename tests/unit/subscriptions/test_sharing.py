"""How a batch is divided among the consumers of a shared subscription."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.subscriptions import Share, in_turn, to_least_loaded

counts = st.integers(1, 500)


def covered(shares: list[Share]) -> list[int]:
    """Return the messages that were handed out, in the order of the shares."""
    return [slot for _, start, end in shares for slot in range(start, end)]


def test_a_single_message_goes_to_the_consumer_whose_turn_it_is() -> None:
    assert in_turn(1, 3, first=2) == [(2, 0, 1)]


def test_messages_that_do_not_come_out_even_go_to_the_first_in_turn() -> None:
    assert in_turn(5, 3, first=1) == [(1, 0, 2), (2, 2, 4), (0, 4, 5)]


def test_fewer_messages_than_consumers_go_one_to_each() -> None:
    assert in_turn(2, 4, first=3) == [(3, 0, 1), (0, 1, 2)]


def test_a_turn_past_the_last_consumer_wraps_around() -> None:
    assert in_turn(1, 3, first=7) == [(1, 0, 1)]


@given(counts, st.integers(1, 40), st.integers(0, 1000))
def test_in_turn_hands_out_every_message_once(count: int, consumers: int, first: int) -> None:
    assert covered(in_turn(count, consumers, first=first)) == list(range(count))


@given(counts, st.integers(1, 40), st.integers(0, 1000))
def test_in_turn_gives_a_consumer_at_most_one_run(count: int, consumers: int, first: int) -> None:
    slots = [slot for slot, _, _ in in_turn(count, consumers, first=first)]

    assert len(slots) == len(set(slots))
    assert all(0 <= slot < consumers for slot in slots)


@given(counts, st.integers(1, 40), st.integers(0, 1000))
def test_in_turn_shares_differ_by_one_at_most(count: int, consumers: int, first: int) -> None:
    got = dict.fromkeys(range(consumers), 0)
    for slot, start, end in in_turn(count, consumers, first=first):
        got[slot] += end - start

    assert max(got.values()) - min(got.values()) <= 1


def test_a_single_message_goes_to_the_least_loaded() -> None:
    assert to_least_loaded(1, [5, 2, 9]) == [(1, 0, 1)]


def test_of_equal_loads_the_one_whose_turn_it_is_comes_first() -> None:
    slots = [to_least_loaded(1, [0, 3, 0], first=first)[0][0] for first in range(3)]

    assert slots == [0, 2, 2]


def test_what_does_not_come_out_even_goes_to_those_whose_turn_it_is() -> None:
    assert to_least_loaded(4, [0, 0, 0], first=1) == [(1, 0, 2), (2, 2, 3), (0, 3, 4)]


@pytest.mark.parametrize(
    ("count", "loads", "after"),
    [
        (2, [0, 3], [2, 3]),
        (3, [0, 3], [3, 3]),
        (4, [0, 3], [4, 3]),
        (5, [0, 3], [4, 4]),
        (6, [0, 0, 100], [3, 3, 100]),
        (10, [-4, 0], [3, 3]),
    ],
)
def test_the_lowest_loads_are_filled_like_water(
    count: int, loads: list[int], after: list[int]
) -> None:
    for slot, start, end in to_least_loaded(count, loads):
        loads[slot] += end - start

    assert loads == after


loads_lists = st.lists(st.integers(-50, 200), min_size=1, max_size=30)


@given(counts, loads_lists)
def test_least_loaded_hands_out_every_message_once(count: int, loads: list[int]) -> None:
    assert covered(to_least_loaded(count, loads)) == list(range(count))


@given(counts, loads_lists)
def test_least_loaded_gives_a_consumer_at_most_one_run(count: int, loads: list[int]) -> None:
    slots = [slot for slot, _, _ in to_least_loaded(count, loads)]

    assert len(slots) == len(set(slots))


@given(counts, loads_lists)
def test_least_loaded_ends_as_level_as_giving_one_at_a_time_would(
    count: int, loads: list[int]
) -> None:
    after = list(loads)
    for slot, start, end in to_least_loaded(count, loads):
        after[slot] += end - start
    one_by_one = list(loads)
    for _ in range(count):
        one_by_one[one_by_one.index(min(one_by_one))] += 1

    assert sorted(after) == sorted(one_by_one)
