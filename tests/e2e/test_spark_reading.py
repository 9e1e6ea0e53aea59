"""What a task of Spark reads of a real broker, without a Spark around it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.e2e.conftest import BrokerProcess, StartBroker

import ister.sync
from ister.base.errors import MessagesLostError
from ister.objects import FileKeyring
from ister.spark.offsets import OffsetRange
from ister.spark.options import read_options
from ister.spark.source.input_partition import RangePartition
from ister.spark.source.layouts import layout_of, schema_of
from ister.spark.source.reading import RangeReader

pytestmark = pytest.mark.e2e

TOPIC = "/default/ledger"
Client = ister.sync.Client


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream")
        yield client


def publish(client: Client, payloads: list[bytes]) -> None:
    with client.producer(TOPIC, name="p") as producer:
        for at in range(0, len(payloads), 100):
            producer.send_batch(payloads[at : at + 100])


def piece(client: Client) -> RangePartition:
    """All that is there now."""
    [head] = client.heads([TOPIC])
    return RangePartition(OffsetRange(TOPIC, head.number, head.first_offset, head.next_offset))


def reading(url: str, schema: StructType | None = None, **options: str) -> RangeReader:
    found = read_options({"url": url, "topic": TOPIC, **options})

    def connect() -> Any:
        raise AssertionError("the broker is not needed for this")

    wanted = schema or schema_of(found, connect)
    assert isinstance(wanted, StructType)
    return RangeReader(found, layout_of(found, wanted, connect))


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_batches_have_exactly_the_schema_that_spark_checks_for(
    broker: BrokerProcess, client: Client
) -> None:
    publish(client, [b"a", b"b"])
    narrow = StructType(
        [StructField("payload", StringType()), StructField("offset", LongType(), nullable=False)]
    )

    for schema in (None, narrow):
        how = reading(broker.url, schema, includeAttributes="true")
        [batch] = how.read(piece(client))
        assert batch.schema.equals(to_arrow_schema(how.layout.schema, timezone="UTC"))
        assert batch.num_rows == 2


def test_a_piece_that_spark_makes_up_for_an_empty_read_has_no_rows(broker: BrokerProcess) -> None:
    assert list(reading(broker.url).read(InputPartition(None))) == []


def test_a_piece_has_the_same_rows_each_time_also_when_more_has_come(
    broker: BrokerProcess, client: Client
) -> None:
    publish(client, [b"%d" % n for n in range(250)])
    [head] = client.heads([TOPIC])
    some = RangePartition(OffsetRange(TOPIC, head.number, 30, 220))

    first = offsets(reading(broker.url).read(some))
    publish(client, [b"more"])
    second = offsets(reading(broker.url).read(some))

    assert first == second == list(range(30, 220))


def test_what_retention_drops_between_plan_and_task_is_lost_loudly_or_left_out(
    broker: BrokerProcess, client: Client
) -> None:
    publish(client, [b"%d" % n for n in range(10)])
    planned = piece(client)
    client.purge(TOPIC, before=4)

    with pytest.raises(MessagesLostError, match="offsets 0 to 3 are gone by retention"):
        list(reading(broker.url).read(planned))
    left = reading(broker.url, failOnDataLoss="false").read(planned)
    assert offsets(left) == [4, 5, 6, 7, 8, 9]


def test_a_topic_that_was_made_again_between_plan_and_task_is_not_read_for_the_old_one(
    broker: BrokerProcess, client: Client
) -> None:
    publish(client, [b"old"])
    planned = piece(client)
    client.delete_topic(TOPIC)

    with pytest.raises(MessagesLostError, match="the topic was deleted"):
        list(reading(broker.url).read(planned))
    client.create_topic(TOPIC, kind="stream")
    publish(client, [b"new"])
    with pytest.raises(MessagesLostError, match="deleted and made again"):
        list(reading(broker.url).read(planned))
    assert list(reading(broker.url, failOnDataLoss="false").read(planned)) == []


def test_a_key_file_opens_encrypted_segments_past_the_broker(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")
    keys = tmp_path / "keys.json"
    FileKeyring.create(keys)
    broker = start_broker("--segment-size", "1MiB", "--key-file", str(keys))
    with ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream")
        publish(client, [b"x" * 1_000] * 3_000)
        planned = piece(client)

        def sent(**options: str) -> int:
            before = client.topics(TOPIC)[0].messages_out
            assert offsets(reading(broker.url, None, **options).read(planned)) == list(range(3_000))
            return client.topics(TOPIC)[0].messages_out - before

        # What is not sealed yet, less than 1 MiB of it, always comes from the broker.
        assert sent(keyFile=str(keys)) < 1_100
        assert sent() == 3_000
