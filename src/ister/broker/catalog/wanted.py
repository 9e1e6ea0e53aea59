"""Topics as they are asked for: what no topic can be, and how one that exists is otherwise."""

from collections.abc import Mapping
from dataclasses import asdict

from ister.base import StreamSettings, TimelineKind, TimelineSettings, limit_text
from ister.base.errors import BadRequestError, TopicExistsError, WrongKindError
from ister.base.limits import PARTITIONS_MAX

TIMELINE_KINDS = frozenset(TimelineKind)
KINDS = ("live", "stream", *TimelineKind)


def check_wanted(
    kind: str,
    partitions: int,
    stream: StreamSettings | None,
    timeline: TimelineSettings | None = None,
) -> None:
    """Raise `BadRequestError` for what no topic can be."""
    if kind not in KINDS:
        listed = ", ".join(repr(str(one)) for one in KINDS)
        raise BadRequestError(f"topic kind {kind[:40]!r} is not available: {listed}")
    if stream is not None and kind != "stream":
        raise BadRequestError("durability and retention are settings of kind 'stream'")
    if timeline is not None and kind != timeline.kind:
        raise BadRequestError(f"these are settings of kind {timeline.kind[:40]!r}")
    if kind in TIMELINE_KINDS and partitions:
        raise BadRequestError(f"a {kind} topic has no partitions")
    if not 0 <= partitions <= PARTITIONS_MAX:
        raise BadRequestError(f"{partitions} partitions are not 0 to {PARTITIONS_MAX}")


def check_same_settings(
    topic: str,
    found: StreamSettings | TimelineSettings,
    wanted: StreamSettings | TimelineSettings | None,
) -> None:
    """Raise `TopicExistsError` that names what differs between a topic and the one asked for."""
    if wanted is None or found == wanted:
        return
    other: Mapping[str, object] = asdict(wanted)
    differences = [
        f"{name.removesuffix('_ms')} {_shown(name, value)}, not {_shown(name, other.get(name))}"
        for name, value in asdict(found).items()
        if value != other.get(name)
    ]
    raise TopicExistsError(
        topic,
        f"with {'; '.join(differences)}: use it as it is, change it with "
        "`ister topics update`, or delete it first",
    )


def _shown(name: str, value: object) -> str:
    """Return a setting as users write it; a word in quotes, whether it is an enum's or not."""
    if isinstance(value, str):
        return repr(str(value))
    if name == "key_offsets":
        return "on" if value else "off"
    return limit_text(name, value) if value else "0"


def not_for_dead_letters(name: str) -> WrongKindError:
    """Return the error for a topic that takes no dead letters."""
    way_out = "dead letters need a plain stream: delete it, or name another `dead_letter_topic`"
    return WrongKindError(name, "live or partitioned", way_out)
