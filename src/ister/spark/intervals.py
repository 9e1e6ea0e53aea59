"""Spans of time as people write them in a pipeline, and as Spark reads them."""

import re

_UNITS_MS = {
    "millisecond": 1, "ms": 1,
    "second": 1_000, "sec": 1_000, "s": 1_000,
    "minute": 60_000, "min": 60_000, "m": 60_000,
    "hour": 3_600_000, "h": 3_600_000,
    "day": 86_400_000, "d": 86_400_000,
    "week": 604_800_000, "w": 604_800_000,
}  # fmt: skip
_PIECE = re.compile(r"\s*(\d+)\s*([A-Za-z]+)\s*,?")
# The largest first: what a span is written in.
_SPARK_UNITS = (
    ("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000),
)  # fmt: skip

# Ten years. A longer watermark is a typing error: its state would never be given up.
INTERVAL_MS_MAX = 3_650 * 86_400_000


def interval_ms(text: str) -> int:
    """Return the milliseconds of `30 seconds`, `30s` or `1 hour 30 minutes`.

    Raises `ValueError` with what is wrong.
    """
    total, place = 0, 0
    word = text.strip()
    while place < len(word):
        found = _PIECE.match(word, place)
        unit = _unit_ms(found[2]) if found else None
        if found is None or unit is None:
            raise ValueError("is no span of time: write `30 seconds`, `5 minutes` or `1 hour`")
        total += int(found[1]) * unit
        place = found.end()
    if not word:
        raise ValueError("is no span of time: write `30 seconds`, `5 minutes` or `1 hour`")
    if total > INTERVAL_MS_MAX:
        raise ValueError("is longer than ten years")
    return total


def interval_text(milliseconds: int) -> str:
    """Return a span in Spark's words, in the largest unit that leaves a whole number."""
    for unit, size in _SPARK_UNITS:
        if milliseconds and milliseconds % size == 0:
            count = milliseconds // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{milliseconds} milliseconds"


def _unit_ms(word: str) -> int | None:
    low = word.lower()
    found = _UNITS_MS.get(low)
    if found is None and low.endswith("s"):
        found = _UNITS_MS.get(low[:-1])
    return found
