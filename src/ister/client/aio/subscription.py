"""The subscription of the asyncio client, and its messages."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.base.errors import (
    BusyError,
    ClosedError,
    IsterError,
    NotARequestError,
    RequestTimeoutError,
)
from ister.client.aio.link import settler
from ister.client.session import (
    BaseMessage,
    Delivery,
    Link,
    SubscriptionChannel,
    as_bytes,
)
from ister.codec import Attributes, Batch
from ister.wire import Command

if TYPE_CHECKING:
    from ister.client.aio.client import Client


class Message(BaseMessage, gc=False):
    """A received message."""

    async def ack(self, *, confirm: bool = False) -> None:
        """Say that the message is dealt with. A live topic keeps nothing, so nothing is sent."""

    async def reply(self, payload: bytes, *, attributes: Attributes | None = None) -> None:
        """Answer a request. The first answer wins; answers to clients that left are dropped."""
        address = self.reply_address
        if address is None:
            raise NotARequestError(self.topic)
        client: Client = self._delivery.source
        lone = len(self._delivery.batch) == 1
        client.answer(address, as_bytes(payload), attributes, lone=lone)


class Subscription:
    """Receives messages. Use it with `async with client.subscribe(...)`.

    >>> async with client.subscribe("/default/orders", "billing") as sub:
    ...     await producer.send(b"one")
    ...     async for msg in sub:
    ...         print(msg.payload)
    ...         break
    MessageId(topic='/default/orders', offset=0)
    b'one'
    """

    def __init__(self, client: "Client", channel: SubscriptionChannel) -> None:
        self.topic = channel.command.topic
        self.name = channel.command.subscription
        self._client = client
        self._channel = channel
        self._buffer: deque[Message] = deque()
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Attach to the broker; messages sent after this returns arrive."""
        link = self._client.link
        while True:
            await link.wait_open()
            reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            link.session.subscribe(self._channel, settler(reply))
            try:
                await reply
            except BaseException as error:
                # The broker may have attached it all the same: an answer that came too late, or
                # nobody waits for it any more.
                link.session.detach(self._channel)
                if isinstance(error, BusyError) and link.session.link is not Link.OPEN:
                    continue
                raise
            return

    async def close(self) -> None:
        """Detach. What this consumer was not sent goes to the others of the subscription."""
        reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._client.link.session.unsubscribe(self._channel, settler(reply))
        try:
            await reply
        except IsterError:
            pass  # Without a connection the broker has let go of this consumer, too.

    @property
    def active(self) -> bool:
        """Whether messages come here: false for the standby of a failover subscription."""
        return self._channel.active

    @property
    def dropped(self) -> int:
        """Messages the broker dropped because this consumer was too slow."""
        return self._channel.dropped

    async def __aiter__(self) -> AsyncIterator[Message]:
        # A generator over a deque is the quickest asynchronous iteration that Python has, and
        # what is left in the deque survives a `break`.
        buffer = self._buffer
        take = buffer.popleft
        try:
            while True:
                while buffer:
                    yield take()
                if not self._take():
                    await self._arrival()
        except ClosedError:
            return

    async def receive(self, timeout: float | None = None) -> Message:
        """Return the next message; raise `RequestTimeoutError` after `timeout` seconds."""
        if not self._buffer:
            await self._fill(timeout)
        return self._buffer.popleft()

    async def fetch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Return up to `count` messages: those at hand, or the first to come.

        Empty when none came within `timeout` seconds.
        """
        if not self._buffer:
            try:
                await self._fill(timeout)
            except RequestTimeoutError:
                return []
        buffer = self._buffer
        while len(buffer) < count and self._channel.batches:
            self._take()
        return [buffer.popleft() for _ in range(min(count, len(buffer)))]

    async def fetch_batches(self, timeout: float | None = None) -> list[Batch]:
        """Return all batches at hand, or the first to come; empty as `fetch` is."""
        channel = self._channel
        deadline_ms = self._deadline_ms(timeout)
        while (batch := channel.take()) is None:
            try:
                await self._arrival_until(deadline_ms)
            except RequestTimeoutError:
                return []
        batches = [batch]
        while channel.batches and (batch := channel.take()) is not None:
            batches.append(batch)
        return batches

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield whole batches, columns and all: `len(batch)`, `batch.payloads`, `.offsets`."""
        channel = self._channel
        try:
            while True:
                while (batch := channel.take()) is not None:
                    yield batch
                await self._arrival()
        except ClosedError:
            return

    async def _fill(self, timeout: float | None = None) -> None:
        deadline_ms = self._deadline_ms(timeout)
        # Another task may have taken the batch that woke this one, and left some of it over.
        while not self._buffer and not self._take():
            await self._arrival_until(deadline_ms)

    def _take(self) -> bool:
        batch = self._channel.take()
        if batch is None:
            return False
        delivery = Delivery(batch, self._client)
        self._buffer.extend(map(Message, batch.payloads, repeat(delivery), range(batch.count)))
        return True

    def _deadline_ms(self, timeout: float | None) -> int | None:
        if timeout is None:
            return None
        return self._client.link.clock.monotonic_ms() + int(timeout * 1000)

    async def _arrival_until(self, deadline_ms: int | None) -> None:
        if deadline_ms is None:
            await self._arrival()
            return
        link = self._client.link
        left_s = max(0, deadline_ms - link.clock.monotonic_ms()) / 1000
        await link.wait_for(self._arrival(), left_s, "a message of subscription", self.name)

    def _arrival(self) -> "asyncio.Future[None]":
        """Return a future that is done when there is something to take."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._channel.wait(waiter)
        return waiter
