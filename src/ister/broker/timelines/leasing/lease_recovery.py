"""The leases that the name of a consumer has: the consumer is handed those that it does not know.

A process that has just started knows none of them: the process before it was handed these messages
and has not finished them. So they are given back, and count as attempts: or a message that kills
every process it is delivered to would be delivered to the next one at once, without end.

Always true:
- they are loaded a page at a time, and the next one when the consumer has room: however many there
  are, memory is bounded by its credit and a page;
- until it has them all it is given nothing else;
- while a page is on its way, nobody knows who has which message (*unsettled*, see `topic`).
"""

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING

from ister.base.errors import ConsumerNameTakenError, IsterError, TopicNotFoundError
from ister.broker.timelines.leasing.consumer import Held, TimelineConsumer
from ister.timeline import FAR, Row

if TYPE_CHECKING:
    from ister.broker.timelines.leasing.topic import TimelineTopic

Opened = Callable[[TimelineConsumer | IsterError], object]


class LeaseRecovery:
    """The leases of one consumer. With `opened`, which is told, it begins by that."""

    def __init__(
        self,
        topic: "TimelineTopic",
        consumer: TimelineConsumer,
        opened: Opened | None = None,
    ) -> None:
        self._topic = topic
        self._consumer = consumer
        self._opened = opened
        # Those of a former life were delivered then, and counted.
        self._of_former_life = opened is not None
        self._after = (topic.clock.now_ms(), FAR)
        self._is_asked = False

    def advance(self) -> None:
        """Load the next page, if there is room for it and nobody waits for us to be settled."""
        consumer = self._consumer
        if self._is_asked or self._topic.is_awaited:
            return
        if consumer.opened and not self._topic.has_room(consumer):
            return
        self._is_asked = True
        self._topic.unsettle()
        topic, after = self._topic.number, self._after
        limit = max(1, min(self._topic.round_max(), consumer.room))
        self._topic.committer.query(
            methodcaller("held", topic, consumer.name, after, limit),
            lambda rows: self._on_page(rows, limit),
        )

    def _on_page(self, rows: list[Row] | IsterError, limit: int) -> None:
        self._is_asked = False
        try:
            if self._consumer.closed:
                self._on_late(rows)
            elif isinstance(rows, IsterError):
                self._on_failed(rows)
            elif self._consumer.recovery is self:
                self._hand_over(rows, is_last=len(rows) < limit)
        finally:
            # Also when a door fails on it: others wait.
            self._topic.settle()

    def _hand_over(self, rows: list[Row], *, is_last: bool) -> None:
        topic, consumer = self._topic, self._consumer
        if is_last:
            consumer.recovery = None
        else:
            self._after = (rows[-1].position_ms, rows[-1].seq)
        if not consumer.opened:
            topic.on_opened(consumer)
        opened, self._opened = self._opened, None
        if opened is not None:
            opened(consumer)
        unknown = [row for row in rows if topic.is_unknown(row)]
        if self._of_former_life and consumer.fresh:
            self._end(unknown)
            return
        if not self._of_former_life:
            topic.figures.delivered += len(unknown)
        topic.hand_over({consumer: [(row, 0) for row in unknown]}, again=True)

    def _end(self, rows: list[Row]) -> None:
        """End leases of a former process. What was not due yet is no attempt."""
        topic = self._topic
        begun_ms = topic.begun_ms()
        begun = [row for row in rows if row.due_ms <= begun_ms]
        early = [row for row in rows if row.due_ms > begun_ms]
        topic.figures.lost += len(begun)
        topic.give_back([Held(self._consumer, row, 0, early=False) for row in begun], unused=False)
        topic.give_back([Held(self._consumer, row, 0, early=True) for row in early])

    def _on_failed(self, error: IsterError) -> None:
        self._topic.fail()
        if self._opened is not None:
            self._topic.on_not_opened(self._consumer)
            self._opened(error)

    def _on_late(self, rows: list[Row] | IsterError) -> None:
        """The consumer is gone: others are given what it had before its time."""
        topic, consumer = self._topic, self._consumer
        if not consumer.replaced and isinstance(rows, list) and not topic.closed:
            begun_ms = topic.begun_ms()
            early = [row for row in rows if row.due_ms > begun_ms and topic.is_unknown(row)]
            topic.give_back([Held(consumer, row, 0, early=True) for row in early])
        if self._opened is not None:
            gone: IsterError = ConsumerNameTakenError(topic.name, consumer.name)
            self._opened(TopicNotFoundError(topic.name) if topic.closed else gone)
