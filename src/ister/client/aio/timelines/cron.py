"""Cron rules as an application sees them."""

from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from ister.base import CronReport


class CronRule(NamedTuple):
    """A rule that makes messages on a cron topic, and how far it is.

    Times are in the zone of the rule; in UTC when this machine does not know that.
    """

    expression: str
    tz: str
    # Seconds.
    jitter: float
    catch_up: float
    overlap: str
    paused: bool
    # When it fires next: `None` while it is paused. The slot that fired last, if one has; and the
    # one that waits until the message before it is done.
    next: datetime | None
    last: datetime | None
    buffered: datetime | None
    fired: int
    missed: int
    skipped: int


def rule_of(report: CronReport) -> CronRule:
    """Return a rule as it was told."""
    return CronRule(
        expression=report.expression,
        tz=report.zone,
        jitter=report.jitter_ms / 1000,
        catch_up=report.catch_up_ms / 1000,
        overlap=report.overlap,
        paused=report.paused,
        next=_moment(report.next_ms, report.zone),
        last=_moment(report.last_ms, report.zone),
        buffered=_moment(report.buffered_ms, report.zone),
        fired=report.fired,
        missed=report.missed,
        skipped=report.skipped,
    )


def in_zone(time_ms: int, zone: str) -> datetime:
    """Return a time in a zone."""
    return datetime.fromtimestamp(time_ms / 1000, _find_zone(zone))


def _moment(time_ms: int, zone: str) -> datetime | None:
    return in_zone(time_ms, zone) if time_ms else None


def _find_zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC
