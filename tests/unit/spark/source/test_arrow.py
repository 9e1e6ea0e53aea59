"""Columns for Spark: what a plain loop over the messages finds, whatever the batches are like."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.codec.strategies import Messages, messages, resealed

from ister.base.errors import BadBatchError, CodecMissingError
from ister.codec import HEADER_BYTES, Batch, available, encode
from ister.spark.source.arrow import (
    ALONE_ROWS,
    ROWS_TARGET,
    SLICES_TARGET,
    TYPES,
    ColumnBuilder,
    group_slices,
)
from ister.spark.source.slices import BatchSlice, slice_batch

TOPIC = "/default/orders"
PARTITION = 3
NAMES = list(TYPES)
MS_MAX = (2**63 - 1) // 1000


def record_batches(
    slices: Iterable[BatchSlice], names: Sequence[str], *, topic: str, partition: int
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of slices as a read does."""
    columns = ColumnBuilder(names, topic=topic, partition=partition)
    for group in group_slices(slices):
        yield columns.build(group)


def whole(batch: Batch) -> BatchSlice:
    return BatchSlice(batch, 0, batch.count)


def made(payloads: list[bytes], *, base_offset: int = 0, **columns: Any) -> Batch:
    return Messages(payloads, **columns).batch(base_offset=base_offset)


def expected(parts: list[BatchSlice]) -> list[dict[str, Any]]:
    """Return the rows of some parts, found message by message."""
    rows = []
    for batch, start, end in parts:
        keys = batch.keys or [None] * batch.count
        attributes = batch.attributes
        for slot in range(start, end):
            time_ms = max(-MS_MAX, min(MS_MAX, batch.timestamps_ms[slot]))
            rows.append(
                {
                    "topic": TOPIC,
                    "partition": PARTITION,
                    "offset": batch.offsets[slot],
                    "publish_time": time_ms * 1000,
                    "producer": batch.producer,
                    "key": keys[slot],
                    "payload": batch.payloads[slot],
                    "attributes": None if attributes is None else list(attributes[slot].items()),
                }
            )
    return rows


def shown(batches: list[pa.RecordBatch], names: list[str]) -> list[dict[str, Any]]:
    """Return rows with times as numbers: Python has none before the year 1 or after 9999."""
    rows = []
    for batch in batches:
        assert batch.schema.equals(pa.schema([(name, TYPES[name]) for name in names]))
        batch.validate(full=True)
        columns = [
            column.cast(pa.int64()) if name == "publish_time" else column
            for name, column in zip(names, batch.columns, strict=True)
        ]
        rows += pa.RecordBatch.from_arrays(columns, names=names).to_pylist()
    return rows


@st.composite
def some_parts(draw: st.DrawFn) -> list[BatchSlice]:
    """Any batches, with any of their messages gone by compaction, cut anywhere."""
    parts = []
    for one in draw(st.lists(messages(max_size=20), min_size=1, max_size=5)):
        codec = draw(st.sampled_from(available()))
        batch = one.batch(codec=codec, base_offset=draw(st.integers(0, 2**40)))
        if draw(st.booleans()):
            slots = draw(st.sets(st.sampled_from(range(batch.count)), min_size=1))
            batch = batch.select(sorted(slots))
        start = draw(st.integers(0, batch.count - 1))
        parts.append(BatchSlice(batch, start, draw(st.integers(start + 1, batch.count))))
    return parts


@given(some_parts(), st.permutations(NAMES), st.integers(1, len(NAMES)))
def test_any_columns_of_any_batches_are_what_a_loop_over_the_messages_finds(
    parts: list[BatchSlice], order: list[str], count: int
) -> None:
    names = order[:count]

    batches = list(record_batches(parts, names, topic=TOPIC, partition=PARTITION))

    wanted = [{name: row[name] for name in names} for row in expected(parts)]
    assert shown(batches, names) == wanted


@given(messages(max_size=40))
def test_columns_agree_with_the_arrow_form_of_a_batch(given: Messages) -> None:
    batch = given.batch(base_offset=7)
    names = ["offset", "producer", "key", "payload", "attributes"]

    (found,) = record_batches([whole(batch)], names, topic=TOPIC, partition=PARTITION)

    assert found.equals(batch.to_arrow().select(names))


