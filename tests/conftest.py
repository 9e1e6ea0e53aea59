"""Settings for the whole test run: how hard the property tests try, and who runs what.

`ISTER_TEST_PROFILE` names the profile: `quick`, which is for every change, or `thorough`, for the
night.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A deadline per example measures the machine, not the code: a busy one would fail a good test. So
# does the check of how long examples take to make.
settings.register_profile(
    "quick",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1_000)
# `make fuzz`: some minutes instead of seconds.
settings.register_profile("fuzz", settings.get_profile("quick"), max_examples=10_000)
settings.load_profile(os.environ.get("ISTER_TEST_PROFILE", "quick"))


@pytest.fixture(autouse=True, scope="module")
def close_clients_of_spark() -> Iterator[None]:
    """Close the clients that tasks of Spark keep, where a test has run such a task in here.

    Their threads would look for brokers that are gone, and draw random numbers for that, which
    Hypothesis does not stand in the tests that follow.
    """
    yield
    clients = sys.modules.get("ister.spark.clients")
    if clients is not None:
        for client in list(clients._clients.values()):
            client.close()
        clients._clients.clear()


# Tests in this very folder share one Spark session: 10 s to start, and 1 GB of memory.
SPARK_FOLDER = "tests/e2e/spark"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Give the tests with a Spark session to one worker, which begins with them.

    They take the longest, so that the other workers do the rest meanwhile. Tests that start
    Spark in processes of their own are in folders below, and go by file as all others.
    """
    from xdist.scheduler import LoadFileScheduling

    class SparkTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return SPARK_FOLDER if file.rpartition("/")[0] == SPARK_FOLDER else file

        def _assign_work_unit(self, node: Any) -> None:
            if SPARK_FOLDER in self.workqueue:
                self.workqueue.move_to_end(SPARK_FOLDER, last=False)
            super()._assign_work_unit(node)

    return SparkTogether(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start Spark in processes of their own."""
    for item in items:
        if item.nodeid.startswith(f"{SPARK_FOLDER}/processes/"):
            item.add_marker(pytest.mark.slow)
