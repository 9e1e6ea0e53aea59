"""The admin model of a broker in memory, and a client of that broker."""

from collections.abc import AsyncIterator

import pytest

import ister
from ister.server.admin import Admin
from ister.testing import MemoryBroker


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBroker]:
    """A broker in memory."""
    async with MemoryBroker() as broker:
        yield broker


@pytest.fixture
def admin(memory: MemoryBroker) -> Admin:
    """Its admin model."""
    return Admin(memory.engine)


@pytest.fixture
async def client(memory: MemoryBroker) -> AsyncIterator[ister.Client]:
    """A client of it."""
    async with memory.connect() as client:
        yield client
