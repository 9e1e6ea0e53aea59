"""Settings of timelines, and what a broker tells of them: one shape for wire, broker and disk."""

from dataclasses import dataclass, field
from enum import StrEnum

from ister.base.errors import BadRequestError
from ister.base.limits import (
    LEASE_MS,
    LEASE_MS_CEILING,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    MAX_DELIVERIES,
    MAX_DELIVERIES_MAX,
    NAME_BYTES_MAX,
)
from ister.base.streams import check_word
from ister.base.units import span_text


class TimelineKind(StrEnum):
    """In which order messages are handed out."""

    TIMELINE = "timeline"  # earliest due first
    PRIORITY = "priority"  # of those that are due, by level, then earliest first
    CRON = "cron"  # earliest due first, all of them made by rules


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSettings:
    """How a timeline hands out its messages."""

    kind: str = TimelineKind.TIMELINE
    # The longest lease a consumer may ask for.
    lease_ms_max: int = LEASE_MS_MAX
    # Leases of one message before it goes to the dead letters; 0: no end.
    max_leases: int = MAX_DELIVERIES
    # A timeline. Empty: `<topic>-dlq`, made when it is first needed.
    dead_letters: str = ""

    @property
    def lease_ms(self) -> int:
        """The lease of a consumer that asks for none in particular."""
        return min(LEASE_MS, self.lease_ms_max)

    def check(self) -> None:
        """Raise `BadRequestError` unless every setting is within its bounds."""
        check_word(self.kind, TimelineKind, "kind")
        if not LEASE_MS_MIN <= self.lease_ms_max <= LEASE_MS_CEILING:
            raise BadRequestError(
                f"max_lease is {span_text(LEASE_MS_MIN)} to {span_text(LEASE_MS_CEILING)}, "
                f"not {span_text(self.lease_ms_max)}"
            )
        if not 0 <= self.max_leases <= MAX_DELIVERIES_MAX:
            raise BadRequestError(f"max_leases is 0 (no end) to {MAX_DELIVERIES_MAX}")
        if len(self.dead_letters.encode()) > NAME_BYTES_MAX:
            raise BadRequestError(f"a name has at most {NAME_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineReport:
    """One timeline, and what has happened on it since the broker started."""

    topic: str
    settings: TimelineSettings = field(default_factory=TimelineSettings)
    consumers: int = 0
    # Due, and with nobody: of those in memory. There may be more behind them.
    due: int = 0
    # How much later than it was due the first of them is by now.
    due_ms: int = 0
    # Handed out and due; and handed out ahead of their time.
    leases: int = 0
    prefetched: int = 0
    delivered: int = 0
    # Leases that ended by time, whose messages were handed out again.
    lost: int = 0
    buried: int = 0
    # How many messages were handed to their application no later than each bound in seconds; then
    # how many there were in all, and their lateness together.
    lateness: list[tuple[float, int]] = field(default_factory=list)
    lateness_count: int = 0
    lateness_s: float = 0.0
    # Soon due, or leased until soon: these are in memory, without their payloads.
    window: int = 0
    # How far our clock is ahead of the consumer's whose clock differs most.
    drift_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CronReport:
    """A cron rule, and how far it is. Times are in milliseconds; 0: there is none."""

    expression: str
    zone: str
    jitter_ms: int
    catch_up_ms: int
    overlap: str
    paused: bool
    # When it fires next, and the slot that fired last.
    next_ms: int
    last_ms: int
    # The slot that waits until the firing before it is done.
    buffered_ms: int
    fired: int
    missed: int
    skipped: int
