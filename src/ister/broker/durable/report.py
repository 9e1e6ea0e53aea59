"""Where a durable subscription stands: its figures, for listings and metrics."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import UNSET

from ister.base import CursorReport, SubscriptionReport
from ister.base.limits import LISTED_CONSUMERS_MAX
from ister.broker.durable.partition import Partition

if TYPE_CHECKING:
    from ister.broker.durable.subscription import DurableSubscription

# Topics of a subscription whose floors stand in a listing: 255 B of name each.
LISTED_FLOORS_MAX = 100


def report_of(durable: "DurableSubscription", *, now_ms: int) -> SubscriptionReport:
    """Return the figures of a subscription, and of its first consumers."""
    created = durable.record.created
    partitions = list(durable.partitions)
    return SubscriptionReport(
        topic=durable.pattern,
        subscription=durable.name,
        type=durable.type.value,
        policy=durable.rules.policy.value,
        filters=created.filters,
        key_filters=created.key_filters,
        topics=len(partitions),
        messages_out=durable.members.delivered,
        messages_dropped=durable.poison_policy.dropped,
        consumers=[
            c.report(active=durable.members.is_active(c))
            for c in durable.consumers[:LISTED_CONSUMERS_MAX]
        ],
        cursor=CursorReport(
            settings=durable.acks,
            lag=sum(t.cursor.unacked_count(t.topic.next_offset) for t in partitions),
            in_flight=sum(t.deliveries.in_flight for t in partitions),
            in_flight_bytes=sum(t.deliveries.in_flight_bytes for t in partitions),
            oldest_unacked_ms=_oldest_unacked_ms(partitions, now_ms),
            redelivered=durable.record.redelivered,
            dead_lettered=durable.record.dead_lettered,
            refused=sum(t.deliveries.refused for t in partitions),
            paused=durable.record.paused,
            blocked=durable.poison_policy.blocked,
            durable=UNSET if created.durable else False,
            expire_after_ms=created.expire_after_ms or UNSET,
            snapshots=sorted(durable.record.saved),
            floors={t.topic.name: t.cursor.floor for t in partitions[:LISTED_FLOORS_MAX]},
        ),
    )


def _oldest_unacked_ms(partitions: Iterable[Partition], now_ms: int) -> int:
    ages = [
        now_ms - time_ms
        for t in partitions
        if t.cursor.floor < t.topic.next_offset
        and (time_ms := t.topic.time_of(t.cursor.floor)) is not None
    ]
    return max(ages, default=0)
