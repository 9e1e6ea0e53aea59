"""Batch reads of the data source, with real Spark and a real broker."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.spark.reads import publish

import ister.sync

pytestmark = pytest.mark.e2e

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, spark_broker: BrokerProcess) -> Read:
    def frame(schema: str = "", **options: str) -> DataFrame:
        reader = spark.read.format("ister").option("url", spark_broker.url)
        if schema:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return frame


def is_filtered_by_spark(frame: DataFrame) -> bool:
    """Whether Spark's plan still has a filter in it."""
    return " Filter " in str(frame._jdf.queryExecution().executedPlan().toString())


def test_every_message_is_read_with_all_its_columns(
    read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    before = datetime.now(UTC)
    publish(client, topic, [b"a", b"b"], keys=["k", None], attributes=[{"n": "1"}, {}])

    rows = read(topic=topic, includeAttributes="true").orderBy("offset").collect()

    assert rows[0].__fields__ == [
        "topic", "partition", "offset", "publish_time", "producer", "key", "payload", "attributes",
    ]  # fmt: skip
    found = [tuple(row[:3]) + tuple(row[4:]) for row in rows]
    assert found == [
        (topic, 0, 0, "p", "k", bytearray(b"a"), {"n": "1"}),
        (topic, 0, 1, "p", None, bytearray(b"b"), {}),
    ]
    spent = rows[0]["publish_time"].replace(tzinfo=UTC) - before
    assert abs(spent.total_seconds()) < 60


def test_partitions_are_read_whole_and_split_into_as_many_tasks_as_asked_for(
    read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream", partitions=2)
    publish(client, topic, [b"%d" % n for n in range(1_000)], keys=[f"k{n}" for n in range(1_000)])

    whole = read(topic=topic)
    split = read(topic=topic, minPartitions="7")

    assert (whole.rdd.getNumPartitions(), split.rdd.getNumPartitions()) == (2, 8)
    rows = split.select("partition", "offset", "payload").collect()
    assert sorted(int(bytes(row["payload"])) for row in rows) == list(range(1_000))
    assert len({(row["partition"], row["offset"]) for row in rows}) == 1_000


def test_a_narrow_schema_is_honoured(read: Read, client: ister.sync.Client, topic: str) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"a", b"b"])

    frame = read("payload string, offset long", topic=topic)

    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [("a", 0), ("b", 1)]


def test_offsets_and_times_bound_what_is_read(
    read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"0", b"1", b"2", b"3"])
    here = read(topic=topic).selectExpr("max(publish_time)").collect()[0][0]
    later = int(here.replace(tzinfo=UTC).timestamp() * 1000) + 1

    def offsets(**options: str) -> list[int]:
        return sorted(row[0] for row in read("offset long", topic=topic, **options).collect())

    bounds = {
        "startingOffsets": f'{{"{topic}": {{"0": 1}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 3}}}}',
    }
    assert offsets(**bounds) == [1, 2]
    assert offsets(startingTimestamp=str(later)) == []
    assert offsets(endingTimestamp=str(later)) == [0, 1, 2, 3]
    assert offsets(startingTimestamp="2020-01-01T00:00:00Z") == [0, 1, 2, 3]


def test_several_topics_and_patterns_are_read_together(
    read: Read, client: ister.sync.Client, topic: str
) -> None:
    for name, kind in (("a", "stream"), ("b", "stream"), ("c", "live")):
        client.create_topic(f"{topic}.{name}", kind=kind)
    publish(client, f"{topic}.a", [b"1"])
    publish(client, f"{topic}.b", [b"2", b"3"])

    def counts(**options: str) -> dict[str, int]:
        return {row[0]: row[1] for row in read(**options).groupBy("topic").count().collect()}

    wanted = {f"{topic}.a": 1, f"{topic}.b": 2}
    assert counts(topics=f"{topic}.a, {topic}.b") == wanted
    assert counts(pattern=f"{topic}.*") == wanted
    assert counts(pattern=f"{topic}.none.*") == {}


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_give_the_same_rows_whether_spark_pushes_them_or_not(
    enabled: str, spark: SparkSession, read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream", partitions=2)
    keys = [f"k{n % 5}" if n % 7 else None for n in range(200)]
    publish(client, topic, [b"%d" % n for n in range(200)], keys=keys)
    everything = read(topic=topic).collect()
    pushing = {"pushdown": "true"} if enabled == "true" else {}
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, enabled)
    tests: dict[str, Callable[[Any], bool]] = {
        "offset >= 10 and offset < 20": lambda r: 10 <= r["offset"] < 20,
        "partition = 1 and offset in (3, 5, 500)": lambda r: (
            r["partition"] == 1 and r["offset"] in (3, 5)
        ),
        "key = 'k3'": lambda r: r["key"] == "k3",
        "key <> 'k3'": lambda r: r["key"] not in (None, "k3"),
        "key is null": lambda r: r["key"] is None,
        "not key <=> 'k1'": lambda r: r["key"] != "k1",
        "key not in ('k1', 'k2')": lambda r: r["key"] not in (None, "k1", "k2"),
        "publish_time > '2020-01-01' and key like 'k4%'": lambda r: r["key"] == "k4",
        "publish_time < '2020-01-01'": lambda r: False,
    }

    try:
        for text, is_kept in tests.items():
            frame = read(topic=topic, **pushing).filter(text)
            found = {(row["partition"], row["offset"]) for row in frame.collect()}
            wanted = {(row["partition"], row["offset"]) for row in everything if is_kept(row)}
            assert found == wanted, text
            assert is_filtered_by_spark(frame) == (enabled == "false"), text
    finally:
        spark.conf.unset(name)


