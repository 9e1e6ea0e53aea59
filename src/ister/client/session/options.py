"""What an application may say about streams and subscriptions, as the wire has it.

Public calls take seconds, time spans and points in time; everything inside is milliseconds.
Raises `BadRequestError` for what makes no sense, before anything is sent.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from msgspec import UNSET

from ister.base import (
    AckSettings,
    Origin,
    Position,
    Retention,
    Seconds,
    StreamChanges,
    StreamSettings,
    Time,
    TimelineKind,
    TimelineSettings,
    epoch_us,
    span_hint,
    span_text,
)
from ister.base.errors import BadRequestError
from ister.base.limits import (
    ACK_TIMEOUT_MS,
    CREDIT_MAX,
    DEDUP_WINDOW_MS,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_COUNT_MAX,
    MAX_DELIVERIES,
)
from ister.client.session.checks import check_count, check_text, check_topic
from ister.wire import Chosen, CreateTopic

# A place in a stream: 'earliest', 'latest', an offset, a time. Of numbers a `float` is a time in
# seconds since 1970, and an `int` an offset.
Place = str | int | Time

SubscriptionTypeName = Literal["exclusive", "shared", "failover", "key_shared"]
PolicyName = Literal["least_loaded", "round_robin", "random"]
CompressionName = Literal["none", "lz4", "zstd"]
DurabilityName = Literal["memory", "os", "fsync", "object"]
RetentionName = Literal["limits", "interest", "workqueue", "compact"]
PoisonName = Literal["dead_letter", "block", "drop"]

# What a JSON number holds exactly: 285,000 years.
SPAN_MS_MAX = 2**53
# From here on a span is shown as the number that was given.
_SHOWN_S_MAX = 10**12


def position_of(place: Place, what: str = "start") -> Position:
    """Return the position that an application means by `place`."""
    if isinstance(place, datetime | float):
        return Position(origin=Origin.TIME, at=time_ms(place, what))
    if isinstance(place, int) and not isinstance(place, bool):
        if not 0 <= place < 2**63:
            raise BadRequestError(f"{what} {place} is no offset: they count from 0")
        return Position(origin=Origin.OFFSET, at=place)
    if place in ("earliest", "latest"):
        return Position(origin=place)
    raise BadRequestError(
        f"{what} {place!r} is not 'earliest', 'latest', an offset (int), a datetime with a time "
        "zone or seconds since 1970 (float)"
    )


def offset_of(place: object, what: str) -> int:
    """Return `place`, which has to be an offset."""
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < 2**63:
        return place
    raise BadRequestError(f"{what} {place!r} is no offset: they are whole numbers from 0 on")


def time_ms(time: Time, what: str) -> int:
    """Return a time in milliseconds since 1970."""
    return epoch_us(time, what, "") // 1000


def milliseconds(span: Seconds, what: str, *, least_ms: int = 0, most_ms: int = SPAN_MS_MAX) -> int:
    """Return a span of time in milliseconds."""
    seconds: object = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        hint = span_hint(span, takes_timedelta=True)
        raise BadRequestError(f"{what} is seconds or a timedelta, not {span!r}{hint}")
    if least_ms <= seconds * 1000 <= most_ms:
        return round(seconds * 1000)
    shown = span_text(seconds * 1000) if abs(seconds) < _SHOWN_S_MAX else f"{seconds!r} seconds"
    bounds = "or more" if most_ms == SPAN_MS_MAX else f"to {span_text(most_ms)}"
    raise BadRequestError(f"{what} is {span_text(least_ms)} {bounds}, not {shown}")


def check_filters(filters: Mapping[str, str] | None, key_filters: Sequence[str] | None) -> None:
    """Raise `BadRequestError` when no subscription can have these."""
    if key_filters is not None:
        check_list(key_filters, "key_filters", "globs")
    given: object = filters
    if given is not None and not (
        isinstance(given, Mapping) and all(isinstance(t, str) for i in given.items() for t in i)
    ):
        raise BadRequestError(
            f"filters must map attribute names to globs, e.g. {{'country': 'a*'}}; got {given!r}"
        )


def check_buffer(buffer_count: int | None, buffer_bytes: int) -> None:
    """Raise `BadRequestError` when no subscription can have such a buffer."""
    sizes: tuple[object, ...] = (1 if buffer_count is None else buffer_count, buffer_bytes)
    if not all(isinstance(size, int) and 0 < size <= CREDIT_MAX for size in sizes):
        raise BadRequestError(f"a buffer is 1 to {CREDIT_MAX} messages and bytes, in whole numbers")


def check_list(given: object, what: str, of: str) -> None:
    """Raise `BadRequestError` unless `given` is a list or a tuple."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise BadRequestError(f"{what} is a list of {of}, as [{given!r}]")


