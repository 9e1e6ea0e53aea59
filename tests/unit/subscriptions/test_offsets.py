"""Sets of offsets: they do what a set of integers does, and survive any bytes."""

import struct
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from ister.subscriptions import OffsetSet

# Few and close together, so that runs touch, overlap and fall apart.
BOUNDS = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: tuple(sorted(pair)))
SETS = st.lists(st.integers(0, 30), unique=True).map(sorted)


@given(st.lists(st.tuples(st.booleans(), BOUNDS), max_size=12))
def test_adding_and_discarding_ranges_does_what_a_set_does(
    steps: list[tuple[bool, tuple[int, int]]],
) -> None:
    offsets, expected = OffsetSet(), set[int]()
    for adds, (start, end) in steps:
        if adds:
            offsets.add(start, end)
            expected |= set(range(start, end))
        else:
            offsets.discard(start, end)
            expected -= set(range(start, end))

        assert_same(offsets, expected)


@given(SETS, BOUNDS)
def test_questions_about_a_range_are_answered_as_by_a_set(
    members: list[int], bounds: tuple[int, int]
) -> None:
    start, end = bounds
    offsets, inside = OffsetSet.of(members), {o for o in members if start <= o < end}

    assert offsets.count_within(start, end) == len(inside)
    assert set(offsets.within(start, end).offsets()) == inside
    gaps = offsets.gaps_within(start, end)
    assert spread(gaps) == set(range(start, end)) - inside
    assert list(offsets.gaps(start, end)) == gaps
    assert all(former[1] < later[0] for former, later in pairwise(gaps))
    assert offsets.run_end(start) == next(o for o in range(start, 99) if o not in members)


@given(SETS, BOUNDS)
def test_taking_a_range_removes_what_it_returns(
    members: list[int], bounds: tuple[int, int]
) -> None:
    start, end = bounds
    offsets = OffsetSet.of(members)

    taken = offsets.take(start, end)

    inside = {o for o in members if start <= o < end}
    assert_same(taken, inside)
    assert_same(offsets, set(members) - inside)


@given(SETS, BOUNDS.filter(lambda bounds: bounds[0] < bounds[1]))
def test_taking_a_whole_range_is_all_or_nothing(
    members: list[int], bounds: tuple[int, int]
) -> None:
    start, end = bounds
    offsets = OffsetSet.of(members)

    taken = offsets.take_whole(start, end)

    assert taken == set(range(start, end)).issubset(members)
    assert_same(offsets, set(members) - set(range(start, end)) if taken else set(members))


@given(SETS, SETS)
def test_two_sets_combine_as_sets_do(one: list[int], other: list[int]) -> None:
    union, rest = OffsetSet.of(one), OffsetSet.of(one)
    union.update(OffsetSet.of(other))
    rest.subtract(OffsetSet.of(other))

    assert_same(union, set(one) | set(other))
    assert_same(rest, set(one) - set(other))
    assert_same(OffsetSet.of(one).intersection(OffsetSet.of(other)), set(one) & set(other))


@given(SETS, SETS)
def test_a_copy_and_an_updated_set_share_nothing(one: list[int], other: list[int]) -> None:
    original, added = OffsetSet.of(one), OffsetSet.of(other)
    copy = original.copy()
    original.update(added)

    original.discard(0, 15)
    original.add(40, 50)

    assert_same(copy, set(one))
    assert_same(added, set(other))


@given(SETS, st.integers(-1, 35))
def test_the_lowest_are_the_lowest(members: list[int], count: int) -> None:
    assert_same(OffsetSet.of(members).lowest(count), set(members[: max(0, count)]))


@given(SETS)
def test_a_set_survives_its_bytes(members: list[int]) -> None:
    assert_same(OffsetSet.decode(OffsetSet.of(members).encode()), set(members))


def test_a_run_stays_two_numbers_however_it_comes_about() -> None:
    grown = OffsetSet(5, 7)
    grown.add(7, 9)
    grown.add(2, 5)
    holed = OffsetSet(0, 100)
    holed.discard(50, 51)

    assert grown.bitmap is None
    assert OffsetSet.of([4, 5, 6]).bitmap is None
    assert holed.take(0, 50).bitmap is None


def test_a_range_as_wide_as_the_protocol_allows_costs_nothing() -> None:
    holed = OffsetSet.of([3, 5])
    widest = 2**64 - 1

    assert holed.gaps_within(0, widest) == [(0, 3), (4, 5), (6, widest)]
    assert holed.count_within(0, widest) == 2
    assert not holed.take_whole(0, widest)
    assert holed.take(0, widest).runs() == [(3, 4), (5, 6)]


def test_a_run_of_a_billion_ends_where_it_ends() -> None:
    offsets = OffsetSet(10, 10**9)
    offsets.add(10**9 + 5, 10**9 + 6)

    assert offsets.run_end(10) == 10**9


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\1",
        b"\2" + bytes(16),
        b"\0" + struct.pack("<QQ", 7, 3),
        b"\0" + struct.pack("<QQ", 0, 2**63 + 1),
        b"\0" + struct.pack("<QQ", 3, 7) + b"\0",
        b"\1" + BitMap64([]).serialize(),
        b"\1" + BitMap64([1, 2**63]).serialize(),
        b"\1" + BitMap64([1, 3]).serialize()[:-1],
    ],
)
def test_bytes_that_are_no_set_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        OffsetSet.decode(data)


@given(SETS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=4))
@example(members=list(range(0, 30, 2)), changes=[(9, 255)])
def test_damaged_bytes_give_a_set_or_a_value_error(
    members: list[int], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(OffsetSet.of(members).encode())
    for slot, value in changes:
        data[slot % len(data)] = value

    try:
        offsets = OffsetSet.decode(bytes(data))
    except ValueError:
        return
    runs = offsets.runs()
    assert all(start < end for start, end in runs)
    assert sum(end - start for start, end in runs) == offsets.count


def assert_same(offsets: OffsetSet, expected: set[int]) -> None:
    listed = offsets.offsets()
    assert list(listed) == sorted(expected)
    assert offsets.count == len(expected)
    assert bool(offsets) == bool(expected)
    assert spread(offsets.runs()) == expected
    assert {o for o in range(32) if o in offsets} == {o for o in expected if o < 32}
    if expected:
        assert (offsets.first, offsets.end) == (min(expected), max(expected) + 1)


def spread(runs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in runs for offset in range(start, end)}
