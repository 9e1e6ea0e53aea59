"""Real Spark against a real broker. One session per process: `spark`.

Tests in this folder share the session of their worker. Those that start Spark in processes of
their own (to kill them) are in `processes`, and may run beside the others.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.queries import small_session

import ister.sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first query of a session takes 10 s on a busy machine, a test with restarts several of them;
# and one with processes of its own starts Spark twice.
TIMEOUT_S = 300
PROCESSES_TIMEOUT_S = 600
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests with Spark more time."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            apart = item.path.parent != HERE
            item.add_marker(pytest.mark.timeout(PROCESSES_TIMEOUT_S if apart else TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The Spark session of this process, with two tasks at a time."""
    # For functions and data sources of these tests that Spark's workers import.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))
    made = small_session("tests", master="local[2]", settings={})
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with default settings for all tests that neither stop nor configure it.

    Use topics of your own: see `topic`.
    """
    one = BrokerProcess(tmp_path_factory.mktemp("broker"))
    one.start()
    yield one
    one.kill()


@pytest.fixture
def topic() -> str:
    """The name of a topic that nobody else uses."""
    return f"/default/t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(spark_broker: BrokerProcess) -> Iterator[ister.sync.Client]:
    """A client of `spark_broker`."""
    with ister.sync.connect(spark_broker.url) as one:
        yield one
