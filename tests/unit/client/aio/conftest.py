"""A timeline from an application's side, over the real broker in memory; time is the test's."""

from collections.abc import AsyncIterator

import pytest

import ister
from ister.testing import MemoryBroker, VirtualClock

TOPIC = "/default/reminders"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(clock=clock) as broker:
        yield broker


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[ister.Client]:
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="timeline")
        yield client


@pytest.fixture
def timeline(client: ister.Client) -> ister.Timeline:
    return client.timeline(TOPIC, group="shop")
