"""The producer of the blocking client."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from ister.base.errors import (
    BadRequestError,
    ClosedError,
    IsterError,
    ProducerFullError,
    RequestTimeoutError,
)
from ister.base.limits import PRODUCER_PENDING_BYTES_MAX, PRODUCER_WINDOW_BYTES
from ister.client import aio
from ister.client.session import (
    MESSAGE_OVERHEAD_BYTES,
    DeliverAfter,
    DeliverAt,
    Due,
    MessageId,
    MessageIds,
    check_timeout,
    error_to_raise,
)
from ister.client.sync.blocking import Blocking, blocking, wrapping
from ister.client.sync.outbox import Outbox, Run
from ister.codec import Attributes, SchemaRef

if TYPE_CHECKING:
    from ister.client.sync.client import Client

# Payload, key, attributes, id, and when it is due if it is to be published later.
_Item = tuple[bytes, str | None, Attributes | None, str | None, Due | None]
# What became of it on the loop: on its way, or refused.
_Handed = aio.SendFuture | IsterError

_R = TypeVar("_R")


class SendFuture(msgspec.Struct, gc=False):
    """A message on its way. `result()` waits for its `MessageId`; not asking is fine, too."""

    _producer: "Producer"
    _run: Run[_Item, _Handed]
    _slot: int

    def done(self) -> bool:
        """Whether the broker has acknowledged or refused it."""
        handed = self._run.results
        if handed is None:
            return False
        sent = handed[self._slot]
        return isinstance(sent, IsterError) or sent.done()

    def result(self, timeout: float | None = None) -> MessageId:
        """Return the id once acknowledged; raise what went wrong, or `RequestTimeoutError`."""
        return self._producer.wait_for(self._outcome(), timeout)

    def exception(self, timeout: float | None = None) -> IsterError | None:
        """Return what went wrong, or `None`; waits as `result` does."""
        try:
            self.result(timeout)
        except RequestTimeoutError as error:
            if not self.done():
                raise
            return error
        except IsterError as error:
            return error
        return None

    def add_done_callback(self, callback: "Callable[[SendFuture], object]") -> None:
        """Call `callback` with this future once it is done, in the client's own thread."""

        def attach() -> None:
            sent = self._handed()
            if isinstance(sent, IsterError):
                callback(self)
            else:
                sent.add_done_callback(lambda _: callback(self))

        self._producer.post(attach)

    async def _outcome(self) -> MessageId:
        sent = self._handed()
        if isinstance(sent, IsterError):
            raise error_to_raise(sent)
        return await sent

    def _handed(self) -> _Handed:
        """Return what became of it; hands it over if it is still to be. On the loop."""
        if self._run.results is None:
            self._producer.hand_over()
        assert self._run.results is not None
        return self._run.results[self._slot]


class BatchFuture:
    """Many messages on their way."""

    def __init__(self, producer: "Producer", inner: aio.BatchFuture) -> None:
        self._producer = producer
        self._inner = inner

    def done(self) -> bool:
        """Whether the broker has acknowledged or refused all of them."""
        return self._inner.done()

    def result(self, timeout: float | None = None) -> MessageIds:
        """Return the ids in the order of the messages, once all are acknowledged.

        Raises the first error of a message, or `RequestTimeoutError`.
        """
        return self._producer.wait_for(self._outcome(), timeout)

    def results(self) -> list[MessageId | IsterError]:
        """Return what became of each message, once all are done: its id, or its error."""
        return self._producer.wait_for(self._results(), None)

    async def _results(self) -> list[MessageId | IsterError]:
        return self._inner.results()

    async def _outcome(self) -> MessageIds:
        return await self._inner


