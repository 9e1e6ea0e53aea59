"""Deliveries to test with: short ways to hand out messages and let them fail."""

from itertools import count

from ister.base import AckSettings
from ister.subscriptions import Cursor, Deliveries, Lease

TIMEOUT_MS = 30_000


def deliveries_of(
    cursor: Cursor | None = None, *, max_deliveries: int = 5, backoff_ms: tuple[int, ...] = ()
) -> Deliveries:
    settings = AckSettings(
        ack_timeout_ms=TIMEOUT_MS, max_deliveries=max_deliveries, backoff_ms=backoff_ms
    )
    return Deliveries(cursor or Cursor(), settings, count(1))


def lease(
    deliveries: Deliveries,
    offsets: range | list[int],
    *,
    consumer: str = "ann",
    now_ms: int = 0,
    attempt: int = 1,
) -> Lease:
    return deliveries.lease(
        offsets,
        consumer=consumer,
        now_ms=now_ms,
        size_bytes=100 * len(offsets),
        attempt=attempt,
    )


def fail(deliveries: Deliveries, offset: int, *, times: int) -> None:
    """Hand out and nack a message that is next to go, again and again."""
    for attempt in range(1, times + 1):
        number = lease(deliveries, range(offset, offset + 1), attempt=attempt).number
        assert deliveries.nack(number, offset, offset + 1, now_ms=0, delay_ms=0) == []
