"""Settings of streams and of subscriptions on them: one shape for wire, broker and disk.

Zero means "no limit" where a limit is optional.
"""

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TypedDict

from msgspec import UNSET, UnsetType

from ister.base.errors import BadRequestError
from ister.base.limits import (
    ACK_TIMEOUT_MS,
    ACK_TIMEOUT_MS_MAX,
    ACK_TIMEOUT_MS_MIN,
    BACKOFF_STEPS_MAX,
    DEDUP_WINDOW_MS,
    DEDUP_WINDOW_MS_MAX,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_COUNT_MAX,
    MAX_DELIVERIES,
    MAX_DELIVERIES_MAX,
)
from ister.base.units import span_text


class Durability(StrEnum):
    """When the producer of a stream topic is told that its messages are safe."""

    MEMORY = "memory"  # on receipt
    OS = "os"  # after write(): survives a crash of the broker, not of the machine
    FSYNC = "fsync"  # after fdatasync(): on the disk
    OBJECT = "object"  # after the object store has confirmed


class Retention(StrEnum):
    """What a stream keeps."""

    LIMITS = "limits"  # everything within max_age, max_bytes, max_messages
    INTEREST = "interest"  # what some subscription has not acknowledged
    WORKQUEUE = "workqueue"  # what its one subscription has not acknowledged
    COMPACT = "compact"  # the newest message of each key


