"""The HTTP application over a broker and a registry in memory."""

from collections.abc import AsyncIterator

import pytest
from tests.unit.server.http.caller import Caller

from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.http import App
from ister.server.native import NativeDoor
from ister.server.operations import Dispatcher
from ister.testing import MemoryBroker, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(clock=clock) as broker:
        yield broker


@pytest.fixture
async def call(broker: MemoryBroker) -> Caller:
    registry = await Registry.open(MemoryMetadata(), now_ms=broker.clock.now_ms)
    engine = broker.engine
    return Caller(App(engine, NativeDoor(engine), Dispatcher(engine, registry)))
