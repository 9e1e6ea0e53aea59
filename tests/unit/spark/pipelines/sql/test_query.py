"""The views of a query are found, and nothing that is none raises an alarm."""

import pytest

from ister.spark.pipelines.sql.clauses import stateful_parts
from ister.spark.pipelines.sql.query import analyse, without_semicolon


def views(sql: str) -> list[str]:
    return [one.name for one in analyse(sql).views]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("select * from `my orders` o join b on o.x = b.x", ["my orders", "b"]),
        ("SELECT * FROM a, b AS x, c y WHERE 1 = 1", ["a", "b", "c"]),
        ("SELECT * FROM a LEFT OUTER JOIN b USING (x) CROSS JOIN c", ["a", "b", "c"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ["a", "b"]),
        ("SELECT * FROM (SELECT * FROM a) x JOIN (SELECT 1) y", ["a"]),
        ("SELECT * FROM ((SELECT * FROM a) UNION (SELECT * FROM b))", ["a", "b"]),
        ("SELECT (SELECT max(x) FROM a) AS m, y FROM b", ["a", "b"]),
        ("SELECT * FROM a WHERE x IN (SELECT x FROM b)", ["a", "b"]),
        ("SELECT * FROM STREAM orders", ["orders"]),
        ("FROM orders |> WHERE x > 1", ["orders"]),
    ],
)
def test_the_views_behind_from_and_join_are_found(sql: str, expected: list[str]) -> None:
    assert views(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT extract(hour FROM at), trim(BOTH 'x' FROM y) FROM orders",
        "SELECT substring(a FROM 2 FOR 3), overlay(a PLACING 'x' FROM 1) FROM orders",
        "SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM c FROM orders",
        "SELECT 'FROM nowhere', \"FROM nowhere\" FROM orders -- FROM nowhere\n/* JOIN x */",
        "SELECT * FROM orders LATERAL VIEW explode(items) t AS item",
        "SELECT * FROM orders, LATERAL (SELECT 1), explode(orders.items)",
        "SELECT * FROM orders JOIN range(10) JOIN orders.items JOIN parquet.`x`",
        "SELECT * FROM orders JOIN LATERAL explode(items)",
        "WITH a AS (SELECT 1), b (x, y) AS (SELECT 1, 2) SELECT * FROM a, b, orders",
        "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM r, orders",
        "SELECT * FROM orders o ORDER BY a, b",
        "SELECT * FROM orders TABLESAMPLE (10 PERCENT), VALUES (1, 2)",
        "SELECT a, sum(b) OVER (PARTITION BY c ORDER BY d) FROM orders",
    ],
)
def test_only_views_are_taken_for_views(sql: str) -> None:
    assert set(views(sql)) == {"orders"}


def test_a_view_has_the_line_it_is_named_in() -> None:
    query = analyse("SELECT '\n' -- x\n/* \n */\nFROM a\nJOIN b")

    assert [(one.name, one.line) for one in query.views] == [("a", 4), ("b", 5)]


@pytest.mark.parametrize(
    ("sql", "is_one"),
    [
        ("SELECT region, count(*) FROM a GROUP BY region", True),
        ("SELECT max(x) FROM a", True),
        ("SELECT DISTINCT x FROM a", False),
        ("SELECT x FROM a", False),
        ("SELECT sum(x) OVER (ORDER BY y) FROM a", False),
        ("SELECT sum FROM a", False),
    ],
)
def test_an_aggregation_is_seen(sql: str, is_one: bool) -> None:
    assert analyse(sql).has_aggregation == is_one


def test_the_words_of_a_grouping_end_where_it_ends() -> None:
    sql = "SELECT 1 FROM (SELECT 1 FROM a GROUP BY window(at, '1 minute'), `b`) WHERE c > d"

    assert analyse(sql).grouped_by == {"by", "window", "at", "b"}


@pytest.mark.parametrize(
    ("sql", "count", "is_query"),
    [
        ("SELECT 1", 1, True),
        ("SELECT 1; ; -- done", 1, True),
        ("SELECT ';' ; SELECT 2", 2, True),
        ("(SELECT 1)", 1, True),
        ("WITH a AS (SELECT 1) SELECT * FROM a", 1, True),
        ("CREATE TABLE t AS SELECT 1", 1, False),
        ("-- nothing", 0, True),
    ],
)
def test_statements_are_counted_and_told_from_queries(sql: str, count: int, is_query: bool) -> None:
    query = analyse(sql)

    assert (query.statement_count, query.is_query) == (count, is_query)


def test_a_statement_loses_what_ends_it() -> None:
    assert without_semicolon("SELECT ';' ;\n ; ") == "SELECT ';'"


@pytest.mark.parametrize(
    "sql", ["", "((((", "FROM", "JOIN", "SELECT '", "`", "WITH AS (", "FROM ("]
)
def test_half_a_query_raises_nothing(sql: str) -> None:
    assert analyse(sql).views == ()


@pytest.mark.parametrize("piece", ["\\'", '\\"', "/*", "--", "`", "'", '"'])
def test_what_is_never_closed_is_read_once(piece: str) -> None:
    # To read it again from each of its characters took a minute here, and hours for a megabyte.
    sql = f"SELECT {piece[-1]}" + piece * 50_000

    assert analyse(sql).is_query
    assert stateful_parts(sql, joins_streams=True) == []
