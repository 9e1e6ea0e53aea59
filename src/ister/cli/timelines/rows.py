"""Messages of a timeline as rows: of JSON, and of a table."""

import base64
from datetime import UTC, datetime, timedelta

from ister.base.limits import TIME_MS_MAX
from ister.cli.console.rows import Row
from ister.client import TimelineLease, TimelineMessage

COLUMNS = (
    "ID", "DUE", "STATE", "VERSION", "GROUP", "PRIORITY", "ATTEMPTS", "HOLDER", "UNTIL", "BYTES",
)  # fmt: skip

RULE_COLUMNS = (
    "ID", "CRON", "ZONE", "NEXT", "NEXT (UTC)", "LAST", "FIRED", "MISSED", "SKIPPED", "OVERLAP",
    "VERSION", "GROUP",
)  # fmt: skip


def timeline_row(topic: str, message: TimelineMessage, now_ms: int) -> Row:
    """Return a message of a timeline as a row of JSON."""
    return {
        "topic": topic,
        "id": message.id,
        "version": message.version,
        "due": _iso(message.due_ms),
        "state": state_of(message, now_ms),
        "group": message.group,
        "priority": message.priority,
        "attempts": message.attempts,
        "holder": message.holder or None,
        "until": _iso(message.until_ms) if message.holder else None,
        "attributes": message.attributes,
        **_payload_fields(message.payload),
    }


def lease_row(topic: str, lease: TimelineLease) -> Row:
    """Return a message that was handed to us."""
    return {
        "topic": topic,
        "id": lease.id,
        "version": lease.version,
        "due": _iso(lease.due_ms),
        "attempt": lease.attempt,
        "priority": lease.priority,
        # Of the first attempt alone: how late a later one is says nothing.
        "lateness_ms": lease.lateness_us / 1000 if lease.lateness_us >= 0 else None,
        "attributes": lease.attributes,
        **_payload_fields(lease.payload),
    }


def cells(message: TimelineMessage, now_ms: int) -> tuple[object, ...]:
    """Return a message as cells under `COLUMNS`."""
    is_held = bool(message.holder) and now_ms < message.until_ms
    return (
        message.id,
        _iso(message.due_ms),
        state_of(message, now_ms),
        # As text: a version is to be copied, without separators.
        str(message.version),
        message.group,
        message.priority,
        message.attempts,
        message.holder if is_held else "-",
        _iso(message.until_ms) if is_held else "-",
        len(message.payload),
    )


def rule_row(topic: str, message: TimelineMessage) -> Row:
    """Return a rule of a cron topic as a row of JSON. Times are in its zone, and in UTC."""
    rule = message.cron
    assert rule is not None
    return {
        "topic": topic,
        "id": message.id,
        "version": message.version,
        "group": message.group,
        "cron": rule.expression,
        "tz": rule.tz,
        "jitter_s": rule.jitter,
        "catch_up_s": rule.catch_up,
        "overlap": rule.overlap,
        "paused": rule.paused,
        "next": moment_text(rule.next),
        "next_utc": utc_text(rule.next),
        "last": moment_text(rule.last),
        "last_utc": utc_text(rule.last),
        "buffered": moment_text(rule.buffered),
        "fired": rule.fired,
        "missed": rule.missed,
        "skipped": rule.skipped,
        "attributes": message.attributes,
        **_payload_fields(message.payload),
    }


def rule_cells(message: TimelineMessage) -> tuple[object, ...]:
    """Return a rule as cells under `RULE_COLUMNS`."""
    rule = message.cron
    assert rule is not None
    return (
        message.id,
        rule.expression,
        rule.tz,
        "paused" if rule.paused else moment_text(rule.next) or "never",
        utc_text(rule.next) or "-",
        moment_text(rule.last) or "-",
        rule.fired,
        rule.missed,
        rule.skipped,
        rule.overlap,
        str(message.version),
        message.group,
    )


def moment_text(moment: datetime | None) -> str | None:
    """Return a time in its own zone, to the second unless there is more to it."""
    if moment is None:
        return None
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")


def utc_text(moment: datetime | None) -> str | None:
    """Return a time in UTC."""
    return None if moment is None else moment_text(moment.astimezone(UTC))


def state_of(message: TimelineMessage, now_ms: int) -> str:
    """Return waiting, prefetched, available or processing: see `ister.timeline.model`."""
    is_due = message.due_ms <= now_ms
    if message.holder and now_ms < message.until_ms:
        return "processing" if is_due else "prefetched"
    return "available" if is_due else "waiting"


def _payload_fields(payload: bytes) -> Row:
    """Return a payload as text, or in base64 when it is none: as rows of other topics have it."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _iso(time_ms: int) -> str:
    # Of a message that is due on the last day, a lease may end there.
    if time_ms >= TIME_MS_MAX:
        return "after 9999"
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