class AckOptions(TypedDict, total=False):
    """How a durable subscription treats messages: see `Client.subscribe`."""

    ack_timeout: Seconds | None
    max_deliveries: int | None
    backoff: Sequence[Seconds] | None
    dead_letter_topic: str | None
    poison: PoisonName | None
    ordered: bool | None
    in_flight_max: int | None
    in_flight_bytes_max: int | None


class SubscriptionSettings(AckOptions, total=False):
    """Settings of a durable subscription: see `Client.subscribe`."""

    expire_after: Seconds | None


def ack_settings(
    *,
    ack_timeout: Seconds | None = None,
    max_deliveries: int | None = None,
    backoff: Sequence[Seconds] | None = None,
    dead_letter_topic: str | None = None,
    poison: str | None = None,
    ordered: bool | None = None,
    in_flight_max: int | None = None,
    in_flight_bytes_max: int | None = None,
) -> AckSettings | None:
    """Return how a subscription treats acks; `None` when nothing was said about that."""
    said = (ack_timeout, max_deliveries, backoff, dead_letter_topic, poison, ordered)
    if all(one is None for one in (*said, in_flight_max, in_flight_bytes_max)):
        return None
    if backoff is not None:
        check_list(backoff, "backoff", "seconds")
    settings = AckSettings(
        ack_timeout_ms=_or(ack_timeout, "ack_timeout", ACK_TIMEOUT_MS),
        max_deliveries=_count(max_deliveries, "max_deliveries", MAX_DELIVERIES),
        backoff_ms=tuple(milliseconds(step, "a backoff") for step in backoff or ()),
        dead_letter_topic=check_topic(dead_letter_topic or "", "dead_letter_topic"),
        poison=_word(poison, "poison", AckSettings().poison),
        ordered=bool(ordered),
        in_flight_max=_count(in_flight_max, "in_flight_max", IN_FLIGHT_COUNT_MAX),
        in_flight_bytes_max=_count(in_flight_bytes_max, "in_flight_bytes_max", IN_FLIGHT_BYTES_MAX),
    )
    settings.check()
    return settings


def chosen_settings(
    *,
    type: str | None = None,
    policy: str | None = None,
    filters: Mapping[str, str] | None = None,
    key_filters: Sequence[str] | None = None,
    work_queues: bool = False,
    durable: bool | None = None,
    expire_after: Seconds | None = None,
    **settings: Unpack[AckOptions],
) -> dict[str, Any]:
    """Return the fields of a command that say which settings a subscription is to have."""
    check_filters(filters, key_filters)
    if expire_after is not None and durable is False:
        raise BadRequestError(
            "expire_after is for durable subscriptions: this one ends with its last consumer"
        )
    chosen = {
        "type": type and check_text(type, "type"),
        "policy": policy and check_text(policy, "policy"),
        "filters": None if filters is None else dict(filters),
        "key_filters": None if key_filters is None else list(key_filters),
    }
    fields: dict[str, Any] = {name: given for name, given in chosen.items() if given is not None}
    acks = [name for name, given in settings.items() if given is not None]
    names = [*fields, *(_IN_MILLISECONDS.get(name, name) for name in acks)]
    own = {"durable": durable, "expire_after_ms": expire_after}
    fields["acks"] = ack_settings(**settings)
    fields["chosen"] = Chosen(
        given=[*names, *(name for name, given in own.items() if given is not None)],
        work_queues=bool(work_queues),
        durable=durable is not False,
        expire_after_ms=_or(expire_after, "expire_after", 0),
    )
    return fields


# What has another name on the wire.
_IN_MILLISECONDS = {"ack_timeout": "ack_timeout_ms", "backoff": "backoff_ms"}


