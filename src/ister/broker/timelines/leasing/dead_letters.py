"""Messages that were leased too often, on their way to a topic of dead letters.

That is known only once the store has leased such a message once more. Nobody is handed it then:
it is given back as if that had not been, and moved. Whoever changes it between the two wins.

Also here: why consumers gave messages back, which their dead letters say.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from ister.base.errors import IsterError, MessageChangedError, MessageNotFoundError
from ister.base.limits import NACK_REASON_BYTES_MAX, NACK_REASONS_MAX
from ister.broker.timelines.leasing.window import free_slot
from ister.timeline import Bury, Changed, Outcomes, Release, Row, Slot, Work

if TYPE_CHECKING:
    from ister.broker.timelines.leasing.host import Host
    from ister.broker.timelines.leasing.topic import TimelineTopic

# When a message that could not be moved is tried again.
RETRY_S = 1.0
# Why a message is dead that was rejected without a reason; and one that was leased too often.
REJECTED = "rejected by its consumer"
EXHAUSTED = "leased as often as the topic allows, and not done"


class DeadLetter(NamedTuple):
    """A message that is to be moved."""

    id: str
    level: int
    slot: Slot
    # Why it was given back last, if its consumer has said so.
    reason: str


class DeadLetterSink:
    """Moves messages of one topic that were leased too often to its dead letters."""

    def __init__(self, topic: "TimelineTopic", host: "Host") -> None:
        self._topic = topic
        self._host = host
        self._rows: list[Row] = []
        # The last reason of messages that were given back, by seq: the newest of them.
        self._reasons: OrderedDict[int, str] = OrderedDict()
        self._logger: Any = structlog.get_logger("timelines")

    def add(self, row: Row) -> None:
        """Have a message moved that was leased too often."""
        self._rows.append(row)

    def on_reason(self, seq: int, reason: str) -> None:
        """A consumer has said why it gives a message back."""
        self._reasons.pop(seq, None)
        self._reasons[seq] = cut_reason(reason)
        if len(self._reasons) > NACK_REASONS_MAX:
            self._reasons.popitem(last=False)

    def forget(self, seq: int) -> None:
        """A message is gone."""
        self._reasons.pop(seq, None)

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
        messages = []
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Changed):
                reason = self._reasons.get(row.seq, "")
                self._topic.forget(row.seq)
                messages.append(DeadLetter(row.id, row.level, free_slot(outcome), reason))
        if messages:
            self.find_letters(partial(self._on_letters, messages))

    def _on_letters(
        self, messages: list[DeadLetter], letters: "TimelineTopic | IsterError"
    ) -> None:
        if isinstance(letters, IsterError):
            self._retry_later(messages, letters)
            return
        changes = [
            self.bury(letters, slot.seq, slot.version, reason or EXHAUSTED)
            for _, _, slot, reason in messages
        ]
        self._topic.committer.add(Work([*changes]), partial(self._on_buried, messages, letters))

    def _on_buried(
        self, messages: list[DeadLetter], letters: "TimelineTopic", outcomes: Outcomes
    ) -> None:
        if isinstance(outcomes, IsterError):
            self._topic.fail()
            letters.fail()
            return
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, Changed):
                self.on_moved(message.id, message.level, letters, outcome)
            elif isinstance(outcome, IsterError) and not isinstance(
                outcome, MessageChangedError | MessageNotFoundError
            ):
                self._retry_later([message], outcome)

    def bury(
        self, letters: "TimelineTopic", seq: int, version: int, reason: str, holder: str = ""
    ) -> Bury:
        """Return the change that moves a message; with `holder`, which rejects it."""
        topic = self._topic
        # Better in any order among other dead letters than nowhere.
        flat = letters.levels < topic.levels
        return Bury(topic.number, seq, version, letters.number, flat, holder, topic.name, reason)

    def on_moved(self, id: str, level: int, letters: "TimelineTopic", moved: Changed) -> None:
        """A message is a dead letter by a commit."""
        topic, told = self._topic, self._host.told
        topic.figures.buried += 1
        topic.forget(moved.seq)
        letters.record(free_slot(moved), min(level, letters.levels - 1))
        if times := told.times("message_buried"):
            self._logger.warning(
                "message_buried", topic=topic.name, id=id, letters=letters.name, times=times
            )

    def find_letters(self, done: Callable[["TimelineTopic | IsterError"], object]) -> None:
        """Find the topic that dead letters go to, or make it."""
        self._host.find_letters(self._topic, done)

    def _retry_later(self, messages: list[DeadLetter], error: IsterError) -> None:
        if times := self._host.told.times("message_not_buried"):
            self._logger.warning(
                "message_not_buried",
                topic=self._topic.name,
                count=len(messages),
                reason=str(error),
                times=times,
            )

        def retry() -> None:
            for message in messages:
                if message.reason:
                    self.on_reason(message.slot.seq, message.reason)
                self._topic.record(message.slot, message.level)
            self._topic.schedule()

        self._topic.clock.call_later(RETRY_S, retry)


def cut_reason(reason: str) -> str:
    """Return as much of a reason as a dead letter has room for."""
    return reason.encode(errors="replace")[:NACK_REASON_BYTES_MAX].decode(errors="ignore")
