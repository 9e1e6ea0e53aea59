"""Pipelines on real Spark and a real broker: what comes out, and what is said when nothing can.

`test_examples.py` checks windows, joins, deduplication and routing against plain Python; here is
the rest of what a pipeline does with rows, and what the runner does with failures.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker

import ister
import ister.sync
from ister.spark.pipelines import RunOptions, read_pipeline
from ister.spark.pipelines.config.definition import MESSAGE_COLUMNS, Definition
from ister.spark.pipelines.runtime.building import LETTER_COLUMNS, build
from ister.spark.pipelines.runtime.progress import BatchReport, PipelineProgress
from ister.spark.pipelines.runtime.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.e2e

SCHEMA = "id long, amount double, at timestamp"
WAIT_S = 120.0


class Words:
    """A view that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.reports: list[tuple[str, BatchReport]] = []

    def update(self, progress: PipelineProgress, fresh: Mapping[str, Any]) -> None:
        self.reports += [(name, one) for name, reports in fresh.items() for one in reports]

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True)
class Message:
    key: str | None
    attributes: Mapping[str, str]
    payload: bytes

    @property
    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.payload)
        return found


class Stage:
    """A broker, a session, and pipelines between topics of this test's own."""

    def __init__(
        self, spark: "SparkSession", url: str, client: ister.sync.Client, folder: Path, topic: str
    ) -> None:
        self.spark = spark
        self.url = url
        self.client = client
        self.folder = folder
        self.topic = topic
        self.words = Words()

    def name(self, word: str) -> str:
        return f"{self.topic}-{word}"

    def define(self, **parts: Any) -> Definition:
        """Return the definition of a pipeline file with these parts, with one source `rows`."""
        source = {"topic": self.name("in"), "format": "json", "schema": SCHEMA}
        whole = {
            "name": "p",
            "broker": self.url,
            "checkpoint": str(self.folder / "checkpoint"),
            "sources": {"rows": source | parts.pop("source", {})},
            **parts,
        }
        file = self.folder / "pipeline.yaml"
        file.write_text(json.dumps(whole))  # JSON is YAML.
        return read_pipeline(str(file), environment={}).get()

    def runner(self, definition: Definition, *, restart: bool = False) -> Runner:
        return Runner(self.spark, definition, RunOptions(restart=restart), view=self.words)

    def run(self, definition: Definition) -> int:
        """Run a pipeline over what is there."""
        return self.runner(definition.overridden(available_now=True)).run()

    def send(self, payloads: Iterable[bytes], *, key: str | None = None) -> None:
        if not self.client.topics(self.name("in")):
            self.client.create_topic(self.name("in"), kind="stream", partitions=2)
        with self.client.producer(self.name("in")) as producer:
            for payload in payloads:
                producer.send_nowait(payload, key=key)

    def rows(self, numbers: Iterable[int]) -> list[bytes]:
        return [
            json.dumps(
                {"id": n, "amount": float(n), "at": f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}Z"}
            ).encode()
            for n in numbers
        ]

    def messages(self, word: str) -> list[Message]:
        if not self.client.topics(self.name(word)):
            return []
        with self.client.reader(self.name(word)) as reader:
            return [
                Message(
                    batch.keys[slot] if batch.keys is not None else None,
                    (batch.attributes[slot] or {}) if batch.attributes is not None else {},
                    bytes(batch.payloads[slot]),
                )
                for batch in reader
                for slot in range(len(batch))
            ]


class Live:
    """A pipeline that runs in a thread for the length of a `with`."""

    def __init__(self, stage: Stage, definition: Definition, *, restart: bool = False) -> None:
        self.words = stage.words
        self.runner = stage.runner(definition, restart=restart)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.code = self.runner.run()

    def __enter__(self) -> "Live":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.stop()
        self._thread.join(WAIT_S)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds; it is asked again and again while the pipeline runs."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            known = "\n".join([*self.words.said, str(self.runner.progress.report())])
            assert self._thread.is_alive(), known
            assert time.monotonic() < deadline, known
            time.sleep(0.1)


@pytest.fixture
def stage(
    spark: "SparkSession",
    client: ister.sync.Client,
    spark_broker: BrokerProcess,
    tmp_path: Path,
    topic: str,
) -> Stage:
    return Stage(spark, spark_broker.url, client, tmp_path, topic)


