"""What Spark's driver asks of a streaming read, asked without Spark, of a real broker."""

import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tests.e2e.conftest import BrokerProcess
from tests.e2e.spark.reads import publish

import ister.sync
from ister.spark.clients import BrokerEndpoint, client_of
from ister.spark.options import ReadOptions, read_options
from ister.spark.source.layouts import ReadLayout, layout_of
from ister.spark.source.stream_reader import StreamReader

pytestmark = pytest.mark.e2e

Client = ister.sync.Client


def reader_of(broker: BrokerProcess, **options: str) -> StreamReader:
    """A read that begins at the first message and bears losses."""
    given = {"url": broker.url, "startingOffsets": "earliest", "failOnDataLoss": "false", **options}
    return StreamReader(read_options(given, streaming=True), ReadLayout(StructType([]), ()))


def place_of(offset: dict[str, Any], topic: str) -> int:
    found: int = offset["topics"][topic][1]
    return found


def test_the_subscription_of_a_topic_that_was_made_again_does_not_skip_what_is_new(
    broker: BrokerProcess, topic: str
) -> None:
    options = {"topic": topic, "subscription": "spark"}
    with ister.sync.connect(broker.url) as client:
        client.create_topic(topic, kind="stream")
        publish(client, topic, [b"old"] * 5)
        before = reader_of(broker, **options)
        done = before.latestOffset(before.initialOffset())
        client.delete_topic(topic)
        client.create_topic(topic, kind="stream")
        publish(client, topic, [b"new"] * 9)

        after = reader_of(broker, **options)
        begun = after.latestOffset(done)
        middle = [report.cursor for report in client.subscriptions(topic)]
        end = after.latestOffset(begun)
        after.latestOffset(end)
        [report] = client.subscriptions(topic)

    assert (place_of(done, topic), place_of(begun, topic), place_of(end, topic)) == (5, 0, 9)
    assert middle == []
    assert report.cursor is not None
    assert report.cursor.floors == {topic: 9}


def test_a_client_that_met_something_else_than_the_broker_is_replaced(
    broker: BrokerProcess, topic: str
) -> None:
    first = client_of(BrokerEndpoint(url=broker.url))
    first.create_topic(topic, kind="stream")
    broker.stop()
    # As a proxy answers in position of a broker that is away.
    with socket.create_server((broker.host, broker.port)) as server:
        server.settimeout(0.1)
        deadline = time.monotonic() + 30
        # Who hangs up before he has read the answer comes again.
        while not first.ended:
            assert time.monotonic() < deadline
            with suppress(TimeoutError, ConnectionError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n" * 20)
                    connection.settimeout(5)
                    while connection.recv(4096):
                        pass
    broker.restart()

    assert (
        client_of(BrokerEndpoint(url=broker.url))
        is client_of(BrokerEndpoint(url=broker.url))
        is not first
    )
    assert [head.topic for head in client_of(BrokerEndpoint(url=broker.url)).heads([topic])] == [
        topic
    ]


def test_columns_of_the_user_s_own_need_no_fields_in_the_registered_schema(
    broker: BrokerProcess, topic: str
) -> None:
    with ister.sync.connect(broker.url) as client:
        client.create_topic(topic, kind="stream")
        client.schemas.register("words", ister.Schema("json_schema", b'{"type": "string"}'))
        client.schemas.bind(topic, "words", policy="none")
        columns = StructType([StructField("id", LongType())])

        layout = layout_of(
            ReadOptions(topics=(topic,), value_format="json"), columns, lambda: client
        )

    assert layout.decoded == ("id",)
