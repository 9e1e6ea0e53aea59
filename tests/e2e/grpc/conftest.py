"""A broker for all tests of the gRPC doors, and Danube's own client to talk to it."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.danubes import Danube


@pytest.fixture(scope="session")
def grpc_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for every test that does not hurt it: each uses topics of its own."""
    broker = BrokerProcess(tmp_path_factory.mktemp("grpc"))
    broker.start()
    yield broker
    broker.stop()
    # Lines of ours and no others, and none of a bug.
    events = [json.loads(line)["event"] for line in broker.log_text().splitlines()]
    assert "internal_error" not in events
    assert events[-1] == "broker_closed"


@pytest.fixture
async def danube(grpc_broker: BrokerProcess) -> AsyncIterator[Danube]:
    """A client of Danube, connected to the common broker."""
    async with Danube(grpc_broker.grpc) as one:
        yield one
