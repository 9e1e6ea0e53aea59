"""The subscription of the asyncio client, and its messages."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ister.base.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    IsterError,
    NotARequestError,
    RequestTimeoutError,
)
from ister.base.limits import ACK_TIMEOUT_MS_MAX, NACK_DELAY_MS_MAX
from ister.client.aio.connection.link import settler
from ister.client.aio.reading import Reading
from ister.client.session import (
    BaseMessage,
    Delivery,
    LeasedBatch,
    Link,
    Place,
    SubscriptionChannel,
    as_bytes,
    check_count,
    check_text,
    check_timeout,
    milliseconds,
    no_schema,
    not_open,
    reason_of,
)
from ister.codec import Attributes, Batch
from ister.wire import Command

if TYPE_CHECKING:
    from ister.client.aio.client import Client


def _nothing() -> Generator[None, None, None]:
    yield from ()


class _Nothing:
    """What there is to await when everything is done already: one for all."""

    __slots__ = ()

    _ended = _nothing()

    def __await__(self) -> Generator[None, None, None]:
        # A generator that has ended says so as often as it is asked.
        return self._ended


NOTHING = _Nothing()


class Message(BaseMessage, gc=False):
    """A received message."""

    # No coroutine: this is called for every message, and a third cheaper so.
    def ack(self, *, confirm: bool = False) -> Awaitable[None]:
        """Say that the message is dealt with. A live topic keeps nothing, so nothing is sent.

        Acknowledgements leave together at the end of this turn of the event loop; one that comes
        too late changes nothing, and is only counted. With `confirm=True` awaiting this returns
        when the broker has stored it, and raises `LeaseLostError` when it came too late.
        """
        lease = self._delivery.lease
        if lease is None:
            return NOTHING
        slot = self._slot
        if confirm:
            future = asyncio.get_running_loop().create_future()
            lease.leases.confirm(lease, slot, slot + 1, future)
            return future
        if slot == lease.run_end:
            lease.run_end = slot + 1
        else:
            lease.ack(slot, slot + 1)
        return NOTHING

    async def nack(self, *, delay: float | None = None, reason: str = "") -> None:
        """Give the message back, to be delivered again after `delay` seconds.

        Without a delay, the backoff list of the subscription says when. Counts as an attempt. The
        dead letter has the `reason` of the last attempt.
        """
        lease, slot = self.leased(), self._slot
        most_ms = NACK_DELAY_MS_MAX
        delay_ms = None if delay is None else milliseconds(delay, "a delay", most_ms=most_ms)
        check_text(reason, "a reason")
        lease.leases.nack(lease, slot, delay_ms, reason=reason)

    async def reject(self, reason: str = "") -> None:
        """Give the message back for good: it goes to the dead letters, with the `reason`.

        With `poison` 'drop' or 'block' it is treated as after its last attempt.
        """
        lease, slot = self.leased(), self._slot
        check_text(reason, "a reason")
        lease.leases.nack(lease, slot, None, reason=reason, reject=True)

    async def extend(self, seconds: float) -> None:
        """Have `seconds` from now on to deal with the message.

        The client renews by itself for the time `max_renewal`; this is for longer. Raises
        `LeaseLostError` when it is too late.
        """
        lease, slot = self.leased(), self._slot
        extension_ms = milliseconds(seconds, "an extension", most_ms=ACK_TIMEOUT_MS_MAX)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lease.leases.extend(lease, slot, extension_ms, future)
        await future

    async def reply(self, payload: bytes, *, attributes: Attributes | None = None) -> None:
        """Answer a request. The first answer wins; answers to clients that left are dropped."""
        address = self.reply_address
        if address is None:
            raise NotARequestError(self.topic)
        client: Client = self._delivery.source
        lone = len(self._delivery.batch) == 1
        client.answers.add(address, as_bytes(payload), attributes, lone=lone)


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

    def __init__(
        self, client: "Client", channel: SubscriptionChannel, reading: Reading | None = None
    ) -> None:
        self.topic = channel.command.topic
        # How messages get values; `None` without a schema.
        self.reading = reading
        self.name = channel.command.subscription
        self._client = client
        self._channel = channel
        self._inbox = channel.inbox
        self._buffer: deque[Message] = deque()
        self.drop_with(self._buffer)
        self._loop = asyncio.get_running_loop()
        self._opened = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave(reason_of(error))

    async def open(self) -> None:
        """Attach to the broker; messages sent after this returns arrive. Harmless when attached.

        Raises `ClosedError`, or what else ended the subscription, when it has ended.
        """
        if self._opened:
            if self._inbox.closed is not None:
                raise self._inbox.closed
            return
        link = self._client.link
        while True:
            await link.wait_open()
            reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            link.session.receivers.subscribe(self._channel, settler(reply))
            try:
                await reply
            except BaseException as error:
                # The broker may have attached it all the same: an answer that came too late, or
                # nobody waits for it any more.
                link.session.receivers.detach(self._channel)
                if isinstance(error, BusyError) and link.session.link is not Link.OPEN:
                    continue
                raise
            self._opened = True
            return

    async def close(self, *, release: bool = False) -> None:
        """Detach. The broker delivers messages that are not acknowledged to other consumers.

        A message of a stream that the application has received counts as an attempt, as after a
        `nack`: a message whose handler always fails becomes a dead letter in the end. What still
        waits in the client does not count. With `release` nothing counts.
        """
        await self.leave("", release=release)

    async def leave(self, reason: str, *, release: bool = False) -> None:
        """Do what `close` does, with a reason for the dead letters."""
        if not release:
            self._channel.nack_handed_out(reason)
        reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._client.link.session.receivers.unsubscribe(self._channel, settler(reply))
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

    @property
    def refused(self) -> int:
        """Acknowledgements that were not even sent, because they were known to be too late.

        All that came too late are in the `cursor` of `client.subscriptions()`.
        """
        return self._channel.leases.refused

    @property
    def paused(self) -> bool:
        """Whether `pause` was called."""
        return self._inbox.paused

    # Receiving

    async def __aiter__(self) -> AsyncIterator[Message]:
        # A generator over a deque is the quickest asynchronous iteration that Python has, and
        # what is left in the deque survives a `break`.
        buffer = self._buffer
        take = buffer.popleft
        pull = self._inbox.pull
        try:
            while True:
                while buffer:
                    yield take()
                if not self._take():
                    if pull:
                        self._inbox.ask(1)
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

        Empty when none came within `timeout` seconds. A pull subscription asks the broker for
        `count` when it has none; those that come too late wait for the next call.
        """
        check_count(count, "the number of messages to fetch")
        self._inbox.want(count)
        if not self._buffer:
            try:
                await self._fill(timeout, count)
            except RequestTimeoutError:
                return []
        buffer = self._buffer
        while len(buffer) < count and self._inbox.batches and self._take():
            pass
        return [buffer.popleft() for _ in range(min(count, len(buffer)))]

    async def fetch_batches(self, timeout: float | None = None) -> list[Batch]:
        """Return all batches at hand, or the first to come; empty as `fetch` is."""
        batches = await self.bring(timeout)
        for batch in batches:
            if type(batch) is LeasedBatch:
                self.handed_out(batch)
        return batches

    async def bring(self, timeout: float | None, count: int | None = None) -> list[Batch]:
        """Do what `fetch_batches` does, for somebody who hands them out later.

        A pull subscription asks the broker for `count`; `None`: for as many as fit the buffer.
        """
        inbox = self._inbox
        if count is None:
            inbox.take_batches()
        elif count:
            inbox.want(count)
        deadline_ms = self._deadline_ms(timeout)
        while (batch := self._next_batch()) is None:
            if inbox.pull:
                inbox.ask(inbox.credit_count if count is None else count)
            try:
                await self._arrival_until(deadline_ms)
            except RequestTimeoutError:
                return []
        batches = [batch]
        while inbox.batches and (batch := self._next_batch()) is not None:
            batches.append(batch)
        return batches

    def hold_until_settled(self) -> None:
        """Have the broker send more only when messages are settled, not when they are taken."""
        self._inbox.until_settled = True

    def settle(self, count: int) -> None:
        """Let the broker send `count` messages in place of as many that were dealt with."""
        self._inbox.settle(count)

    def drop_with(self, buffer: deque[Any]) -> None:
        """Have `buffer` emptied when what was delivered and not handed out becomes void."""
        self._channel.buffers.append(buffer)

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield whole batches, columns and all: `len(batch)`, `batch.payloads`, `.offsets`."""
        inbox = self._inbox
        inbox.take_batches()
        try:
            while True:
                while (batch := inbox.take()) is not None:
                    if type(batch) is LeasedBatch:
                        self.handed_out(batch)
                    yield batch
                if inbox.pull:
                    inbox.ask(inbox.credit_count)
                await self._arrival()
        except ClosedError:
            return

    async def values(self, batch: Batch) -> list[Any]:
        """Return the values of a batch from `batches` or `fetch_batches`; a schema is needed.

        Raises `SchemaViolationError` for a payload that is none, and whatever kept the client from
        getting the schema that the batch was written with.
        """
        if self.reading is None:
            raise no_schema("subscription to", self.topic, "subscribe")
        return await self.reading.values(batch)

    def handed_out(self, batch: LeasedBatch) -> None:
        """Take note that the application gets a batch: from now on its time counts."""
        batch.lease.take(self._client.link.session.now_ms())

    # Acknowledging

    async def ack_batch(self, batch: Batch, *, confirm: bool = False) -> None:
        """Acknowledge a whole batch, as it came from `batches` or `fetch_batches`.

        `confirm` as of `Message.ack`.
        """
        if not isinstance(batch, LeasedBatch):
            given: object = batch
            if not isinstance(given, Batch):
                raise BadRequestError(f"a batch is what `batches` yields, not {given!r}")
            if not batch.topic:
                raise BadRequestError("this is a part of a batch: acknowledge what was received")
            return
        lease = batch.lease
        if not confirm:
            lease.ack(0, batch.count)
            return
        future: asyncio.Future[None] = self._loop.create_future()
        lease.leases.confirm(lease, 0, batch.count, future)
        await future

    async def ack_through(self, msg: BaseMessage, *, confirm: bool = False) -> None:
        """Acknowledge everything of the message's topic up to it, itself included.

        Also what other consumers were delivered. `confirm` as of `Message.ack`.
        """
        given: object = msg
        if not isinstance(given, BaseMessage):
            raise BadRequestError(f"a message is what this subscription yields, not {given!r}")
        lease, slot = msg.leased(), msg.slot
        if self._channel.type not in ("exclusive", "failover"):
            raise BadRequestError(
                f"subscription {self.name!r} is shared: acknowledge what this consumer was "
                "delivered, message by message or by whole batches"
            )
        if not confirm:
            lease.leases.ack_through(lease, slot)
            return
        future: asyncio.Future[None] = self._loop.create_future()
        lease.leases.confirm_through(lease, slot, future)
        await future

    # Moving and pausing

    async def pause(self) -> None:
        """Ask the broker for no more messages. Those that are on their way still come."""
        self._inbox.pause()

    async def resume(self) -> None:
        """Ask the broker for messages again."""
        self._inbox.resume()

    async def seek(self, to: Place | None = None, *, snapshot: str | None = None) -> None:
        """Go on elsewhere: 'earliest', 'latest', an offset, a time, or a saved cursor.

        For the subscription as a whole, with all of its consumers. What was delivered and not
        acknowledged is void, and what waits here is dropped.
        """
        await self._client.seek(self.topic, self.name, to, snapshot=snapshot)

    async def save_cursor(self, name: str) -> None:
        """Keep the place where the subscription is now under a name, for `seek(snapshot=name)`."""
        await self._client.save_cursor(self.topic, self.name, name)

    async def drop_cursor(self, name: str) -> None:
        """Forget a saved cursor."""
        await self._client.drop_cursor(self.topic, self.name, name)

    async def _fill(self, timeout: float | None, count: int = 1) -> None:
        deadline_ms = self._deadline_ms(timeout)
        # Another task may have taken the batch that woke this one, and left some of it over.
        while not self._buffer and not self._take():
            if self._inbox.pull:
                self._inbox.ask(count)
            await self._arrival_until(deadline_ms)

    def _next_batch(self) -> Batch | None:
        """Return the next batch; `None` when there is none, or the schema of it is not known."""
        if self.reading is not None and not self.reading.ready(self._inbox.batches):
            return None
        return self._inbox.take()

    def _take(self) -> bool:
        batch = self._next_batch()
        if batch is None:
            return False
        delivery = Delivery(batch, self._client)
        if self.reading is not None:
            delivery.decode = self.reading.decoder(batch)
        if type(batch) is LeasedBatch:
            delivery.lease = batch.lease
            self.handed_out(batch)
        self._buffer.extend(map(Message, batch.payloads, repeat(delivery), range(batch.count)))
        return True

    def _deadline_ms(self, timeout: float | None) -> int | None:
        timeout = check_timeout(timeout)
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
        if not self._opened:
            raise not_open("subscription", "client.subscribe(...)")
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self.reading is None or not self.reading.arrival(self._inbox.batches, waiter):
            self._inbox.wait(waiter)
        return waiter
