"""Source and sink through Spark Connect, with a server that has the package."""

import json
from pathlib import Path

from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.processes.jobs import run_module
from tests.e2e.spark.queries import values

ROWS = 1_000


def test_a_client_of_spark_connect_reads_and_writes_topics(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    spec = {
        "url": broker.url,
        "first": "/default/first",
        "second": "/default/second",
        "rows": ROWS,
        "checkpoint": str(tmp_path / "checkpoint"),
    }

    done = run_module("connect", json.dumps(spec))

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["client"].startswith("pyspark.sql.connect")
    assert said["rows"] == ROWS
    assert values(broker.url, "/default/second") == list(range(ROWS))
