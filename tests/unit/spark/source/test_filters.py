"""Filters that Spark pushes down: taken only when exact, and exact as SQL is, nulls included."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ister.spark.offsets import OffsetRange
from ister.spark.options import read_options
from ister.spark.source.batch_reader import FilteringReader
from ister.spark.source.filters import TYPES, Condition, accept, left_over, narrow, select
from ister.spark.source.layouts import ReadLayout

ALL = set(TYPES)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEYS = ["a", "b", None, "ab", "é", ""]


def condition(given_: Filter) -> Condition:
    found = accept(given_, ALL)
    assert found is not None
    return found


def kept(given_: Filter, keys: list[str | None] = KEYS) -> list[str | None]:
    batch = pa.record_batch({"key": pa.array(keys, pa.string())})
    found: list[str | None] = select(batch, [condition(given_)]).column("key").to_pylist()
    return found


@pytest.mark.parametrize(
    ("given_", "keys"),
    [
        (EqualTo(("key",), "a"), ["a"]),
        (Not(EqualTo(("key",), "a")), ["b", "ab", "é", ""]),
        (EqualNullSafe(("key",), None), [None]),
        (Not(EqualNullSafe(("key",), None)), ["a", "b", "ab", "é", ""]),
        (Not(EqualNullSafe(("key",), "a")), ["b", None, "ab", "é", ""]),
        (In(("key",), ("a", "é")), ["a", "é"]),
        (In(("key",), ("a", None)), ["a"]),
        (Not(In(("key",), ("a", "b"))), ["ab", "é", ""]),
        (Not(In(("key",), ("a", None))), []),
        (IsNull(("key",)), [None]),
        (Not(IsNull(("key",))), ["a", "b", "ab", "é", ""]),
        (IsNotNull(("key",)), ["a", "b", "ab", "é", ""]),
        (GreaterThan(("key",), "a"), ["b", "ab", "é"]),
        (LessThanOrEqual(("key",), "a"), ["a", ""]),
        (StringStartsWith(("key",), "a"), ["a", "ab"]),
        (StringEndsWith(("key",), "b"), ["b", "ab"]),
        (Not(StringContains(("key",), "a")), ["b", "é", ""]),
    ],
)
def test_a_row_is_kept_only_when_its_filter_is_true(given_: Filter, keys: list[str | None]) -> None:
    assert kept(given_) == keys


def test_all_filters_have_to_be_true() -> None:
    batch = pa.record_batch(
        {
            "key": pa.array(["a", "a", None], pa.string()),
            "publish_time": pa.array([NOON, NOON.replace(hour=13), NOON], TYPES["publish_time"]),
        }
    )
    both = [condition(EqualTo(("key",), "a")), condition(GreaterThan(("publish_time",), NOON))]

    assert select(batch, both).num_rows == 1


@pytest.mark.parametrize(
    "given_",
    [
        EqualTo(("payload",), b"x"),
        EqualTo(("attributes", "a"), "x"),
        EqualTo(("offset",), "5"),
        EqualTo(("offset",), 5.0),
        EqualTo(("offset",), True),
        EqualTo(("offset",), 2**63),
        EqualTo(("partition",), 2**31),
        EqualTo(("key",), None),
        EqualTo(("publish_time",), NOON.replace(tzinfo=None)),
        In(("offset",), (1, "2")),
        StringContains(("offset",), "1"),
        Not(EqualTo(("amount",), 1)),
    ],
)
def test_what_is_not_known_exactly_is_left_to_spark(given_: Filter) -> None:
    assert accept(given_, ALL) is None


def test_a_column_that_is_read_as_another_type_is_left_to_spark() -> None:
    assert accept(EqualTo(("offset",), 5), ALL - {"offset"}) is None


def test_columns_with_a_type_or_collation_of_the_users_are_left_to_spark() -> None:
    schema = StructType(
        [
            StructField("key", StringType("UTF8_LCASE")),
            StructField("offset", IntegerType()),
            StructField("producer", StringType()),
        ]
    )
    reader = FilteringReader(read_options({"topic": "/default/a"}), ReadLayout(schema, ()))
    given: list[Filter] = [
        EqualTo(("key",), "K"),
        EqualTo(("offset",), 5),
        EqualTo(("producer",), "p"),
    ]

    assert reader.pushFilters(given) == given[:2]
    assert reader.conditions == (Condition("producer", "EqualTo", "p"),)


# Narrowing

STREAMS = [OffsetRange("/default/a", 1, 0, 100), OffsetRange("/default/o-part-3", 2, 50, 80)]


@pytest.mark.parametrize(
    ("given_", "ranges"),
    [
        (EqualTo(("offset",), 60), [(60, 61), (60, 61)]),
        (GreaterThan(("offset",), 78), [(79, 100), (79, 80)]),
        (GreaterThanOrEqual(("offset",), 80), [(80, 100)]),
        (LessThan(("offset",), 50), [(0, 50)]),
        (LessThanOrEqual(("offset",), 50), [(0, 51), (50, 51)]),
        (In(("offset",), (10, 70, None)), [(10, 71), (50, 71)]),
        (In(("offset",), (None,)), []),
        (Not(GreaterThan(("offset",), 10)), [(0, 100), (50, 80)]),
    ],
)
def test_filters_on_offsets_narrow_what_is_read(
    given_: Filter, ranges: list[tuple[int, int]]
) -> None:
    found = narrow(STREAMS, [condition(given_)])

    assert [(one.start, one.end) for one in found] == ranges


@pytest.mark.parametrize(
    ("given_", "streams"),
    [
        (EqualTo(("partition",), 3), ["/default/o-part-3"]),
        (EqualTo(("partition",), 0), ["/default/a"]),
        (Not(EqualTo(("topic",), "/default/o")), ["/default/a"]),
        (StringStartsWith(("topic",), "/default/o"), ["/default/o-part-3"]),
        (IsNull(("topic",)), []),
    ],
)
def test_filters_on_topic_and_partition_choose_streams(given_: Filter, streams: list[str]) -> None:
    assert [one.stream for one in narrow(STREAMS, [condition(given_)])] == streams


integers = st.integers(-5, 25)
filters = st.one_of(
    st.builds(lambda kind, v: kind(("offset",), v), st.sampled_from(
        [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    ), integers),
    st.builds(
        lambda vs: In(("offset",), tuple(vs)), st.lists(st.one_of(integers, st.none()), max_size=4)
    ),
)  # fmt: skip
TESTS: dict[str, Any] = {
    "EqualTo": lambda o, v: o == v,
    "EqualNullSafe": lambda o, v: o == v,
    "GreaterThan": lambda o, v: o > v,
    "GreaterThanOrEqual": lambda o, v: o >= v,
    "LessThan": lambda o, v: o < v,
    "LessThanOrEqual": lambda o, v: o <= v,
}


def is_true(given_: Any, offset: int) -> bool:
    if isinstance(given_, Not):
        inner: Any = given_.child
        if isinstance(inner, In) and None in inner.value:
            return False
        return not is_true(inner, offset)
    if isinstance(given_, In):
        return offset in given_.value
    return bool(TESTS[type(given_).__name__](offset, given_.value))


@given(st.lists(st.one_of(filters, filters.map(Not)), max_size=4))
def test_narrowing_and_what_is_left_over_together_are_exact(given_: list[Filter]) -> None:
    conditions = [condition(one) for one in given_]

    found: list[int] = []
    for one in narrow([OffsetRange("/default/a", 1, 0, 20)], conditions):
        batch = pa.record_batch({"offset": pa.array(range(one.start, one.end), pa.int64())})
        found += select(batch, left_over(conditions)).column("offset").to_pylist()

    assert found == [o for o in range(20) if all(is_true(one, o) for one in given_)]
