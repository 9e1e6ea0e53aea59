"""Cron rules as an application describes them, checked and made into commands."""

from ister.base import Seconds
from ister.base.errors import BadRequestError
from ister.client.session.checks import as_bytes, check_count, check_text
from ister.client.session.options import milliseconds
from ister.client.session.timelines.changes import VERSION_MAX, checked_id, packed_attributes
from ister.codec import Attributes
from ister.wire import ChangeCron, PreviewCron

UTC_ZONE = "UTC"
SKIP = "skip"
PREVIEW_COUNT_MAX = 1_000


def check_no_rule(
    tz: str | None, jitter: Seconds | None, catch_up: Seconds | None, overlap: str | None
) -> None:
    """Raise `BadRequestError` for what is said of a rule where there is none."""
    said = {"tz": tz, "jitter": jitter, "catch_up": catch_up, "overlap": overlap}
    for name, value in said.items():
        if value is not None:
            raise BadRequestError(
                f"{name} is of a rule: say cron='0 9 * * MON-FRI' or every=5.0 as well"
            )


def rule_command(
    topic: str,
    group: str,
    kind: int,
    id: str,
    payload: bytes,
    *,
    cron: str,
    tz: str | None,
    jitter: Seconds | None,
    catch_up: Seconds | None,
    overlap: str | None,
    attributes: Attributes | None,
    version: int | None = None,
) -> ChangeCron:
    """Return what makes a rule, or changes it."""
    return ChangeCron(
        topic=topic,
        group=group,
        kind=kind,
        id=checked_id(id),
        version=checked_version(version),
        expression=check_text(cron, "cron"),
        zone=UTC_ZONE if tz is None else check_text(tz, "tz"),
        jitter_ms=0 if jitter is None else milliseconds(jitter, "jitter"),
        catch_up_ms=None if catch_up is None else milliseconds(catch_up, "catch_up"),
        overlap=SKIP if overlap is None else check_text(overlap, "overlap"),
        payload=as_bytes(payload),
        attributes=packed_attributes(attributes),
    )


def cron_of(cron: str | None, every: Seconds | None) -> str | None:
    """Return the expression of a rule: as it is, or that of an interval in whole seconds."""
    if every is None:
        return cron
    if cron is not None:
        raise BadRequestError("a rule has cron= or every=, not both")
    every_ms = milliseconds(every, "every", least_ms=1_000, most_ms=86_400_000)
    if every_ms % 1000:
        raise BadRequestError(f"every is in whole seconds, not {every!r}")
    return f"@every {every_ms // 1000}s"


def pausing_command(topic: str, group: str, kind: int, id: str, version: int | None) -> ChangeCron:
    """Return what pauses a rule, or resumes it."""
    return ChangeCron(
        topic=topic, group=group, kind=kind, id=checked_id(id), version=checked_version(version)
    )


def preview_command(
    topic: str, id: str | None, count: int, cron: str | None, tz: str | None
) -> PreviewCron:
    """Return what asks for the next times of a rule, or of an expression."""
    check_count(count, "the number of times", least=1, most=PREVIEW_COUNT_MAX)
    if (id is None) is (cron is None) or (id is not None and tz is not None):
        raise BadRequestError("a preview is of the id of a rule, or of cron= and tz=")
    if id is not None:
        return PreviewCron(topic=topic, id=checked_id(id), count=count)
    zone = UTC_ZONE if tz is None else check_text(tz, "tz")
    return PreviewCron(expression=check_text(cron, "cron"), zone=zone, count=count)


def checked_version(version: object) -> int:
    """Return the version that something must have; 0 is any."""
    if version is None:
        return 0
    return check_count(version, "a version", least=1, most=VERSION_MAX)
