"""Timelines of the blocking client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from ister.base.errors import ClosedError
from ister.client import aio
from ister.client.session import Lateness, Seconds, When, reason_of
from ister.client.sync.blocking import Blocking, blocking, wrapping
from ister.codec import Attributes

if TYPE_CHECKING:
    from ister.client.sync.client import Client

# Messages of a listing that come over from the loop at once.
LISTED_AT_ONCE = 100

_R = TypeVar("_R")


class TimelineLease(Blocking[aio.TimelineLease]):
    """A message that is due, ours until its lease ends."""

    # As in `aio.TimelineLease`.
    is_timeline = True

    def __init__(self, client: "Client", inner: aio.TimelineLease) -> None:
        super().__init__(client.thread, inner)
        self.id = inner.id
        self.payload = inner.payload
        self.attributes = inner.attributes
        self.due_ms = inner.due_ms
        self.attempt = inner.attempt
        self.priority = inner.priority
        self.lateness_us = inner.lateness_us

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def due(self) -> datetime:
        """When it was due."""
        return self._inner.due

    @property
    def until(self) -> datetime:
        """When the lease ends, by the broker's clock."""
        return self._inner.until

    @property
    def version(self) -> int:
        """The version of the message, under which it is leased."""
        return self._inner.version

    def ack(self) -> None:
        """Remove the message: it was dealt with. Returns when the broker has stored that.

        Raises `TimelineLeaseLostError` when the lease was over.
        """
        self._thread.run(_outcome(self._inner.ack))

    def extend(self, seconds: Seconds) -> None:
        """Keep the message for so many seconds from now, at most the topic's `max_lease`."""
        self._thread.run(_outcome(lambda: self._inner.extend(seconds)))

    def nack(
        self, at: When | None = None, *, after: Seconds | None = None, reason: str = ""
    ) -> None:
        """Give the message back, to be due `at` a time, `after` so many seconds, or at once.

        Counts as an attempt. The dead letter has the last `reason` that was given.
        """
        self._thread.run(_outcome(lambda: self._inner.nack(at, after=after, reason=reason)))

    def reject(self, reason: str = "") -> None:
        """Give the message back for good: it goes to the dead letters, with the `reason`."""
        self._thread.run(_outcome(lambda: self._inner.reject(reason)))

    # The names that these had first.
    done = ack
    release = nack


class TimelineConsumer(Blocking[aio.TimelineConsumer]):
    """Messages of a timeline that are due, leased to this consumer. Use it with `with`.

    >>> with timeline.consume("worker-1") as leases:
    ...     for lease in leases:
    ...         print(lease.id, lease.payload)
    ...         lease.ack()
    ...         break
    r-0 b'now'
    """

    def __init__(self, timeline: "Timeline", inner: aio.TimelineConsumer) -> None:
        super().__init__(timeline.client.thread, inner)
        self._client = timeline.client

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(reason_of(error))

    def __iter__(self) -> Iterator[TimelineLease]:
        while True:
            try:
                inner = self._thread.run(self._next())
            except ClosedError:
                if self._thread.closed:
                    return
                raise
            if inner is None:
                return
            yield TimelineLease(self._client, inner)

    open = blocking(aio.TimelineConsumer.open)

    def close(self) -> None:
        """Give all messages back that are not done; those received count as an attempt."""
        self._leave("")

    def _leave(self, reason: str) -> None:
        if not self._thread.closed:
            self._thread.run(self._inner.leave(reason))

    def receive(self, timeout: float | None = None) -> TimelineLease:
        """Return the next message that is due; raise `RequestTimeoutError` after `timeout`.

        Raises `ClosedError` when the consumer was closed, also by another thread while this waits.
        """
        return TimelineLease(self._client, self._thread.run(self._inner.receive(timeout)))

    @property
    def lateness(self) -> Lateness:
        """How late messages were handed over so far."""
        return self._inner.lateness

    @property
    def drift(self) -> float:
        """How far the broker's clock is ahead of ours, in seconds."""
        return self._inner.drift

    @property
    def waiting_count(self) -> int:
        """Messages that have come and wait for their time, or to be taken."""
        return self._inner.waiting_count

    async def _next(self) -> aio.TimelineLease | None:
        # A `StopAsyncIteration` does not come out of a task.
        return await anext(self._inner, None)


