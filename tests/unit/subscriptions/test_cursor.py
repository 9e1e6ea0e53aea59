"""Cursors: what is acknowledged, what failed, and what the journal hears of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.limits import MAX_DELIVERIES_MAX
from ister.subscriptions import Cursor, OffsetSet

RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=20)


@given(RUNS)
def test_acks_in_any_order_count_each_message_once(runs: list[tuple[int, int]]) -> None:
    cursor, acked = Cursor(), set[int]()
    for start, length in runs:
        new = set(range(start, start + length)) - acked
        acked |= new

        assert cursor.ack(start, start + length) == len(new)
        assert {o for o in range(60) if cursor.is_acked(o)} == acked
        assert cursor.floor == next(o for o in range(60) if o not in acked)
        assert spread(cursor.gaps(0, 60)) == set(range(60)) - acked
        assert cursor.unacked_count(60) == 60 - len(acked)


def test_the_floor_moves_past_what_was_acked_ahead_of_it() -> None:
    cursor = Cursor(10)
    cursor.ack(12, 20)
    cursor.ack(25, 30)

    cursor.ack(10, 12)

    assert cursor.floor == 20
    assert cursor.acked.runs() == [(25, 30)]


def test_an_ack_below_the_floor_changes_nothing() -> None:
    cursor = Cursor(10)

    assert cursor.ack(3, 10) == 0
    assert cursor.take_changes() == []


def test_gaps_begin_at_the_floor_and_have_no_end_of_their_own() -> None:
    cursor = Cursor(10)
    cursor.ack(12, 13)

    assert cursor.gaps(0, 2**64 - 1) == [(10, 12), (13, 2**64 - 1)]
    assert list(cursor.iter_gaps(11, 13)) == [(11, 12)]


def test_there_is_no_lag_behind_the_end_of_a_topic() -> None:
    assert Cursor(10).unacked_count(9) == 0
    assert Cursor(10).unacked_count(10) == 0
    assert Cursor(10).unacked_count(11) == 1


# What the journal hears.


def test_ten_thousand_single_acks_in_any_order_are_one_change() -> None:
    cursor = Cursor()
    offsets = list(range(10_000))
    random.Random(1).shuffle(offsets)
    for offset in offsets:
        cursor.ack(offset, offset + 1)

    assert cursor.take_changes() == [(0, 10_000)]
    assert cursor.take_changes() == []


@given(RUNS, RUNS)
def test_changes_bring_another_cursor_to_the_same_state(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    cursor, follower = Cursor(), Cursor()
    for runs in (first, second):
        for start, length in runs:
            cursor.ack(start, start + length)
        changes = cursor.take_changes()
        # A journal may tell the same twice.
        for start, end in changes + changes:
            follower.ack(start, end)

    assert (follower.floor, follower.acked) == (cursor.floor, cursor.acked)


def test_acks_from_before_a_seek_are_not_told_after_it() -> None:
    cursor = Cursor()
    cursor.ack(0, 10)
    cursor.fail_run(12, 13, 1)

    cursor.seek(5)

    assert cursor.take_changes() == []
    assert cursor.take_failures() == []


def test_a_seek_forgets_what_was_acked_and_what_failed() -> None:
    cursor = Cursor()
    cursor.ack(7, 9)
    cursor.fail_run(20, 30, 2)

    cursor.seek(5)

    assert cursor.gaps(0, 100) == [(5, 100)]
    assert cursor.failures_of(25) == 0
    assert cursor.encode() == Cursor(5).encode()


def test_what_retention_removed_counts_as_acked_and_is_no_change() -> None:
    cursor = Cursor()
    cursor.ack(10, 12)
    cursor.take_changes()
    cursor.fail_run(3, 4, 1)

    cursor.trim(10)

    assert cursor.floor == 12
    assert cursor.failures_of(3) == 0
    assert cursor.take_changes() == []


def test_retention_never_moves_a_cursor_back() -> None:
    cursor = Cursor(10)

    cursor.trim(9)

    assert cursor.floor == 10


# Failures.


def test_failures_are_set_and_forgotten_by_an_ack() -> None:
    cursor = Cursor()
    cursor.fail_run(0, 10, 1)
    cursor.fail_run(4, 6, 2)

    cursor.ack(5, 8)

    assert [cursor.failures_of(o) for o in range(11)] == [1, 1, 1, 1, 2, 0, 0, 0, 1, 1, 0]
    assert cursor.failed(2).runs() == [(4, 5)]


def test_an_acked_message_does_not_fail() -> None:
    cursor = Cursor(5)
    cursor.ack(7, 9)

    cursor.fail_run(0, 10, 1)

    assert cursor.failed(1).runs() == [(5, 7), (9, 10)]


def test_the_set_that_fails_stays_the_callers() -> None:
    cursor, offsets = Cursor(5), OffsetSet(0, 10)

    cursor.fail(offsets, 1)

    assert offsets.runs() == [(0, 10)]


def test_a_set_is_divided_by_failures_lowest_offset_first() -> None:
    cursor = Cursor()
    cursor.fail_run(2, 4, 3)
    cursor.fail_run(6, 8, 1)

    parts = cursor.by_failures(OffsetSet(1, 7))

    assert [(failures, part.runs()) for failures, part in parts] == [
        (0, [(1, 2), (4, 6)]),
        (3, [(2, 4)]),
        (1, [(6, 7)]),
    ]


def test_the_journal_hears_of_failures_as_runs_without_those_acked_since() -> None:
    cursor = Cursor()
    for offset in range(100):
        cursor.fail_run(offset, offset + 1, 1)
    cursor.fail_run(50, 60, 2)
    cursor.ack(0, 10)

    assert cursor.take_failures() == [(10, 50, 1), (60, 100, 1), (50, 60, 2)]
    assert cursor.take_failures() == []


def test_failures_taken_back_are_told_as_none() -> None:
    cursor = Cursor()
    cursor.fail_run(0, 10, 1)
    cursor.take_failures()

    cursor.fail_run(0, 10, 0)

    assert cursor.failures_of(5) == 0
    assert cursor.encode() == Cursor().encode()
    assert cursor.take_failures() == [(0, 10, 0)]


def test_the_count_of_failures_has_an_end() -> None:
    cursor = Cursor()

    cursor.fail_run(0, 1, MAX_DELIVERIES_MAX + 1)

    assert cursor.failures_of(0) == MAX_DELIVERIES_MAX


# Bytes.


@given(RUNS, st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8), st.integers(1, 4))))
def test_a_cursor_survives_its_bytes(
    acks: list[tuple[int, int]], failures: list[tuple[int, int, int]]
) -> None:
    cursor = Cursor(3)
    for start, length, times in failures:
        cursor.fail_run(start, start + length, times)
    for start, length in acks:
        cursor.ack(start, start + length)

    copy = Cursor.decode(cursor.encode())

    assert (copy.floor, copy.acked) == (cursor.floor, cursor.acked)
    assert [copy.failures_of(o) for o in range(60)] == [cursor.failures_of(o) for o in range(60)]
    assert copy.take_changes() == []


def test_every_second_message_acked_takes_less_than_two_bits_a_message() -> None:
    cursor = Cursor()
    for offset in range(1, 262_144, 2):
        cursor.ack(offset, offset + 1)

    assert len(cursor.encode()) * 8 < 2 * 262_144


@pytest.mark.parametrize("cut", [0, 1, 12, 17, 33, 40, 58, -1])
def test_a_cursor_cut_short_is_refused(cut: int) -> None:
    cursor = Cursor(5)
    cursor.fail_run(7, 9, 1)
    data = cursor.encode()

    with pytest.raises(ValueError, match=r".+"):
        Cursor.decode(data[:cut])


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        (0, 9),  # the version
        (8, 255),  # a floor beyond 2**63
        (9, 255),  # the size of the acknowledged set
        (13, 2),  # the number of failure counts
        (13, 0),
        (34, 0),  # no failures at all
    ],
)
def test_a_damaged_cursor_is_refused(slot: int, value: int) -> None:
    cursor = Cursor(5)
    cursor.fail_run(7, 9, 1)
    data = bytearray(cursor.encode())
    data[slot] = value

    with pytest.raises(ValueError, match=r".+"):
        Cursor.decode(bytes(data))


def test_a_cursor_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        Cursor.decode(Cursor(5).encode() + b"\0")


def test_a_cursor_that_acked_its_own_floor_is_refused() -> None:
    cursor = Cursor(5)
    cursor.acked = OffsetSet(5, 6)

    with pytest.raises(ValueError, match="floor"):
        Cursor.decode(cursor.encode())


def test_a_cursor_that_says_two_things_of_one_message_is_refused() -> None:
    cursor = Cursor(5)
    cursor.fail_run(7, 9, 1)
    cursor.acked = OffsetSet(8, 10)

    with pytest.raises(ValueError, match="two things"):
        Cursor.decode(cursor.encode())


@given(st.binary(max_size=80))
def test_any_bytes_give_a_cursor_or_a_value_error(data: bytes) -> None:
    try:
        Cursor.decode(b"\1" + data)
    except ValueError:
        return


def spread(runs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in runs for offset in range(start, end)}
