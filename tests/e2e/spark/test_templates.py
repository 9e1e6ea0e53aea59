"""Every template of `ister pipeline new` runs as it is written, and gives what it promises.

Only the namespace of its topics is the test's own; a payload that is no JSON is among the data.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.conftest import BrokerProcess

import ister.sync
from ister.spark import tables
from ister.spark.pipelines import RunOptions, new_files, read_pipeline, write_files
from ister.spark.pipelines.runtime.progress import LinesView
from ister.spark.pipelines.runtime.runner import Runner
from ister.spark.pipelines.scaffold import NewFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
NOON = "2026-01-01T12:{:02}:{:02}Z"


class Stage:
    """A new pipeline in a folder and a namespace of its own."""

    def __init__(
        self, spark: "SparkSession", client: ister.sync.Client, url: str, folder: Path
    ) -> None:
        self.spark = spark
        self.client = client
        self.url = url
        self.folder = folder

    def make(self, template: str, topics: Mapping[str, Sequence[Row]]) -> None:
        """Write a pipeline, and send the rows of each topic, with one that is no JSON."""
        self.template = template
        self.client.create_namespace(template)
        own = [
            NewFile(one.path, one.text.replace("/default/", f"/{template}/"))
            for one in new_files(template, template)
        ]
        write_files(self.folder, own)
        for name, rows in topics.items():
            topic = f"/{template}/{name}"
            self.client.create_topic(topic, kind="stream")
            with self.client.producer(topic) as producer:
                for row in rows:
                    producer.send(json.dumps(row).encode())
                producer.send(b"no JSON")

    def run(self, file: str = "pipeline.yaml") -> None:
        outcome = read_pipeline(
            str(self.folder / file), chosen={"ISTER_URL": self.url}, environment={}
        )
        assert outcome.remarks == ()
        definition = outcome.get().overridden(available_now=True)
        # On a busy machine Spark gives up on a worker that takes 10 s to start, which can pass.
        runner = Runner(self.spark, definition, RunOptions(restart=True), view=LinesView())
        assert runner.run() == 0

    def payloads(self, name: str) -> list[bytes]:
        with self.client.reader(f"/{self.template}/{name}") as reader:
            return [bytes(payload) for batch in reader for payload in batch.payloads]

    def rows(self, name: str) -> list[Row]:
        found = [json.loads(payload) for payload in self.payloads(name)]
        return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


@pytest.fixture
def stage(
    spark: "SparkSession", client: ister.sync.Client, spark_broker: BrokerProcess, tmp_path: Path
) -> Iterator[Stage]:
    before, modules = list(sys.path), set(sys.modules)
    yield Stage(spark.newSession(), client, spark_broker.url, tmp_path / "mine")
    sys.path[:] = before
    for name in {"rules", "totals"} - modules:
        sys.modules.pop(name, None)


def order(number: int, region: str, amount: float, minute: int) -> Row:
    return {
        "order_id": f"order-{number}",
        "region": region,
        "amount": amount,
        "at": NOON.format(minute, number),
    }


def test_window_counts_each_order_once_and_gives_a_minute_out_when_it_is_done(
    stage: Stage,
) -> None:
    first = order(1, "north", 10.0, 0)
    rows = [first, first, order(2, "north", 5.5, 0), order(3, "east", 1.0, 0)]
    stage.make("window", {"orders": [*rows, order(4, "east", 1.0, 10)]})
    stage.run()

    assert [(row["region"], row["orders"], row["total"]) for row in stage.rows("totals")] == [
        ("east", 1, 1.0),
        ("north", 2, 15.5),
    ]
    assert stage.payloads("orders.dead") == [b"no JSON"]


def test_enrich_sends_each_order_to_the_topic_of_its_country(stage: Stage) -> None:
    stage.make("enrich", {"orders": [order(1, "north", 10.0, 0), order(2, "west", 5.0, 0)]})
    stage.run()

    assert [row["order_id"] for row in stage.rows("orders.no")] == ["order-1"]
    [unknown] = stage.rows("orders.unknown")
    assert (unknown["order_id"], unknown["country"]) == ("order-2", "unknown")
    assert "destination" not in unknown


def test_join_finds_payments_in_time_and_no_others(stage: Stage) -> None:
    payments = [
        {"order_id": "order-1", "card": "a", "paid": 10.0, "at": NOON.format(5, 0)},
        {"order_id": "order-2", "card": "b", "paid": 20.0, "at": NOON.format(50, 0)},
    ]
    orders = [order(1, "", 10.0, 0), order(2, "", 20.0, 0)]
    stage.make("join", {"orders": orders, "payments": payments})
    stage.run()

    assert [(row["order_id"], row["card"]) for row in stage.rows("paid-orders")] == [
        ("order-1", "a")
    ]


def test_session_ends_a_visit_after_ten_quiet_minutes(stage: Stage) -> None:
    clicks = [
        {"user": "ann", "page": "/", "at": NOON.format(0, 0)},
        {"user": "ann", "page": "/cart", "at": NOON.format(9, 0)},
        {"user": "ann", "page": "/", "at": NOON.format(30, 0)},
        {"user": "bob", "page": "/", "at": NOON.format(50, 0)},
    ]
    stage.make("session", {"clicks": clicks})
    stage.run()

    visits = [(row["user"], row["clicks"], sorted(row["pages"])) for row in stage.rows("visits")]
    assert sorted(visits) == [("ann", 1, ["/"]), ("ann", 2, ["/", "/cart"])]


def test_state_tells_cards_with_several_large_payments_within_a_minute(stage: Stage) -> None:
    payments = [
        {"card": card, "amount": amount, "at": NOON.format(*at)}
        for card, amount, at in (
            *(("a", 150.0, (0, second)) for second in (0, 20, 40)),
            *(("b", 150.0, (minute, 0)) for minute in (0, 2, 4)),
            *(("c", 15.0, (0, second)) for second in (0, 20, 40)),
        )
    ]
    stage.make("state", {"payments": payments})
    # This session was there before the pipeline: its workers do not know the folder.
    stage.spark.sparkContext.addPyFile(str(stage.folder / "rules.py"))
    stage.run()

    assert stage.rows("alarms") == [{"card": "a", "payments": 3, "seconds": 40.0}]


def test_table_has_a_row_for_each_sensor_and_minute(stage: Stage) -> None:
    readings = [
        {"sensor": "one", "celsius": celsius, "at": NOON.format(minute, second)}
        for celsius, minute, second in ((10.0, 0, 10), (20.0, 0, 50), (30.0, 1, 0), (9.0, 30, 0))
    ]
    stage.make("table", {"readings": readings})
    stage.run()

    found = tables.read(stage.spark, stage.folder / "lake" / "readings").collect()
    rows = [(row["readings"], row["coldest"], row["mean"], row["hottest"]) for row in found]
    assert sorted(rows) == [(1, 30.0, 30.0, 30.0), (2, 10.0, 15.0, 20.0)]


def test_python_gives_each_sink_its_own_frame(stage: Stage) -> None:
    rows = [order(1, "north", 200.0, 0), order(2, "north", 50.0, 0), order(3, "east", 1.0, 10)]
    stage.make("python", {"orders": rows})
    stage.run("totals.py")

    assert [row["order_id"] for row in stage.rows("large-orders")] == ["order-1"]
    [total] = stage.rows("totals")
    assert (total["region"], total["orders"], total["total"]) == ("north", 2, 250.0)