class TimelineTransaction(Blocking[aio.TimelineTransaction]):
    """Changes of several messages of a timeline: all are made, or none.

    >>> with timeline.transaction() as tx:
    ...     new = tx.put(b"...", after=60.0)
    ...     tx.delete("r-0")
    """

    def __init__(self, timeline: "Timeline", inner: aio.TimelineTransaction) -> None:
        super().__init__(timeline.client.thread, inner)
        self._client = timeline.client

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()

    commit = blocking(aio.TimelineTransaction.commit)

    @property
    def results(self) -> list[aio.MessageVersion]:
        """What the messages are after the transaction, in the order of the changes."""
        return self._inner.results

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
        work = _called(
            lambda: self._inner.put(
                payload, at, after=after, id=id, attributes=attributes, priority=priority
            )
        )
        return self._thread.run(work)

    def move(
        self,
        id: str,
        at: When | None = None,
        version: int | None = None,
        *,
        after: Seconds | None = None,
    ) -> None:
        """Make a message due at another time."""
        self._thread.run(_called(lambda: self._inner.move(id, at, version, after=after)))

    def update(
        self,
        id: str,
        payload: bytes,
        *,
        attributes: Attributes | None = None,
        version: int | None = None,
    ) -> None:
        """Give a message another payload and other attributes."""
        self._inner.update(id, payload, attributes=attributes, version=version)

    def delete(self, id: str, version: int | None = None) -> None:
        """Remove a message."""
        self._inner.delete(id, version)

    def ack(self, msg: object) -> NoReturn:
        """Raise `BadRequestError`: nothing is acknowledged together with changes of a timeline."""
        self._inner.ack(msg)


class Timeline(Blocking[aio.Timeline]):
    """A timeline topic, as one group of producers sees it: only that changes its messages.

    >>> timeline = client.timeline("/default/reminders", group="shop")
    >>> put = timeline.put(b"...", after=60.0, id="r-1")
    """

    def __init__(self, client: "Client", inner: aio.Timeline) -> None:
        super().__init__(client.thread, inner)
        self.client = client
        self.topic = inner.topic
        self.group = inner.group

    put = blocking(aio.Timeline.put)
    put_many = blocking(aio.Timeline.put_many)
    get = blocking(aio.Timeline.get)
    move = blocking(aio.Timeline.move)
    update = blocking(aio.Timeline.update)
    delete = blocking(aio.Timeline.delete)
    pause = blocking(aio.Timeline.pause)
    resume = blocking(aio.Timeline.resume)
    preview = blocking(aio.Timeline.preview)
    count = blocking(aio.Timeline.count)
    redrive = blocking(aio.Timeline.redrive)
    transaction = wrapping(aio.Timeline.transaction, TimelineTransaction)
    consume = wrapping(aio.Timeline.consume, TimelineConsumer)

    def list(
        self, start: When | None = None, end: When | None = None
    ) -> Iterator[aio.TimelineMessage]:
        """Go through the messages from `start` up to before `end`, the earliest first."""
        return self._listed(self._inner.list(start, end))

    def rules(self) -> Iterator[aio.TimelineMessage]:
        """Go through the rules of a cron topic, in the order they were made."""
        return self._listed(self._inner.rules())

    def _listed(self, listing: AsyncIterator[aio.TimelineMessage]) -> Iterator[aio.TimelineMessage]:
        async def some() -> "tuple[aio.TimelineMessage, ...]":
            found: list[aio.TimelineMessage] = []
            while len(found) < LISTED_AT_ONCE:
                message = await anext(listing, None)
                if message is None:
                    break
                found.append(message)
            return tuple(found)

        while messages := self._thread.run(some()):
            yield from messages


async def _outcome(call: "Callable[[], asyncio.Future[None]]") -> None:
    await call()


async def _called(call: Callable[[], _R]) -> _R:
    return call()
