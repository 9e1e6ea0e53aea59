"""Changes that owners make of a cron topic.

Rules and messages are told apart by their ids. A message of a cron topic is made by a rule and by
nobody else; owners may change it as any other.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ister.base import TimelineKind
from ister.base.errors import BadRequestError, IsterError, WrongKindError
from ister.broker.timelines.changes import OwnersChange, change_messages
from ister.broker.timelines.cron.rules import CronRules
from ister.timeline import (
    Changed,
    Delete,
    Outcome,
    Outcomes,
    Put,
    Update,
    is_rule_id,
)


def change_with_rules(
    rules: CronRules,
    changes: Sequence[OwnersChange],
    done: Callable[[Outcomes], object],
    *,
    atomic: bool,
) -> None:
    """Make changes of owners that may be of rules, or of messages that these have made."""
    if not any(isinstance(change, Put) or is_rule_id(change.id) for change in changes):
        change_messages(rules.topic, changes, done, atomic=atomic)
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
            done = partial(self._on_others, others)
            change_messages(self._rules.topic, changes, done, atomic=False)

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
