"""Where a pattern falls in the time of a zone, whose clocks are put forward and back.

A pattern whose hour is a star goes by the time that passes: it fires in every hour that comes, in
the repeated one twice. Every other goes by the clock on the wall, once for each of its times: in a
repeated hour the first, and what was skipped comes when the clocks go on, all of it as one slot.

The library reads no lists of changes, only the offset at a time. So a change is looked for between
two times whose offsets differ, at most `STRIDE_S` apart: two changes in so short a time that end
where they began are not seen, and no zone has had any since there are zones.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from ister.base.errors import BadRequestError
from ister.timeline.cron.pattern import Pattern

ZONE_LENGTH_MAX = 64
# The clock of a zone has never been put by more than a day: one that changed sides of the
# date line. Twice that is time enough to see it coming.
STRIDE_S = 2 * 86_400
# The beginning of the year 3000: 41 years before any limit of `datetime`.
TIME_MS_MAX = 32_503_680_000_000

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 wall time
SECOND = timedelta(seconds=1)
# They are files beside the zones: what this machine has, and zones that count leap seconds.
NOT_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")


def get_zone(name: str) -> ZoneInfo:
    """Return a zone by its IANA name, or raise `BadRequestError`."""
    if len(name) <= ZONE_LENGTH_MAX and not name.startswith(NOT_ZONES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # Unknown, no name at all, or a folder.
    raise BadRequestError(
        f"there is no time zone {name[:ZONE_LENGTH_MAX]!r}: take an IANA name such as "
        "'Europe/Vienna' or 'UTC'"
    )


def find_slot(pattern: Pattern, zone: ZoneInfo, after_ms: int) -> int | None:
    """Return the first time behind `after_ms` at which a pattern fires in a zone."""
    if not 0 <= after_ms <= TIME_MS_MAX:
        raise BadRequestError(f"a time is 0 to {TIME_MS_MAX} ms after 1970, not {after_ms}")
    after_s = after_ms // 1000
    find = _find_by_time if pattern.hourly else _find_by_wall
    slot_s = find(pattern, zone, after_s)
    return None if slot_s is None else slot_s * 1000


def _find_by_time(pattern: Pattern, zone: ZoneInfo, after_s: int) -> int | None:
    start_s = after_s + 1
    # Each turn comes to a change of the offset, or within `STRIDE_S` of where the pattern may
    # fire; the pattern itself gives up after 41 years.
    while True:
        offset_s = _offset_s(zone, start_s)
        wall = pattern.find(EPOCH + timedelta(seconds=start_s + offset_s))
        if wall is None:
            return None
        slot_s = (wall - EPOCH) // SECOND - offset_s
        near_s = min(slot_s, start_s + STRIDE_S)
        if _offset_s(zone, near_s) != offset_s:
            start_s = _find_change(zone, start_s, near_s)
        elif near_s == slot_s:
            return slot_s
        else:
            start_s = max(near_s, slot_s - STRIDE_S)


def _find_by_wall(pattern: Pattern, zone: ZoneInfo, after_s: int) -> int | None:
    wall = EPOCH + timedelta(seconds=after_s + _offset_s(zone, after_s))
    while True:
        found = pattern.find(wall + SECOND)
        if found is None:
            return None
        slot_s = _instant_s(zone, found)
        # In a repeated hour those that are still to come on the wall have been before.
        if slot_s > after_s:
            return slot_s
        wall = found


def _instant_s(zone: ZoneInfo, wall: datetime) -> int:
    """Return when it is `wall` for the first time, or when the clocks go on over it."""
    naive_s = (wall - EPOCH) // SECOND
    slot_s = int(wall.replace(tzinfo=zone, fold=0).astimezone(UTC).timestamp())
    if naive_s - slot_s == _offset_s(zone, slot_s):
        return slot_s
    # It is skipped: `slot_s` goes by the offset from before, and so comes after the change, and by
    # the offset from after it would come before.
    return _find_change(zone, naive_s - _offset_s(zone, slot_s), slot_s)


def _find_change(zone: ZoneInfo, start_s: int, end_s: int) -> int:
    """Return the first second behind `start_s` with the offset that is in force at `end_s`."""
    offset_s = _offset_s(zone, start_s)
    while end_s - start_s > 1:
        middle_s = (start_s + end_s) // 2
        if _offset_s(zone, middle_s) == offset_s:
            start_s = middle_s
        else:
            end_s = middle_s
    return end_s


def _offset_s(zone: ZoneInfo, time_s: int) -> int:
    offset = datetime.fromtimestamp(time_s, zone).utcoffset()
    assert offset is not None
    return offset // SECOND
