"""A broker in memory: the real engine, without sockets."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ister.base import Clock
from ister.base.limits import Limits
from ister.broker import Broker
from ister.client import Client, connect
from ister.log import Disk
from ister.metadata import MemoryMetadata
from ister.objects import MemoryDisk
from ister.registry import Registry
from ister.telemetry import SystemClock
from ister.testing.clock import settle
from ister.testing.engine import Engine
from ister.testing.transport import MemoryTransport, connect_pair
from ister.timeline import MemoryStore


class MemoryBroker:
    """A broker for tests, in the event loop of the test. Everything but socket and disk is real.

    >>> async with ister.testing.MemoryBroker() as broker:
    ...     async with broker.connect() as client:
    ...         async with client.producer("/default/orders") as producer:
    ...             await producer.send(b"hello")
    MessageId(topic='/default/orders', offset=0)

    With `clock=VirtualClock()` the broker and its clients live by that clock: timeouts,
    heartbeats and reconnects happen when the test says so. `auto_create` is what `ister serve`
    takes as `--auto-create`.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        name: str = "memory",
        seed: int = 0,
        disk: Disk | None = None,
        auto_create: str = "live",
    ) -> None:
        self.name = name
        self.url = f"ister://{name}"
        self._clock = clock
        self._limits = limits or Limits()
        self._seed = seed
        self._auto_create = auto_create
        # What streams, schemas and timelines are kept on: outlive a restart.
        self.disk = disk if disk is not None else MemoryDisk()
        self._metadata = MemoryMetadata()
        self._timelines = MemoryStore()
        self._engine: Engine | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def clock(self) -> Clock:
        """The clock of the broker and its clients."""
        if self._clock is None:
            self._clock = SystemClock(asyncio.get_running_loop().call_later)
        return self._clock

    @property
    def engine(self) -> Broker:
        """The broker itself, to look into. Raises `ConnectionRefusedError` while it is stopped."""
        return self._running().broker

    def connect(
        self, *, name: str = "", timeout: float = 30.0, connect_timeout: float | None = None
    ) -> Client:
        """Return a client of this broker, as `ister.connect` does."""
        return connect(
            self.url,
            name=name,
            timeout=timeout,
            connect_timeout=connect_timeout,
            busy_poll=0.0,
            clock=self.clock,
            connector=self.connector,
        )

    async def connector(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> MemoryTransport:
        """Open a connection, for code that calls `ister.connect(connector=...)` itself."""
        return connect_pair(protocol, self._running().session)

    async def start(self) -> None:
        """Start, or start again after `stop`. Of an earlier life, streams and schemas are left."""
        if self._engine is None:
            self._engine = Engine(
                name=self.name,
                limits=self._limits,
                clock=self.clock,
                seed=self._seed,
                disk=self.disk,
                registry=await Registry.open(self._metadata, now_ms=self.clock.now_ms),
                timelines=self._timelines,
                auto_create=self._auto_create,
            )

    async def stop(self) -> None:
        """Stop as a crash does: clients lose their connection and cannot get a new one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.crash()
            await settle()
            await engine.door.close(deadline_s=0)

    async def restart(self) -> None:
        """Stop and start. Clients come back by themselves; topics are made anew by their use."""
        await self.stop()
        await self.start()

    def disconnect_all(self) -> None:
        """Cut every connection, as a broken network does. Clients reconnect by themselves."""
        self._running().disconnect_all()

    def _running(self) -> Engine:
        if self._engine is None:
            raise ConnectionRefusedError("the broker is stopped")
        return self._engine
