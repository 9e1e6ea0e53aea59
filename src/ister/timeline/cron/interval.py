"""`@every 5s`: slots at a steady distance, in place of the five fields of a cron expression.

Slots are the multiples of the interval since 1970, in no zone: so they follow from the expression
alone, as those of all rules do. Ids of messages have whole seconds in them, so intervals are whole
seconds too.
"""

from dataclasses import dataclass

from ister.base import parse_span
from ister.base.errors import BadRequestError

EVERY = "@EVERY"
EVERY_S_MAX = 86_400


@dataclass(frozen=True, slots=True)
class Interval:
    """A distance between slots."""

    every_ms: int

    def next_slot(self, after_ms: int) -> int:
        """Return the first slot behind `after_ms`."""
        return (after_ms // self.every_ms + 1) * self.every_ms

    def count_slots(self, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Return how many slots lie behind `after_ms`, up to `until_ms`, and the last of them."""
        first, last = after_ms // self.every_ms, until_ms // self.every_ms
        return last - first, last * self.every_ms


def find_interval(expression: str) -> Interval | None:
    """Return the interval of `@every 5s`, `None` for other expressions.

    Raises `BadRequestError` when it is not 1 s to a day, in whole seconds.
    """
    words = expression.split()
    if not words or words[0].upper() != EVERY:
        return None
    try:
        seconds = parse_span(" ".join(words[1:]))
    except ValueError:
        seconds = 0.0
    if not (1 <= seconds <= EVERY_S_MAX and seconds == int(seconds)):
        raise BadRequestError(
            f"cron expression {expression[:64]!r} is not an interval of 1 to {EVERY_S_MAX} whole "
            "seconds, as in '@every 5s' or '@every 10m'"
        )
    return Interval(int(seconds) * 1000)