def test_undecodable_messages_go_to_the_dead_letters_as_they_were_and_the_rest_goes_on(
    stage: Stage,
) -> None:
    bad = {
        b"garbage": "the payload is no JSON of the schema",
        b'{"id": "one"}': "the payload is no JSON of the schema",
        b'{"id": 1, "amount": 1.0, "at": "soon"}': "the payload is no JSON of the schema",
        # What stands behind the first object is not lost without a word.
        b'{"id": 1}\n{"id": 2}\n': "the payload is no JSON of the schema",
        b'{"id": 1}, {"id": 2}': "the payload is no JSON of the schema",
        b'{"id": 1}}': "the payload is no JSON of the schema",
        b'[{"id": 1}]': "the payload is no JSON of the schema",
        b"null": "the payload is no JSON of the schema",
        b" ": "the payload is no JSON of the schema",
        b"": "the payload is empty",
        b'{"id": 1, "x": "\xff"}': "the payload is not UTF-8",
    }
    stage.send([*stage.rows(range(5)), *bad], key="k")
    definition = stage.define(
        sinks=[{"topic": stage.name("out"), "from": "rows", "key": "key"}],
        dead_letters=stage.name("dead"),
    )

    assert stage.run(definition) == 0, stage.words.said

    assert sorted(one.row["id"] for one in stage.messages("out")) == [0, 1, 2, 3, 4]
    dead = stage.messages("dead")
    assert {one.payload: one.attributes["x-failure-reason"] for one in dead} == bad
    assert len(dead) == len(bad)
    assert {one.key for one in dead} == {"k"}
    assert {one.attributes["x-original-topic"] for one in dead} == {stage.name("in")}
    assert {one.attributes["x-original-pipeline"] for one in dead} == {"p"}
    # Where it was: all messages are in the one partition of the key.
    offsets = {int(one.attributes["x-original-topic-offset"]) for one in dead}
    assert offsets == set(range(5, 5 + len(bad)))


def test_the_registry_has_the_schema_of_a_source_that_names_none(stage: Stage) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "key", "type": "string"}]
    schema = ister.Schema("avro", {"type": "record", "name": "Order", "fields": fields})
    stage.client.create_topic(stage.name("in"), kind="stream")
    # The types of the blocking client do not know of producers of values.
    producer_of: Any = stage.client.producer
    with producer_of(stage.name("in"), schema=schema) as producer:
        producer.send({"id": 1, "key": "inner"}, key="outer")
    with stage.client.producer(stage.name("in")) as producer:
        producer.send(b"\xff")
    file = stage.folder / "pipeline.yaml"
    whole = {
        "name": "p",
        "broker": stage.url,
        "checkpoint": str(stage.folder / "checkpoint"),
        "sources": {"rows": {"topic": stage.name("in"), "format": "avro"}},
        "steps": [{"name": "s", "sql": "SELECT id, key, offset FROM rows"}],
        "sinks": [{"topic": stage.name("out"), "from": "s"}],
        "dead_letters": stage.name("dead"),
    }
    file.write_text(json.dumps(whole))
    definition = read_pipeline(str(file), environment={}).get()

    assert stage.run(definition) == 0, stage.words.said

    # A field of the payload goes before a column of the message.
    assert [one.row for one in stage.messages("out")] == [{"id": 1, "key": "inner", "offset": 0}]
    [letter] = stage.messages("dead")
    assert letter.payload == b"\xff"
    assert letter.attributes["x-original-topic-offset"] == "1"
    assert letter.attributes["x-failure-reason"]


def test_rows_that_a_step_says_have_failed_are_dead_letters(stage: Stage) -> None:
    (stage.folder / "rules.py").write_text(
        "import ister.spark\n"
        "def invert(row):\n"
        "    return None if row['id'] == 9 else {'id': row['id'], 'part': 1.0 / row['amount']}\n"
        "def inverted(rows):\n"
        "    return ister.spark.safely(invert, returns='id long, part double')(rows)\n"
    )
    stage.send([*stage.rows([0, 1, 2, 9]), b'{"id": 5, "amount": -5.0}'])
    checked = (
        "SELECT id, amount, CASE WHEN amount < 0 THEN 'negative amount' END AS _failed FROM rows"
    )
    definition = stage.define(
        steps=[
            {"name": "checked", "sql": checked},
            {"name": "parts", "python": "rules:inverted", "inputs": ["checked"]},
        ],
        sinks=[{"topic": stage.name("out"), "from": "parts"}],
        dead_letters=stage.name("dead"),
    )

    assert stage.run(definition) == 0, stage.words.said

    assert {one.row["id"]: one.row["part"] for one in stage.messages("out")} == {1: 1.0, 2: 0.5}
    dead = {one.attributes["x-original-step"]: one for one in stage.messages("dead")}
    assert set(dead) == {"checked", "parts"}
    assert dead["checked"].attributes["x-failure-reason"] == "negative amount"
    assert dead["checked"].row == {"id": 5, "amount": -5.0}
    assert dead["parts"].attributes["x-failure-reason"] == (
        "ZeroDivisionError: float division by zero"
    )
    assert dead["parts"].row == {"id": 0, "amount": 0.0}


