"""Payloads decoded into columns by the data source: every format, old versions, bad payloads."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.reads import publish

import ister
import ister.sync

pytestmark = pytest.mark.e2e

Client = ister.sync.Client
Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, spark_broker: BrokerProcess) -> Read:
    def frame(schema: str = "", **options: str) -> DataFrame:
        reader = spark.read.format("ister").option("url", spark_broker.url)
        if schema:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return frame


@dataclass
class Order:
    id: int
    region: str
    key: str | None = None


def with_schema(client: Client, topic: str, schema: object, subject: str | None = None) -> Any:
    """Return a producer of values; the types of the blocking client do not know of those."""
    make: Any = client.producer
    return make(topic, schema=schema, subject=subject)


def rows(frame: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.selectExpr("offset", *columns).orderBy("offset").collect()]


def test_json_is_decoded_by_the_schema_that_producers_have_registered(
    read: Read, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    with with_schema(client, topic, Order) as producer:
        producer.send(Order(1, "eu", "a"), key="outer")
        producer.send(Order(2, "us"))

    frame = read(topic=topic, valueFormat="json")

    assert frame.columns[-4:] == ["key", "id", "region", "value_key"]
    assert rows(frame, "key", "id", "region", "value_key") == [
        (0, "outer", 1, "eu", "a"),
        (1, None, 2, "us", None),
    ]


def test_json_is_decoded_by_the_columns_that_the_user_names(
    read: Read, client: Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b'{"id": 1, "at": "2026-01-01T00:00:00Z"}', b"broken", b'{"id": "x"}'])
    given = {"topic": topic, "valueFormat": "json"}

    by_option = read(valueSchema="id bigint, at timestamp", decodeErrors="null", **given)
    by_schema = read("offset long, id bigint", endingOffsets=f'{{"{topic}": {{"0": 1}}}}', **given)

    found = rows(by_option, "id", "error")
    assert [row[:2] for row in found] == [(0, 1), (1, None), (2, None)]
    assert found[0][2] is None
    assert "no JSON" in str(found[1][2])
    assert "id: 'x' is no whole number" in str(found[2][2])
    assert rows(by_schema, "id") == [(0, 1)]
    with pytest.raises(PySparkException, match=r"message 1: no JSON.*decodeErrors"):
        read(valueSchema="id bigint", **given).collect()


def test_avro_of_every_version_is_read_as_the_newest(
    read: Read, client: Client, topic: str
) -> None:
    fields = [{"name": "id", "type": "long"}]
    old = {"type": "record", "name": "Order", "fields": fields}
    new = old | {"fields": [*fields, {"name": "region", "type": "string", "default": "eu"}]}
    client.create_topic(topic, kind="stream")
    for definition, value in ((old, {"id": 1}), (new, {"id": 2, "region": "us"})):
        with with_schema(client, topic, ister.Schema("avro", definition)) as producer:
            producer.send(value)
    publish(client, topic, [b"\xff"])

    frame = read(topic=topic, valueFormat="avro", decodeErrors="null", includePayload="true")

    found = rows(frame, "id", "region", "error is null", "payload")
    assert [row[:4] for row in found] == [
        (0, 1, "eu", True),
        (1, 2, "us", True),
        (2, None, None, False),
    ]
    assert found[2][4] == bytearray(b"\xff")


def test_protobuf_is_read_by_the_subject_that_is_named(
    read: Read, client: Client, topic: str
) -> None:
    definition = 'syntax = "proto3"; message Order { int64 id = 1; repeated string tags = 2; }'
    client.create_topic(topic, kind="stream", partitions=2)
    schema = ister.Schema("protobuf", definition)
    subject = topic.rpartition("/")[2]
    with with_schema(client, topic, schema, subject) as producer:
        for n in range(10):
            producer.send({"id": n, "tags": [f"t{n}"]}, key=f"k{n}")

    frame = read(topic=topic, valueFormat="protobuf", valueSubject=subject)

    found = frame.select("id", "tags").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(n, [f"t{n}"]) for n in range(10)]
    with pytest.raises(PySparkException, match="give `valueSchema`, or the `valueSubject`"):
        read(topic=topic, valueFormat="protobuf")
    with pytest.raises(PySparkException, match="is of type protobuf"):
        read(topic=topic, valueFormat="avro", valueSubject=subject)


def test_text_is_a_column_of_its_own(read: Read, client: Client, topic: str) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, ["é".encode(), json.dumps([1]).encode()])

    frame = read(topic=topic, valueFormat="string")

    assert "payload" not in frame.columns
    assert rows(frame, "value") == [(0, "é"), (1, "[1]")]
