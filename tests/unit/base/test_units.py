"""Sizes and time spans: what people may write, and what they read."""

import pytest

from ister.base import (
    parse_size,
    parse_span,
    rounded_size,
    rounded_span,
    size_text,
    span_hint,
    span_text,
)
from ister.base.limits import KIB, MIB


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("512KiB", 512 * KIB), (" 1.5 MiB ", 3 * MIB // 2), ("1gb", 10**9), ("7b", 7)],
)
def test_a_size_is_bytes_or_has_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("500ms", 0.5), ("5m", 300), ("1.5h", 5_400), ("7d", 604_800), (" 1 s ", 1)],
)
def test_a_span_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "1w", "1 000"])
def test_what_is_neither_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(ValueError, match="write bytes"):
        parse_size(text)
    with pytest.raises(ValueError, match="write seconds"):
        parse_span(text)


def test_an_exact_size_reads_back_as_itself() -> None:
    for size_bytes in (0, 1, 1_023, KIB, 1_536, MIB, 10**9, 3 * 1024**4):
        assert parse_size(size_text(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (KIB, "1.0 KiB"), (1_536, "1.5 KiB"), (5 * MIB, "5.0 MiB")],
)
def test_a_rounded_size_changes_its_unit_at_the_edge(size_bytes: int, text: str) -> None:
    assert rounded_size(size_bytes) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0"),
        (1, "1ms"),
        (0.5, "0.5ms"),
        (1_500, "1.5s"),
        (30_000, "30s"),
        (90_000, "90s"),
        (5_400_000, "90m"),
        (432_000_000, "5d"),
        (432_000_001, "432000.001s"),
        (-1_000, "-1s"),
    ],
)
def test_an_exact_span_is_shown_as_people_write_it(milliseconds: float, text: str) -> None:
    assert span_text(milliseconds) == text
    assert milliseconds < 0 or round(parse_span(text) * 1000, 6) == milliseconds


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("7d", ": write 604800, or timedelta(days=7)"),
        ("90m", ": write 5400, or timedelta(minutes=90)"),
        ("500ms", ": write 0.5, or timedelta(seconds=0.5)"),
        ("a week", ""),
        (None, ""),
    ],
)
def test_a_span_as_text_gets_a_hint_how_to_write_it(given: object, hint: str) -> None:
    assert span_hint(given, takes_timedelta=True) == hint
    assert span_hint(given) == hint.partition(",")[0]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1.0s"),
        (59_900, "59.9s"),
        (60_000, "1.0m"),
        (3_600_000, "1.0h"),
        (604_800_000, "7.0d"),
    ],
)
def test_a_rounded_span_changes_its_unit_at_the_edge(milliseconds: int, text: str) -> None:
    assert rounded_span(milliseconds) == text
