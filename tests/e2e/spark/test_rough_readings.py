"""What is read of schemas and SQL before Spark starts agrees with what Spark reads."""

from typing import TYPE_CHECKING, Any

import pytest

from ister.spark.intervals import interval_ms, interval_text
from ister.spark.pipelines.sql.ddl import BadDdlError, parse_ddl
from ister.spark.pipelines.sql.query import analyse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD_SCHEMAS = [
    "a string",
    "a INT, b BIGINT NOT NULL, c double COMMENT 'it''s'",
    "`a b` string, c: timestamp",
    "a decimal, b decimal(12, 2), c dec(3), d numeric(4,1)",
    "a byte, b short, c long, d tinyint, e smallint, f integer, g float, h real, i boolean",
    "a date, b timestamp, c timestamp_ntz, d timestamp_ltz, e binary",
    "a array<array<int>>, b map<string, struct<c: int, d string>>",
    "a varchar(10), b char(3)",
    "a interval day to second, b variant, c void",
]
BAD_SCHEMAS = [
    "a strng", "a", "a int,", "a int b int", "a array<int", "a map<int>", "a decimal(x)",
    "a int not empty", ", a int", "a struct<b int", "a varchar",
]  # fmt: skip
QUERIES = [
    "SELECT * FROM a, b AS x, c y WHERE 1 = 1",
    "SELECT * FROM a LEFT JOIN b USING (k) CROSS JOIN c",
    "SELECT extract(hour FROM at), trim(BOTH 'x' FROM y), substring(z FROM 2) FROM a",
    "SELECT p IS DISTINCT FROM q FROM a WHERE x IN (SELECT x FROM b)",
    "WITH a AS (SELECT * FROM b), d (x) AS (SELECT 1) SELECT * FROM a JOIN c JOIN d",
    "SELECT * FROM ((SELECT * FROM a) UNION ALL (SELECT * FROM b))",
    "SELECT * FROM a LATERAL VIEW explode(items) t AS item",
    "SELECT * FROM a, LATERAL (SELECT 1), range(10)",
    "SELECT 'FROM x' AS t -- FROM y\nFROM a /* JOIN z */",
    "SELECT (SELECT max(x) FROM a) AS m FROM b",
    "SELECT sum(x) OVER (PARTITION BY y ORDER BY z) FROM a TABLESAMPLE (10 PERCENT)",
    "SELECT * FROM (VALUES (1, 2)) AS v JOIN a",
    "SELECT window.start, count(*) FROM a GROUP BY window(at, '1 minute')",
    "FROM a |> WHERE x > 1 |> SELECT y",
    "SELECT * FROM a FULL OUTER JOIN b ON a.k = b.k WHERE EXISTS (SELECT 1 FROM c)",
]


def spark_takes(spark: "SparkSession", schema: str) -> bool:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        StructType.fromDDL(schema)
    except PySparkException:
        return False
    return True


def relations(spark: "SparkSession", sql: str) -> set[str]:
    """Return the tables that Spark's own parser finds, without those that WITH names."""
    jvm: Any = spark
    plan = jvm._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    text = plan.treeString()
    own = {"a", "d"} if sql.startswith("WITH") else set()
    return set(_unresolved(text)) - own


def _unresolved(text: str) -> list[str]:
    import re

    return re.findall(r"UnresolvedRelation \[(\w+)\]", text)


@pytest.mark.parametrize("schema", GOOD_SCHEMAS)
def test_a_schema_that_spark_takes_is_taken(spark: "SparkSession", schema: str) -> None:
    assert spark_takes(spark, schema)

    assert parse_ddl(schema)


@pytest.mark.parametrize("schema", GOOD_SCHEMAS)
def test_a_schema_is_one_of_a_struct_too(spark: "SparkSession", schema: str) -> None:
    # JSON is decoded as a list with one item of the schema.
    assert spark_takes(spark, f"items array<struct<{schema}>>")


@pytest.mark.parametrize("schema", BAD_SCHEMAS)
def test_a_schema_that_spark_refuses_is_refused(spark: "SparkSession", schema: str) -> None:
    assert not spark_takes(spark, schema)

    with pytest.raises(BadDdlError):
        parse_ddl(schema)


@pytest.mark.parametrize("sql", QUERIES)
def test_the_views_of_a_query_are_those_that_spark_finds(spark: "SparkSession", sql: str) -> None:
    assert {one.name for one in analyse(sql).views} == relations(spark, sql)


@pytest.mark.parametrize("text", ["250ms", "30s", "90 seconds", "1 hour 30 minutes", "2 weeks"])
def test_a_span_is_as_long_for_spark(spark: "SparkSession", text: str) -> None:
    words = interval_text(interval_ms(text))
    seconds = spark.sql(f"SELECT unix_millis(timestamp_millis(0) + INTERVAL '{words}')")

    assert seconds.collect()[0][0] == interval_ms(text)
