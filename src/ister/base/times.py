"""Points in time and delays as applications give them, checked.

Always true:
- a number is a time or a delay, never both: times are seconds since 1970 from `TURN_S` on, delays
  are seconds below it. So a time given as a delay is refused, and a delay given as a time;
- a time has a zone. Which one an application meant is a guess.
"""

from datetime import UTC, datetime, timedelta

from ister.base.errors import BadRequestError
from ister.base.units import span_hint

# September 2001 as a time, 32 years as a delay.
TURN_S = 1_000_000_000
# The year 10000 in seconds since 1970: Python has no time behind it. As milliseconds it is 1978.
END_S = 253_402_300_800
# Milliseconds since 1970 are seconds below this, which is 1973.
MILLISECONDS_MIN = 100_000_000_000

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A point in time: a datetime with its zone, or seconds since 1970 as of `time.time()`.
Time = datetime | float
# A span of time: seconds, or as Python has it.
Seconds = float | timedelta


def epoch_us(time: object, what: str = "at", delay: str = "after") -> int:
    """Return a point in time in microseconds since 1970, or raise `BadRequestError`.

    `what` is the argument, and `delay` the one that takes a delay instead, if there is one.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise BadRequestError(
                f"{what} {time} has no time zone: use `datetime.now(UTC)`, or add "
                "`.astimezone()` for local time"
            )
        return max(0, (time - EPOCH) // timedelta(microseconds=1))
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise BadRequestError(
            f"{what} is a datetime, or seconds since 1970 as of `time.time()`, not {time!r}"
        )
    if time >= END_S:
        hint = f": these are milliseconds, write {time / 1000:.15g}" if time < END_S * 1000 else ""
        raise BadRequestError(f"{what} {time!r} is later than the year 9999{hint}")
    if not time >= TURN_S:
        hint = f"for a delay in seconds write {delay}={time!r}, " if delay else ""
        raise BadRequestError(
            f"{what} is seconds since 1970, and {time!r} is long ago: {hint}"
            "for an old time a datetime"
        )
    return round(time * 1_000_000)


def delay_us(span: object, what: str = "after", time: str = "at") -> int:
    """Return a delay in microseconds, or raise `BadRequestError`.

    `what` is the argument, and `time` the one that takes a point in time instead.
    """
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise BadRequestError(
            f"{what} is seconds from now, 0 or more, or a timedelta, not {span!r}"
            f"{span_hint(span, takes_timedelta=True)}"
        )
    if isinstance(span, timedelta):
        return span // timedelta(microseconds=1)
    if seconds >= TURN_S:
        hint = f"{seconds / 1000:.15g}" if seconds >= MILLISECONDS_MIN else repr(seconds)
        raise BadRequestError(
            f"{what} {seconds!r} is more than 30 years: for a time in seconds since 1970 write "
            f"{time}={hint}, for so long a delay a timedelta"
        )
    return round(seconds * 1_000_000)


def parse_time(text: str) -> Time:
    """Return the time of `2026-11-15T10:00Z`, or of seconds since 1970; or raise `ValueError`."""
    word = text.strip()
    if word.replace(".", "", 1).isdecimal() and len(word) >= len(str(TURN_S)):
        return float(word)
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError("is no time: write it as 2026-11-15T10:00Z") from None
    if time.tzinfo is None:
        shown = time.isoformat()
        raise ValueError(f"has no time zone: write {shown}Z, or its offset as in {shown}+01:00")
    return time


def check_milliseconds(time_ms: int, what: str) -> None:
    """Raise `BadRequestError` for seconds since 1970 where milliseconds belong."""
    if 0 < time_ms < MILLISECONDS_MIN:
        raise BadRequestError(
            f"{what} is milliseconds since 1970, and {time_ms} are seconds: write {time_ms}000"
        )
