"""A pipeline file becomes a definition, and every mistake in it is told at once."""

import json
from pathlib import Path

import pytest
from tests.unit.spark.pipelines.files import SOURCE, outcome_of, said, text_of

from ister.base import DEFAULT_URL
from ister.base.errors import ConfigError
from ister.spark.pipelines.config.definition import (
    ConsoleSink,
    OutputMode,
    PayloadFormat,
    PythonStep,
    SqlStep,
    TableFormat,
    TableSink,
    TopicSink,
    Trigger,
    reveal,
    to_json_values,
)
from ister.spark.pipelines.config.parsing import FILE_BYTES_MAX
from ister.spark.pipelines.loading import read_file

WHOLE_YAML = """\
name: orders-per-minute
broker: ${URL:-ister://127.0.0.1:7000}
sources:
  orders:
    topics: [/default/orders, /default/more]
    format: json
    schema: "order_id string, region string, amount double, at timestamp"
    watermark: {column: at, delay: 30s}
    start: 2026-11-15T10:00:00+01:00
    max_rows_per_batch: ${LIMIT:-1_000}
    max_bytes_per_batch: 64MiB
    deduplicate: {columns: [order_id]}
    options: {failOnDataLoss: false}
tables:
  regions: {path: regions.csv, schema: "region string, country string", options: {header: false}}
steps:
  - name: per_minute
    sql: |
      SELECT window(at, '1 minute') AS w, region, count(*) AS orders
      FROM orders GROUP BY window(at, '1 minute'), region;
  - name: scored
    python: fraud:score
    inputs: [orders, regions]
    watermark: {column: at, delay: 1 minute}
sinks:
  - {topic: /default/totals, from: per_minute, key: region, mode: update}
  - {table: lake/orders, from: scored, partition_by: [region]}
  - {console: true, from: per_minute, mode: complete, rows: 5}
dead_letters: /default/orders-dead
trigger: 1 second
checkpoint: checkpoints/orders
settings: {spark.sql.shuffle.partitions: 4}
"""
WHOLE_TOML = '''\
name = "orders-per-minute"
broker = "${URL:-ister://127.0.0.1:7000}"
dead_letters = "/default/orders-dead"
trigger = "1 second"
checkpoint = "checkpoints/orders"
settings = {"spark.sql.shuffle.partitions" = 4}

[sources.orders]
topics = ["/default/orders", "/default/more"]
format = "json"
schema = "order_id string, region string, amount double, at timestamp"
watermark = {column = "at", delay = "30s"}
start = 2026-11-15T10:00:00+01:00
max_rows_per_batch = "${LIMIT:-1_000}"
max_bytes_per_batch = "64MiB"
deduplicate = {columns = ["order_id"]}
options = {failOnDataLoss = false}

[tables.regions]
path = "regions.csv"
schema = "region string, country string"
options = {header = false}

[[steps]]
name = "per_minute"
sql = """
SELECT window(at, '1 minute') AS w, region, count(*) AS orders
FROM orders GROUP BY window(at, '1 minute'), region;
"""

[[steps]]
name = "scored"
python = "fraud:score"
inputs = ["orders", "regions"]
watermark = {column = "at", delay = "1 minute"}

[[sinks]]
topic = "/default/totals"
from = "per_minute"
key = "region"
mode = "update"

[[sinks]]
table = "lake/orders"
from = "scored"
partition_by = ["region"]

[[sinks]]
console = true
from = "per_minute"
mode = "complete"
rows = 5
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the whole pipeline refers to."""
    (tmp_path / "regions.csv").write_text("north,no\n", encoding="utf-8")
    (tmp_path / "fraud.py").write_text("def score(orders, regions): ...\n", encoding="utf-8")
    return tmp_path


def test_every_key_is_in_the_definition(folder: Path) -> None:
    definition = outcome_of(folder, WHOLE_YAML).get()

    assert (definition.name, definition.broker) == ("orders-per-minute", "ister://127.0.0.1:7000")
    [source], [table] = definition.sources, definition.tables
    assert source.topics == ("/default/orders", "/default/more")
    assert source.format is PayloadFormat.JSON
    assert source.watermark is not None
    assert (source.watermark.column, source.watermark.delay) == ("at", "30 seconds")
    assert source.start == "2026-11-15T10:00:00+01:00"
    assert (source.max_rows_per_batch, source.max_bytes_per_batch) == (1_000, 64 * 1024**2)
    assert source.deduplicate is not None
    assert source.deduplicate.columns == ("order_id",)
    assert source.options == {"failOnDataLoss": "false"}
    assert (table.path, table.format) == (str(folder / "regions.csv"), TableFormat.CSV)
    assert table.options == {"header": "false"}
    sql, python = definition.steps
    assert isinstance(sql, SqlStep)
    assert sql.sql.endswith("region")
    assert isinstance(python, PythonStep)
    assert (python.function, python.inputs) == ("fraud:score", ("orders", "regions"))
    topic, lake, console = definition.sinks
    assert isinstance(topic, TopicSink)
    assert (topic.name, topic.view, topic.mode) == (
        "default.totals",
        "per_minute",
        OutputMode.UPDATE,
    )
    assert isinstance(lake, TableSink)
    assert (lake.path, lake.partition_by) == (str(folder / "lake/orders"), ("region",))
    assert isinstance(console, ConsoleSink)
    assert (console.name, console.rows) == ("console-per_minute", 5)
    assert definition.trigger == Trigger(every="1 second")
    assert definition.checkpoint == str(folder / "checkpoints/orders")
    assert definition.settings == {"spark.sql.shuffle.partitions": "4"}


def test_toml_says_the_same_as_yaml(folder: Path) -> None:
    of_yaml = to_json_values(outcome_of(folder, WHOLE_YAML).get())
    of_toml = to_json_values(outcome_of(folder, WHOLE_TOML, suffix=".toml").get())
    assert isinstance(of_yaml, dict)
    assert isinstance(of_toml, dict)

    assert of_yaml | {"file": ""} == of_toml | {"file": ""}


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, text_of(source="orders: /default/orders\n"))

    definition = outcome.get()
    [source] = definition.sources
    assert (source.format, source.start, source.schema) == (PayloadFormat.BYTES, "earliest", None)
    assert definition.broker == DEFAULT_URL
    assert definition.checkpoint == str(tmp_path / ".ister/test")
    assert definition.trigger == Trigger()


def test_without_a_broker_the_environment_says_which(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, text_of(), environment={"ISTER_URL": "ister://other:1"})

    assert outcome.get().broker == "ister://other:1"


@pytest.mark.parametrize(
    "schema",
    [
        "schema: 'a string, b array<int>'",
        "schema: {a: string, b: array<int>}",
        "schema: [{a: string}, {b: array<int>}]",
        "schema: [{name: a, type: string}, {name: b, type: array<int>}]",
    ],
)
def test_a_schema_is_text_or_a_list_or_a_mapping_of_fields(tmp_path: Path, schema: str) -> None:
    source = f"orders:\n  topic: /default/orders\n  format: json\n  {schema}\n"

    [found] = outcome_of(tmp_path, text_of(source=source)).get().sources
    assert found.schema is not None
    assert found.schema.replace("`", "") == "a string, b array<int>"


def test_a_table_in_a_store_is_not_looked_for_on_the_disk(tmp_path: Path) -> None:
    rest = "tables:\n  regions: {path: 's3://bucket/regions', format: parquet}\n"

    [table] = outcome_of(tmp_path, text_of(rest=rest)).get().tables
    assert table.path == "s3://bucket/regions"


def test_a_sql_file_is_read_with_its_variables(tmp_path: Path) -> None:
    (tmp_path / "one.sql").write_text("SELECT ${COLUMN} FROM orders;\n", encoding="utf-8")
    text = text_of(steps="- {name: one, sql_file: one.sql}\n")

    [step] = outcome_of(tmp_path, text, chosen={"COLUMN": "region"}).get().steps
    assert isinstance(step, SqlStep)
    assert step.sql == "SELECT region FROM orders"


def test_a_mistake_in_a_sql_file_is_told_with_the_line_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "one.sql").write_text("SELECT *\n\nFROM order\n", encoding="utf-8")
    text = text_of(steps="- {name: one, sql_file: one.sql}\n")

    assert said(outcome_of(tmp_path, text), tmp_path) == [
        "one.sql:3: there is no view `order`, did you mean `orders`?"
    ]


def test_a_variable_that_nobody_uses_is_a_mistake(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, text_of(), chosen={"LIMTI": "1"})

    assert said(outcome, tmp_path) == ["--set: the pipeline has no variable `${LIMTI}`"]


def test_secrets_stay_references_until_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "place").write_text("ister://hidden:1\n", encoding="utf-8")
    monkeypatch.setenv("KEY_PLACE", "/hidden/key")
    source = SOURCE + '  options: {keyFile: "${env:KEY_PLACE}"}\n'
    outcome = outcome_of(tmp_path, text_of(source=source, rest='broker: "${file:place}"\n'))

    definition = outcome.get()
    [found] = definition.sources
    assert reveal(definition.broker) == "ister://hidden:1"
    assert reveal(found.options["keyFile"]) == "/hidden/key"
    shown = repr(definition) + str(definition) + json.dumps(to_json_values(definition))
    assert "hidden" not in shown
    assert "${file:place}" in shown


def test_with_a_mistake_there_is_no_definition(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, text_of(rest="trigger: often\ncheckpint: x\n"))

    with pytest.raises(ConfigError) as caught:
        outcome.get()
    assert len(caught.value.mistakes) == 2


def test_what_the_command_line_says_wins_over_the_file(tmp_path: Path) -> None:
    definition = outcome_of(tmp_path, text_of(rest="trigger: 1 second\n")).get()

    changed = definition.overridden(start="latest", available_now=True, checkpoint="/elsewhere")
    assert [source.start for source in changed.sources] == ["latest"]
    assert changed.trigger == Trigger(available_now=True)
    assert changed.checkpoint == "/elsewhere"
    assert definition.overridden() == definition


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.txt", b"name: x", "is no pipeline: a file ends in .yaml, .yml or .toml"),
        ("a.yaml", b"a: 1\n\xff", ":2: is no text in UTF-8"),
        ("a.yaml", b"#" * (FILE_BYTES_MAX + 1), "is larger than 1,048,576 bytes"),
        ("a.yaml", b"- 1\n", ":1: a pipeline is a mapping of `name`, `broker`"),
        ("a.yaml", b"just words\n", ":1: a pipeline is a mapping of `name`, `broker`"),
        ("a.toml", b"a = \n", ":1: is no TOML"),
    ],
)
def test_what_is_no_pipeline_file_is_told(
    tmp_path: Path, name: str, data: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(data)

    [remark] = read_file(tmp_path / name).remarks
    assert expected in str(remark)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    [remark] = read_file(tmp_path / "nowhere.yaml").remarks

    assert str(remark).endswith("nowhere.yaml: cannot be read: no such file or directory")
