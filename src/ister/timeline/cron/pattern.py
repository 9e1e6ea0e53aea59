"""Cron expressions: which minutes of a calendar they mean, zones aside.

Five fields: minute, hour, day of the month, month, day of the week. Each is a list of

    *   7   9-17   */5   9-17/2   10/15   JAN   MON-FRI
    L   LW              the last day of the month; the last from Monday to Friday
    FRI#2   FRIL        the second Friday of the month; the last Friday

Sunday is 0 and 7. As in every cron, days count when both fields of them hold if one begins with a
star, and when either holds if none does. `@hourly` and its like stand for expressions.

Sets of minutes, hours, days, months and days of the week are bits of an integer: bit 9 of `hours`
is nine o'clock. So the next of them is found without a loop.
"""

import calendar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from ister.base.errors import BadRequestError

# All 60 minutes as a list of their numbers have 170 characters.
EXPRESSION_LENGTH_MAX = 256
# Rules are read whenever they fire, and parsing takes 0.4 ms: longer than all the rest. A pattern
# has 2 KB.
PATTERNS_KEPT = 1_000
# The rarest day is a 29 February on one day of the week: there are up to 40 years between two.
SEARCH_MONTHS = 12 * 41

ALIASES = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# Every seventh day of a month from the first on: at most five of them.
EVERY_SEVENTH_DAY = sum(1 << day for day in range(1, 32, 7))
ALL_HOURS = (1 << 24) - 1
SUNDAY, SATURDAY = 0, 6


class _Field(NamedTuple):
    name: str
    start: int
    # With it.
    last: int
    example: str
    words: tuple[str, ...] = ()


MINUTE = _Field("minute", 0, 59, "*/5")
HOUR = _Field("hour", 0, 23, "9-17")
DAY = _Field("day of the month", 1, 31, "1,15")
MONTH = _Field("month", 1, 12, "JAN-MAR", MONTHS)
WEEKDAY = _Field("day of the week", 0, 7, "MON-FRI", WEEKDAYS)
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What an expression means."""

    minutes: int
    hours: int
    months: int
    # For each shape of a month, the days of it: see `_shape`.
    days: tuple[int, ...]
    # Whether the hour is a star or all of the day: then it goes by the time that passes.
    hourly: bool

    @property
    def slots_a_day_max(self) -> int:
        """How often it fires on a day that it fires on."""
        return self.minutes.bit_count() * self.hours.bit_count()

    def find(self, wall: datetime) -> datetime | None:
        """Return the first minute it means, at `wall` or behind; times are without a zone."""
        if wall.second or wall.microsecond:
            wall = wall.replace(second=0, microsecond=0) + timedelta(minutes=1)
        year, month = wall.year, wall.month
        days = self._days(year, month)
        if days >> wall.day & 1:
            found = self._find_time(wall.hour, wall.minute)
            if found is not None:
                return wall.replace(hour=found[0], minute=found[1])
        days &= -1 << wall.day + 1
        for _ in range(SEARCH_MONTHS):
            if days:
                hour, minute = _lowest(self.hours), _lowest(self.minutes)
                return datetime(year, month, _lowest(days), hour, minute)  # noqa: DTZ001 wall time
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            days = self._days(year, month)
        return None

    def ever_fires(self) -> bool:
        """Return whether there is a day it means: every month begins with any day of the week."""
        return any(
            self.days[_shape(first_weekday, length)]
            for month in range(1, 13)
            if self.months >> month & 1
            for length in {calendar.monthrange(year, month)[1] for year in (2000, 2001)}
            for first_weekday in range(7)
        )

    def _find_time(self, hour: int, minute: int) -> tuple[int, int] | None:
        """Return the first time of a day, at that one or behind."""
        later = self.minutes >> minute << minute
        if self.hours >> hour & 1 and later:
            return hour, _lowest(later)
        hours = self.hours & -1 << hour + 1
        return (_lowest(hours), _lowest(self.minutes)) if hours else None

    def _days(self, year: int, month: int) -> int:
        if not self.months >> month & 1:
            return 0
        # Python's weeks begin with Monday.
        first_weekday, length = calendar.monthrange(year, month)
        return self.days[_shape((first_weekday + 1) % 7, length)]


@lru_cache(PATTERNS_KEPT)
def parse_pattern(expression: str) -> Pattern:
    """Return what an expression means, or raise `BadRequestError` that says what is wrong."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise BadRequestError(
            f"a cron expression has up to {EXPRESSION_LENGTH_MAX} characters, not {len(expression)}"
        )
    text = expression.strip().upper()
    parts = ALIASES.get(text, text).split()
    if len(parts) != len(FIELDS):
        raise BadRequestError(
            f"cron expression {expression!r} has {len(parts)} fields: it takes minute, hour, day "
            "of the month, month and day of the week, as in '30 9 * * MON-FRI', or one of "
            f"{', '.join(ALIASES).lower()}"
        )
    minutes, hours, days, months, weekdays = (
        _Items(expression, field, part).parse() for field, part in zip(FIELDS, parts, strict=True)
    )
    both = parts[2].startswith("*") or parts[4].startswith("*")
    shapes = [(first_weekday, length) for length in range(28, 32) for first_weekday in range(7)]
    by_day = [days.days_of(*shape) for shape in shapes]
    by_weekday = [weekdays.weekdays_of(*shape) for shape in shapes]
    found = Pattern(
        minutes=minutes.bits,
        hours=hours.bits,
        months=months.bits,
        days=tuple(d & w if both else d | w for d, w in zip(by_day, by_weekday, strict=True)),
        hourly=parts[1].startswith("*") or hours.bits == ALL_HOURS,
    )
    if not found.ever_fires():
        raise BadRequestError(
            f"{DAY.name} {parts[2]!r} of cron expression {expression!r} is wrong: it never fires, "
            f"there is no such day in month {parts[3]!r}; the last of a month is L, as in "
            "'0 0 L * *'"
        )
    return found


