"""Offsets of Spark: their text, what a micro-batch takes, how it is divided, what got lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadRequestError
from ister.spark.offsets import (
    Loss,
    OffsetRange,
    StreamEnds,
    StreamPosition,
    admit,
    divide,
    limit_heads,
    positions_from_json,
    positions_to_json,
    ranges_between,
    reconcile,
    rows_for_bytes,
)

names = st.one_of(
    st.integers(0, 1_023).map(lambda n: f"/default/orders-part-{n}"),
    st.sampled_from(["/default/a", "/default/b.c", "/other/a"]),
)
offsets = st.integers(0, 2**40)
positions = st.dictionaries(
    names, st.builds(StreamPosition, st.integers(1, 99), offsets), max_size=12
)
ranges = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 10_000)).map(
        lambda pair: OffsetRange("/default/a", 1, pair[0], pair[0] + pair[1])
    ),
    max_size=6,
)


def heads_at(lags: dict[str, int]) -> tuple[dict[str, StreamPosition], dict[str, StreamEnds]]:
    start = {stream: StreamPosition(1, 100) for stream in lags}
    return start, {stream: StreamEnds(1, 0, 100 + lag) for stream, lag in lags.items()}


@given(positions)
def test_places_survive_the_checkpoint(found: dict[str, StreamPosition]) -> None:
    text = json.dumps(positions_to_json(found))

    assert positions_from_json(json.loads(text)) == found
    assert json.dumps(json.loads(text)) == text


@given(positions, st.randoms())
def test_the_same_places_have_the_same_text(
    found: dict[str, StreamPosition], random: object
) -> None:
    items = list(found.items())
    random.shuffle(items)  # type: ignore[attr-defined]

    assert json.dumps(positions_to_json(dict(items))) == json.dumps(positions_to_json(found))


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    found = positions_to_json({f"/default/o-part-{n}": StreamPosition(n, 7) for n in (10, 9, 0)})

    assert json.dumps(found) == (
        '{"v": 1, "topics": {"/default/o": {"0": [0, 7], "9": [9, 7], "10": [10, 7]}}}'
    )


@pytest.mark.parametrize(
    "offset", [{}, {"v": 2, "topics": {}}, {"v": 1, "topics": {"/default/a": [1]}}]
)
def test_a_checkpoint_of_somebody_else_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(BadRequestError, match="the checkpoint has"):
        positions_from_json(offset)


# Admission

lags = st.dictionaries(names, st.integers(0, 100_000), max_size=8)


@given(lags, st.integers(1, 200_000))
def test_a_batch_never_has_more_than_its_limit_and_always_something(
    found: dict[str, int], rows_max: int
) -> None:
    start, heads = heads_at(found)

    end = admit(start, heads, rows_max=rows_max)

    taken = {stream: end[stream].offset - 100 for stream in found}
    assert all(0 <= taken[stream] <= lag for stream, lag in found.items())
    assert sum(taken.values()) == min(rows_max, sum(found.values()))


@given(lags)
def test_without_a_limit_everything_is_taken(found: dict[str, int]) -> None:
    start, heads = heads_at(found)

    end = admit(start, heads, rows_max=None)

    assert {stream: position.offset - 100 for stream, position in end.items()} == found


def test_nothing_new_is_the_very_start() -> None:
    start, heads = heads_at({"/default/a": 0, "/default/b": 0})

    assert admit(start, heads, rows_max=5) == start


def test_rows_are_shared_out_by_lag() -> None:
    start, heads = heads_at({"/default/a": 9_000, "/default/b": 1_000})

    end = admit(start, heads, rows_max=1_000)

    # Nine to one, after one row for each.
    assert (end["/default/a"].offset - 100, end["/default/b"].offset - 100) == (899, 101)


@given(st.integers(1, 7), st.integers(2, 8))
def test_no_stream_waits_for_ever_behind_busy_ones(rows_max: int, count: int) -> None:
    busy = {f"/default/o-part-{n}": 1_000_000 for n in range(1, count)}
    start, heads = heads_at({"/default/o-part-0": 1, **busy})

    for _ in range(count):
        start = admit(start, heads, rows_max=rows_max)

    assert start["/default/o-part-0"].offset == 101


def test_bytes_become_rows_by_the_average_that_lag_gives() -> None:
    start, heads = heads_at({"/default/a": 300, "/default/b": 100})
    row_bytes = {"/default/a": 100.0, "/default/b": 900.0}

    # (300 × 100 + 100 × 900) / 400 = 300 bytes.
    assert rows_for_bytes(start, heads, bytes_max=30_000, row_bytes=row_bytes) == 100
    assert rows_for_bytes(start, heads, bytes_max=1, row_bytes=row_bytes) == 1


# Ranges


def test_a_range_is_what_lies_between_two_places_of_one_stream() -> None:
    start = {
        "/default/a": StreamPosition(1, 5),
        "/default/b": StreamPosition(2, 7),
        "/default/c": StreamPosition(3, 1),
    }
    end = {
        "/default/a": StreamPosition(1, 9),
        "/default/b": StreamPosition(2, 7),
        "/default/d": StreamPosition(4, 3),
    }

    assert ranges_between(start, end) == [OffsetRange("/default/a", 1, 5, 9)]


def test_a_stream_that_was_made_again_has_no_range() -> None:
    assert (
        ranges_between({"/default/a": StreamPosition(1, 5)}, {"/default/a": StreamPosition(2, 9)})
        == []
    )


@given(ranges, st.integers(1, 40))
def test_pieces_are_the_ranges_again_and_there_are_enough_of_them(
    found: list[OffsetRange], partitions_min: int
) -> None:
    pieces = divide(found, partitions_min=partitions_min)

    total = sum(one.rows for one in found)
    assert all(piece.rows > 0 for piece in pieces)
    assert len(pieces) >= min(partitions_min, total)
    left = iter(pieces)
    for one in found:
        offset = one.start
        while offset < one.end:
            piece = next(left)
            assert piece.start == offset
            offset = piece.end
        assert offset == one.end
    assert next(left, None) is None


@given(st.integers(1, 10_000), st.integers(1, 40))
def test_pieces_of_one_range_follow_each_other_and_are_about_as_large(
    rows: int, partitions_min: int
) -> None:
    pieces = divide([OffsetRange("/default/a", 1, 7, 7 + rows)], partitions_min=partitions_min)

    assert [piece.start for piece in pieces] == [7, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == 7 + rows
    assert max(p.rows for p in pieces) - min(p.rows for p in pieces) <= 1


# Losses


def test_where_nothing_happened_the_query_goes_on() -> None:
    start = {"/default/a": StreamPosition(1, 5)}

    standing = reconcile(start, {"/default/a": StreamEnds(1, 5, 9)})

    assert (standing.known, standing.begun, standing.losses) == (start, {}, [])


def test_a_new_stream_begins_at_its_first_message_and_is_read_with_the_next_batch() -> None:
    standing = reconcile({}, {"/default/a": StreamEnds(1, 3, 9)})

    assert (standing.known, standing.begun, standing.losses) == (
        {},
        {"/default/a": StreamPosition(1, 3)},
        [],
    )


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (None, "the topic was deleted, or is not read any more"),
        (StreamEnds(2, 0, 9), "the topic was deleted and made again"),
        (StreamEnds(1, 6, 9), "offsets 5 to 5 are gone by retention"),
        (StreamEnds(1, 0, 4), "it ends at 4, and was read up to 5 before"),
    ],
)
def test_what_is_lost_is_named(head: StreamEnds | None, reason: str) -> None:
    heads = {} if head is None else {"/default/a": head}

    standing = reconcile({"/default/a": StreamPosition(1, 5)}, heads)

    assert standing.losses == [Loss("/default/a", reason)]


def test_what_retention_has_dropped_takes_no_room_in_a_micro_batch() -> None:
    heads = {"/default/a": StreamEnds(1, 1_000, 1_010)}

    standing = reconcile({"/default/a": StreamPosition(1, 5)}, heads)
    end = admit(standing.known, heads, rows_max=4)

    assert end == {"/default/a": StreamPosition(1, 1_004)}


def test_a_stream_that_was_made_again_begins_anew() -> None:
    standing = reconcile({"/default/a": StreamPosition(1, 5)}, {"/default/a": StreamEnds(2, 1, 9)})

    assert (standing.known, standing.begun) == ({}, {"/default/a": StreamPosition(2, 1)})


def test_with_a_target_nothing_after_it_is_there() -> None:
    heads = {
        "/default/a": StreamEnds(1, 0, 20),
        "/default/b": StreamEnds(2, 0, 5),
        "/default/c": StreamEnds(3, 0, 1),
    }
    target = {"/default/a": StreamEnds(1, 0, 10), "/default/b": StreamEnds(2, 0, 9)}

    assert limit_heads(heads, target) == {
        "/default/a": StreamEnds(1, 0, 10),
        "/default/b": StreamEnds(2, 0, 5),
    }
