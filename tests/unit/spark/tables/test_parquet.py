"""Files of rows: keys as texts, merging, and what a footer tells."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.spark.tables.parquet import (
    BOUND_CHARACTERS_MAX,
    describe_file,
    has_duplicates,
    key_texts,
    keys_in,
    leave_out,
    merge,
)

TEXTS = st.one_of(st.none(), st.text(alphabet="-:1a", max_size=4))
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


def batch(rows: list[tuple[Any, ...]], *types: pa.DataType) -> pa.RecordBatch:
    columns = [[row[slot] for row in rows] for slot in range(len(types))]
    arrays = [pa.array(one, type_) for one, type_ in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, [f"c{slot}" for slot in range(len(types))])


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@given(st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), min_size=1, max_size=12))
def test_the_text_of_a_key_is_the_same_exactly_for_the_same_values(
    rows: list[tuple[Any, ...]],
) -> None:
    found = batch(rows, pa.string(), pa.string(), pa.int64())
    texts = key_texts(found, ["c0", "c1", "c2"]).to_pylist()

    for one, text in zip(rows, texts, strict=True):
        assert [text == other for other in texts] == [one == other for other in rows]


def test_days_times_and_amounts_can_be_keys() -> None:
    now = datetime(2026, 11, 16, 1, 2, 3, 456, tzinfo=UTC)
    rows = [(now, date(2026, 11, 16), None), (now, date(2026, 11, 17), None)]
    found = batch(rows, pa.timestamp("us", "UTC"), pa.date32(), pa.decimal128(9, 2))

    texts = key_texts(found, ["c0", "c1", "c2"])
    assert not has_duplicates(texts)
    assert has_duplicates(key_texts(found, ["c0", "c2"]))


def test_a_column_that_a_file_lacks_counts_as_null() -> None:
    texts = key_texts(batch([(None,), ("a",)], pa.string()), ["c0", "added"])

    assert texts.to_pylist() == ["--", "1:a-"]


def test_merged_files_have_all_rows_in_order_and_null_for_what_they_lacked(tmp_path: Path) -> None:
    first = write(tmp_path / "1", a=[1, 2])
    second = write(tmp_path / "2", b=["x"], a=[3])

    merge([first, second], tmp_path / "merged", order=["a", "b"])

    rows = pq.read_table(tmp_path / "merged").to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]
    column = pq.read_metadata(tmp_path / "merged").row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_dictionary_page


SHAPES: list[tuple[Callable[[pa.Field], pa.DataType], Callable[[Any], Any]]] = [
    (pa.list_, lambda inner: [inner]),
    (lambda field: pa.struct([field]), lambda inner: {"x": inner}),
    (lambda field: pa.map_(pa.string(), field), lambda inner: [("k", inner)]),
    (lambda field: pa.list_(pa.struct([field])), lambda inner: [{"x": inner}]),
]


@pytest.mark.parametrize(("kind", "value"), SHAPES)
def test_files_are_merged_when_only_some_say_that_there_is_no_null_inside(
    tmp_path: Path, kind: Callable[[pa.Field], pa.DataType], value: Callable[[Any], Any]
) -> None:
    never, maybe = (pa.field("x", pa.int64(), nullable=flag) for flag in (False, True))
    first = write(tmp_path / "first", a=pa.array([value(1)], kind(never)))
    second = write(tmp_path / "second", a=pa.array([value(None)], kind(maybe)))

    merge([first, second], tmp_path / "merged", order=["a"])

    assert pq.read_table(tmp_path / "merged")["a"].to_pylist() == [value(1), value(None)]


def test_rows_with_taken_keys_are_left_out_and_a_file_without_such_is_not_written(
    tmp_path: Path,
) -> None:
    old = write(tmp_path / "old", id=[1, 2, 3], n=[10, 20, 30])
    taken = keys_in([write(tmp_path / "new", id=[2, 9], n=[0, 0])], ["id"])
    others = keys_in([write(tmp_path / "other", id=[9], n=[0])], ["id"])

    assert leave_out(old, tmp_path / "rest", keys=["id"], taken=taken) == 1
    assert pq.read_table(tmp_path / "rest").to_pylist() == [{"id": 1, "n": 10}, {"id": 3, "n": 30}]
    assert leave_out(old, tmp_path / "none", keys=["id"], taken=others) == 0
    assert not (tmp_path / "none").exists()


def test_a_footer_tells_rows_and_the_bounds_of_plain_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path / "f",
        id=[3, 1, None],
        day=[date(2026, 11, 16)] * 3,
        text=["b", "a", "c"],
        long=["x" * BOUND_CHARACTERS_MAX] * 3,
        nothing=pa.array([None] * 3, pa.int64()),
        nan=[float("nan"), 1.0, 2.0],
        inside=[{"a": 1}] * 3,
    )

    found = describe_file(path, name="f", columns=7)

    assert (found.rows, found.size_bytes, found.columns) == (3, path.stat().st_size, 7)
    assert found.lowest == {"id": 1, "day": "2026-11-16", "text": "a", "nan": 1.0}
    assert found.highest == {"id": 3, "day": "2026-11-16", "text": "c", "nan": 2.0}
