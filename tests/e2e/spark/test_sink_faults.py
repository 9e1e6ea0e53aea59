"""A commit that fails, and a broker that dies: each row is in the topic exactly once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.queries import ALL, FILES, Query

RESTART_TIMEOUT_S = 60.0


@pytest.fixture
def query(broker: BrokerProcess, tmp_path: Path) -> Query:
    """A query that has not run yet, with a broker of its own."""
    one = Query(tmp_path / "query", broker.url, "/default/out")
    one.prepare()
    return one


@contextmanager
def starting_again(broker: BrokerProcess) -> Iterator[None]:
    """Start the broker again as soon as it has died."""

    def restart() -> None:
        assert broker.process is not None
        broker.process.wait()
        broker.kill()
        broker.restart()

    thread = threading.Thread(target=restart)
    thread.start()
    yield
    thread.join(RESTART_TIMEOUT_S)
    assert not thread.is_alive(), "the broker was not killed"


def test_a_commit_that_fails_before_the_publish_is_repeated_whole(
    spark: SparkSession, query: Query
) -> None:
    query.order("commit-before")

    with pytest.raises(StreamingQueryException, match="before the publish"):
        query.run(spark)
    before = query.values()
    query.run(spark)

    assert query.happened("commit-before")
    # The batch ahead of it is there, and nothing of the one that failed.
    assert before == ALL[: len(before)]
    assert len(before) == len(ALL) // 3
    assert query.values() == ALL


def test_a_batch_that_was_published_is_not_published_again_when_its_commit_failed(
    spark: SparkSession, query: Query
) -> None:
    query.order("commit-after")

    with pytest.raises(StreamingQueryException, match="after the publish"):
        query.run(spark)
    before, known = query.values(), query.batches_done()
    query.run(spark)

    assert query.happened("commit-after")
    assert known == [0]
    assert len(before) == 2 * len(ALL) // 3
    assert query.values() == ALL


def test_a_broker_killed_between_staging_and_publish_loses_and_doubles_nothing(
    spark: SparkSession, query: Query, broker: BrokerProcess
) -> None:
    query.order("broker-before-publish", str(broker.pid))

    with starting_again(broker), pytest.raises(StreamingQueryException, match="StageNotFound"):
        query.run(spark)
    before = query.values()
    query.run(spark)

    assert query.happened("broker-before-publish")
    assert len(before) == len(ALL) // 3
    assert query.values() == ALL


def test_a_broker_killed_while_tasks_write_loses_and_doubles_nothing(
    spark: SparkSession, query: Query, broker: BrokerProcess
) -> None:
    query.order("broker-in-task", str(broker.pid))

    failure = ""
    with starting_again(broker):
        try:
            query.run(spark)
        except StreamingQueryException as error:
            failure = str(error)
    before = query.values()
    query.run(spark)

    assert query.happened("broker-in-task")
    # When no task had sent anything before, they wait for the broker, and nobody notices.
    assert ("ConnectionLost" in failure) == (len(before) == len(ALL) // 3)
    assert failure or before == ALL
    assert query.values() == ALL


def test_a_checkpoint_that_was_set_back_ends_the_query_before_rows_are_lost(
    spark: SparkSession, query: Query
) -> None:
    query.run(spark)
    query.set_back(0)
    # Would be in a batch with the number of one that was published: of other rows.
    query.add_file(FILES)

    with pytest.raises(StreamingQueryException, match="its checkpoint is older"):
        query.run(spark)

    assert query.values() == ALL
