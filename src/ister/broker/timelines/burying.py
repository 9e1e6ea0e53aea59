"""Messages that were leased too often, on their way to a topic of dead letters.

That is known only once the store has leased such a message once more. Nobody is handed it then:
it is given back as if that had not been, and moved. Whoever changes it between the two wins.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from ister.base.errors import IsterError, MessageChangedError, MessageNotFoundError
from ister.broker.timelines.window import free_slot
from ister.timeline import Bury, Changed, Outcomes, Release, Row, Slot, Work

if TYPE_CHECKING:
    from ister.broker.timelines.timelines import Timelines
    from ister.broker.timelines.topic import TimelineTopic

# When a message that could not be moved is tried again.
RETRY_S = 1.0


class Body(NamedTuple):
    """A message that is to be moved."""

    id: str
    level: int
    slot: Slot


class Burial:
    """See the module."""

    def __init__(self, topic: "TimelineTopic", timelines: "Timelines") -> None:
        self._topic = topic
        self._timelines = timelines
        self._rows: list[Row] = []
        self._logger: Any = structlog.get_logger("timelines")

    def add(self, row: Row) -> None:
        """Have a message moved that was leased too often."""
        self._rows.append(row)

    def begin(self) -> None:
        """Move what was added."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        releases = [
            Release(row.topic, row.id, row.holder, row.version, row.due_ms, unused=True)
            for row in rows
        ]
        self._topic.committer.add(Work([*releases]), partial(self._on_released, rows))

    def _on_released(self, rows: list[Row], outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            self._topic.fail()
            return
        bodies = []
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Changed):
                self._topic.forget(row.seq)
                bodies.append(Body(row.id, row.level, free_slot(outcome)))
        if bodies:
            self._timelines.find_letters(self._topic, partial(self._on_letters, bodies))

    def _on_letters(self, bodies: list[Body], letters: "TimelineTopic | IsterError") -> None:
        if isinstance(letters, IsterError):
            self._retry_later(bodies, letters)
            return
        # Better in any order among other dead letters than nowhere.
        flat = letters.levels < self._topic.levels
        changes = [
            Bury(self._topic.number, slot.seq, slot.version, letters.number, flat)
            for _, _, slot in bodies
        ]
        self._topic.committer.add(Work([*changes]), partial(self._on_buried, bodies, letters))

    def _on_buried(self, bodies: list[Body], letters: "TimelineTopic", outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            self._topic.fail()
            letters.fail()
            return
        for body, outcome in zip(bodies, outcomes, strict=True):
            if isinstance(outcome, Changed):
                self._topic.figures.buried += 1
                self._topic.forget(body.slot.seq)
                letters.note(free_slot(outcome), min(body.level, letters.levels - 1))
                self._log_buried(body, letters)
            elif isinstance(outcome, IsterError) and not isinstance(
                outcome, MessageChangedError | MessageNotFoundError
            ):
                self._retry_later([body], outcome)

    def _log_buried(self, body: Body, letters: "TimelineTopic") -> None:
        if times := self._timelines.told.times("message_buried"):
            topic, name = self._topic.name, letters.name
            self._logger.warning(
                "message_buried", topic=topic, id=body.id, letters=name, times=times
            )

    def _retry_later(self, bodies: list[Body], error: IsterError) -> None:
        if times := self._timelines.told.times("message_not_buried"):
            self._logger.warning(
                "message_not_buried",
                topic=self._topic.name,
                count=len(bodies),
                reason=str(error),
                times=times,
            )

        def retry() -> None:
            for body in bodies:
                self._topic.note(body.slot, body.level)
            self._topic.look()

        self._topic.clock.call_later(RETRY_S, retry)
