"""Transactions of timelines: changes that wait in the client until the end of a block."""

from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self

from ister.client.session import (
    Change,
    Seconds,
    When,
    check_when,
    delete_change,
    move_change,
    no_ack_in_timeline,
    update_change,
)
from ister.codec import Attributes

if TYPE_CHECKING:
    from ister.client.aio.timelines.timeline import Timeline


class MessageVersion(NamedTuple):
    """A message of a timeline as it is after a change."""

    id: str
    version: int


class TimelineTransaction:
    """Changes of several messages of a timeline: all are made, or none.

    Everything waits in the client until the end of the block; an exception inside it sends
    nothing.

    >>> async with timeline.transaction() as tx:
    ...     new = tx.put(b"...", after=60.0)
    ...     tx.delete("r-0")
    >>> [result.id == new for result in tx.results]
    [True, False]
    """

    def __init__(self, timeline: "Timeline") -> None:
        self._timeline = timeline
        self._changes: list[Change] = []
        # What the messages are after the transaction, in the order of the changes.
        self.results: list[MessageVersion] = []

    async def __aenter__(self) -> Self:
        await self._timeline.learn_time()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.commit()

    async def commit(self) -> None:
        """Make the changes, or raise why none of them was made. The end of the block does it."""
        changes, self._changes = self._changes, []
        if changes:
            self.results = await self._timeline.commit(changes)

    def put(
        self,
        payload: bytes,
        at: When | None = None,
        *,
        after: Seconds | None = None,
        id: str | None = None,
        attributes: Attributes | None = None,
        priority: int = 0,
    ) -> str:
        """Make a message, and return its id: see `Timeline.put`."""
        due_ms = self._timeline.due_ms(at, after)
        change = self._timeline.put_change(payload, due_ms, id, attributes, priority)
        self._changes.append(change)
        return change.id

    def move(
        self,
        id: str,
        at: When | None = None,
        version: int | None = None,
        *,
        after: Seconds | None = None,
    ) -> None:
        """Make a message due at another time."""
        check_when(at, after)
        self._changes.append(move_change(id, self._timeline.due_ms(at, after), version))

    def update(
        self,
        id: str,
        payload: bytes,
        *,
        attributes: Attributes | None = None,
        version: int | None = None,
    ) -> None:
        """Give a message another payload and other attributes."""
        topic = self._timeline.topic
        self._changes.append(update_change(topic, id, payload, attributes, version))

    def delete(self, id: str, version: int | None = None) -> None:
        """Remove a message."""
        self._changes.append(delete_change(id, version))

    def ack(self, msg: object) -> NoReturn:
        """Raise `BadRequestError`: nothing is acknowledged together with changes of a timeline."""
        raise no_ack_in_timeline(msg)
