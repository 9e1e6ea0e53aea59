"""Decides which messages of a stream are dropped: those acknowledged, too many, or too old."""

from collections.abc import Collection
from typing import NamedTuple

from ister.base import Retention, StreamSettings

# Topics of these keep what was not acknowledged, or less than that.
BY_ACKS = (Retention.INTEREST, Retention.WORKQUEUE)


class RetentionPlan(NamedTuple):
    """What to drop: the messages below an offset, and those older than a time, 0 for none."""

    first_offset: int
    older_than_ms: int


def plan_retention(
    settings: StreamSettings,
    floors: Collection[int],
    *,
    next_offset: int,
    bytes_start: int,
    now_ms: int,
) -> RetentionPlan:
    """Return what a stream need not keep.

    `floors` are those of all subscriptions on it; they count for retention `interest` and
    `workqueue` only. From `bytes_start` on, it takes about `max_bytes`.
    """
    if settings.retention == Retention.WORKQUEUE:
        # It waits for its subscription, and no limit drops what is not acknowledged.
        return RetentionPlan(min(floors, default=0), 0)
    starts = [0]
    if settings.retention == Retention.INTEREST:
        starts.append(min(floors, default=next_offset))
    if settings.max_messages:
        starts.append(next_offset - settings.max_messages)
    if settings.max_bytes:
        starts.append(bytes_start)
    ages_ms = [age_ms for age_ms in (settings.max_age_ms, settings.ttl_ms) if age_ms]
    is_by_age = ages_ms and settings.retention != Retention.COMPACT
    return RetentionPlan(max(starts), now_ms - min(ages_ms) if is_by_age else 0)
