"""One way to drive both clients: tests are written once, for the asyncio names.

The asyncio client talks to a broker in memory. The blocking client talks to a broker on a real
port, each call in a thread of its own, behind a view that gives its methods back as coroutines.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import ister
from ister import sync
from ister.base.limits import KIB, Limits
from ister.client.sync import Transaction
from ister.testing import MemoryBroker, ThreadedBroker

# Small enough to go over in a test, large enough for messages of several reads of a socket.
LIMITS = Limits(message_bytes_max=1024 * KIB, batch_bytes_max=2 * 1024 * KIB)

# More than the calls any test has under way at once: a call that waits for a thread would look
# like one that hangs.
CALLS_MAX = 128


class Harness(ABC):
    """A broker, and clients of one kind for it."""

    @abstractmethod
    def connect(self) -> ister.Client:
        """Return a client to be opened with `async with`."""

    @abstractmethod
    async def disconnect_all(self) -> None:
        """Cut every connection."""

    @abstractmethod
    async def restart(self) -> None:
        """Stop the broker as a crash does, and start it again."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the broker."""


class AsyncHarness(Harness):
    """The asyncio client, in memory."""

    def __init__(self) -> None:
        self._broker = MemoryBroker(limits=LIMITS)

    async def open(self) -> None:
        """Start the broker."""
        await self._broker.start()

    def connect(self) -> ister.Client:
        """See `Harness`."""
        return self._broker.connect()

    async def disconnect_all(self) -> None:
        """See `Harness`."""
        self._broker.disconnect_all()

    async def restart(self) -> None:
        """See `Harness`."""
        await self._broker.restart()

    async def close(self) -> None:
        """See `Harness`."""
        await self._broker.stop()


class SyncHarness(Harness):
    """The blocking client, over TCP."""

    def __init__(self) -> None:
        self._broker = ThreadedBroker(limits=LIMITS)
        self._threads = ThreadPoolExecutor(CALLS_MAX)

    async def open(self) -> None:
        """Start the broker."""
        self._broker.open()

    def connect(self) -> ister.Client:
        """See `Harness`."""
        return cast("ister.Client", _Connecting(self._view, lambda: sync.connect(self._broker.url)))

    async def disconnect_all(self) -> None:
        """See `Harness`."""
        self._broker.disconnect_all()

    async def restart(self) -> None:
        """See `Harness`."""
        self._broker.restart()

    async def close(self) -> None:
        """See `Harness`."""
        self._threads.shutdown()
        self._broker.close()

    def _view(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._view(one) for one in value]
        if isinstance(value, Mapping):
            return value
        # A class that was made at run time may be of no module.
        if (type(value).__module__ or "").startswith("ister.client.sync"):
            return _View(value, self._view, self._call)
        return value

    async def _call(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        return self._view(await loop.run_in_executor(self._threads, function))


_NOT_AWAITED = {
    "producer",
    "reader",
    "subscribe",
    "send_nowait",
    "send_batch_nowait",
    "encode",
    "done",
    "add_done_callback",
    "results",
    "stage",
    "transaction",
}
# On a transaction these only collect.
_NOT_AWAITED_IN_TRANSACTION = {"send", "ack", "abandon"}
_Call = Callable[[Callable[[], Any]], Awaitable[Any]]


class _View:
    """A blocking object that looks like its asyncio counterpart."""

    def __init__(self, inner: Any, view: Callable[[Any], Any], call: _Call) -> None:
        self._inner = inner
        self._view = view
        self._call = call

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return self._view(attribute)
        if name == "batches":
            return lambda: self._iterate(attribute())
        collects = isinstance(self._inner, Transaction) and name in _NOT_AWAITED_IN_TRANSACTION
        if collects or name in _NOT_AWAITED:
            return lambda *args, **kwargs: self._view(attribute(*map(_bare, args), **kwargs))
        return lambda *args, **kwargs: self._call(lambda: attribute(*map(_bare, args), **kwargs))

    async def __aenter__(self) -> Any:
        await self._call(self._inner.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._call(lambda: self._inner.__exit__(*error))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate(iter(self._inner))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._call(self._inner.result).__await__()

    async def _iterate(self, iterator: Any) -> AsyncIterator[Any]:
        end = object()
        while (item := await self._call(lambda: next(iterator, end))) is not end:
            yield item


def _bare(value: Any) -> Any:
    """Return what a view is of: blocking objects are given to each other as they are."""
    return value._inner if isinstance(value, _View) else value


class _Connecting:
    """`sync.connect` connects when called: put that off until `async with`."""

    def __init__(self, view: Callable[[Any], Any], connect: Callable[[], sync.Client]) -> None:
        self._view = view
        self._connect = connect
        self._client: Any = None

    async def __aenter__(self) -> Any:
        self._client = self._view(self._connect())
        return await self._client.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)
