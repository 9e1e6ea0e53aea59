"""Runs every test of this folder on both clients."""

from collections.abc import AsyncIterator

import pytest
from tests.contract.harness import AsyncHarness, Harness, SyncHarness

import ister


@pytest.fixture(params=[AsyncHarness, SyncHarness], ids=["async", "sync"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A broker, and clients of one kind."""
    made: AsyncHarness | SyncHarness = request.param()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[ister.Client]:
    """A connected client."""
    async with harness.connect() as client:
        yield client
