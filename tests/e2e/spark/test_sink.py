"""What Spark writes is in the topics as it was in the rows."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)
from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.queries import payloads, streams

import ister.sync
from ister.topics import fnv1a


def write(frame: DataFrame, url: str, **options: object) -> None:
    """Write a batch to a topic."""
    frame.write.format("ister").mode("append").options(url=url, **options).save()  # type: ignore[arg-type]


def run_stream(frame: DataFrame, url: str, checkpoint: Path, **options: object) -> None:
    """Write all that a stream has now."""
    query = (
        frame.writeStream.format("ister")
        .option("checkpointLocation", str(checkpoint))
        .options(url=url, **options)  # type: ignore[arg-type]
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def messages(client: ister.sync.Client, stream: str) -> list[tuple[bytes, str | None, object]]:
    """Return payload, key and attributes of every message of a stream."""
    with client.reader(stream) as reader:
        return [
            (payload, key, attributes)
            for batch in reader
            for payload, key, attributes in zip(
                batch.payloads,
                batch.keys or [None] * len(batch),
                batch.attributes or [{}] * len(batch),
                strict=True,
            )
        ]


def test_a_batch_write_makes_a_stream_topic_with_exactly_the_rows(
    spark: SparkSession, client: ister.sync.Client, topic: str
) -> None:
    rows = [
        Row(payload=bytearray(b"\x00\xff"), key="k", attributes={"a": "1", "b": ""}),
        Row(payload=bytearray(b""), key="", attributes={}),
        Row(payload=None, key=None, attributes=None),
        Row(payload="ünï".encode(), key="schlüssel", attributes={"é": "ö"}),
    ]
    schema = "payload binary, key string, attributes map<string,string>"

    write(spark.createDataFrame(rows, schema).coalesce(1), client.url, topic=topic)

    assert client.topics(topic)[0].kind == "stream"
    assert messages(client, topic) == [
        (b"\x00\xff", "k", {"a": "1", "b": ""}),
        (b"", "", {}),
        (b"", None, {}),
        ("ünï".encode(), "schlüssel", {"é": "ö"}),
    ]


def test_a_stream_writes_each_row_once_over_several_batches(
    spark: SparkSession, client: ister.sync.Client, topic: str, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    for number in range(3):
        spark.range(number * 1000, number * 1000 + 1000).coalesce(1).write.mode("append").parquet(
            str(files)
        )
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(files))

    run_stream(
        source.select(F.col("id").cast("string").alias("value")),
        client.url,
        tmp_path / "checkpoint",
        topic=topic,
    )

    assert sorted(map(int, payloads(client, topic))) == list(range(3000))


def test_keys_choose_the_partition_that_producers_choose(
    spark: SparkSession, client: ister.sync.Client, topic: str
) -> None:
    keys = [f"key-{n}" for n in range(50)] + ["ü", ""]
    rows = [Row(value=f"{key}/{n}", key=key) for n in range(20) for key in keys]

    write(spark.createDataFrame(rows).coalesce(1), client.url, topic=topic, partitions=4)

    for slot, stream in enumerate(streams(client, topic)):
        expected = [
            (row.value.encode(), row.key) for row in rows if fnv1a(row.key.encode()) % 4 == slot
        ]
        assert [(payload, key) for payload, key, _ in messages(client, stream)] == expected


def test_columns_name_the_topic_and_the_partition(
    spark: SparkSession, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(f"{topic}-a", kind="stream", partitions=3)
    rows = [
        Row(value="a2", topic=f"{topic}-a", partition=2),
        Row(value="b", topic=f"{topic}-b", partition=None),
        Row(value="a0", topic=f"{topic}-a", partition=0),
    ]
    schema = "value string, topic string, partition int"

    write(spark.createDataFrame(rows, schema).coalesce(1), client.url)

    assert [payloads(client, stream) for stream in streams(client, f"{topic}-a")] == [
        [b"a0"],
        [],
        [b"a2"],
    ]
    assert payloads(client, f"{topic}-b") == [b"b"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_hold_the_same_rows(
    spark: SparkSession, client: ister.sync.Client, topic: str, compression: str
) -> None:
    frame = spark.range(10_000).select(F.lpad(F.col("id").cast("string"), 50, "x").alias("value"))

    write(frame.coalesce(1), client.url, topic=topic, compression=compression)

    assert payloads(client, topic) == [
        b"%s" % str(n).rjust(50, "x").encode() for n in range(10_000)
    ]


def test_a_batch_with_a_series_and_number_is_written_once(
    spark: SparkSession, client: ister.sync.Client, topic: str
) -> None:
    frame = spark.range(100).select(F.col("id").cast("string").alias("value"))

    for number in (1, 1, 2):
        write(frame, client.url, topic=topic, series=topic, number=number)
    # It may have other rows than that of before: a checkpoint from a backup plans its batches anew.
    with pytest.raises(PySparkException, match="has written batches after 1 before"):
        write(frame, client.url, topic=topic, series=topic, number=1)

    assert len(payloads(client, topic)) == 200


def test_a_batch_write_that_fails_leaves_nothing(
    spark: SparkSession, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    # One task succeeds and stages its rows, the other one fails.
    frame = spark.range(0, 1000, 1, 2).select(
        F.when(F.col("id") == 999, F.raise_error(F.lit("broken row")))
        .otherwise(F.col("id").cast("string"))
        .cast("string")
        .alias("value")
    )

    with pytest.raises(PySparkException, match="broken row"):
        write(frame, client.url, topic=topic)

    assert payloads(client, topic) == []


def test_no_rows_are_no_error(spark: SparkSession, client: ister.sync.Client, topic: str) -> None:
    client.create_topic(topic, kind="stream")

    write(spark.createDataFrame([], "value string"), client.url, topic=topic)

    assert payloads(client, topic) == []


@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        ("id", {}, "column `id` is none of payload, value, key"),
        ("id AS value", {}, "column `value` is bigint, not binary or string: cast it"),
        ("'x' AS value", {"topic": None}, "neither option `topic` nor a column `topic`"),
        ("'x' AS value", {"compresion": "lz4"}, "did you mean `compression`"),
        ("'x' AS value", {"series": "s"}, "`series` and `number` belong together"),
        ("'x' AS value", {"createTopic": "false"}, "does not exist"),
        ("repeat('x', 9000000) AS value", {}, "message of 9000000B exceeds the 8MiB limit"),
        ("'x' AS value; '' AS topic", {"topic": None}, "name '' is not valid"),
        ("'x' AS value; '/default/*' AS topic", {"topic": None}, "tokens hold letters"),
        ("'x' AS value; 5 AS partition", {}, "a row is for partition 5, and its topic has 0 to 0"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(
    spark: SparkSession,
    spark_broker: BrokerProcess,
    topic: str,
    select: str,
    options: dict[str, str | None],
    text: str,
) -> None:
    given = {name: value for name, value in {"topic": topic, **options}.items() if value}

    with pytest.raises(PySparkException, match=text):
        write(spark.range(1).selectExpr(*select.split("; ")), spark_broker.url, **given)


def test_a_live_topic_is_refused(
    spark: SparkSession, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic)

    with pytest.raises(PySparkException, match="Spark writes to stream topics only"):
        write(spark.range(1).selectExpr("'x' AS value"), client.url, topic=topic)


def test_overwriting_is_refused(
    spark: SparkSession, spark_broker: BrokerProcess, topic: str
) -> None:
    frame = spark.range(1).selectExpr("'x' AS value")

    with pytest.raises(PySparkException, match="only appended to"):
        frame.write.format("ister").mode("overwrite").options(
            url=spark_broker.url, topic=topic
        ).save()
