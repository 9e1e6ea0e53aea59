"""The pipelines in `examples/pipelines` give what plain Python makes of the same data.

Each runs as its files are; only the broker, the checkpoint and the lake are this test's own. Waves
are sent and worked on one after the other, so that what is late, and which windows are final, is
the same on every machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.pipelines.enrichment import generate as sales
from examples.pipelines.fraud import generate as payments
from examples.pipelines.iot_parquet import generate as readings
from examples.pipelines.order_payments import generate as checkout
from examples.pipelines.orders_per_minute import generate as orders
from examples.pipelines.sessions import generate as clicks
from tests.e2e.conftest import BrokerProcess, StartBroker, plain_environment
from tests.e2e.spark import references

import ister.sync
from ister.codec import Batch
from ister.spark import tables
from ister.spark.pipelines import RunOptions, read_pipeline
from ister.spark.pipelines.runtime.progress import LinesView
from ister.spark.pipelines.runtime.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two starts of Spark; most of a minute on two idle cores.
README_TIMEOUT_S = 400
EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


@dataclass(frozen=True)
class Message:
    """A message of a stream."""

    key: str | None
    attributes: Mapping[str, str]
    payload: str


class Stage:
    """A broker with the topics of an example, and runs of its pipeline."""

    def __init__(
        self, spark: "SparkSession", client: ister.sync.Client, url: str, folder: Path
    ) -> None:
        self.spark = spark
        self.client = client
        self.url = url
        self.folder = folder

    def create(self, *topics: str) -> None:
        """Create streams."""
        for topic in topics:
            self.client.create_topic(topic, kind="stream")

    def send(self, topic: str, lines: Iterable[str]) -> None:
        """Send each line as a message."""
        with self.client.producer(topic) as producer:
            for line in lines:
                producer.send_nowait(line.encode())

    def run(self, file: str, **variables: str) -> None:
        """Run a pipeline over what is there; it goes on where its last run ended."""
        chosen = {"ISTER_URL": self.url, **variables}
        outcome = read_pipeline(str(EXAMPLES / file), chosen=chosen, environment={})
        assert outcome.remarks == ()
        definition = outcome.get().overridden(
            available_now=True, checkpoint=str(self.folder / "checkpoint")
        )
        # It may restart: workers of Spark have ten seconds to start, a busy machine needs more.
        runner = Runner(self.spark, definition, RunOptions(), view=LinesView())
        assert runner.run() == 0

    def messages(self, topic: str) -> list[Message]:
        """Return every message of a stream."""
        with self.client.reader(topic) as reader:
            return [message for batch in reader for message in unpacked(batch)]

    def rows(self, topic: str, *, key: str) -> list[references.Row]:
        """Return the rows of a stream; each message has the column `key` as its key."""
        found = [(one.key, references.parsed(one.payload)) for one in self.messages(topic)]
        assert all(name == row[key] for name, row in found)
        return [row for _, row in found]


def unpacked(batch: Batch) -> Iterator[Message]:
    """Yield the messages of a batch."""
    keys = batch.keys or [None] * len(batch)
    attributes = batch.attributes or [{}] * len(batch)
    for key, pairs, payload in zip(keys, attributes, batch.payloads, strict=True):
        yield Message(key, pairs, payload.decode())


@pytest.fixture
def stage(
    spark: "SparkSession", client: ister.sync.Client, spark_broker: BrokerProcess, tmp_path: Path
) -> Stage:
    return Stage(spark, client, spark_broker.url, tmp_path)


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[tuple[str, object], ...]]:
    """Return how often there is each row, in whatever order. A field without a value is null."""
    return Counter(
        tuple(sorted((name, value) for name, value in row.items() if value is not None))
        for row in rows
    )


def test_orders_per_minute_are_those_of_plain_python_without_late_and_repeated_ones(
    stage: Stage,
) -> None:
    waves = orders.waves()
    stage.create("/default/shop.orders", "/default/shop.per_minute", "/default/shop.broken")

    for lines in waves:
        stage.send("/default/shop.orders", lines)
        stage.run("orders_per_minute/pipeline.yaml")

    assert counted(stage.rows("/default/shop.per_minute", key="region")) == counted(
        references.orders_per_minute(waves)
    )
    assert Counter(one.payload for one in stage.messages("/default/shop.broken")) == Counter(
        line for lines in waves for line in lines if line in orders.BROKEN
    )


def test_order_payments_are_the_pairs_of_plain_python_and_what_stays_unpaid(stage: Stage) -> None:
    waves = checkout.waves()
    topics = {"orders": "/default/checkout.orders", "payments": "/default/checkout.payments"}
    stage.create(*topics.values(), "/default/checkout.paid")

    for wave in waves:
        for name, topic in topics.items():
            stage.send(topic, wave[name])
        stage.run("order_payments/pipeline.yaml")

    assert counted(stage.rows("/default/checkout.paid", key="order_id")) == counted(
        references.order_payments(waves)
    )


def test_sessions_are_the_visits_of_plain_python_with_late_clicks_that_join_two(
    stage: Stage,
) -> None:
    waves = clicks.waves()
    stage.create("/default/clicks", "/default/visits")

    for lines in waves:
        stage.send("/default/clicks", lines)
        stage.run("sessions/pipeline.py")

    assert counted(stage.rows("/default/visits", key="visitor")) == counted(
        references.sessions(waves)
    )


def test_enrichment_sends_each_category_to_its_topic_and_what_is_broken_aside(
    stage: Stage,
) -> None:
    lines = sales.lines()
    expected = references.enrichment(lines, EXAMPLES / "enrichment" / "products.csv")
    stage.create("/default/sales", "/default/sales.broken", *expected)
    stage.send("/default/sales", lines)

    stage.run("enrichment/pipeline.yaml")

    for topic, rows in expected.items():
        assert counted(stage.rows(topic, key="sale_id")) == counted(rows)
    dead = stage.messages("/default/sales.broken")
    assert Counter(one.payload for one in dead) == Counter(
        references.broken(lines, is_good=references.is_sale)
    )
    assert {one.attributes["x-original-topic"] for one in dead} == {"/default/sales"}
    assert all(one.attributes["x-failure-reason"] for one in dead)


def test_the_table_of_temperatures_has_the_minutes_of_plain_python_by_day(
    stage: Stage, tmp_path: Path
) -> None:
    waves = readings.waves()
    stage.create("/default/readings")

    for lines in waves:
        stage.send("/default/readings", lines)
        stage.run("iot_parquet/pipeline.toml", LAKE=str(tmp_path))

    found = tables.dataset(tmp_path / "temperatures").to_table().to_pylist()
    # A folder's name is text to pyarrow.
    rows = [{**row, "day": date.fromisoformat(str(row["day"]))} for row in found]
    assert counted(rows) == counted(references.iot_parquet(waves))
    assert {row["day"] for row in rows} == {date(2026, 11, 16), date(2026, 11, 17)}


@pytest.mark.timeout(README_TIMEOUT_S + 30)
def test_the_commands_of_the_fraud_readme_find_what_plain_python_finds(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    folder = tmp_path / "fraud"
    shutil.copytree(EXAMPLES / "fraud", folder)

    code, words = run_readme(folder, broker, tmp_path)

    assert code == 0, words
    with ister.sync.connect(broker.url) as client, client.reader("/default/card.alerts") as reader:
        found = [references.parsed(one.payload) for batch in reader for one in unpacked(batch)]
    assert counted(found) == counted(references.fraud(payments.waves()))
    assert "Traceback" not in words


def run_readme(folder: Path, broker: BrokerProcess, home: Path) -> tuple[int, str]:
    """Run the commands of a README in its folder, but for the broker, which is there.

    Returns the exit code and what they said.
    """
    (block,) = re.findall(r"```bash\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    lines = [line for line in block.splitlines() if not line.startswith(("ister serve", "cd "))]
    words = home / "words"
    with words.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
            cwd=folder,
            env=plain_environment()
            | {
                "ISTER_URL": broker.url,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "XDG_STATE_HOME": str(home / "state"),
            },
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        code = process.wait(README_TIMEOUT_S)
    finally:
        # Nothing is left of it but after a timeout: then a pipeline with its Java.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return code, words.read_text()
