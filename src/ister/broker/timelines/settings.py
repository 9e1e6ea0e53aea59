"""What the store keeps of how a timeline was made."""

from collections.abc import Sequence

import msgspec

from ister.base import TimelineKind, TimelineSettings
from ister.base.errors import BadRequestError, CorruptedError
from ister.timeline import TopicRow, find_rules

# What the broker itself keeps in timelines. A broker that does not know a kind leaves it alone.
DELAYED = "delayed"
HIDDEN_KINDS = frozenset({DELAYED})


def letters_of(name: str, settings: TimelineSettings) -> str:
    """Return the name of the topic that dead letters of another go to."""
    return settings.dead_letters or f"{name}-dlq"


def check_topics(rows: Sequence[TopicRow]) -> None:
    """Raise `CorruptedError` for topics of a store that `Timelines.adopt` would raise for."""
    find_rules(rows)
    for row in rows:
        if row.kind in {*TimelineKind, *HIDDEN_KINDS}:
            decode_settings(row)


def decode_settings(row: TopicRow) -> TimelineSettings:
    """Return the settings of a topic, or raise `CorruptedError`."""
    try:
        settings = msgspec.msgpack.decode(row.settings, type=TimelineSettings)
        settings.check()
    except (msgspec.MsgspecError, UnicodeDecodeError, BadRequestError) as error:
        raise CorruptedError(f"timeline {row.name!r}", 0, f"its settings: {error}") from error
    return settings
