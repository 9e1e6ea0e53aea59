"""Sensors, a pipeline and a Parquet table: `examples/sensors.py` and `sensors.yaml` as they are."""

import asyncio
import runpy
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e.conftest import BrokerProcess

import ister.sync
from ister.spark import tables
from ister.spark.pipelines import RunOptions, read_pipeline
from ister.spark.pipelines.runtime.progress import LinesView
from ister.spark.pipelines.runtime.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_readings_of_sensors_are_in_the_table_once_and_broken_ones_aside(
    spark: "SparkSession",
    client: ister.sync.Client,
    spark_broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISTER_URL", spark_broker.url)
    asyncio.run(runpy.run_path(str(EXAMPLES / "sensors.py"))["main"]())

    chosen = {"ISTER_URL": spark_broker.url, "LAKE": str(tmp_path)}
    outcome = read_pipeline(str(EXAMPLES / "sensors.yaml"), chosen=chosen, environment={})
    definition = outcome.get().overridden(available_now=True, checkpoint=str(tmp_path / "state"))
    assert Runner(spark, definition, RunOptions(), view=LinesView()).run() == 0

    rows = tables.dataset(tmp_path / "readings").to_table().to_pylist()
    days = Counter((date.fromisoformat(str(row["day"])), row["sensor"]) for row in rows)
    assert days == {
        (date(2026, 11, day), sensor): 60 for day in (16, 17) for sensor in ("cellar", "roof")
    }
    with client.reader("sensors.broken") as reader:
        broken = [payload for batch in reader for payload in batch.payloads]
    assert broken == [b"short circuit"]
