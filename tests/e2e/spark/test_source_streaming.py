"""Streaming reads of the data source, with real Spark and a real broker."""

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.spark.reads import QUERY_S, Query, grow, publish

import ister.sync

pytestmark = pytest.mark.e2e

Client = ister.sync.Client
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def query(spark: SparkSession, spark_broker: BrokerProcess, tmp_path: Path) -> Query:
    """A query with a checkpoint of its own."""
    return Query(spark, spark_broker, tmp_path)


def payloads(rows: list[Any]) -> list[bytes]:
    return sorted(bytes(row["payload"]) for row in rows)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(start, start + count)]


def offset_in(progress: Any) -> int:
    """Return the offset of the one stream in Spark's progress, which has it as text or not."""
    found = json.loads(progress) if isinstance(progress, str) else progress
    [(_, offset)] = found["topics"].values()
    return int(offset)


def wait_for(query: StreamingQuery, is_there: Callable[[], bool], what: str) -> None:
    """Wait for what a running query does by itself."""
    deadline = time.monotonic() + QUERY_S
    while not is_there():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def test_what_is_there_is_read_within_the_limit_and_the_next_run_goes_on(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream", partitions=2)
    publish(client, topic, numbers(50), keys=[f"k{n}" for n in range(50)])
    options = {"topic": topic, "maxOffsetsPerTrigger": "20", **EARLIEST}

    first = query.run(**options)
    publish(client, topic, numbers(10, 50), keys=[f"k{n}" for n in range(10)])
    second = query.run(**options)

    assert payloads(first.rows) == numbers(50)
    assert first.batches == [20, 20, 10]
    assert payloads(second.rows) == numbers(10, 50)


def test_a_micro_batch_that_failed_is_read_again_as_it_was_although_more_has_come(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream", partitions=2)
    publish(client, topic, numbers(20), keys=[f"k{n}" for n in range(20)])
    options = {"topic": topic, **EARLIEST}

    def refuse(rows: list[Any]) -> None:
        raise ValueError(f"{len(rows)} rows are refused")

    query.sink = refuse
    assert "20 rows are refused" in query.failure(**options)
    query.sink = None
    publish(client, topic, numbers(5, 20), keys=[f"k{n}" for n in range(5)])
    run = query.run(**options)

    assert run.batches == [20, 5]
    assert payloads(run.rows) == numbers(25)


def test_bytes_limit_a_micro_batch_by_the_average_size(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"x" * 1_000] * 100)

    run = query.run(topic=topic, maxBytesPerTrigger="40kB", **EARLIEST)

    # 1,000 B and a little for each: about 39 of them are 40 kB.
    assert sum(run.batches) == 100
    assert all(30 <= count <= 40 for count in run.batches[:-1])


def test_a_stream_starts_at_its_end_unless_told_otherwise(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"before"])
    assert query.run(topic=topic).rows == []

    publish(client, topic, [b"after"])

    assert payloads(query.run(topic=topic).rows) == [b"after"]


def test_a_running_query_gets_new_messages_partitions_and_topics_and_tells_its_lag(
    spark: SparkSession, spark_broker: BrokerProcess, query: Query, client: Client, topic: str
) -> None:
    client.create_topic(f"{topic}.a", kind="stream", partitions=1)
    publish(client, f"{topic}.a", [b"1"], keys=["k"])
    name = f"q{uuid.uuid4().hex[:12]}"
    options = {"pattern": f"{topic}.>", "subscription": "spark-lag", **EARLIEST}
    running = query.frame(**options).writeStream.format("memory").queryName(name).start()

    def has(wanted: list[bytes]) -> Callable[[], bool]:
        return lambda: payloads(spark.table(name).collect()) == wanted

    try:
        wait_for(running, has([b"1"]), "the first message")
        publish(client, f"{topic}.a", [b"2"], keys=["k"])
        wait_for(running, has([b"1", b"2"]), "a new message")
        grow(spark_broker, f"{topic}.a", 8)
        publish(client, f"{topic}.a", [b"3", b"4", b"5"], keys=["x", "y", "z"])
        wait_for(running, has([b"1", b"2", b"3", b"4", b"5"]), "messages of new partitions")
        client.create_topic(f"{topic}.b.c", kind="stream")
        publish(client, f"{topic}.b.c", [b"6"])
        wait_for(running, has([b"%d" % n for n in range(1, 7)]), "a message of a new topic")

        def lags() -> list[int | None]:
            found = [one for one in client.subscriptions() if one.subscription == "spark-lag"]
            return [one.cursor.lag if one.cursor is not None else None for one in found]

        # One for each of the eight partitions, and one for the new topic.
        wait_for(running, lambda: lags() == [0] * 9, "lag of 0 at the broker")
        source = running.lastProgress["sources"][0]  # type: ignore[index]
        assert source["endOffset"] == source["latestOffset"]
    finally:
        running.stop()


