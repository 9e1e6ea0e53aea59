"""Pieces as executors read them: what goes wrong on the way is not taken for bad messages."""

import json
from collections.abc import Callable

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from ister.base.errors import IsterError, NotConnectedError, SchemaNotFoundError
from ister.client.sync import Client
from ister.spark.offsets import OffsetRange
from ister.spark.options import ReadOptions
from ister.spark.source.layouts import ReadLayout, ValueSource
from ister.spark.source.reading import RangeReader, _RangeAssembly

DEFINITION = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
LAYOUT = ReadLayout(
    StructType([StructField("id", LongType())]),
    (),
    ("id",),
    source=ValueSource("avro", "avro", json.dumps(DEFINITION).encode(), "orders"),
)


def refusing(error: IsterError) -> Callable[[], Client]:
    def connect() -> Client:
        raise error

    return connect


def assembly(connect: Callable[[], Client]) -> _RangeAssembly:
    reading = RangeReader(ReadOptions(null_errors=True), LAYOUT)
    return _RangeAssembly(reading, OffsetRange("/default/a", 1, 0, 5), connect)


def test_a_broker_that_is_away_ends_the_task_and_makes_no_row_null() -> None:
    one = assembly(refusing(NotConnectedError("ister://x", "reconnecting")))

    with pytest.raises(NotConnectedError):
        one._writer((1, 1))


def test_a_schema_that_is_not_there_is_the_fault_of_its_rows() -> None:
    missing = SchemaNotFoundError("orders", 1)

    assert assembly(refusing(missing))._writer((1, 1)) is missing
