"""Making and removing topics of a store. Calls of a store.

A cron topic has a topic for its rules beside it, whose name no user can give to one and nobody is
told. It is made before the cron topic and removed after it: one without the other is what a crash
has left over, and is removed at the next start, or when a topic of that name is made.
"""

from collections.abc import Sequence

from ister.base import TimelineKind
from ister.base.errors import CorruptedError, TopicExistsError
from ister.timeline.port import Store, TopicRow

RULES_KIND = "cron-rules"


def rules_name(topic: str) -> str:
    """Return the name of the topic that the rules of a cron topic are in."""
    return f"{topic}#rules"


def find_rules(rows: Sequence[TopicRow]) -> tuple[dict[int, int], list[int]]:
    """Return the topic of rules of each cron topic, by number; and those left over."""
    by_name = {row.name: row.number for row in rows if row.kind == RULES_KIND}
    found: dict[int, int] = {}
    for row in rows:
        if row.kind == TimelineKind.CRON:
            number = by_name.pop(rules_name(row.name), None)
            if number is None:
                raise CorruptedError(f"timeline {row.name!r}", 0, "its rules are missing")
            found[row.number] = number
    return found, list(by_name.values())


def create_topics(
    store: Store, name: str, kind: str, settings: bytes
) -> tuple[TopicRow, int | None]:
    """Make a topic, and the one for its rules if it has any; return it and that one's number."""
    if kind != TimelineKind.CRON:
        return store.create_topic(name, kind, settings), None
    hidden = rules_name(name)
    rows = store.topics()
    if any(row.name == name for row in rows):
        raise TopicExistsError(name, "in the timelines")
    for row in rows:
        if row.name == hidden:
            # Left over: whoever made it did not come to the topic itself.
            store.delete_topic(row.number)
    rules = store.create_topic(hidden, RULES_KIND, b"").number
    return store.create_topic(name, kind, settings), rules


def delete_topics(store: Store, number: int, rules: int | None) -> None:
    """Remove a topic, and that of its rules."""
    store.delete_topic(number)
    if rules is not None:
        store.delete_topic(rules)
