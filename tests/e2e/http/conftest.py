"""One broker process for all tests of a module that leave it running."""

from collections.abc import Iterator

import pytest
from tests.e2e.conftest import BrokerProcess


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker; every test has to do with what the others have left in it."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.kill()
    assert "Traceback" not in broker.log_text()
    assert '"level": "error"' not in broker.log_text()
