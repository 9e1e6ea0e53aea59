"""Spans of time: people's words in, Spark's words out."""

import pytest

from ister.spark.intervals import interval_ms, interval_text


@pytest.mark.parametrize(
    ("text", "milliseconds", "spark"),
    [
        ("30 seconds", 30_000, "30 seconds"),
        ("30s", 30_000, "30 seconds"),
        ("1 second", 1_000, "1 second"),
        ("90 SECONDS", 90_000, "90 seconds"),
        ("1 hour 30 minutes", 5_400_000, "90 minutes"),
        ("5m", 300_000, "5 minutes"),
        ("250 milliseconds", 250, "250 milliseconds"),
        ("2 weeks", 1_209_600_000, "14 days"),
        ("0 seconds", 0, "0 milliseconds"),
    ],
)
def test_a_span_is_understood(text: str, milliseconds: int, spark: str) -> None:
    assert interval_ms(text) == milliseconds
    assert interval_text(milliseconds) == spark


@pytest.mark.parametrize("text", ["", "30", "often", "30 parsecs", "-1 second", "1.5 hours", "s 3"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no span of time"):
        interval_ms(text)


def test_a_span_ends_at_ten_years() -> None:
    assert interval_ms("3650 days") == 3_650 * 86_400_000

    with pytest.raises(ValueError, match="longer than ten years"):
        interval_ms("3650 days 1 ms")