class Producer(Blocking[aio.Producer[Any]]):
    """Sends messages to one topic. Use it with `with client.producer(...)`, from any thread.

    With a schema it sends values of that, else bytes.

    >>> with client.producer("/default/orders") as producer:
    ...     producer.send(b"one", key="k", attributes={"a": "1"})
    ...     future = producer.send_nowait(b"two")
    ...     future.result()
    MessageId(topic='/default/orders', offset=0)
    MessageId(topic='/default/orders', offset=1)
    """

    def __init__(self, client: "Client", inner: aio.Producer[Any]) -> None:
        super().__init__(client.thread, inner)
        # A client that nobody holds any more is closed.
        self._client = client
        self.topic = inner.topic
        self.name = inner.name
        self._outbox: Outbox[_Item, _Handed] = Outbox(client.thread.post, self._deal)
        # Given to the outbox and not yet to the asyncio producer.
        self._waiting_bytes = 0
        # The first refusal on the loop since the last `flush`, which reports it.
        self._refusal: IsterError | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(flush=kind is None)

    open = blocking(aio.Producer.open)
    send = blocking(aio.Producer.send)
    send_batch = blocking(aio.Producer.send_batch)
    send_batch_nowait = wrapping(aio.Producer.send_batch_nowait, BatchFuture)

    def send_nowait(
        self,
        payload: Any,
        key: str | None = None,
        attributes: Attributes | None = None,
        id: str | None = None,
        ttl: float | None = None,
        deliver_at: DeliverAt | None = None,
        deliver_after: DeliverAfter | None = None,
    ) -> SendFuture:
        """Send without waiting: the message leaves with the others of the last moment.

        Takes what `send` takes. Raises `ProducerFullError` when too much is unacknowledged;
        `producer.ready()` between sends keeps clear of that.
        """
        if ttl is not None:
            attributes = self._inner.with_ttl(attributes, ttl)
        due = None
        if deliver_at is not None or deliver_after is not None:
            due = self._inner.due(deliver_at, deliver_after)
        # Values are encoded here, in the caller's thread.
        payload = self._inner.check(payload, key, attributes, id)
        outbox = self._outbox
        with outbox.lock:
            pending_bytes = self._waiting_bytes + self._inner.pending_bytes
            if pending_bytes >= PRODUCER_PENDING_BYTES_MAX:
                raise ProducerFullError(self.topic, pending_bytes)
            run = outbox.run()
            slot = len(run.items)
            # A copy, because the loop looks at it later.
            run.items.append((payload, key, attributes and dict(attributes), id, due))
            self._waiting_bytes += len(payload) + MESSAGE_OVERHEAD_BYTES
        return SendFuture(self, run, slot)

    def ready(self) -> None:
        """Return when there is room for more: at once, unless the broker is behind."""
        if self.pending_bytes >= PRODUCER_WINDOW_BYTES:
            self._thread.run(self._ready())

    def flush(self) -> None:
        """Return when everything sent so far is acknowledged; raise the first error."""
        self._thread.run(self._flush())

    def close(self, *, flush: bool = True) -> None:
        """Wait for what was sent (unless `flush=False`), then close."""
        if not self._thread.closed:
            self._thread.run(self._close(flush=flush))

    @property
    def schema(self) -> SchemaRef | None:
        """The id and the version of the schema that its messages carry, once open."""
        return self._inner.schema

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value, as `send` makes it: for `tx.send`, or to look at it."""
        return self._inner.encode(value)

    @property
    def pending_bytes(self) -> int:
        """What is sent and not yet acknowledged, of at most `PRODUCER_PENDING_BYTES_MAX`."""
        return self._waiting_bytes + self._inner.pending_bytes

    def wait_for(self, work: Coroutine[Any, Any, _R], timeout: float | None) -> _R:
        """Wait for what the loop makes of `work`, as long as `timeout` allows."""
        try:
            timeout = check_timeout(timeout)
        except BadRequestError:
            work.close()
            raise
        return self._thread.run(self._timed(work, timeout))

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop make a call soon."""
        self._thread.post(call)

    def hand_over(self) -> None:
        """Give what was collected to the asyncio producer. On the loop."""
        self._outbox.empty()

    def _before(self) -> None:
        self._outbox.empty()

    def _deal(self, items: list[_Item]) -> list[_Handed]:
        inner = self._inner
        send = inner.send_encoded if inner.encodes else inner.send_nowait
        handed: list[_Handed] = []
        size_bytes = 0
        for payload, key, attributes, id_, due in items:
            size_bytes += len(payload) + MESSAGE_OVERHEAD_BYTES
            try:
                if due is not None:
                    handed.append(inner.send_delayed(payload, key, attributes, id_, due))
                else:
                    handed.append(send(payload, key=key, attributes=attributes, id=id_))
            except IsterError as error:
                self._refusal = self._refusal or error
                handed.append(error.with_traceback(None))
        # After the sends, which have counted the bytes as pending: the sum is never too low.
        with self._outbox.lock:
            self._waiting_bytes -= size_bytes
        return handed

    async def _timed(self, work: Coroutine[Any, Any, _R], timeout: float | None) -> _R:
        try:
            async with asyncio.timeout(timeout) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError(f"publish to {self.topic!r}", timeout or 0.0) from None

    async def _ready(self) -> None:
        self._before()
        await self._inner.ready()

    async def _flush(self) -> None:
        self._before()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise error_to_raise(refusal)
        await self._inner.flush()

    async def _close(self, *, flush: bool) -> None:
        try:
            if flush and not self._inner.closed:
                await self._flush()
        except ClosedError:
            pass
        finally:
            await self._inner.close(flush=False)
