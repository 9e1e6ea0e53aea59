"""Runs programs of this folder with Spark."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.conftest import plain_environment
from tests.e2e.spark.queries import Query

from ister.spark.tuning import WORKER_PYTHON

ROOT = Path(__file__).resolve().parents[4]
# Of a driver that starts and goes through three small batches, on a busy machine.
JOB_TIMEOUT_S = 280.0


def run_query(
    query: Query, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a query in a process of its own to its end, whichever that is."""
    spec = {
        "folder": str(query.folder),
        "url": query.url,
        "topic": query.topic,
        "master": master,
        "settings": dict(settings or {}),
    }
    return run_module("job", json.dumps(spec))


def run_module(name: str, argument: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this folder as a program."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.e2e.spark.processes.{name}", argument],
        cwd=ROOT,
        env=spark_environment(),
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )


def spark_environment() -> dict[str, str]:
    """Return an environment in which Spark's workers find these tests."""
    return plain_environment() | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(WORKER_PYTHON),
        "PYSPARK_ISTER_PYTHON": sys.executable,
    }