def test_a_row_that_failed_is_one_dead_letter_however_many_sinks_there_are(stage: Stage) -> None:
    file = stage.folder / f"two_sinks_{stage.topic.rpartition('/')[2]}.py"
    file.write_text(
        "from ister.spark import pipeline\n"
        "@pipeline(\n"
        f"    broker={stage.url!r}, dead_letters={stage.name('dead')!r},\n"
        f"    sources={{'rows': {stage.name('in')!r}}},\n"
        f"    sinks=[{{'name': 'one', 'topic': {stage.name('one')!r}}},\n"
        f"           {{'name': 'two', 'topic': {stage.name('two')!r}}}],\n"
        ")\n"
        "def both(rows):\n"
        "    return rows.selectExpr('payload', \"CASE WHEN key = 'k' THEN 'no' END AS _failed\")\n"
    )
    definition = read_pipeline(str(file), environment={}).get()

    flows = build(stage.spark, definition)

    assert [flow.name for flow in flows] == ["one", "two", "dead_letters.one"]


def test_without_dead_letters_an_undecodable_message_ends_the_pipeline_and_is_named(
    stage: Stage,
) -> None:
    stage.send([b"garbage"], key="k")
    definition = stage.define(sinks=[{"topic": stage.name("out"), "from": "rows"}])

    assert stage.runner(definition, restart=True).run() == 64

    [said] = stage.words.said
    assert f"offset 0 of {stage.name('in')}, partition " in said
    assert "the payload is no JSON of the schema" in said
    assert "`dead_letters`" in said
    assert stage.messages("out") == []


def test_route_names_the_topic_of_each_row_and_attributes_go_along(stage: Stage) -> None:
    stage.send(stage.rows(range(6)))
    sql = (
        "SELECT id, CASE WHEN id % 2 = 1 THEN 'OTHER' END AS place, "
        "map('parity', cast(id % 2 AS string)) AS marks FROM rows"
    ).replace("OTHER", stage.name("odd"))
    definition = stage.define(
        steps=[{"name": "routed", "sql": sql}],
        sinks=[
            {
                "topic": stage.name("even"),
                "route": "place",
                "from": "routed",
                "key": "id",
                "attributes": "marks",
            }
        ],
    )

    assert stage.run(definition) == 0, stage.words.said

    for word, parity in (("even", 0), ("odd", 1)):
        found = stage.messages(word)
        assert sorted(one.payload for one in found) == [
            b'{"id":%d}' % n for n in range(6) if n % 2 == parity
        ]
        assert all(one.key == str(one.row["id"]) for one in found)
        assert all(one.attributes == {"parity": str(parity)} for one in found)


@pytest.mark.parametrize(
    ("mode", "second"),
    [("update", [{"k": 1, "n": 4}]), ("complete", [{"k": 0, "n": 2}, {"k": 1, "n": 4}])],
)
def test_a_result_that_changes_is_published_batch_by_batch(
    stage: Stage, mode: str, second: list[dict[str, int]]
) -> None:
    definition = stage.define(
        steps=[{"name": "counts", "sql": "SELECT id % 2 AS k, count(*) AS n FROM rows GROUP BY 1"}],
        sinks=[{"topic": stage.name("out"), "from": "counts", "mode": mode}],
    )
    stage.send(stage.rows([0, 1, 2, 3]))
    assert stage.run(definition) == 0, stage.words.said
    first = [one.row for one in stage.messages("out")]

    stage.send(stage.rows([5, 7]))
    assert stage.run(definition) == 0, stage.words.said

    def ordered(rows: Iterable[dict[str, int]]) -> list[dict[str, int]]:
        return sorted(rows, key=lambda row: row["k"])

    assert ordered(first) == [{"k": 0, "n": 2}, {"k": 1, "n": 2}]
    assert ordered(one.row for one in stage.messages("out")[len(first) :]) == second


def test_a_backfill_is_followed_by_a_live_run_without_loss_or_doubles(stage: Stage) -> None:
    stage.send(stage.rows(range(1_000)))
    definition = stage.define(
        source={"start": "latest", "max_rows_per_batch": 300},
        sinks=[{"topic": stage.name("out"), "from": "rows"}],
    )
    assert stage.run(definition.overridden(start="earliest")) == 0
    assert len(stage.messages("out")) == 1_000
    assert len([one for _, one in stage.words.reports if one.rows]) == 4

    with Live(stage, definition) as live:
        stage.send(stage.rows(range(1_000, 1_500)))
        live.wait_for(lambda: len(stage.messages("out")) >= 1_500)

    assert live.code == 0
    counts = Counter(one.row["id"] for one in stage.messages("out"))
    assert counts == Counter(range(1_500))
    assert live.runner.progress.meters[definition.sinks[0].name].status == "stopped"


