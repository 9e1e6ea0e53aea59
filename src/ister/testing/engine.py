"""The real broker with its native door, as the fakes run it: in memory and in a thread."""

import asyncio
import random
from weakref import WeakSet

from ister.base import AutoCreate, Clock
from ister.base.limits import Limits
from ister.broker import (
    Broker,
    InlineWorker,
    RecentBudget,
    Spool,
    Spooling,
    Storage,
    WithStore,
    Workers,
    open_storage,
)
from ister.log import Disk, FileBackend, LogOptions
from ister.registry import Registry
from ister.server.native import NativeDoor, NativeSession
from ister.server.operations import Dispatcher
from ister.telemetry import library_logger
from ister.timeline import MemoryStore, Store

# Enough for a test to see both memory and disk at work.
STREAM_MEMORY_BYTES = 64 * 1024 * 1024


class Engine:
    """One life of a broker: from a start to a stop."""

    def __init__(
        self,
        *,
        name: str,
        limits: Limits,
        clock: Clock,
        seed: int,
        disk: Disk,
        registry: Registry,
        timelines: Store | None = None,
        auto_create: str = "live",
    ) -> None:
        self._clock = clock
        self._disk = disk
        self.broker = Broker(
            name=name,
            limits=limits,
            clock=clock,
            # Seeded, so that the 'random' policy does the same in every run of a test.
            random_slot=random.Random(seed).randrange,
            recent=RecentBudget(STREAM_MEMORY_BYTES),
            open_local=self._open_storage,
            spooling=Spooling(new_spool=lambda: Spool(None), new_worker=_inline_worker),
            auto_create=AutoCreate.parse(auto_create),
            call_soon=asyncio.get_running_loop().call_soon,
        )
        self.broker.schema_check_of = registry.find_check
        registry.on_bound.append(self.broker.on_bound)
        if disk.names("segments"):
            self.broker.adopt(self._open_storage())
        call_soon = asyncio.get_running_loop().call_soon
        store = timelines or MemoryStore()
        self.broker.adopt_timelines(
            WithStore(store, InlineWorker(call_soon)), store.topics(), call_soon=call_soon
        )
        logger = library_logger("ister.testing")
        self.door = NativeDoor(
            self.broker,
            # Polling would take turns of the loop, and a core, from the test.
            busy_poll_us=0,
            dispatcher=Dispatcher(self.broker, registry, logger=logger),
            logger=logger,
        )
        self._sessions: WeakSet[NativeSession] = WeakSet()

    def _open_storage(self) -> Storage:
        """Open the streams of the disk; everything happens in turns of the event loop."""
        call_soon = asyncio.get_running_loop().call_soon
        worker = InlineWorker(call_soon)
        return open_storage(
            FileBackend(self._disk),
            LogOptions(now_ms=self._clock.now_ms),
            workers=lambda: Workers(writing=worker, reading=worker, housekeeping=worker),
            clock=self._clock,
            call_soon=call_soon,
        )

    def session(self) -> NativeSession:
        """Return the protocol object of a new connection."""
        session = self.door.session()
        self._sessions.add(session)
        return session

    def crash(self) -> None:
        """Cut every connection, and write nothing more."""
        self.disconnect_all()
        self.broker.streams.close()
        self.broker.timelines.close()
        for storage in self.broker.streams.storages:
            storage.committer.close()

    def disconnect_all(self) -> None:
        """Cut every connection, as a broken network does: nobody is told beforehand."""
        for session in list(self._sessions):
            session.abort()
        self._sessions.clear()


def _inline_worker(_: str, __: int) -> InlineWorker:
    return InlineWorker(asyncio.get_running_loop().call_soon)
