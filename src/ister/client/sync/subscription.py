"""The subscription of the blocking client, and its messages."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.base.errors import ClosedError, IsterError, NotARequestError, RequestTimeoutError
from ister.base.limits import ACK_TIMEOUT_MS_MAX, NACK_DELAY_MS_MAX
from ister.client import aio
from ister.client.session import (
    BaseMessage,
    Delivery,
    LeasedBatch,
    as_bytes,
    check_count,
    check_timeout,
    milliseconds,
)
from ister.client.sync.blocking import Blocking, blocking
from ister.codec import Attributes, Batch

if TYPE_CHECKING:
    from ister.client.sync.client import Client


class Message(BaseMessage, gc=False):
    """A received message."""

    def ack(self, *, confirm: bool = False) -> None:
        """Say that the message is dealt with. A live topic keeps nothing, so nothing is sent.

        Acknowledgements leave together with others of the last moment; one that comes too late
        changes nothing, and is only counted. With `confirm=True` this returns when the broker
        has stored it, and raises `LeaseLostError` when it came too late.
        """
        lease = self._delivery.lease
        if lease is None:
            return
        client: Client = self._delivery.source
        if confirm:
            client.confirm(lease, self._slot)
        else:
            client.ack(lease, self._slot)

    def nack(self, *, delay: float | None = None) -> None:
        """Give the message back, to be delivered again after `delay` seconds.

        Without a delay, the backoff list of the subscription says when. Counts as an attempt.
        """
        lease, slot = self.leased(), self._slot
        most_ms = NACK_DELAY_MS_MAX
        delay_ms = None if delay is None else milliseconds(delay, "a delay", most_ms=most_ms)
        client: Client = self._delivery.source
        client.thread.post(lambda: lease.leases.nack(lease, slot, delay_ms))

    def extend(self, seconds: float) -> None:
        """Have `seconds` from now on to deal with the message.

        The client renews by itself for the time `max_renewal`; this is for longer. Raises
        `LeaseLostError` when it is too late.
        """
        extension_ms = milliseconds(seconds, "an extension", most_ms=ACK_TIMEOUT_MS_MAX)
        client: Client = self._delivery.source
        client.extend(self.leased(), self._slot, extension_ms)

    def reply(self, payload: bytes, *, attributes: Attributes | None = None) -> None:
        """Answer a request. The first answer wins; answers to clients that left are dropped."""
        address = self.reply_address
        if address is None:
            raise NotARequestError(self.topic)
        client: Client = self._delivery.source
        client.answer(address, as_bytes(payload), attributes)


class Subscription(Blocking[aio.Subscription]):
    """Receives messages. Use it with `with client.subscribe(...)`, from any thread.

    Whole batches cross from the client's thread: looping over messages costs no switch of
    threads for each.

    >>> with client.subscribe("/default/orders", "billing") as sub:
    ...     producer.send(b"one")
    ...     for msg in sub:
    ...         print(msg.payload)
    ...         break
    MessageId(topic='/default/orders', offset=0)
    b'one'
    """

    def __init__(self, client: "Client", inner: aio.Subscription) -> None:
        super().__init__(client.thread, inner)
        self.topic = inner.topic
        self.name = inner.name
        self._client = client
        # Filled on the loop, so that a batch taken there is not lost when Ctrl-C ends the wait.
        self._arrived: deque[Batch] = deque()
        self._buffer: deque[Message] = deque()
        # Held by the one thread that waits on the loop; the others wait for it and look again.
        self._taking = Lock()
        inner.drop_with(self._arrived)
        inner.drop_with(self._buffer)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    open = blocking(aio.Subscription.open)

    values = blocking(aio.Subscription.values)
    ack_batch = blocking(aio.Subscription.ack_batch)
    ack_through = blocking(aio.Subscription.ack_through)
    pause = blocking(aio.Subscription.pause)
    resume = blocking(aio.Subscription.resume)
    seek = blocking(aio.Subscription.seek)
    save_cursor = blocking(aio.Subscription.save_cursor)
    drop_cursor = blocking(aio.Subscription.drop_cursor)

    def close(self, *, release: bool = False) -> None:
        """Detach. The broker delivers messages that are not acknowledged to other consumers.

        A message of a stream that the application has received counts as an attempt, as after a
        `nack`: a message whose handler always fails becomes a dead letter in the end. What still
        waits in the client does not count. With `release` nothing counts.
        """
        if not self._thread.closed:
            self._thread.run(self._close(release=release))

    @property
    def active(self) -> bool:
        """Whether messages come here: false for the standby of a failover subscription."""
        return self._inner.active

    @property
    def dropped(self) -> int:
        """Messages the broker dropped because this consumer was too slow."""
        return self._inner.dropped

    @property
    def refused(self) -> int:
        """Acknowledgements that were not even sent, because they were known to be too late.

        All that came too late are in the `cursor` of `client.subscriptions()`.
        """
        return self._inner.refused

    @property
    def paused(self) -> bool:
        """Whether `pause` was called."""
        return self._inner.paused

    def __iter__(self) -> Iterator[Message]:
        take = self._buffer.popleft
        while True:
            try:
                message = take()
            except IndexError:
                try:
                    self._fill(None)
                except ClosedError:
                    return
                continue
            yield message

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message; raise `RequestTimeoutError` after `timeout` seconds."""
        return self._next(check_timeout(timeout), 1)

    def fetch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Return up to `count` messages: those at hand, or the first to come.

        Empty when none came within `timeout` seconds. A pull subscription asks the broker for
        `count` when it has none; those that come too late wait for the next call.
        """
        check_count(count, "the number of messages to fetch")
        try:
            first = self._next(check_timeout(timeout), count)
        except RequestTimeoutError:
            return []
        messages = [first]
        at_hand = True
        while len(messages) < count and at_hand:
            try:
                messages.append(self._buffer.popleft())
            except IndexError:
                at_hand = self._fill_at_hand()
        return messages

    def batches(self) -> Iterator[Batch]:
        """Yield whole batches, columns and all: `len(batch)`, `batch.payloads`, `.offsets`."""
        try:
            while True:
                # One at a time: those behind it have not been received when the loop ends here.
                with self._turn(None) as left_s:
                    ready = left_s is not None and self._pull(left_s())
                    batch = self._take_arrived() if ready else None
                if batch is not None:
                    yield batch
        except ClosedError:
            return

    def fetch_batches(self, timeout: float | None = None) -> list[Batch]:
        """Return all batches at hand, or the first to come; empty as `fetch` is."""
        batches: list[Batch] = []
        with self._turn(check_timeout(timeout)) as left_s:
            if left_s is not None and self._pull(left_s()):
                while (batch := self._take_arrived()) is not None:
                    batches.append(batch)
        return batches

    def _next(self, timeout: float | None, count: int) -> Message:
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._buffer.popleft()
            except IndexError:
                # What was filled in may have become void since: only time ends this.
                if not self._fill(_left_s(end_s), count) and _left_s(end_s) == 0:
                    raise self._too_late(timeout) from None

    def _fill(self, timeout: float | None, count: int = 1) -> bool:
        """Get messages into the buffer; false when none came in time.

        A pull subscription asks for `count`.
        """
        with self._turn(timeout) as left_s:
            # Another thread may have filled it while this one waited for its turn.
            if left_s is not None and not self._buffer and self._pull(left_s(), count):
                batch = self._take_arrived()
                if batch is not None:
                    self._unpack(batch)
            return bool(self._buffer)

    def _fill_at_hand(self) -> bool:
        """Get messages that are there already into the buffer; false when there are none."""
        try:
            return self._fill(0.0, 0)
        except IsterError:
            return False  # The end is told once what was received is taken.

    def _pull(self, timeout: float | None, count: int | None = None) -> bool:
        """Have batches brought over from the loop; false when none came in time."""
        if not self._arrived:
            self._thread.run(self._bring(timeout, count))
        return bool(self._arrived)

    def _take_arrived(self) -> Batch | None:
        """Return the next batch that has come over; the loop may drop them at any time."""
        try:
            batch = self._arrived.popleft()
        except IndexError:
            return None
        if type(batch) is LeasedBatch:
            self._inner.handed_out(batch)
        return batch

    def _unpack(self, batch: Batch) -> None:
        delivery = Delivery(batch, self._client)
        if self._inner.reading is not None:
            delivery.decode = self._inner.reading.decoder(batch)
        if type(batch) is LeasedBatch:
            delivery.lease = batch.lease
        self._buffer.extend(map(Message, batch.payloads, repeat(delivery), range(batch.count)))

    @contextmanager
    def _turn(self, timeout: float | None) -> Iterator[Callable[[], float | None] | None]:
        """Wait to be the one thread that takes batches; gives a clock of what time is left.

        Gives `None` when `timeout` has passed before its turn came.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        if not self._taking.acquire(timeout=-1 if timeout is None else timeout):
            yield None
            return
        try:
            yield lambda: _left_s(end_s)
        finally:
            self._taking.release()

    def _before(self) -> None:
        self._client.hand_over()

    async def _bring(self, timeout: float | None, count: int | None) -> None:
        self._arrived.extend(await self._inner.bring(timeout, count))

    async def _close(self, *, release: bool) -> None:
        self._before()
        await self._inner.close(release=release)

    def _too_late(self, timeout: float | None) -> RequestTimeoutError:
        return RequestTimeoutError(f"subscription {self.name!r}", timeout or 0.0)


def _left_s(end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, end_s - time.monotonic())
