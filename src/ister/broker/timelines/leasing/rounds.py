"""Which messages are leased next, and to whom."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ister.broker.timelines.leasing.consumer import TimelineConsumer
from ister.broker.timelines.leasing.window import Window
from ister.timeline import Slot


class Pick(NamedTuple):
    """A message to be leased to a consumer, which has a place reserved for it."""

    consumer: TimelineConsumer
    level: int
    slot: Slot
    early: bool


def pick(
    window: Window,
    consumers: Iterable[TimelineConsumer],
    *,
    now_ms: int,
    limit: int,
    run_max: int = 1,
) -> list[Pick]:
    """Take messages out of the window: those that are due, then those that will be soon.

    Of those that are due, a consumer gets up to `run_max` in a row before it is another's turn.
    """
    consumers = list(consumers)
    picks = _pick_due(window, consumers, now_ms=now_ms, limit=limit, run_max=run_max)
    if len(picks) < limit:
        picks += _pick_early(window, consumers, now_ms, limit - len(picks))
    return picks


def reach_ms(consumers: Iterable[TimelineConsumer]) -> int:
    """Return how long before it is due the next message may be sent to somebody."""
    return max((c.prefetch_ms for c in consumers if c.early_room > 0), default=0)


def _pick_due(
    window: Window,
    consumers: list[TimelineConsumer],
    *,
    now_ms: int,
    limit: int,
    run_max: int,
) -> list[Pick]:
    """Give messages that are due to consumers that have room, one after the other."""
    rooms = [(consumer, consumer.room) for consumer in consumers if consumer.room > 0]
    found = window.take_due(now_ms, min(limit, sum(room for _, room in rooms))) if rooms else []
    picks: list[Pick] = []
    ready = deque(rooms)
    while (start := len(picks)) < len(found):
        consumer, room = ready.popleft()
        run = found[start : start + min(room, run_max)]
        consumer.reserved += len(run)
        picks += [Pick(consumer, level, slot, False) for level, slot in run]
        if room > len(run):
            ready.append((consumer, room - len(run)))
    return picks


def _pick_early(
    window: Window, consumers: list[TimelineConsumer], now_ms: int, limit: int
) -> list[Pick]:
    """Give messages to consumers shortly before they are due.

    Begins when there is one due in half the time that consumers ask for, and takes those of all
    that time: a commit for many, not one for each as it comes into reach.
    """
    picks: list[Pick] = []
    reach = reach_ms(consumers)
    if not reach or window.next_free_ms() > now_ms + reach // 2:
        return picks
    for level in range(len(window.levels)):
        ready = deque(consumer for consumer in consumers if consumer.early_room > 0)
        while ready and len(picks) < limit:
            slot = window.first_free(level)
            if slot is None or slot.position_ms <= now_ms:
                break
            consumer = ready.popleft()
            if slot.position_ms > now_ms + consumer.prefetch_ms:
                continue
            window.take_early(level)
            consumer.early_reserved += 1
            picks.append(Pick(consumer, level, slot, early=True))
            if consumer.early_room > 0:
                ready.append(consumer)
    return picks
