"""The pytest fixtures of Ister: `ister_broker`, `ister_client`, `ister_clock`, `ister_url`.

Installed with Ister and loaded by every run of pytest. That is why this module lies outside the
package and imports from it only when a fixture is used: a run without Ister pays nothing.

Asynchronous fixtures work with pytest-asyncio in either mode, and with anyio.
"""

from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ister import Client
    from ister.testing import MemoryBroker, VirtualClock


@pytest.fixture
def ister_clock() -> "VirtualClock":
    """A clock that stands still until the test moves it.

    A test that asks for it gets its `ister_broker` and `ister_client` living by it.
    """
    from ister.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def ister_url() -> Iterator[str]:
    """Return the URL of a real broker on a free port, for code that blocks."""
    from ister.testing import ThreadedBroker

    with ThreadedBroker() as broker:
        yield broker.url


def pytest_configure(config: pytest.Config) -> None:
    """Register the asynchronous fixtures in the way the plugin at hand wants them."""
    fixture: Any = pytest.fixture
    if config.pluginmanager.hasplugin("asyncio"):
        from pytest_asyncio import fixture
    # pytest looks for fixtures in modules and classes only.
    fixtures = ModuleType("ister_async_fixtures")
    fixtures.__dict__.update(
        ister_broker=fixture(name="ister_broker")(_broker),
        ister_client=fixture(name="ister_client")(_client),
    )
    config.pluginmanager.register(fixtures, fixtures.__name__)


async def _broker(request: pytest.FixtureRequest) -> "AsyncIterator[MemoryBroker]":
    """A broker in memory: the real engine, without sockets."""
    from ister.testing import MemoryBroker

    by_clock = "ister_clock" in request.fixturenames
    clock = request.getfixturevalue("ister_clock") if by_clock else None
    async with MemoryBroker(clock=clock) as broker:
        yield broker


async def _client(ister_broker: "MemoryBroker") -> "AsyncIterator[Client]":
    """A client connected to `ister_broker`."""
    async with ister_broker.connect() as client:
        yield client
