"""What tests of the source do again and again: publish, run a query, look at its micro-batches."""

import json
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.e2e.conftest import BrokerProcess

import ister.sync

QUERY_S = 120


def publish(
    client: ister.sync.Client,
    topic: str,
    payloads: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None = None,
    attributes: Sequence[dict[str, str]] | None = None,
) -> None:
    """Publish messages; returns when they are stored."""
    with client.producer(topic, name="p") as producer:
        for slot, payload in enumerate(payloads):
            producer.send_nowait(
                payload,
                key=None if keys is None else keys[slot],
                attributes=None if attributes is None else attributes[slot],
            )
        producer.flush()


def grow(broker: BrokerProcess, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    _, namespace, name = topic.split("/")
    request = urllib.request.Request(
        f"http://{broker.http}/api/v1/namespaces/{namespace}/topics/{name}/partitions",
        data=json.dumps({"partitions": partitions}).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


@dataclass(frozen=True)
class Run:
    """A query that has ended by itself."""

    rows: list[Any]
    # Rows of each micro-batch.
    batches: list[int]
    progress: list[Any]


class Query:
    """One streaming read with its checkpoint; each `run` goes on where the last one ended."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self._spark = spark
        self._url = broker.url
        # What gets the rows of a micro-batch in place of the result.
        self.sink: Callable[[list[Any]], None] | None = None
        self._checkpoint = folder / f"checkpoint-{uuid.uuid4().hex[:8]}"

    def frame(self, schema: str = "", **options: str) -> DataFrame:
        """Return the read itself."""
        reader = self._spark.readStream.format("ister").option("url", self._url)
        if schema:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    def run(self, schema: str = "", **options: str) -> Run:
        """Read what is there, and return it with what Spark told of each micro-batch."""
        rows: list[Any] = []
        take = self.sink or rows.extend
        query = (
            self.frame(schema, **options)
            .writeStream.foreachBatch(lambda frame, _: take(frame.collect()))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_S), "the query did not end by itself"
        progress = list(query.recentProgress)
        batches = [one["numInputRows"] for one in progress]
        return Run(rows, batches, progress)

    def failure(self, **options: str) -> str:
        """Run a query that is to fail, and return what it said."""
        try:
            self.run(**options)
        except StreamingQueryException as error:
            return str(error)
        raise AssertionError("the query did not fail")
