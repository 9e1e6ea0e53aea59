"""The blocking client: `ister.sync.connect`."""

import asyncio
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from ister.base import Time
from ister.base.limits import BATCH_BYTES_CEILING
from ister.client import aio
from ister.client.session import Lease, Link, Place, Tls, Token, check_extras
from ister.client.sync.blocking import Blocking, blocking, wrapping
from ister.client.sync.outbox import Outbox
from ister.client.sync.producer import Producer
from ister.client.sync.reader import Reader
from ister.client.sync.schemas import Schemas
from ister.client.sync.service import Handler, ServiceInstance, in_threads
from ister.client.sync.staging import Stage
from ister.client.sync.subscription import Subscription
from ister.client.sync.thread import LoopThread
from ister.client.sync.timeline import Timeline
from ister.client.sync.transaction import Transaction
from ister.client.sync.view import View
from ister.codec import Attributes, ReplyAddress

_Reply = tuple[ReplyAddress, bytes, Attributes | None]
# A lease, and the slot of a message in it.
_Ack = tuple[Lease, int]


def connect(
    url: str | None = None,
    *,
    token: Token | None = None,
    tls: Tls | None = None,
    name: str = "",
    timeout: float = 30.0,
    connect_timeout: float | None = None,
) -> "Client":
    """Connect to the broker at `url` (`ister://host:port`, several joined by commas).

    Use it with `with`, or call `close()`. The client reconnects by itself; `timeout` bounds, in
    seconds, how long calls wait for a connection and for their answers. `isters://` is TLS. Without
    a `url` the environment says where the broker is. For that, `tls`, `token` and
    `connect_timeout` see `ister.connect`. Raises `NotConnectedError` when there is no broker, and
    `UnauthenticatedError` when it does not know the token.

    >>> with ister.sync.connect(url) as client:
    ...     client.create_topic("/default/orders")
    """
    # No polling for answers: the loop would hold the interpreter that its own caller needs.
    inner = aio.connect(
        url,
        token=token,
        tls=tls,
        name=name,
        timeout=timeout,
        connect_timeout=connect_timeout,
        busy_poll=0.0,
    )
    thread = LoopThread()
    try:
        thread.run(inner.open())
    except BaseException:
        thread.close(inner.close)
        raise
    return Client(thread, inner)


