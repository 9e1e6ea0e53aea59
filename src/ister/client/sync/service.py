"""Services of the blocking client: the handler runs in threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.client import aio
from ister.client.sync.blocking import Blocking, blocking

if TYPE_CHECKING:
    from ister.client.sync.client import Client

# Given a request; returns the answer, and `None` for an empty one.
Handler = Callable[[aio.Message], bytes | None]


class ServiceInstance(Blocking[aio.ServiceInstance]):
    """Answers requests with what a handler returns. Use it with `with client.service(...)`.

    >>> with client.service("/default/price", lambda msg: b"42") as service:
    ...     print(service.stats.requests)
    0
    """

    def __init__(
        self, client: "Client", inner: aio.ServiceInstance, threads: ThreadPoolExecutor
    ) -> None:
        super().__init__(client.thread, inner)
        self._threads = threads
        self.topic = inner.topic
        self.name = inner.name
        self.id = inner.id

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

    open = blocking(aio.ServiceInstance.open)

    def run(self) -> None:
        """Answer requests until the service is closed by another thread."""
        try:
            self._thread.run(self._inner.run())
        finally:
            self._threads.shutdown(wait=False)

    def close(self) -> None:
        """Take no more requests. `run` returns when those under way are answered."""
        if not self._thread.closed:
            self._thread.run(self._inner.close())

    @property
    def stats(self) -> aio.ServiceStats:
        """What this instance has done so far."""
        return self._inner.stats


def in_threads(handler: Handler, threads: ThreadPoolExecutor) -> aio.Handler:
    """Return a handler that calls another one in a thread."""

    async def handle(msg: aio.Message) -> bytes | None:
        return await asyncio.get_running_loop().run_in_executor(threads, handler, msg)

    return handle
