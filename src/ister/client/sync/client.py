"""The blocking client: `ister.sync.connect`."""

import weakref
from types import TracebackType
from typing import Self

from ister.client import aio
from ister.client.session import DEFAULT_URL
from ister.client.sync.blocking import Blocking, blocking, wrapping
from ister.client.sync.outbox import Outbox
from ister.client.sync.producer import Producer
from ister.client.sync.subscription import Subscription
from ister.client.sync.thread import LoopThread
from ister.codec import Attributes, ReplyAddress

_Reply = tuple[ReplyAddress, bytes, Attributes | None]


def connect(url: str = DEFAULT_URL, *, name: str = "", timeout: float = 30.0) -> "Client":
    """Connect to the broker at `url` (`ister://host:port`, several joined by commas).

    Use it with `with`, or call `close()`. The client reconnects by itself; `timeout` bounds, in
    seconds, how long calls wait for a connection and for their answers. Raises
    `NotConnectedError` when there is no broker.

    >>> with ister.sync.connect(url) as client:
    ...     client.create_topic("/default/orders")
    """
    thread = LoopThread()
    # No polling for answers: the loop would hold the interpreter that its own caller needs.
    inner = aio.connect(url, name=name, timeout=timeout, busy_poll=0.0)
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
        self._replies: Outbox[_Reply, None] = Outbox(thread.post, self._deal)
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

    def close(self) -> None:
        """Disconnect; open producers and subscriptions end. Harmless when closed."""
        self._finalizer.detach()
        self._thread.close(self._close)

    producer = wrapping(aio.Client.producer, Producer)
    subscribe = wrapping(aio.Client.subscribe, Subscription)
    request = blocking(aio.Client.request)
    create_topic = blocking(aio.Client.create_topic)
    delete_topic = blocking(aio.Client.delete_topic)
    create_namespace = blocking(aio.Client.create_namespace)
    namespaces = blocking(aio.Client.namespaces)
    topics = blocking(aio.Client.topics)
    subscriptions = blocking(aio.Client.subscriptions)
    broker = blocking(aio.Client.broker)

    def answer(self, address: ReplyAddress, payload: bytes, attributes: Attributes | None) -> None:
        """Send an answer, together with the others of the last moment."""
        self._inner.check_answer(payload, attributes)
        with self._replies.lock:
            self._replies.run().items.append((address, payload, attributes and dict(attributes)))

    def _before(self) -> None:
        self._replies.empty()

    def _deal(self, replies: list[_Reply]) -> list[None]:
        for address, payload, attributes in replies:
            self._inner.answer(address, payload, attributes)
        return []

    async def _close(self) -> None:
        self._before()
        await self._inner.close()
