"""Cron topics: what is different about them from other timelines.

Each has a topic for its rules beside it, whose name no user can give to one and nobody is told.
It is made before the cron topic and removed after it: one without the other is what a crash has
left over, and is removed at the next start, or when a topic of that name is made.

Rules and messages are told apart by their ids. A message of a cron topic is made by a rule and by
nobody else; owners may change it as any other.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ister.base import TimelineKind
from ister.base.errors import BadRequestError, CorruptedError, IsterError, WrongKindError
from ister.broker.timelines.cron import CronRules
from ister.broker.timelines.owners import OwnersChange
from ister.timeline import (
    Changed,
    Delete,
    Outcome,
    Outcomes,
    Put,
    Store,
    TopicRow,
    Update,
    is_rule_id,
)

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
    for row in store.topics():
        if row.name == hidden:
            store.delete_topic(row.number)
    rules = store.create_topic(hidden, RULES_KIND, b"").number
    return store.create_topic(name, kind, settings), rules


def delete_topics(store: Store, number: int, rules: int | None) -> None:
    """Remove a topic, and that of its rules."""
    store.delete_topic(number)
    if rules is not None:
        store.delete_topic(rules)


def change_with_rules(
    rules: CronRules,
    changes: Sequence[OwnersChange],
    done: Callable[[Outcomes], object],
    *,
    atomic: bool,
) -> None:
    """Make changes of owners that may be of rules, or of messages that these have made."""
    if not any(isinstance(change, Put) or is_rule_id(change.id) for change in changes):
        rules.topic.change(changes, done, atomic=atomic)
    elif atomic:
        done(BadRequestError("cron rules are made and changed one by one, not in a transaction"))
    else:
        _Parts(rules, changes, done).begin()


class _Parts:
    """Changes of rules and of messages that were asked for together, each made for itself."""

    def __init__(
        self, rules: CronRules, changes: Sequence[OwnersChange], done: Callable[[Outcomes], object]
    ) -> None:
        self._rules = rules
        self._changes = changes
        self._done = done
        # By slot.
        self._outcomes: dict[int, Outcome] = {}

    def begin(self) -> None:
        """Have the changes made."""
        others: list[int] = []
        for slot, change in enumerate(self._changes):
            if isinstance(change, Put) or is_rule_id(change.id):
                self._begin_one(change, partial(self._on_changed, slot))
            else:
                others.append(slot)
        if others:
            changes = [self._changes[slot] for slot in others]
            self._rules.topic.change(changes, partial(self._on_others, others), atomic=False)

    def _begin_one(self, change: OwnersChange, done: Callable[[int | IsterError], object]) -> None:
        rules, group = self._rules, change.group
        if isinstance(change, Delete):
            rules.delete(change.id, group=group, version=change.version, done=done)
        elif isinstance(change, Update):
            rules.update(
                change.id,
                group=group,
                version=change.version,
                rule=None,
                payload=change.payload,
                attributes=change.attributes,
                done=done,
            )
        elif isinstance(change, Put):
            reason = "rules make its messages: put with `cron=`, or use a topic of kind timeline"
            done(WrongKindError(rules.topic.name, TimelineKind.CRON, reason))
        else:
            done(BadRequestError(f"cron rule {change.id!r} is not moved: update it with `cron=`"))

    def _on_changed(self, slot: int, version: int | IsterError) -> None:
        if isinstance(version, IsterError):
            self._tell(slot, version)
        else:
            self._tell(slot, Changed(self._changes[slot].id, version, 0, 0, 0))

    def _on_others(self, slots: list[int], outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            outcomes = [outcomes] * len(slots)
        for slot, outcome in zip(slots, outcomes, strict=True):
            self._tell(slot, outcome)

    def _tell(self, slot: int, outcome: Outcome) -> None:
        self._outcomes[slot] = outcome
        if len(self._outcomes) == len(self._changes):
            self._done([self._outcomes[slot] for slot in range(len(self._changes))])