class Poison(StrEnum):
    """What becomes of a message that was delivered too often."""

    DEAD_LETTER = "dead_letter"  # kept in a topic of its own
    BLOCK = "block"  # the subscription stops; where keys are shared, only that key
    DROP = "drop"  # it counts as acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a stream topic keeps its messages."""

    durability: str = Durability.FSYNC
    retention: str = Retention.LIMITS
    max_age_ms: int = 0
    max_bytes: int = 0
    max_messages: int = 0
    # A message is not delivered any more when it is older than this.
    ttl_ms: int = 0
    # For how long a message id is remembered.
    dedup_window_ms: int = DEDUP_WINDOW_MS
    # Compaction drops no message that is younger than this. Unset, never 0, where there is none:
    # so it travels and is stored as before there was such a setting.
    min_compaction_lag_ms: int | UnsetType = UNSET
    # Whether the broker knows the offset of the newest message of each key, which a message may
    # expect. Unset, never false, where it does not.
    key_offsets: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if not self.key_offsets:
            object.__setattr__(self, "key_offsets", UNSET)
        if not self.min_compaction_lag_ms:
            object.__setattr__(self, "min_compaction_lag_ms", UNSET)

    @property
    def compaction_lag_ms(self) -> int:
        """How old a message is at least when compaction drops it."""
        return self.min_compaction_lag_ms or 0

    def check(self) -> None:
        """Raise `BadRequestError` unless every setting is within its bounds."""
        check_word(self.durability, Durability, "durability")
        check_word(self.retention, Retention, "retention")
        for name in ("max_age_ms", "max_bytes", "max_messages", "ttl_ms", "compaction_lag_ms"):
            if not 0 <= getattr(self, name) < 2**62:
                raise BadRequestError(f"{name} is 0 (no limit) or more, not {getattr(self, name)}")
        if self.compaction_lag_ms and self.retention != Retention.COMPACT:
            raise BadRequestError(
                f"min_compaction_lag is for retention 'compact', and this is {self.retention!r}"
            )
        if not 0 <= self.dedup_window_ms <= DEDUP_WINDOW_MS_MAX:
            raise BadRequestError(
                f"dedup_window is 0 to {span_text(DEDUP_WINDOW_MS_MAX)}, "
                f"not {span_text(self.dedup_window_ms)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChanges:
    """What is to change about a stream topic; `None` leaves a setting as it is."""

    durability: str | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    ttl_ms: int | None = None
    dedup_window_ms: int | None = None
    # Unset, never `None`, where it is left as it is: so the command travels as it did before.
    min_compaction_lag_ms: int | UnsetType = UNSET

    def apply(self, settings: StreamSettings) -> StreamSettings:
        """Return `settings` with these changes, or raise `BadRequestError`."""
        unsaid = (None, UNSET)
        given = {name: value for name, value in asdict(self).items() if value not in unsaid}
        if not given:
            raise BadRequestError("no setting is given: say what is to change")
        changed = replace(settings, **given)
        changed.check()
        words = {settings.durability, changed.durability}
        if len(words) > 1 and Durability.OBJECT in words:
            raise BadRequestError(
                f"durability '{settings.durability}' cannot become '{changed.durability}': a topic "
                "stays in the data folder or in the object store while the broker runs; stop the "
                "broker and use `ister storage move`"
            )
        return changed


class Expected(TypedDict, total=False):
    """What an append to a stream is conditional on; usually nothing."""

    # The offset that its first message gets.
    expected_offset: int
    # That of the newest message of its key; -1: the key has none.
    expected_key_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AckSettings:
    """How a durable subscription treats messages until they are acknowledged."""

    ack_timeout_ms: int = ACK_TIMEOUT_MS
    # Deliveries of one message before `poison` says what becomes of it; 0: no end.
    max_deliveries: int = MAX_DELIVERIES
    # Delay before delivery 2, 3, …; the last one repeats. Empty: at once.
    backoff_ms: tuple[int, ...] = ()
    # Empty: `<topic>-<subscription>-dlq`, made when it is first needed.
    dead_letter_topic: str = ""
    # Key-shared only: at most one message of a key is in flight.
    ordered: bool = False
    # Delivered and not yet acknowledged, of the subscription as a whole.
    in_flight_max: int = IN_FLIGHT_COUNT_MAX
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    # What becomes of a message after the last of its deliveries.
    poison: str = Poison.DEAD_LETTER

    def check(self) -> None:
        """Raise `BadRequestError` unless every setting is within its bounds."""
        if not ACK_TIMEOUT_MS_MIN <= self.ack_timeout_ms <= ACK_TIMEOUT_MS_MAX:
            raise BadRequestError(
                f"an ack timeout is {span_text(ACK_TIMEOUT_MS_MIN)} to "
                f"{span_text(ACK_TIMEOUT_MS_MAX)}, not {span_text(self.ack_timeout_ms)}"
            )
        if not 0 <= self.max_deliveries <= MAX_DELIVERIES_MAX:
            raise BadRequestError(f"max_deliveries is 0 to {MAX_DELIVERIES_MAX}")
        if len(self.backoff_ms) > BACKOFF_STEPS_MAX or any(
            not 0 <= step <= ACK_TIMEOUT_MS_MAX for step in self.backoff_ms
        ):
            raise BadRequestError(
                f"a backoff is at most {BACKOFF_STEPS_MAX} delays of 0 to "
                f"{span_text(ACK_TIMEOUT_MS_MAX)}"
            )
        if not (0 < self.in_flight_max <= 2**31 and 0 < self.in_flight_bytes_max <= 2**40):
            raise BadRequestError("in_flight_max and in_flight_bytes_max are above 0")
        check_word(self.poison, Poison, "poison")

    def delay_ms(self, deliveries: int) -> int:
        """Return how long to wait after delivery number `deliveries` went wrong."""
        if not self.backoff_ms:
            return 0
        return self.backoff_ms[min(deliveries, len(self.backoff_ms)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a stream: where a subscription or a reader starts.

    `at` is an offset, or milliseconds since 1970, as `origin` says; `name` that of a saved cursor.
    """

    origin: str = "latest"
    at: int = 0
    name: str = ""

    def check(self) -> None:
        """Raise `BadRequestError` when this is no place."""
        check_word(self.origin, Origin, "start")
        if not 0 <= self.at < 2**63:
            raise BadRequestError(f"an offset or a time is not below 0: {self.at}")


class Origin(StrEnum):
    """What a `Position` counts from."""

    LATEST = "latest"
    EARLIEST = "earliest"
    OFFSET = "offset"
    TIME = "time"
    SNAPSHOT = "snapshot"


def check_word(word: str, words: type[StrEnum], what: str) -> None:
    """Raise `BadRequestError` unless `word` is one of `words`."""
    if word not in set(words):
        listed = ", ".join(repr(str(w)) for w in words)
        raise BadRequestError(f"{what} {word[:40]!r} is not one of {listed}")


LATEST = Position()
EARLIEST = Position(origin=Origin.EARLIEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """A stream topic: what it keeps, beside its `TopicReport`."""

    settings: StreamSettings = field(default_factory=StreamSettings)
    first_offset: int = 0
    stored_bytes: int = 0
    tail_bytes: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorReport:
    """A durable subscription: how far it is, beside its `SubscriptionReport`."""

    settings: AckSettings = field(default_factory=AckSettings)
    # Messages not acknowledged yet, delivered or not.
    lag: int = 0
    in_flight: int = 0
    in_flight_bytes: int = 0
    # Age of the oldest message that is not acknowledged; 0 when there is none.
    oldest_unacked_ms: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    # Acknowledgements refused because they came too late.
    refused: int = 0
    paused: bool = False
    # Whether messages that were delivered too often hold it up, or some of its keys.
    blocked: bool = False
    snapshots: list[str] = field(default_factory=list)
    # Absent of those that stay until they are deleted. The first: it ends with its last consumer.
    durable: bool | UnsetType = UNSET
    # After so long without consumers it ends.
    expire_after_ms: int | UnsetType = UNSET
    # Every topic with the offset below which all is acknowledged.
    floors: dict[str, int] = field(default_factory=dict)
