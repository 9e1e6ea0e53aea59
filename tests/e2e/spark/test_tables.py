"""Tables that Spark writes, read by Spark, DuckDB, Polars and pyarrow, and shown by `ister`."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.shell import Shell

import ister.sync
from ister.base.errors import BadRequestError, TableSchemaError
from ister.spark.tables import (
    TableFolder,
    WrittenBatch,
    batch_writer,
    compact,
    describe,
    files,
    queries,
    read,
    tables_of,
    write_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.e2e

START = datetime(2026, 11, 15, 22, 0, tzinfo=UTC)
SCHEMA = "id bigint, region string, amount decimal(12,2), at timestamp, tags array<string>"
REGIONS = ("eu", "us", None)


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes of tables that are only of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def order(number: int) -> tuple[int, str | None, Decimal, datetime, list[str | None]]:
    """An order each ten minutes: over midnight, so that they are of two days."""
    at = START + timedelta(minutes=10 * number)
    return number, REGIONS[number % 3], Decimal(number) / 4, at, ["a", None][: number % 3]


def orders(spark: "SparkSession", numbers: Iterable[int]) -> "DataFrame":
    rows = [order(number) for number in numbers]
    return spark.createDataFrame(rows, SCHEMA).selectExpr("*", "to_date(at) AS day")


def put(table: Path, df: "DataFrame", batch: int, **options: Any) -> WrittenBatch:
    return write_batch(table, df, query_id="q", batch_id=batch, partition_by=["day"], **options)


Fact = tuple[int, str | None, Decimal, datetime, date]


def facts(rows: Iterable[dict[str, Any]]) -> Counter[Fact]:
    """Rows of any reader, as one and the same."""
    return Counter(
        (
            row["id"],
            row["region"],
            row["amount"],
            row["at"].replace(tzinfo=row["at"].tzinfo or UTC).astimezone(UTC),
            row["day"] if isinstance(row["day"], date) else date.fromisoformat(row["day"]),
        )
        for row in rows
    )


def expected(numbers: Iterable[int]) -> Counter[Fact]:
    made = [order(number) for number in numbers]
    return Counter((id_, region, amount, at, at.date()) for id_, region, amount, at, _ in made)


def by_duckdb(line: str, _: "SparkSession") -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows: list[dict[str, Any]] = connection.sql(line).arrow().read_all().to_pylist()
        return rows


def by_python(line: str, spark: "SparkSession") -> Any:
    """Run a line as it is shown, and return the value at its end."""
    scope: dict[str, Any] = {"spark": spark}
    imports, _, expression = line.rpartition("; ")
    exec(imports, scope)  # noqa: S102 - our own lines
    return eval(expression, scope)  # noqa: S307 - our own lines


READERS: dict[str, Callable[[str, "SparkSession"], list[dict[str, Any]]]] = {
    "duckdb": by_duckdb,
    "polars": lambda line, spark: by_python(line, spark).collect().to_dicts(),
    "pyarrow": lambda line, spark: by_python(line, spark).to_table().to_pylist(),
    "spark": lambda line, spark: by_python(line, spark).toArrow().to_pylist(),
}


@pytest.mark.parametrize("evolved", [False, True], ids=["one shape", "a column was added"])
def test_every_reader_gets_exactly_the_rows_with_the_line_that_is_shown_for_it(
    spark: "SparkSession", tmp_path: Path, evolved: bool
) -> None:
    table = tmp_path / "the lake" / "orders"
    put(table, orders(spark, range(20)), 0)
    more = orders(spark, range(20, 40))
    put(table, more.selectExpr("*", "'x' AS note") if evolved else more, 1)
    wanted = expected(range(40))

    assert facts(read(spark, table).toArrow().to_pylist()) == wanted
    for again in (False, True):
        lines = queries(table, describe(table))
        assert set(lines) == set(READERS)
        for name, reader in READERS.items():
            rows = reader(lines[name], spark)
            assert facts(rows) == wanted, name
            assert Counter(row.get("note") for row in rows)["x"] == 20 * evolved, name
        if not again:
            assert compact(TableFolder(table)).after == 2
    assert len(files(table)) == 2


def test_values_of_partitions_come_back_as_they_were(spark: "SparkSession", tmp_path: Path) -> None:
    values = ["a/b", "c:d e", "007", "%41", "ü", "x=y", None]
    df = spark.createDataFrame(list(enumerate(values)), "id int, part string")

    write_batch(tmp_path / "t", df, query_id="q", batch_id=0, partition_by=["part"])

    found = {row.id: row.part for row in read(spark, tmp_path / "t").collect()}
    assert found == dict(enumerate(values))
    assert describe(tmp_path / "t").rows == len(values)


def test_nested_fields_with_any_names_are_read_back(spark: "SparkSession", tmp_path: Path) -> None:
    df = spark.sql("SELECT 1L AS id, named_struct('user-id', 7, 'a b', map('k', array(1.5d))) AS s")

    write_batch(tmp_path / "t", df, query_id="q", batch_id=0)
    write_batch(tmp_path / "t", df.select("id"), query_id="q", batch_id=1)
    compact(TableFolder(tmp_path / "t"))

    assert [row.s for row in read(spark, tmp_path / "t").collect()] == [
        (7, {"k": [1.5]}),
        None,
    ]


def test_a_batch_comes_once_however_often_it_is_written(
    spark: "SparkSession", tmp_path: Path
) -> None:
    df = orders(spark, range(10))

    assert not put(tmp_path / "t", df, 5).repeated
    assert put(tmp_path / "t", df, 5).repeated
    # Spark repeats only the last. With a checkpoint that was set back, these are other rows.
    with pytest.raises(BadRequestError, match="its checkpoint is older than the table"):
        put(tmp_path / "t", df, 4)
    assert facts(read(spark, tmp_path / "t").toArrow().to_pylist()) == expected(range(10))


def test_a_changed_type_is_refused_and_the_table_stays(
    spark: "SparkSession", tmp_path: Path
) -> None:
    put(tmp_path / "t", orders(spark, range(10)), 0)
    changed = orders(spark, range(10)).selectExpr("string(id) AS id", "day")

    with pytest.raises(TableSchemaError, match="'id' is bigint, not string"):
        put(tmp_path / "t", changed, 1)
    assert describe(tmp_path / "t").rows == 10


def stream(
    spark: "SparkSession", tmp_path: Path, parts: list[list[dict[str, Any]]], schema: str
) -> "DataFrame":
    """A stream of one batch for each list of rows."""
    source = tmp_path / "source"
    source.mkdir()
    for slot, rows in enumerate(parts):
        text = "\n".join(json.dumps(row) for row in rows)
        path = source / f"{slot:03}.json"
        path.write_text(text)
        # Spark takes files in the order of their times, and has milliseconds only.
        os.utime(path, (slot + 1, slot + 1))
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.json(str(source))


def finish(
    df: "DataFrame", tmp_path: Path, write: Callable[["DataFrame", int], None], mode: str
) -> None:
    query = (
        df.writeStream.foreachBatch(write)
        .outputMode(mode)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


VISITS: list[list[dict[str, Any]]] = [
    [{"region": REGIONS[n % 3], "n": n, "at": f"2026-11-15T23:{50 + n:02}:00Z"} for n in range(9)],
    [{"region": "eu", "n": 100, "at": "2026-11-16T00:01:00Z"}],
    [{"region": "us", "n": 200, "at": "2026-11-16T02:00:00Z"}],
]
VISIT_SCHEMA = "region string, n bigint, at timestamp"


def totals(parts: list[list[dict[str, Any]]]) -> dict[str | None, int]:
    sums: Counter[str | None] = Counter()
    for row in (row for part in parts for row in part):
        sums[row["region"]] += row["n"]
    return dict(sums)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_totals_that_change_are_in_the_table_once_with_their_last_value(
    spark: "SparkSession", tmp_path: Path, mode: str
) -> None:
    sums = stream(spark, tmp_path, VISITS, VISIT_SCHEMA).groupBy("region").sum("n")
    write = batch_writer(
        tmp_path / "t", mode=mode, options={"keys": "region"} if mode == "update" else {}
    )

    finish(sums, tmp_path, write, mode)

    rows = read(spark, tmp_path / "t").collect()
    assert len(rows) == len(REGIONS)
    assert {row[0]: row[1] for row in rows} == totals(VISITS)


def test_windows_that_are_complete_are_appended_by_day(
    spark: "SparkSession", tmp_path: Path
) -> None:
    visits = stream(spark, tmp_path, VISITS, VISIT_SCHEMA).withWatermark("at", "10 minutes")
    visits.createOrReplaceTempView("table_visits")
    windows = spark.sql(
        "SELECT window.start AS start, to_date(window.start) AS day, region, sum(n) AS total "
        "FROM table_visits GROUP BY window(at, '5 minutes'), region"
    )

    write = batch_writer(tmp_path / "t", partition_by=["day"], topics=["/default/visits"])
    finish(windows, tmp_path, write, "append")

    wanted: Counter[tuple[datetime, str | None]] = Counter()
    # The last visit only moves the watermark beyond the others.
    for row in (row for part in VISITS[:2] for row in part):
        at = datetime.fromisoformat(row["at"])
        wanted[at - timedelta(minutes=at.minute % 5), row["region"]] += row["n"]
    rows = read(spark, tmp_path / "t").toArrow().to_pylist()
    assert {(row["start"], row["region"]): row["total"] for row in rows} == dict(wanted)
    assert len(rows) == len(wanted)
    assert {path.name for path in (tmp_path / "t").glob("day=*")} == {
        "day=2026-11-15",
        "day=2026-11-16",
    }


def test_a_topic_becomes_a_table_that_grows_with_it(
    spark: "SparkSession",
    spark_broker: BrokerProcess,
    client: ister.sync.Client,
    topic: str,
    tmp_path: Path,
) -> None:
    client.create_topic(topic, kind="stream", partitions=2)
    reader = spark.readStream.format("ister").option("url", spark_broker.url)
    messages = reader.option("topic", topic).option("startingOffsets", "earliest").load()
    events = messages.selectExpr(
        "from_json(string(payload), 'id bigint, at timestamp') AS event", "partition", "offset"
    ).selectExpr("event.*", "partition", "offset", "to_date(event.at) AS day")
    write = batch_writer(tmp_path / "t", partition_by=["day"], topics=[topic])

    for start in (0, 50):
        with client.producer(topic) as producer:
            for number in range(start, start + 50):
                at = (START + timedelta(minutes=10 * number)).isoformat()
                producer.send(json.dumps({"id": number, "at": at}).encode())
        finish(events, tmp_path, write, "append")
        rows = read(spark, tmp_path / "t").collect()
        assert sorted(row.id for row in rows) == list(range(start + 50))

    assert len({(row.partition, row.offset) for row in rows}) == 100
    assert tables_of(topic) == [tmp_path / "t"]


def test_the_command_line_finds_the_table_of_a_topic_and_merges_its_files(
    spark: "SparkSession", tmp_path: Path, state_home: Path
) -> None:
    shell = Shell(XDG_STATE_HOME=str(state_home))
    assert b"a pipeline with a `table` sink" in shell.run("topics", "table", "/default/x").stderr
    for batch in range(2):
        put(tmp_path / "t", orders(spark, range(20)), batch, topics=["/default/x"])

    shown = shell.json("topics", "table", "/default/x", "--compact")

    assert isinstance(shown, dict)
    [table] = shown["tables"]
    assert (table["path"], table["rows"], table["files"]) == (str(tmp_path / "t"), 40, 2)
    assert table["newest"] == {"query": "q", "batch": 1}
    assert [one["name"] for one in table["columns"]][:2] == ["id", "region"]
    text = shell.run("topics", "table", "/default/x").stdout.decode()
    assert all(line in text for line in table["queries"].values())
    assert (
        b"holds no table"
        in shell.run("topics", "table", "/default/x", "--path", str(tmp_path), code=66).stderr
    )
