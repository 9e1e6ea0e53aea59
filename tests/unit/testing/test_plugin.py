"""The pytest fixtures that come with the installation."""

import sys
from subprocess import run

import ister
from ister.testing import MemoryBroker, VirtualClock


async def test_the_client_is_connected_to_the_broker(
    ister_client: ister.Client, ister_broker: MemoryBroker
) -> None:
    await ister_client.create_topic("/default/orders")

    assert [t.topic for t in ister_broker.engine.topics("", after="", limit=10)[0]] == [
        "/default/orders"
    ]


async def test_broker_and_client_live_by_the_clock_when_the_test_asks_for_it(
    ister_client: ister.Client, ister_clock: VirtualClock, ister_broker: MemoryBroker
) -> None:
    assert ister_broker.clock is ister_clock
    ister_broker.disconnect_all()
    await ister_clock.elapse(1.0)

    assert ister_client.connected


def test_the_url_is_that_of_a_real_broker(ister_url: str) -> None:
    with ister.sync.connect(ister_url) as client:
        assert client.namespaces() == ["default", "system"]


def test_a_run_that_does_not_use_them_pays_nothing() -> None:
    code = "import pytest_ister, sys; sys.exit('ister' in sys.modules)"

    assert run([sys.executable, "-c", code], check=False).returncode == 0