class Client(Blocking[aio.Client]):
    """A connection to a broker, shared by any number of threads.

    Heartbeats, acknowledgements and reconnects are dealt with in a thread of the client's own,
    whatever the caller's threads are busy with. Callbacks (`on_event`, `add_done_callback`) run
    in that thread and must not block.
    """

    def __init__(self, thread: LoopThread, inner: aio.Client) -> None:
        super().__init__(thread, inner)
        self.url = inner.url
        self.thread = thread
        self.schemas = Schemas(thread, inner.schemas)
        self._replies: Outbox[_Reply, None] = Outbox(thread.post, self._deal_replies)
        self._acks: Outbox[_Ack, None] = Outbox(thread.post, _deal_acks)
        # For a client that nobody closes: when it is collected, and at exit.
        self._finalizer = weakref.finalize(self, thread.close, inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return not self._thread.closed and self._inner.connected

    @property
    def ended(self) -> bool:
        """Whether it will not connect again: it was closed, or met an error no retry can mend."""
        return self._thread.closed or self._inner.link.session.link is Link.CLOSED

    @property
    def batch_limits(self) -> tuple[int, int]:
        """How large a message and a batch may be, in bytes; for those who encode them."""
        session = self._inner.link.session
        most = BATCH_BYTES_CEILING if session.welcome is None else session.welcome.batch_bytes_max
        return session.message_bytes_max, most

    def close(self) -> None:
        """Disconnect; open producers and subscriptions end. Harmless when closed."""
        self._finalizer.detach()
        self._thread.close(self._close)

    producer = wrapping(aio.Client.producer, Producer)
    subscribe = wrapping(aio.Client.subscribe, Subscription)
    transaction = wrapping(aio.Client.transaction, Transaction)
    timeline = wrapping(aio.Client.timeline, Timeline)
    stage = wrapping(aio.Client.stage, Stage)
    stage_batches = blocking(aio.Client.stage_batches)
    publish_stages = blocking(aio.Client.publish_stages)
    drop_stages = blocking(aio.Client.drop_stages)
    reader = wrapping(aio.Client.reader, Reader)
    publish = blocking(aio.Client.publish)
    request = blocking(aio.Client.request)
    services = blocking(aio.Client.services)
    create_topic = blocking(aio.Client.create_topic)
    update_topic = blocking(aio.Client.update_topic)
    purge = blocking(aio.Client.purge)
    delete_topic = blocking(aio.Client.delete_topic)
    delete_subscription = blocking(aio.Client.delete_subscription)
    update_subscription = blocking(aio.Client.update_subscription)
    pause_subscription = blocking(aio.Client.pause_subscription)
    resume_subscription = blocking(aio.Client.resume_subscription)
    seek = blocking(aio.Client.seek)
    save_cursor = blocking(aio.Client.save_cursor)
    drop_cursor = blocking(aio.Client.drop_cursor)
    redrive = blocking(aio.Client.redrive)
    create_namespace = blocking(aio.Client.create_namespace)
    delete_namespace = blocking(aio.Client.delete_namespace)
    namespaces = blocking(aio.Client.namespaces)
    topics = blocking(aio.Client.topics)
    subscriptions = blocking(aio.Client.subscriptions)
    broker = blocking(aio.Client.broker)
    heads = blocking(aio.Client.heads)
    locate = blocking(aio.Client.locate)

    def view(self, topic: str, *, at: int | Time | None = None) -> View:
        """Return the last payload of every key of a stream.

        As of now; or as it was when the message at offset `at` was the last; or at the time `at`,
        with what was published in that very millisecond. Raises `CompactedError` when compaction
        has dropped some of what the stream held then. `view.watch()` goes on from there.
        """
        return View(self, self._thread.run(self._view(topic, at)))

    def history(
        self, topic: str, key: str, *, start: Place = "earliest", end: Place | None = "latest"
    ) -> Iterator[aio.ViewEntry]:
        """Yield the messages of one key of a stream, the oldest first.

        `start` and `end` are those of `reader`. The whole range is read and what has other keys
        is left out here: to look at very many keys, read it once.
        """
        check_extras(key, None, None)
        return self._history(self.reader(topic, start=start, end=end), key)

    def service(
        self,
        topic: str,
        handler: Handler,
        *,
        name: str = "service",
        concurrency: int = 16,
        health: aio.Health | None = None,
    ) -> ServiceInstance:
        """Return a service: `handler` answers the requests to a topic, in `concurrency` threads.

        It is given the message and returns the payload of the answer. When it raises an error,
        whoever asked has `ResponderFailedError`. Services of one `name` share the requests.
        `health` returns at once whether this instance can do its work, for `services`.
        """
        threads = ThreadPoolExecutor(max(concurrency, 1), thread_name_prefix="ister-service")

        async def make() -> aio.ServiceInstance:
            return self._inner.service(
                topic,
                in_threads(handler, threads),
                name=name,
                concurrency=concurrency,
                health=health,
            )

        return ServiceInstance(self, self._thread.run(make()), threads)

    # For messages

    def answer(self, address: ReplyAddress, payload: bytes, attributes: Attributes | None) -> None:
        """Send an answer, together with the others of the last moment."""
        self._inner.answers.check(payload, attributes)
        with self._replies.lock:
            self._replies.run().items.append((address, payload, attributes and dict(attributes)))

    def ack(self, lease: Lease, slot: int) -> None:
        """Acknowledge a message, together with the others of the last moment."""
        with self._acks.lock:
            self._acks.run().items.append((lease, slot))

    def confirm(self, lease: Lease, slot: int) -> None:
        """Acknowledge a message, and return when the broker has stored that."""
        self._thread.run(self._confirm(lease, slot))

    def extend(self, lease: Lease, slot: int, extension_ms: int) -> None:
        """Extend the time for a message."""
        self._thread.run(self._extend(lease, slot, extension_ms))

    def hand_over(self) -> None:
        """Give what was collected to the asyncio client. On the loop."""
        self._replies.empty()
        self._acks.empty()

    def _before(self) -> None:
        self.hand_over()

    def _deal_replies(self, replies: list[_Reply]) -> list[None]:
        for address, payload, attributes in replies:
            self._inner.answers.add(address, payload, attributes)
        return []

    async def _confirm(self, lease: Lease, slot: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lease.leases.confirm(lease, slot, slot + 1, future)
        await future

    async def _extend(self, lease: Lease, slot: int, extension_ms: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lease.leases.extend(lease, slot, extension_ms, future)
        await future

    def _history(self, reader: Reader, key: str) -> Iterator[aio.ViewEntry]:
        with reader:
            for batch in reader:
                yield from aio.entries_of(batch, key)

    async def _view(self, topic: str, at: int | Time | None) -> aio.View:
        return await self._inner.view(topic, at=at)

    async def _close(self) -> None:
        self._before()
        await self._inner.close()


def _deal_acks(acks: list[_Ack]) -> list[None]:
    for lease, slot in acks:
        # What `aio.Message.ack` does.
        if slot == lease.run_end:
            lease.run_end = slot + 1
        else:
            lease.ack(slot, slot + 1)
    return []
