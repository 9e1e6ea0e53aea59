"""What a write is told, how its stages are published, and by which name."""

from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructType

from ister.base.errors import BadRequestError, ConfigError
from ister.base.limits import GIB, MIB, NAME_BYTES_MAX, SERIES_BATCHES_MAX, SERIES_BYTES_MAX
from ister.codec import Codec
from ister.spark.clients import BrokerEndpoint
from ister.spark.sink.encoder import COLUMN_TYPES
from ister.spark.sink.options import WRITE_NAMES, WriteOptions, series_of, write_options
from ister.spark.sink.staging import StagedRows, StageSize
from ister.spark.sink.writers import StagedMessage, StreamSink, publish_steps


def test_options_are_read_in_the_case_that_spark_hands_them_over() -> None:
    given = {
        "url": "isters://broker:1",
        "token": "t",
        "tlsca": "ca.pem",
        "topic": "/default/out",
        "partitions": "4",
        "createtopic": "FALSE",
        "compression": "lz4",
        "producer": "job",
        "stagekeep": "10m",
        "checkpointlocation": "/somewhere",
    }

    assert write_options(given, streaming=True) == WriteOptions(
        broker=BrokerEndpoint(url="isters://broker:1", token="t", tls_ca="ca.pem"),
        topic="/default/out",
        partitions=4,
        create_topic=False,
        codec=Codec.LZ4,
        producer="job",
        keep_s=600.0,
    )


def test_all_mistakes_are_told_together() -> None:
    given = {
        "topic": "one/slash",
        "partitions": "-1",
        "stageKeep": "2d",
        "producer": "x" * (NAME_BYTES_MAX + 1),
        "series": "s",
        "tlsCa": "ca.pem",
        "startingOffsets": "latest",
    }

    with pytest.raises(ConfigError) as caught:
        write_options(given, streaming=True)

    text = str(caught.value)
    for part in (
        "`topic`: ",
        "`partitions`: is a whole number from 0 to 1024, not '-1'",
        "`stageKeep`: is from 1s to 24h",
        "`producer`: is longer than 255 B",
        "`series` is for a batch write",
        "`series` and `number` belong together",
        "`tlsCa` is for TLS: write `url` as isters://, or leave it out",
        "`startingoffsets` is unknown",
        "the known ones are url, topic, partitions, createTopic",
    ):
        assert part in text


def test_a_batch_keeps_what_it_has_staged_for_longer_than_a_stream() -> None:
    stream, batch = (write_options({}, streaming=flag).keep_s for flag in (True, False))

    assert stream == 3_600.0
    assert batch == 86_400.0


def stage(word: str, size_bytes: int, batches: int = 1) -> StageSize:
    return StageSize(word, size_bytes, batches)


def test_stages_are_published_in_steps_that_one_publish_takes() -> None:
    half = SERIES_BYTES_MAX // 2

    assert list(publish_steps([stage("a", half), stage("b", half), stage("c", 1)])) == [
        ["a", "b"],
        ["c"],
    ]
    assert list(publish_steps([stage("a", half), stage("b", half + 1)])) == [["a"], ["b"]]
    assert list(publish_steps([stage("a", 1, SERIES_BATCHES_MAX), stage("b", 1)])) == [["a"], ["b"]]
    assert list(publish_steps([])) == []


def test_forty_gibibytes_are_forty_steps() -> None:
    stages = [stage(str(number), 256 * MIB) for number in range(40 * 4)]

    found = list(publish_steps(stages))

    assert [len(words) for words in found] == [4] * (40 * GIB // SERIES_BYTES_MAX)
    assert [word for words in found for word in words] == [one.word for one in stages]


@pytest.mark.parametrize(
    "stages", [(stage("a", GIB), stage("b", 1)), (stage("a", 1, SERIES_BATCHES_MAX), stage("b", 1))]
)
def test_a_batch_of_a_stream_that_no_publish_takes_says_how_to_get_past_it(
    stages: tuple[StageSize, ...],
) -> None:
    sink = StreamSink({"topic": "/default/a"}, StructType().add("payload", BinaryType()))

    # Spark keeps to what it has planned: with lower limits alone it would fail for ever.
    with pytest.raises(BadRequestError, match=r"maxBytesPerTrigger.*remove the file `offsets/7`"):
        sink.commit([StagedMessage(StagedRows(stages, 2), "query")], 7)


def test_the_name_of_a_series_is_never_longer_than_a_name_may_be() -> None:
    long = "/default/" + "x" * (NAME_BYTES_MAX - 9)

    assert series_of("query", "/default/a") == "spark/query//default/a"
    assert len(series_of("query", long).encode()) <= NAME_BYTES_MAX
    assert series_of("query", long) != series_of("other", long)


def test_every_option_and_column_of_the_sink_is_documented() -> None:
    text = (Path(__file__).parents[4] / "docs" / "spark-sink.md").read_text(encoding="utf-8")

    missing = [name for name in (*WRITE_NAMES, *COLUMN_TYPES) if f"`{name}`" not in text]
    assert not missing