@given(messages(), st.sampled_from(available()), st.data())
def test_broken_columns_are_refused_or_read_but_never_more(
    given: Messages, codec: Any, data: st.DataObject
) -> None:
    raw = bytearray(given.batch(codec=codec).to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER_BYTES, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    others = [whole(made([b"one", b"two"], keys=["a", None]))] * data.draw(st.integers(0, 2))

    try:
        parts = [whole(Batch(resealed(raw))), *others]
        for batch in record_batches(parts, NAMES, topic=TOPIC, partition=PARTITION):
            batch.validate(full=True)
    except (BadBatchError, CodecMissingError):
        pass


def test_keys_that_are_text_only_together_get_the_replacement_character() -> None:
    # The bytes of one "ä" are in two keys: the whole column is UTF-8, each key is not.
    batch = made([b"1", b"2", b"3"], keys=["a", "b", "ä"])
    raw = bytearray(batch.to_bytes())
    text = raw.index("abä".encode())
    raw[text : text + 4] = "aäb".encode()
    broken = Batch(resealed(raw))
    other = made([b"4"], keys=["c"], base_offset=3)

    (found,) = record_batches([whole(broken), whole(other)], ["key"], topic=TOPIC, partition=0)

    assert found["key"].to_pylist() == [*(broken.keys or ()), "c"] == ["a", "�", "�b", "c"]
    assert broken.to_arrow()["key"].to_pylist() == ["a", "�", "�b"]


def test_a_large_batch_is_used_where_it_lies() -> None:
    raw = b"".join(encode([b"%09d" % n for n in range(ALONE_ROWS)]))
    batch = Batch(raw)
    memory = pa.py_buffer(raw)

    (found,) = record_batches([whole(batch)], ["payload"], topic=TOPIC, partition=0)

    offsets, blob = found["payload"].buffers()[1:]
    for buffer in (offsets, blob):
        assert memory.address <= buffer.address < memory.address + memory.size


def test_small_batches_become_few_record_batches() -> None:
    parts = (whole(made([b"x" * 100] * 100, base_offset=100 * n)) for n in range(1_000))

    sizes = [sum(p.end - p.start for p in group) for group in group_slices(parts)]

    assert sum(sizes) == 100_000
    assert set(sizes[:-1]) == {(ROWS_TARGET + 99) // 100 * 100}


def test_no_record_batch_is_made_of_more_batches_than_is_good_for_the_collector() -> None:
    parts = (whole(made([b"x"], base_offset=n)) for n in range(2 * SLICES_TARGET + 1))

    assert [len(group) for group in group_slices(parts)] == [SLICES_TARGET, SLICES_TARGET, 1]


def test_large_messages_make_record_batches_of_few_rows() -> None:
    parts = (whole(made([b"x" * 4_000_000], base_offset=n)) for n in range(20))

    assert [len(group) for group in islice(group_slices(parts), 2)] == [5, 5]


def test_a_large_batch_does_not_wait_for_small_ones() -> None:
    small, large = made([b"a"]), made([b"b"] * ALONE_ROWS, base_offset=1)
    parts = [whole(small), whole(large), whole(small)]

    assert [len(group) for group in group_slices(parts)] == [1, 1, 1]


def test_no_parts_are_no_record_batches() -> None:
    assert list(record_batches([], NAMES, topic=TOPIC, partition=0)) == []


def test_producers_of_many_batches_keep_their_messages_apart() -> None:
    parts = []
    for n in range(50):
        header = {"producer": b"p%d" % n}
        parts.append(whole(made([b"x", b"y"], base_offset=2 * n, header=header)))
    columns = ColumnBuilder(["producer"], topic=TOPIC, partition=0)

    assert columns.build(parts)["producer"].to_pylist() == [f"p{n // 2}" for n in range(100)]
    for n, part in enumerate(parts):
        assert columns.build([part])["producer"].to_pylist() == [f"p{n}"] * 2


@pytest.mark.parametrize(
    ("start", "end", "slots"), [(0, 5, None), (5, 12, (0, 2)), (11, 12, (1, 2)), (15, 40, (5, 10))]
)
def test_a_batch_is_cut_to_offsets(start: int, end: int, slots: tuple[int, int] | None) -> None:
    batch = made([b"x"] * 10, base_offset=10)

    part = slice_batch(batch, start, end)

    assert (part and part[1:]) == slots


def test_a_compacted_batch_is_cut_by_the_offsets_it_has_left() -> None:
    batch = made([b"%d" % n for n in range(10)], base_offset=10).select([1, 4, 8])

    assert slice_batch(batch, 12, 18) == BatchSlice(batch, 1, 2)
    assert slice_batch(batch, 15, 18) is None
    assert slice_batch(batch, 18, 19) == BatchSlice(batch, 2, 3)