def test_a_pipeline_outlives_its_broker(
    spark: "SparkSession", start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start_broker()
    with ister.sync.connect(broker.url) as client:
        stage = Stage(spark, broker.url, client, tmp_path, topic)
        stage.send(stage.rows(range(100)))
        definition = stage.define(
            source={"max_rows_per_batch": 60},
            sinks=[{"topic": stage.name("out"), "from": "rows"}],
        )
        with Live(stage, definition, restart=True) as live:
            live.wait_for(lambda: len(stage.messages("out")) >= 100)
            broker.kill()
            live.wait_for(lambda: any("again in" in text for text in stage.words.said))
            broker.restart()
            stage.send(stage.rows(range(100, 200)))
            live.wait_for(lambda: len(stage.messages("out")) >= 200)

        assert live.code == 0
        counts = Counter(one.row["id"] for one in stage.messages("out"))
        assert counts == Counter(range(200))
        assert live.runner.progress.meters[definition.sinks[0].name].restarts >= 1


NEEDS = {
    "only what is decoded": ("SELECT id FROM rows", {"payload"}),
    "what a condition needs": ("SELECT id FROM rows WHERE key = 'a'", {"payload", "key"}),
    "what a key of a join needs": (
        "SELECT a.id FROM rows a JOIN other b ON a.id = b.id AND a.offset = b.id",
        {"payload", "offset"},
    ),
    "what an aggregate needs": (
        "SELECT count(*) AS n, max(publish_time) AS m FROM plain",
        {"payload", "publish_time"},
    ),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_source_is_read_with_the_columns_that_are_needed(stage: Stage, name: str) -> None:
    sql, columns = NEEDS[name]
    (stage.folder / "other.csv").write_text("id\n1\n")
    definition = stage.define(
        tables={"other": {"path": "other.csv", "format": "csv", "schema": "id long"}},
        steps=[
            {"name": "plain", "sql": "SELECT * FROM rows"},
            {"name": "s", "sql": sql},
        ],
        sinks=[{"topic": stage.name("out"), "from": "s", "mode": "update"}],
        dead_letters=stage.name("dead"),
    )

    [flow, letters] = build(stage.spark, definition)

    assert read_columns(flow.frame) == columns
    assert read_columns(letters.frame) == LETTER_COLUMNS


def test_each_branch_of_a_union_is_read_with_its_columns(stage: Stage) -> None:
    source = {"topic": stage.name("in"), "format": "bytes"}
    definition = stage.define(
        source={"format": "bytes", "schema": None},
        sources={"rows": source, "more": source | {"topic": stage.name("more")}},
        steps=[{"name": "s", "sql": "SELECT * FROM rows UNION ALL SELECT * FROM more"}],
        sinks=[{"topic": stage.name("out"), "from": "s"}],
    )

    [flow] = build(stage.spark, definition)

    every = {*MESSAGE_COLUMNS, "payload"}
    plan = flow.frame._jdf.queryExecution().analyzed().toString()
    leaves = [text for text in plan.splitlines() if "StreamingRelation" in text]
    assert [set(re.findall(r"(\w+)#\d+", leaf)) for leaf in leaves] == [every, every]


def read_columns(frame: "DataFrame") -> set[str]:
    """Return the columns that the source of a frame is asked for."""
    plan = frame._jdf.queryExecution().analyzed().toString()
    [leaf] = [text for text in plan.splitlines() if "StreamingRelation" in text]
    return set(re.findall(r"(\w+)#\d+", leaf))


MISTAKES = {
    "an unknown column": ("SELECT nope FROM rows", "step `s`: line 1 of its SQL", "`nope`"),
    "an aggregation without watermark": (
        "SELECT id, count(*) AS n FROM rows GROUP BY id",
        "sink `out`: ",
        "give the source a `watermark`",
    ),
    "no SQL": ("SELECT id FROM rows WHERE (id > 3", "step `s`: ", "yntax error"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_sql_is_told_with_its_place_and_without_java(stage: Stage, name: str) -> None:
    sql, place, words = MISTAKES[name]
    stage.send([])
    definition = stage.define(
        steps=[{"name": "s", "sql": sql}],
        sinks=[{"name": "out", "topic": stage.name("out"), "from": "s"}],
    )

    assert stage.runner(definition, restart=True).run() == 64

    [said] = stage.words.said
    assert place in said
    assert words in said
    assert "at org.apache" not in said
    assert "SQLSTATE" not in said
