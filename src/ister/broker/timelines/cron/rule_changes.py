"""Changes that owners make of cron rules.

    PREPARING --something is due first--> with the store --> PREPARING
    PREPARING --what it takes is known--> TAKING BACK --consumers let go of it--> with the store
    with the store --somebody was faster--> PREPARING
    with the store --> told

A message that a rule made ahead of its time, and that is not due yet, is taken back from consumers
first, as with any other change of an owner: after an acknowledged pause nothing fires.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ister.base.errors import ConflictError, IsterError, MessageNotFoundError, TopicNotFoundError
from ister.broker.timelines.changes import OwnersChange, change_messages
from ister.timeline import Editing, Outcomes, Prepared, prepare

if TYPE_CHECKING:
    from ister.broker.timelines.cron.rules import CronRules

# How often somebody may be faster. A rule that is far behind takes ten turns until it is not.
TURNS_MAX = 30


class RuleCall:
    """A change of one rule, from finding out what it takes to its answer."""

    def __init__(
        self,
        rules: "CronRules",
        id: str,
        *,
        group: str,
        version: int,
        editing: Editing,
        done: Callable[[int | IsterError], object],
    ) -> None:
        self._rules = rules
        self._id = id
        self._group = group
        self._version = version
        self._editing = editing
        self._done = done
        self._turns = 0

    def begin(self) -> None:
        """Find out what the change takes."""
        self._turns += 1
        topic = self._rules.topic
        if topic.closed:
            self._done(TopicNotFoundError(topic.name))
            return
        topic.committer.query(
            partial(
                prepare,
                place=self._rules.place,
                id=self._id,
                group=self._group,
                version=self._version,
                editing=self._editing,
                now_ms=topic.clock.now_ms(),
                begun_ms=topic.begun_ms(),
            ),
            self._on_prepared,
        )

    def _on_prepared(self, prepared: Prepared | IsterError) -> None:
        if isinstance(prepared, IsterError):
            self._done(prepared)
        elif not prepared.changes:
            self._done(prepared.version)
        else:
            changes: list[OwnersChange] = [*prepared.changes]
            done = partial(self._on_made, prepared)
            change_messages(self._rules.topic, changes, done, atomic=True)

    def _on_made(self, prepared: Prepared, outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            self._on_refused(outcomes)
            return
        if prepared.again:
            self.begin()
            return
        # Also when it is removed: then it is found to be gone.
        self._rules.wake(self._id)
        self._done(prepared.version)

    def _on_refused(self, error: IsterError) -> None:
        # A change that was prepared is refused only because things are not what they were.
        is_late = isinstance(error, ConflictError | MessageNotFoundError)
        if is_late and self._turns < TURNS_MAX:
            self.begin()
        else:
            self._done(error)