def test_a_frame_that_was_filtered_still_has_all_its_rows(
    read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"%d" % n for n in range(10)])
    frame = read(topic=topic)

    filtered = frame.filter("offset > 6")
    both = frame.filter("offset < 3").union(frame.filter("offset >= 3"))

    assert is_filtered_by_spark(filtered)
    assert filtered.count() == 3
    assert frame.count() == 10
    assert frame.filter("offset = 1 or offset = 9").count() == 2
    assert both.count() == 10


def test_pushdown_without_spark_s_own_setting_for_it_is_refused(
    spark: SparkSession, read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")

    try:
        with pytest.raises(PySparkException, match=name):
            read(topic=topic, pushdown="true").collect()
    finally:
        spark.conf.unset(name)


def test_sealed_segments_are_read_past_the_broker(
    spark: SparkSession, start_broker: StartBroker
) -> None:
    broker = start_broker("--segment-size", "1MiB")
    topic = "/default/sealed"
    with ister.sync.connect(broker.url) as client:
        client.create_topic(topic, kind="stream")
        # A file ends between two writes, and one write takes all that has come.
        for start in range(0, 5_000, 250):
            publish(client, topic, [b"%05d" % (start + n) + b"x" * 995 for n in range(250)])

        def sent() -> int:
            return client.topics(topic)[0].messages_out

        def numbers(segments: str) -> list[int]:
            options = {"url": broker.url, "topic": topic, "segments": segments}
            frame = spark.read.format("ister").options(**options).load()
            return sorted(int(bytes(row[0][:5])) for row in frame.select("payload").collect())

        before = sent()
        assert numbers("auto") == list(range(5_000))
        past = sent() - before
        assert numbers("off") == list(range(5_000))
        through = sent() - before - past

    # What is not sealed yet, one file of 1 MiB at most, comes from the broker.
    assert past < 1_100
    assert through == 5_000


def test_a_start_that_retention_has_dropped_is_an_error_unless_losses_are_borne(
    read: Read, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"0", b"1", b"2"])
    client.purge(topic, before=2)
    options = {"topic": topic, "startingOffsets": f'{{"{topic}": {{"0": 1}}}}'}

    with pytest.raises(PySparkException, match="offsets 1 to 1 are gone by retention"):
        read(**options).collect()
    assert read(failOnDataLoss="false", **options).count() == 1
    assert read(topic=topic).count() == 1


def test_mistakes_in_options_are_all_told_to_the_user(read: Read) -> None:
    with pytest.raises(PySparkException) as caught:
        read(topic="/default/a", startingOffset="earliest", minPartitions="none")

    for word in ("did you mean `startingOffsets`", "`minPartitions`", "the known ones are url"):
        assert word in str(caught.value)


def test_a_topic_that_does_not_exist_is_named(read: Read) -> None:
    with pytest.raises(PySparkException, match="/default/nowhere"):
        read(topic="/default/nowhere").collect()


def test_sql_reads_it_too(
    spark: SparkSession, spark_broker: BrokerProcess, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b"a", b"b"])

    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW ledger USING ister "
        f"OPTIONS (url '{spark_broker.url}', topic '{topic}')"
    )

    assert spark.sql("SELECT count(*), max(offset) FROM ledger").collect() == [(2, 1)]
