"""A broker on a real port, in a thread of its own: for code that blocks."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from ister.base.limits import Limits
from ister.metadata import MemoryMetadata
from ister.objects import MemoryDisk
from ister.registry import Registry
from ister.telemetry import SystemClock
from ister.testing.clock import settle
from ister.testing.engine import Engine
from ister.timeline import MemoryStore

HOST = "127.0.0.1"

_R = TypeVar("_R")


class ThreadedBroker:
    """A broker for tests of blocking code; listens on a free port.

    >>> with ister.testing.ThreadedBroker() as broker:
    ...     with ister.sync.connect(broker.url) as client:
    ...         client.create_topic("/default/orders")
    """

    def __init__(
        self, *, limits: Limits | None = None, name: str = "threaded", seed: int = 0
    ) -> None:
        self.name = name
        self.port = 0
        self._limits = limits or Limits()
        self._seed = seed
        # What streams, schemas and timelines are kept on: outlive a restart.
        self._disk = MemoryDisk()
        self._metadata = MemoryMetadata()
        self._timelines = MemoryStore()
        self._engine: Engine | None = None
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

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

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"ister://{HOST}:{self.port}"

    def open(self) -> None:
        """Start the thread and the broker in it."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="ister-broker", daemon=True)
        self._thread.start()
        self.start()

    def close(self) -> None:
        """Stop the broker and its thread."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def start(self) -> None:
        """Start again after `stop`, on the same port."""
        self._run(self._start())

    def stop(self) -> None:
        """Stop as a crash does: clients lose their connection and cannot get a new one."""
        self._run(self._stop())

    def restart(self) -> None:
        """Stop and start. Clients come back by themselves; topics are made anew by their use."""
        self.stop()
        self.start()

    def disconnect_all(self) -> None:
        """Cut every connection, as a broken network does. Clients reconnect by themselves."""
        self._run(self._disconnect_all())

    async def _start(self) -> None:
        if self._engine is not None:
            return
        loop = asyncio.get_running_loop()
        clock = SystemClock(loop.call_later)
        engine = Engine(
            name=self.name,
            limits=self._limits,
            clock=clock,
            seed=self._seed,
            disk=self._disk,
            registry=await Registry.open(self._metadata, now_ms=clock.now_ms),
            timelines=self._timelines,
        )
        self._server = await loop.create_server(engine.session, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._engine = engine

    async def _stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None or self._server is None:
            return
        self._server.close()
        engine.crash()
        await settle()
        # Whoever was being accepted just then.
        engine.disconnect_all()
        await settle()
        await engine.door.close(deadline_s=0)

    async def _disconnect_all(self) -> None:
        if self._engine is not None:
            self._engine.disconnect_all()

    def _run(self, work: Coroutine[Any, Any, _R]) -> _R:
        if self._loop is None:
            work.close()
            raise RuntimeError("the broker is not open: `with ThreadedBroker() as broker`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
