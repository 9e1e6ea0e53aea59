"""Slots against a reference that looks at every minute, in weeks when clocks are put."""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ister.base.errors import BadRequestError
from ister.timeline.cron.rule import parse_rule

MINUTE = timedelta(minutes=1)
# Compared in the middle: what is skipped may be a whole day.
WINDOW = timedelta(days=7)
MARGIN = timedelta(days=2)

# Where clocks are put: by an hour, by half of one, at midnight, across it, over a day, by two.
CHANGES = [
    ("Europe/Vienna", "2026-03-29"),
    ("Europe/Vienna", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("America/Santiago", "2026-04-05"),
    ("America/Santiago", "2026-09-06"),
    ("America/St_Johns", "2010-03-14"),
    ("America/St_Johns", "2010-11-07"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Pacific/Apia", "2011-12-30"),
    ("Asia/Kathmandu", "2026-06-15"),
]


class Fields(NamedTuple):
    """An expression, and the sets that it is made of."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both: bool
    hourly: bool

    def match(self, wall: datetime) -> bool:
        by_day = wall.day in self.days
        by_weekday = wall.isoweekday() % 7 in self.weekdays
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.month in self.months
            and (by_day and by_weekday if self.both else by_day or by_weekday)
        )


@st.composite
def field(
    draw: st.DrawFn, start: int, last: int, drawn_max: int | None = None
) -> tuple[str, frozenset[int]]:
    """Return a field, whose numbers are at most `drawn_max`, and what it means."""
    top = last if drawn_max is None else drawn_max
    parts: list[str] = []
    numbers: set[int] = set()
    for _ in range(draw(st.integers(1, 2))):
        low = draw(st.integers(start, top))
        high = draw(st.integers(low, top))
        step = draw(st.integers(1, last))
        kind = draw(st.sampled_from(["*", "*/", "-", "-/", "/", ""]))
        text, found = {
            "*": ("*", range(start, last + 1)),
            "*/": (f"*/{step}", range(start, last + 1, step)),
            "-": (f"{low}-{high}", range(low, high + 1)),
            "-/": (f"{low}-{high}/{step}", range(low, high + 1, step)),
            "/": (f"{low}/{step}", range(low, last + 1, step)),
            "": (str(low), range(low, low + 1)),
        }[kind]
        parts.append(text)
        numbers |= set(found)
    return ",".join(parts), frozenset(numbers)


@st.composite
def expressions(draw: st.DrawFn) -> Fields:
    minute, minutes = draw(field(0, 59))
    hour, hours = draw(field(0, 23) | field(0, 23, 3))
    # Most clocks are put on a Sunday: it is to be among the days often.
    day, days = draw(st.just(("*", frozenset(range(1, 32)))) | field(1, 31, 28))
    month, months = draw(st.just(("*", frozenset(range(1, 13)))) | field(1, 12))
    weekday, weekdays = draw(st.just(("*", frozenset(range(8)))) | field(0, 7))
    return Fields(
        f"{minute} {hour} {day} {month} {weekday}",
        minutes,
        hours,
        days,
        months,
        frozenset(number % 7 for number in weekdays),
        both=day.startswith("*") or weekday.startswith("*"),
        hourly=hour.startswith("*") or len(hours) == 24,
    )


@cache
def minutes_of(zone: str, day: str) -> list[tuple[int, datetime]]:
    """Return all minutes of a window, each with what the clock on the wall says."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - WINDOW / 2
    times = [start + number * MINUTE for number in range(WINDOW // MINUTE)]
    return [
        (int(time.timestamp()) * 1000, time.astimezone(ZoneInfo(zone)).replace(tzinfo=None))
        for time in times
    ]


def reference(fields: Fields, zone: str, day: str) -> list[int]:
    """Return the slots in the middle of a window, from what is said about them alone."""
    minutes = minutes_of(zone, day)
    if fields.hourly:
        found = {time_ms for time_ms, wall in minutes if fields.match(wall)}
    else:
        found, highest = set(), minutes[0][1]
        for time_ms, wall in minutes:
            # All that the wall has not shown before: one minute, what was skipped, or nothing.
            while highest < wall:
                highest += MINUTE
                if fields.match(highest):
                    found.add(time_ms)
    edge = MARGIN // MINUTE
    return sorted(found & {time_ms for time_ms, _ in minutes[edge:-edge]})


@settings(max_examples=150, deadline=None)
@given(
    fields=expressions(),
    change=st.sampled_from(CHANGES),
    places=st.lists(st.floats(0, 1, exclude_max=True), max_size=5),
)
def test_slots_are_those_of_a_reference_that_looks_at_every_minute(
    fields: Fields, change: tuple[str, str], places: list[float]
) -> None:
    zone, day = change
    rule = parse_rule(fields.text, zone, catch_up_ms=10_000)
    minutes = minutes_of(zone, day)
    edge = MARGIN // MINUTE
    start_ms, end_ms = minutes[edge][0], minutes[-edge][0]
    expected = reference(fields, zone, day)

    found = []
    slot_ms = rule.next_slot(start_ms - 1)
    while slot_ms is not None and slot_ms < end_ms:
        found.append(slot_ms)
        slot_ms = rule.next_slot(slot_ms)

    assert found == expected
    for place in places:
        after_ms = start_ms + int(place * (end_ms - start_ms))
        behind = [ms for ms in expected if ms > after_ms]
        if behind:
            assert rule.next_slot(after_ms) == behind[0]


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(alphabet="0123456789*/-,#LWMONFRIJAN@ \n", max_size=40),
    zone=st.sampled_from(sorted({zone for zone, _ in CHANGES})),
    after_ms=st.integers(0, 5 * 10**12),
)
@example("* * * * *", "UTC", 0)
@example("*/5 2 29-31 3 SUNL", "Europe/Vienna", 0)
def test_whatever_is_accepted_has_rising_slots(text: str, zone: str, after_ms: int) -> None:
    try:
        rule = parse_rule(text, zone)
    except BadRequestError:
        return

    found = rule.preview(after_ms, 20)

    assert len(found) == 20
    assert found[0] > after_ms
    assert sorted(set(found)) == found
