"""Tasks that are repeated, and a driver that is killed: each row is in the topic exactly once."""

from pathlib import Path

from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.processes.jobs import run_query
from tests.e2e.spark.queries import ALL, Query


def test_a_task_that_fails_and_is_repeated_writes_its_rows_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    query = Query(tmp_path / "query", broker.url, "/default/out")
    query.prepare()
    query.order("task")

    # Two tasks at a time, and three attempts at each: plain `local[2]` repeats nothing.
    done = run_query(query, master="local[2,3]")

    assert done.returncode == 0, done.stderr
    assert query.happened("task")
    assert query.values() == ALL


def test_a_driver_killed_between_publish_and_commit_log_writes_nothing_twice(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    query = Query(tmp_path / "query", broker.url, "/default/out")
    query.prepare()
    query.order("driver")

    failed = run_query(query)
    before, known = query.values(), query.batches_done()
    done = run_query(query)

    assert failed.returncode != 0
    assert query.happened("driver")
    assert len(before) == 2 * len(ALL) // 3
    assert known == [0], "the driver died too late: the batch is in Spark's commit log"
    assert done.returncode == 0, done.stderr
    assert query.values() == ALL
