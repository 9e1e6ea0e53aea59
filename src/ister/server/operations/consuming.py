"""A consumer inside the broker, for what is done with the messages of a stream on the spot."""

import asyncio
from itertools import count
from typing import NamedTuple

from ister.base.errors import ClosedError, IsterError
from ister.broker import Broker, Membership, SourceTopic, SubscribeOptions
from ister.codec import Batch
from ister.server.operations import waiting
from ister.subscriptions import Responder

_NUMBERS = count(1)


class Taken(NamedTuple):
    """A batch of a stream, to be acknowledged under its lease."""

    topic: str
    batch: Batch
    lease: int


class Inbox:
    """What a consumer of ours is sent: a `Sink` whose other end is a coroutine."""

    writable = True
    address = "admin"

    def __init__(self) -> None:
        # Nothing of a live topic is kept here, so nothing is asked.
        self.responder = Responder(lambda: 0)
        self._taken: list[Taken] = []
        self._arrived = asyncio.Event()
        self._closed: IsterError | None = None

    async def take(self, timeout_s: float) -> list[Taken]:
        """Return what has come, after waiting for it; nothing when the time is over."""
        if not self._taken and not self._closed:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if self._closed:
            raise self._closed
        taken, self._taken = self._taken, []
        return taken

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        """Drop what is not of a stream: there is nothing to be done with it later."""

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        """Keep a batch for whoever waits."""
        self._taken.append(Taken(topic.name, batch.detached(), lease))
        self._arrived.set()

    def slow_consumer(self, channel: int, dropped: int) -> None:
        """Nothing to tell."""

    def active_changed(self, channel: int, *, active: bool) -> None:
        """Nothing to tell."""

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        """Tell whoever waits."""
        self._closed = error or ClosedError(f"the consumer ({reason})")
        self._arrived.set()

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        """Forget what was not looked at yet: it comes again."""
        self._taken.clear()


async def attach(broker: Broker, options: SubscribeOptions, inbox: Inbox) -> Membership:
    """Attach a consumer of ours; whoever calls this detaches it."""
    owner = f"admin-{next(_NUMBERS)}"

    def detach(found: object) -> None:
        if isinstance(found, Membership):
            broker.subscribers.unsubscribe(found)

    async def attached() -> Membership:
        return await waiting.result(
            lambda done: broker.subscribers.subscribe(
                options, done, owner=owner, sink=inbox, channel=1
            )
        )

    task = asyncio.ensure_future(attached())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Whoever wanted it has gone: it must not stay behind.
        task.add_done_callback(lambda t: detach(t.result() if not t.exception() else None))
        raise
