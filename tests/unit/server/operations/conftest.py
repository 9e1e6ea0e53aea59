"""Operations on a broker in memory, and a client of that broker."""

from collections.abc import AsyncIterator

import pytest

import ister
from ister.server.operations import Dispatcher
from ister.testing import MemoryBroker


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBroker]:
    """A broker in memory."""
    async with MemoryBroker() as broker:
        yield broker


@pytest.fixture
def dispatcher(memory: MemoryBroker) -> Dispatcher:
    """What carries out operations on it."""
    return Dispatcher(memory.engine)


@pytest.fixture
async def client(memory: MemoryBroker) -> AsyncIterator[ister.Client]:
    """A client of it."""
    async with memory.connect() as client:
        yield client