def test_a_running_query_outlives_a_restart_of_the_broker(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    topic, name = "/default/orders", f"q{uuid.uuid4().hex[:12]}"
    with ister.sync.connect(broker.url) as client:
        client.create_topic(topic, kind="stream")
        publish(client, topic, [b"1"])
    frame = Query(spark, broker, tmp_path).frame(topic=topic, **EARLIEST)
    running = frame.writeStream.format("memory").queryName(name).start()

    def has(wanted: list[bytes]) -> Callable[[], bool]:
        return lambda: payloads(spark.table(name).collect()) == wanted

    try:
        wait_for(running, has([b"1"]), "the first message")
        broker.kill()
        broker.restart()
        with ister.sync.connect(broker.url) as client:
            publish(client, topic, [b"2"])
        wait_for(running, has([b"1", b"2"]), "a message after the restart")
    finally:
        running.stop()


def test_lag_is_what_is_beyond_the_last_micro_batch(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, numbers(30))

    run = query.run(topic=topic, maxOffsetsPerTrigger="10", **EARLIEST)

    source = run.progress[0]["sources"][0]
    assert (offset_in(source["endOffset"]), offset_in(source["latestOffset"])) == (10, 30)


def test_a_narrow_schema_and_more_tasks_are_honoured(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, numbers(100))

    run = query.run("offset long", topic=topic, minPartitions="4", **EARLIEST)

    assert sorted(tuple(row) for row in run.rows) == [(n,) for n in range(100)]


def test_a_topic_that_was_made_again_ends_the_query_unless_losses_are_borne(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"old"])
    query.run(topic=topic, **EARLIEST)
    client.delete_topic(topic)
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"new", b"newer"])

    text = query.failure(topic=topic, **EARLIEST)
    borne = query.run(topic=topic, failOnDataLoss="false", **EARLIEST)

    assert f"messages of '{topic}' are lost to this query" in text
    assert "the topic was deleted and made again" in text
    assert "failOnDataLoss" in text
    assert payloads(borne.rows) == [b"new", b"newer"]


def test_a_topic_that_is_gone_ends_the_query(query: Query, client: Client, topic: str) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"old"])
    query.run(topic=topic, **EARLIEST)
    client.delete_topic(topic)

    assert f"topic '{topic}' does not exist" in query.failure(topic=topic, **EARLIEST)


def test_retention_that_overtakes_the_query_ends_it_unless_losses_are_borne(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, numbers(5))
    query.run(topic=topic, **EARLIEST)
    publish(client, topic, numbers(5, 5))
    client.purge(topic, before=8)

    text = query.failure(topic=topic, **EARLIEST)
    borne = query.run(topic=topic, failOnDataLoss="false", **EARLIEST)

    assert "offsets 5 to 7 are gone by retention" in text
    assert payloads(borne.rows) == numbers(2, 8)


def test_an_option_for_batches_is_refused(query: Query, client: Client, topic: str) -> None:
    client.create_topic(topic, kind="stream")

    assert "`endingOffsets` is for a batch read" in query.failure(
        topic=topic, endingOffsets="latest"
    )


def test_a_subscription_that_others_consume_from_is_not_taken_from_them(
    query: Query, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")

    with client.subscribe(topic, "billing"):
        text = query.failure(topic=topic, subscription="billing", **EARLIEST)

    assert f"`subscription` 'billing' of '{topic}' has consumers: choose another" in text