class _Items:
    """The items of one field, gathered."""

    def __init__(self, expression: str, field: _Field, text: str) -> None:
        self._expression = expression
        self._field = field
        self._text = text
        self.bits = 0
        self.last_day = False
        self.last_workday = False
        self.numbered: set[tuple[int, int]] = set()
        self.last_weekdays = 0

    def parse(self) -> "_Items":
        """Take all items in, or raise."""
        for item in self._text.split(","):
            if self._field is DAY and item in ("L", "LW"):
                self.last_day |= item == "L"
                self.last_workday |= item == "LW"
            elif self._field is WEEKDAY and "#" in item:
                weekday, _, number = item.partition("#")
                self.numbered.add((self._number(weekday), self._step(number, 5)))
            elif self._field is WEEKDAY and item.endswith("L"):
                self.last_weekdays |= 1 << self._number(item[:-1])
            else:
                self._add_range(item)
        return self

    def days_of(self, first_weekday: int, length: int) -> int:
        """Return the days of a month of that shape, of the field of days."""
        days = self.bits
        if self.last_day:
            days |= 1 << length
        if self.last_workday:
            weekday = (first_weekday + length - 1) % 7
            days |= 1 << length - (2 if weekday == SUNDAY else 1 if weekday == SATURDAY else 0)
        return days & _all_days(length)

    def weekdays_of(self, first_weekday: int, length: int) -> int:
        """Return the days of a month of that shape, of the field of days of the week."""
        days = 0
        for weekday in range(8):
            first = (weekday - first_weekday) % 7 + 1
            if self.bits >> weekday & 1:
                days |= EVERY_SEVENTH_DAY << first - 1
            if self.last_weekdays >> weekday & 1:
                days |= 1 << first + (length - first) // 7 * 7
        for weekday, number in self.numbered:
            days |= 1 << (weekday - first_weekday) % 7 + 1 + 7 * (number - 1)
        return days & _all_days(length)

    def _add_range(self, item: str) -> None:
        span, slash, step_text = item.partition("/")
        step = self._step(step_text, self._field.last) if slash else 1
        start_text, dash, last_text = span.partition("-")
        if span == "*":
            # The week has one Sunday: `*/2` is every second day from it on.
            start, last = self._field.start, 6 if self._field is WEEKDAY else self._field.last
        elif dash:
            start, last = self._number(start_text), self._number(last_text)
            if self._field is WEEKDAY and last == 0 < start:
                last = 7  # MON-SUN
        else:
            start = self._number(span)
            last = self._field.last if slash else start
        if last < start:
            raise self._wrong(f"{span} goes backwards: write it as two ranges")
        for number in range(start, last + 1, step):
            self.bits |= 1 << number

    def _number(self, text: str) -> int:
        field = self._field
        if text in field.words:
            return field.words.index(text) + field.start
        number = _digits(text)
        if number is None or not field.start <= number <= field.last:
            words = f" or {field.words[0]} to {field.words[-1]}" if field.words else ""
            raise self._wrong(f"it takes {field.start} to {field.last}{words}")
        return number

    def _step(self, text: str, last: int) -> int:
        number = _digits(text)
        if number is None or not 1 <= number <= last:
            raise self._wrong(f"behind / or # it takes 1 to {last}")
        return number

    def _wrong(self, reason: str) -> BadRequestError:
        return BadRequestError(
            f"{self._field.name} {self._text!r} of cron expression {self._expression!r} is wrong: "
            f"{reason}, as in {self._field.example!r}"
        )


def _digits(text: str) -> int | None:
    # Two digits are enough for all; and int() takes more than digits, such as "1_0".
    return int(text) if len(text) in (1, 2) and text.isascii() and text.isdigit() else None


def _shape(first_weekday: int, length: int) -> int:
    """Number the shapes of a month: its length, and the day of the week it begins with."""
    return (length - 28) * 7 + first_weekday


def _all_days(length: int) -> int:
    return (1 << length + 1) - 2


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
