"""State for each key, in PySpark's own harness: no cluster, no Java."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructType

from ister.base.errors import BadRequestError
from ister.spark.stateful import KeyedFunction, State

STATE = StructType().add("seen", LongType())
RETURNS = StructType().add("card", StringType()).add("seen", LongType())
MINUTE_MS = 60_000


def count(key: Any, rows: list[Row], state: State | None) -> tuple[list[State], State | None]:
    """Count the rows of a key; `forget` among them forgets it."""
    seen = (state["seen"] if state else 0) + len(rows)
    is_over = any(row["what"] == "forget" for row in rows)
    return [{"card": key, "seen": seen}], None if is_over else {"seen": seen}


def tell(key: Any, state: State) -> Iterable[Mapping[str, Any]]:
    yield {"card": key, "seen": -state["seen"]}


def row(what: str = "pay", minute: int = 0) -> Row:
    return Row(what=what, at=datetime(2026, 1, 1, 0, minute, tzinfo=UTC))


def at_ms(minute: int) -> int:
    return int(datetime(2026, 1, 1, 0, minute, tzinfo=UTC).timestamp() * 1_000)


def made(function: Any = count, **options: Any) -> KeyedFunction:
    return KeyedFunction(function, is_single=True, state=STATE, returns=RETURNS, **options)


def test_state_goes_on_from_batch_to_batch_for_each_key() -> None:
    tester = TwsTester(made())

    assert tester.test("a", [row(), row()]) == [Row(card="a", seen=2)]
    assert tester.test("b", [row()]) == [Row(card="b", seen=1)]
    assert tester.test("a", [row()]) == [Row(card="a", seen=3)]


def test_a_key_is_forgotten_when_its_state_is_none() -> None:
    tester = TwsTester(made())

    tester.test("a", [row(), row("forget")])

    assert tester.peekValueState("state", "a") is None
    assert tester.test("a", [row()]) == [Row(card="a", seen=1)]


def test_what_is_left_out_of_a_row_is_null() -> None:
    tester = TwsTester(made(lambda key, rows, state: ([{"card": key}], None)))

    assert tester.test("a", [row()]) == [Row(card="a", seen=None)]


def test_a_column_that_is_not_in_the_ddl_is_refused() -> None:
    tester = TwsTester(made(lambda key, rows, state: ([{"kard": key}], None)))

    with pytest.raises(BadRequestError, match="the row has 'kard', and its columns are card, seen"):
        tester.test("a", [row()])


def by_event_time() -> "TwsTester":
    processor = made(timeout_ms=10 * MINUTE_MS, time="at", on_timeout=tell)
    return TwsTester(
        processor, timeMode="EventTime", eventTimeExtractor=lambda one: at_ms(one["at"].minute)
    )


def test_silence_ends_when_the_watermark_passes_the_timeout_and_not_before() -> None:
    tester = by_event_time()
    tester.test("a", [row(minute=5)])

    # The timer is due at minute 15: one before, then at it.
    assert tester.setWatermark(at_ms(15) - 1) == []
    assert tester.setWatermark(at_ms(15) + 1) == [Row(card="a", seen=-1)]
    assert tester.test("a", [row(minute=20)]) == [Row(card="a", seen=1)]


def test_a_newer_row_puts_the_end_of_silence_off() -> None:
    tester = by_event_time()
    tester.test("a", [row(minute=5)])
    tester.test("a", [row(minute=12)])

    assert tester.setWatermark(at_ms(16)) == []
    assert tester.setWatermark(at_ms(22) + 1) == [Row(card="a", seen=-2)]


def test_a_late_row_does_not_bring_the_end_of_silence_closer() -> None:
    tester = by_event_time()
    tester.test("a", [row(minute=12)])
    tester.test("a", [row(minute=3)])

    assert tester.setWatermark(at_ms(14)) == []
    assert tester.setWatermark(at_ms(22) + 1) == [Row(card="a", seen=-2)]


def test_the_clock_measures_silence_without_a_column() -> None:
    tester = TwsTester(made(timeout_ms=1_000, on_timeout=tell), timeMode="ProcessingTime")
    tester.setProcessingTime(100)
    tester.test("a", [row()])

    assert tester.setProcessingTime(1_099) == []
    assert tester.setProcessingTime(1_101) == [Row(card="a", seen=-1)]


def test_a_key_that_is_forgotten_has_no_timer_left() -> None:
    tester = by_event_time()
    tester.test("a", [row(minute=5)])
    tester.test("a", [row("forget", minute=6)])

    assert tester.setWatermark(at_ms(59)) == []