def topic_command(
    topic: str,
    kind: str,
    partitions: int,
    *,
    max_lease: Seconds | None = None,
    max_leases: int | None = None,
    dead_letter_topic: str | None = None,
    exist_ok: bool = True,
    **stream: Any,
) -> CreateTopic:
    """Return the command that makes a topic; `stream` is what `stream_settings` takes."""
    said = (max_lease, max_leases, dead_letter_topic)
    timeline = None
    if kind in tuple(TimelineKind):
        default = TimelineSettings(kind=kind)
        timeline = TimelineSettings(
            kind=kind,
            lease_ms_max=_or(max_lease, "max_lease", default.lease_ms_max),
            max_leases=_count(max_leases, "max_leases", default.max_leases),
            dead_letters=check_topic(dead_letter_topic or "", "dead_letter_topic"),
        )
        timeline.check()
    elif any(one is not None for one in said):
        raise BadRequestError(f"a {kind} topic has no leases: say kind='timeline'")
    settings = stream_settings(kind, **stream)
    return CreateTopic(
        topic=topic,
        kind=kind,
        partitions=partitions,
        stream=settings,
        timeline=timeline,
        exist_ok=UNSET if exist_ok else False,
    )


def stream_changes(
    *,
    durability: str | None,
    max_age: Seconds | None,
    max_bytes: int | None,
    max_messages: int | None,
    ttl: Seconds | None,
    dedup_window: Seconds | None,
    min_compaction_lag: Seconds | None = None,
) -> StreamChanges:
    """Return what is to change about a stream; what is `None` stays as it is."""

    def span(value: Seconds | None, what: str) -> int | None:
        return None if value is None else milliseconds(value, what)

    def count(value: int | None, what: str) -> int | None:
        return None if value is None else check_count(value, what)

    changes = StreamChanges(
        durability=None if durability is None else check_text(durability, "durability"),
        max_age_ms=span(max_age, "max_age"),
        max_bytes=count(max_bytes, "max_bytes"),
        max_messages=count(max_messages, "max_messages"),
        ttl_ms=span(ttl, "ttl"),
        dedup_window_ms=span(dedup_window, "dedup_window"),
        min_compaction_lag_ms=UNSET
        if min_compaction_lag is None
        else milliseconds(min_compaction_lag, "min_compaction_lag"),
    )
    # To the settings of some stream, for the bounds: the broker knows those of this one.
    some = StreamSettings(
        durability=changes.durability or StreamSettings().durability, retention=Retention.COMPACT
    )
    changes.apply(some)
    return changes


def stream_settings(
    kind: str,
    *,
    durability: str | None,
    retention: str | None,
    max_age: Seconds | None,
    max_bytes: int | None,
    max_messages: int | None,
    ttl: Seconds | None,
    dedup_window: Seconds | None,
    min_compaction_lag: Seconds | None = None,
    key_offsets: bool | None = None,
) -> StreamSettings | None:
    """Return how a stream keeps its messages; `None` for other kinds of topics."""
    given = {
        "durability": durability,
        "retention": retention,
        "max_age": max_age,
        "max_bytes": max_bytes,
        "max_messages": max_messages,
        "ttl": ttl,
        "dedup_window": dedup_window,
        "min_compaction_lag": min_compaction_lag,
        "key_offsets": key_offsets or None,
    }
    if kind != "stream":
        said = [name for name, value in given.items() if value is not None]
        if said:
            raise BadRequestError(
                f"a {kind} topic takes no {' and no '.join(said)}: say kind='stream'"
            )
        return None
    default = StreamSettings()
    settings = StreamSettings(
        durability=check_text(
            default.durability if durability is None else durability, "durability"
        ),
        retention=check_text(default.retention if retention is None else retention, "retention"),
        max_age_ms=_or(max_age, "max_age", 0),
        max_bytes=_count(max_bytes, "max_bytes", 0),
        max_messages=_count(max_messages, "max_messages", 0),
        ttl_ms=_or(ttl, "ttl", 0),
        dedup_window_ms=_or(dedup_window, "dedup_window", DEDUP_WINDOW_MS),
        min_compaction_lag_ms=_or(min_compaction_lag, "min_compaction_lag", 0),
        key_offsets=bool(key_offsets),
    )
    settings.check()
    return settings


def _word(word: str | None, what: str, default: str) -> str:
    return default if word is None else check_text(word, what)


def _count(count: int | None, what: str, default: int) -> int:
    return default if count is None else check_count(count, what)


def _or(span: Seconds | None, what: str, default_ms: int) -> int:
    return default_ms if span is None else milliseconds(span, what)
