"""Rules that make a message at every time of a cron expression in a zone, or at an interval.

A time at which a rule fires is a *slot*. Slots rise strictly, and follow from expression and zone
alone: whoever asks, before or after a restart, gets the same. With `jitter_ms` a firing is due
somewhat later than its slot, by an amount that follows from the rule's id and the slot, so that
rules of the same expression do not all fire at once; it stays before the next slot.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from zoneinfo import ZoneInfo

from ister.base import span_text
from ister.base.errors import BadRequestError
from ister.base.limits import MESSAGE_ID_BYTES_MAX
from ister.timeline.cron.interval import Interval, find_interval
from ister.timeline.cron.pattern import Pattern, parse_pattern
from ister.timeline.cron.zone import find_slot, get_zone

JITTER_MS_MAX = 24 * 3_600_000
# What was missed for longer than this stays missed. A broker that was busy for some seconds was
# not away; and after a year nobody wants to have what he did not get.
CATCH_UP_MS = 3_600_000
CATCH_UP_MS_MIN = 10_000
CATCH_UP_MS_MAX = 366 * 86_400_000
# Slots of one rule that may be caught up with: a rule of every minute has them in 16 hours.
CATCH_UP_SLOTS_MAX = 1_000
PREVIEW_COUNT_MAX = 1_000
# An @ and a time stand behind the id of a rule in those of its messages.
RULE_ID_BYTES_MAX = MESSAGE_ID_BYTES_MAX - len("@2026-01-01T00:00:00Z")

MINUTE_MS = 60_000
DAY_MS = 86_400_000


class Overlap(StrEnum):
    """What becomes of a slot while the firing before it is not done."""

    # It is dropped.
    SKIP = "skip"
    # One waits until the other is done; the rest is dropped.
    BUFFER = "buffer"
    # It fires.
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class CronRule:
    """A rule, checked: made by `parse_rule`."""

    expression: str
    zone: str
    jitter_ms: int
    catch_up_ms: int
    overlap: Overlap
    _pattern: Pattern | Interval
    _zone: ZoneInfo

    def next_slot(self, after_ms: int) -> int | None:
        """Return the first slot behind `after_ms`. None: there is none in the next 41 years."""
        if isinstance(self._pattern, Interval):
            return self._pattern.next_slot(after_ms)
        return find_slot(self._pattern, self._zone, after_ms)

    def count_slots(self, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Return how many slots lie behind `after_ms`, up to `until_ms`, and the last of them.

        Only of an interval, whose slots need no calendar: of other rules it returns none.
        """
        if not isinstance(self._pattern, Interval) or until_ms <= after_ms:
            return 0, after_ms
        return self._pattern.count_slots(after_ms, until_ms)

    def preview(self, after_ms: int, count: int) -> list[int]:
        """Return the next slots behind `after_ms`, up to `count` of them."""
        if not 1 <= count <= PREVIEW_COUNT_MAX:
            raise BadRequestError(f"a preview has 1 to {PREVIEW_COUNT_MAX} slots, not {count}")
        slots: list[int] = []
        slot_ms = self.next_slot(after_ms)
        while slot_ms is not None and len(slots) < count:
            slots.append(slot_ms)
            slot_ms = self.next_slot(slot_ms)
        return slots

    def due_ms(self, id: str, slot_ms: int) -> int:
        """Return when the firing of a slot is due: then, or up to `jitter_ms` later."""
        if not self.jitter_ms:
            return slot_ms
        next_ms = self.next_slot(slot_ms)
        room_ms = self.jitter_ms if next_ms is None else next_ms - slot_ms - 1
        most_ms = min(self.jitter_ms, room_ms)
        digest = hashlib.blake2b(f"{id}@{slot_ms}".encode(), digest_size=8).digest()
        return slot_ms + int.from_bytes(digest) * (most_ms + 1) // 2**64


def parse_rule(
    expression: str,
    zone: str = "UTC",
    *,
    jitter_ms: int = 0,
    catch_up_ms: int | None = None,
    overlap: str = Overlap.SKIP,
) -> CronRule:
    """Return a rule, or raise `BadRequestError` that names what is wrong.

    Without `catch_up_ms` it is an hour, or less when that has too many slots.
    """
    pattern = find_interval(expression) or parse_pattern(expression)
    # It is shown in listings: on one line.
    expression = " ".join(expression.split())
    if not 0 <= jitter_ms <= JITTER_MS_MAX:
        raise BadRequestError(
            f"jitter is 0 to {span_text(JITTER_MS_MAX)}, not {span_text(jitter_ms)}"
        )
    most_ms = min(_most_caught_up_ms(pattern), CATCH_UP_MS_MAX)
    if catch_up_ms is None:
        catch_up_ms = min(CATCH_UP_MS, most_ms)
    if not CATCH_UP_MS_MIN <= catch_up_ms <= most_ms:
        raise BadRequestError(
            f"the catch-up window of cron expression {expression!r} is "
            f"{span_text(CATCH_UP_MS_MIN)} to {span_text(most_ms)}, not {span_text(catch_up_ms)}: "
            f"up to {CATCH_UP_SLOTS_MAX} slots are caught up with"
        )
    try:
        overlap = Overlap(overlap)
    except ValueError:
        raise BadRequestError(
            f"overlap is one of {', '.join(Overlap)}, not {overlap[:64]!r}"
        ) from None
    return CronRule(expression, zone, jitter_ms, catch_up_ms, overlap, pattern, get_zone(zone))


def is_rule_id(id: str) -> bool:
    """Return whether an id is one of a rule, and not of a message that it made."""
    return "@" not in id


def check_rule_id(id: str) -> None:
    """Raise `BadRequestError` when messages of a rule could not be called after it."""
    if not is_rule_id(id):
        raise BadRequestError(f"the id of a cron rule has no @ in it: {id[:64]!r}")
    if not 0 < len(id.encode()) <= RULE_ID_BYTES_MAX:
        raise BadRequestError(f"the id of a cron rule has 1 to {RULE_ID_BYTES_MAX} bytes")


def firing_id(id: str, slot_ms: int) -> str:
    """Return the id of the message of a slot: nothing else is called so, and it only once."""
    slot = datetime.fromtimestamp(slot_ms // 1000, UTC).replace(tzinfo=None)
    return f"{id}@{slot.isoformat()}Z"


def _most_caught_up_ms(pattern: Pattern | Interval) -> int:
    """Return a time in which there are at most `CATCH_UP_SLOTS_MAX` slots, wherever it begins.

    But for an hour that is repeated.
    """
    if isinstance(pattern, Interval):
        return CATCH_UP_SLOTS_MAX * pattern.every_ms
    # A time of n days touches n + 1 of them; and a slot takes a minute at least.
    days = CATCH_UP_SLOTS_MAX // pattern.slots_a_day_max - 1
    return max(days * DAY_MS, CATCH_UP_SLOTS_MAX * MINUTE_MS)
