"""The gate of ordered key-shared subscriptions: one message of a key at a time, in order."""

import random
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from ister.subscriptions import Admission, KeyGate


def test_the_first_message_of_each_key_goes_and_the_others_wait() -> None:
    gate = KeyGate()

    assert gate.admit(["a", "b", "a", "c", "b"], [0, 1, 2, 3, 4]) == Admission([0, 1, 3], 5)
    assert gate.parked == 2


def test_the_next_message_of_a_key_goes_when_the_one_before_is_done() -> None:
    gate = KeyGate()
    gate.admit(["a", "a", "a"], [0, 1, 2])

    assert gate.done([0]) == [1]
    assert gate.done([1]) == [2]
    assert gate.done([2]) == []
    assert gate.admit(["a"], [3]).slots == [0]


def test_a_message_to_be_delivered_again_passes_and_the_others_wait_on() -> None:
    gate = KeyGate()
    gate.admit(["a", "a"], [0, 1])

    assert gate.admit(["a"], [0]) == Admission([0], 1)
    assert gate.admit(["a"], [1]) == Admission([], 1)
    assert gate.parked == 1


def test_parking_ends_at_its_limit_before_the_message_that_does_not_fit() -> None:
    gate = KeyGate(parked_max=2)

    admission = gate.admit(["a", "a", "a", "b", "a", "c"], [0, 1, 2, 3, 4, 5])

    assert admission == Admission([0, 3], 4)
    assert gate.parked == 2
    gate.done([0])
    assert gate.admit(["a", "c"], [4, 5]) == Admission([1], 2)


def test_a_parked_message_acked_before_its_turn_is_left_out() -> None:
    gate = KeyGate()
    gate.admit(["a", "a", "a", "a"], [0, 1, 2, 3])

    assert gate.done([1, 2]) == []
    assert gate.parked == 1
    assert gate.done([0]) == [3]


def test_a_line_whose_last_message_was_acked_before_its_turn_goes_on() -> None:
    gate = KeyGate()
    gate.admit(["a", "a"], [0, 1])
    gate.done([1])

    gate.admit(["a"], [2])

    assert gate.done([0]) == [2]


def test_a_message_freed_and_done_in_one_call_is_not_handed_on() -> None:
    gate = KeyGate()
    gate.admit(["a", "b", "a", "a"], [0, 1, 2, 3])

    assert gate.done([0, 2]) == [3]


def test_everything_below_an_offset_can_be_done_at_once() -> None:
    gate = KeyGate()
    gate.admit(["a", "b", "a", "b", "c", "a"], [0, 1, 2, 3, 4, 5])

    assert gate.done_within(0, 4) == [5]
    assert gate.parked == 0
    assert gate.admit(["b", "c"], [6, 7]).slots == [0]


def test_an_unknown_message_is_done_without_effect() -> None:
    gate = KeyGate()
    gate.admit(["a"], [0])

    assert gate.done([7]) == []


def test_a_cleared_gate_is_open() -> None:
    gate = KeyGate()
    gate.admit(["a", "a"], [0, 1])

    gate.clear()

    assert gate.parked == 0
    assert gate.admit(["a"], [1]).slots == [0]
    assert gate.done([1]) == []


@given(
    st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=40),
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
def test_each_key_is_delivered_in_order_one_at_a_time(
    keys: list[str], parked_max: int, chance: random.Random
) -> None:
    gate = KeyGate(parked_max=parked_max)
    delivered = defaultdict[str, list[int]](list)
    in_flight: dict[int, str] = {}
    start = 0

    def deliver(offset: int) -> None:
        key = keys[offset]
        assert key not in in_flight.values()
        in_flight[offset] = key
        delivered[key].append(offset)

    while start < len(keys) or in_flight:
        slots, end = gate.admit(keys[start:], range(start, len(keys)))
        for slot in slots:
            deliver(start + slot)
        start += end
        assert gate.parked <= parked_max
        acked = chance.sample(sorted(in_flight), chance.randint(1, len(in_flight)))
        for offset in acked:
            del in_flight[offset]
        for offset in gate.done(acked):
            deliver(offset)

    expected = defaultdict[str, list[int]](list)
    for offset, key in enumerate(keys):
        expected[key or ""].append(offset)
    assert delivered == expected
    assert gate.parked == 0
