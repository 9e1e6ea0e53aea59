"""What may change about a pipeline with a checkpoint, and what may not."""

from dataclasses import replace

import pytest

from ister.base.errors import CheckpointMismatchError
from ister.spark.pipelines.analysis.upgrade import check_upgrade, fingerprint, parse_fingerprint
from ister.spark.pipelines.config.definition import (
    Deduplicate,
    Definition,
    OutputMode,
    PayloadFormat,
    PipelineSource,
    ReferenceTable,
    SqlStep,
    TableFormat,
    TopicSink,
    Trigger,
    Watermark,
)
from ister.spark.pipelines.sql.clauses import stateful_parts

DEFAULTS = {"spark.sql.shuffle.partitions": "2"}
SQL = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
ORDERS = PipelineSource(
    name="orders",
    topics=("/default/orders",),
    format=PayloadFormat.JSON,
    schema="region string, amount double, at timestamp",
    watermark=Watermark(column="at", delay="30 seconds", delay_ms=30_000),
)
TOTALS = TopicSink(name="totals", view="totals_by_region", topic="/default/totals")
PIPELINE = Definition(
    name="p",
    broker="ister://127.0.0.1:6655",
    sources=(ORDERS,),
    steps=(SqlStep(name="totals_by_region", sql=SQL),),
    sinks=(TOTALS,),
    checkpoint="/checkpoints/p",
)


def with_sql(sql: str) -> Definition:
    return replace(PIPELINE, steps=(SqlStep(name="totals_by_region", sql=sql),))


def changes(before: Definition, after: Definition) -> list[str]:
    """Return what is refused when `before` made the checkpoint; it goes through JSON as on disk."""
    saved = parse_fingerprint(_through_json(fingerprint(before, DEFAULTS).to_json()))
    assert saved is not None
    try:
        check_upgrade(after, saved, DEFAULTS)
    except CheckpointMismatchError as error:
        return error.changes
    return []


def _through_json(value: object) -> object:
    import json

    return json.loads(json.dumps(value))


ALLOWED = {
    "nothing": PIPELINE,
    "trigger": replace(PIPELINE, trigger=Trigger(every="5 seconds")),
    "limits": replace(PIPELINE, sources=(replace(ORDERS, max_rows_per_batch=10),)),
    "start": replace(PIPELINE, sources=(replace(ORDERS, start="latest"),)),
    "delay of the watermark": replace(
        PIPELINE,
        sources=(replace(ORDERS, watermark=Watermark(column="at", delay="1 hour", delay_ms=1)),),
    ),
    "topic of the sink": replace(PIPELINE, sinks=(replace(TOTALS, topic="/default/other"),)),
    "key of the sink": replace(PIPELINE, sinks=(replace(TOTALS, key="region"),)),
    "dead letters": replace(PIPELINE, dead_letters="/default/dead"),
    "another sink": replace(PIPELINE, sinks=(TOTALS, replace(TOTALS, name="more"))),
    "a sink less": replace(PIPELINE, sinks=(replace(TOTALS, name="more"),)),
    "a reference table": replace(
        PIPELINE, tables=(ReferenceTable(name="r", path="/r.csv", format=TableFormat.CSV),)
    ),
    "names of source and step": replace(
        PIPELINE,
        sources=(replace(ORDERS, name="purchases"),),
        steps=(SqlStep(name="by_region", sql=SQL.replace("orders", "purchases")),),
        sinks=(replace(TOTALS, view="by_region"),),
    ),
    "layout and comments": with_sql(
        "select region,\n count( * ) n, SUM(amount) total -- all\nfrom orders\ngroup by region"
    ),
    "a filter": with_sql(SQL.replace("GROUP", "WHERE amount > 0 GROUP")),
    "a filter on groups": with_sql(SQL + " HAVING count(*) > 1"),
    "another expression over the same aggregates": with_sql(SQL.replace("AS total", "* 2 AS t")),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_this_may_change_under_a_checkpoint(name: str) -> None:
    assert changes(PIPELINE, ALLOWED[name]) == []


def test_other_topics_are_refused_and_named() -> None:
    after = replace(PIPELINE, sources=(replace(ORDERS, topics=("/default/orders2",)),))

    assert changes(PIPELINE, after) == [
        "sink 'totals' reads `orders` (/default/orders2) now, it was `orders` (/default/orders)"
    ]


def test_other_groups_are_refused_and_named() -> None:
    after = with_sql(SQL.replace("GROUP BY region", "GROUP BY region, amount"))

    assert changes(PIPELINE, after) == [
        "sink 'totals' has state of `totals_by_region: group by region`, which is gone",
        "sink 'totals' has no state for `totals_by_region: group by region , amount`, which is new",
    ]


REFUSED = {
    "another aggregate": with_sql(SQL.replace("sum(amount)", "max(amount)")),
    "one aggregate more": with_sql(SQL.replace("count(*) AS n", "count(*) AS n, min(amount) AS m")),
    "aggregates in another order": with_sql(
        "SELECT region, sum(amount) AS total, count(*) AS n FROM orders GROUP BY region"
    ),
    "no aggregation any more": with_sql("SELECT * FROM orders"),
    "a column of the watermark": replace(
        PIPELINE,
        sources=(replace(ORDERS, watermark=Watermark(column="t", delay="1 s", delay_ms=1)),),
    ),
    "no watermark any more": replace(PIPELINE, sources=(replace(ORDERS, watermark=None),)),
    "mode": replace(PIPELINE, sinks=(replace(TOTALS, mode=OutputMode.UPDATE),)),
    "deduplication": replace(
        PIPELINE, sources=(replace(ORDERS, deduplicate=Deduplicate(columns=("region",))),)
    ),
    "a source more": replace(
        with_sql(SQL.replace("FROM orders", "FROM orders JOIN payments USING (region)")),
        sources=(ORDERS, replace(ORDERS, name="payments", topics=("/default/payments",))),
    ),
    "shuffle partitions": replace(PIPELINE, settings={"spark.sql.shuffle.partitions": "8"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_this_is_refused_under_a_checkpoint(name: str) -> None:
    assert changes(PIPELINE, REFUSED[name])


HOURS = "SELECT date_trunc('hour', at) AS h, region, count(*) AS n FROM orders GROUP BY "
JOIN = "SELECT o.region FROM orders o JOIN payments AS p ON o.region = p.region"
PAYMENTS = replace(ORDERS, name="payments", topics=("/default/payments",))


@pytest.mark.parametrize("groups", ["h, region", "1, 2", "ALL", "date_trunc('hour', at), 2"])
def test_a_group_is_what_its_number_or_alias_stands_for(groups: str) -> None:
    before = with_sql(HOURS + groups)

    assert changes(before, with_sql(HOURS + "1, 2")) == []
    assert changes(before, with_sql(HOURS.replace(" h,", " moment,") + "moment, region")) == []
    assert changes(before, with_sql(HOURS.replace("hour", "day") + groups.replace("hour", "day")))


@pytest.mark.parametrize("name", ["purchases", "orders"])
def test_names_and_aliases_of_joined_views_may_change(name: str) -> None:
    before = replace(with_sql(JOIN), sources=(ORDERS, PAYMENTS))
    other = JOIN.replace("orders o", f"{name} a").replace("o.", "a.").replace("AS p", "")
    after = replace(
        with_sql(other.replace(" p.", " payments.")),
        sources=(replace(ORDERS, name=name), PAYMENTS),
    )

    assert changes(before, after) == []
    assert changes(before, replace(before, steps=with_sql(JOIN.replace("JOIN", "LEFT JOIN")).steps))


def test_columns_may_be_written_with_their_view_before_them() -> None:
    assert changes(PIPELINE, with_sql(SQL.replace("BY region", "BY orders.region"))) == []


def test_the_filter_of_an_aggregate_is_part_of_it() -> None:
    before = with_sql(SQL.replace("count(*)", "count(*) FILTER (WHERE amount > 1)"))

    assert changes(before, with_sql(SQL.replace("count(*)", "count(*) FILTER (WHERE amount > 2)")))


def test_order_of_sources_is_refused_in_a_query_without_state() -> None:
    payments = replace(ORDERS, name="payments", topics=("/default/payments",))
    both = replace(
        with_sql("SELECT region FROM orders UNION ALL SELECT region FROM payments"),
        sources=(ORDERS, payments),
    )
    swapped = replace(
        with_sql("SELECT region FROM payments UNION ALL SELECT region FROM orders"),
        sources=(ORDERS, payments),
    )

    assert changes(both, both) == []
    assert changes(both, swapped)


def test_anything_but_the_sources_may_change_without_state() -> None:
    plain = with_sql("SELECT region FROM orders")
    after = replace(
        with_sql("SELECT amount FROM orders WHERE amount > 3"),
        sources=(replace(ORDERS, watermark=None),),
        settings={"spark.sql.shuffle.partitions": "8"},
    )

    assert changes(plain, after) == []


def test_join_with_a_table_has_no_state() -> None:
    sql = "SELECT * FROM orders JOIN regions USING (region)"
    table = ReferenceTable(name="regions", path="/r.csv", format=TableFormat.CSV)
    joined = replace(with_sql(sql), tables=(table,))
    after = replace(
        with_sql("SELECT * FROM orders LEFT JOIN regions USING (region)"), tables=(table,)
    )

    assert changes(joined, after) == []


def test_settings_that_were_frozen_stay_in_the_fingerprint() -> None:
    saved = fingerprint(PIPELINE, {"spark.sql.shuffle.partitions": "2"})

    kept, _ = check_upgrade(PIPELINE, saved, {"spark.sql.shuffle.partitions": "16"})

    assert kept.settings == {"spark.sql.shuffle.partitions": "2"}


def test_a_sink_that_is_gone_is_remembered() -> None:
    saved = fingerprint(PIPELINE, DEFAULTS)

    kept, remarks = check_upgrade(ALLOWED["a sink less"], saved, DEFAULTS)

    assert set(kept.shapes) == {"totals", "more"}
    assert remarks == ["sink 'totals' is gone; its checkpoint is kept"]


def test_fingerprint_of_another_version_is_not_compared() -> None:
    assert parse_fingerprint({"version": 99, "shapes": {}, "settings": {}}) is None
    assert parse_fingerprint(["nonsense"]) is None


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("SELECT a FROM t", []),
        ("SELECT DISTINCT a, b FROM t", ["select distinct a , b"]),
        ("SELECT sum(x) OVER (PARTITION BY y) FROM t", []),
        ("SELECT count(*) FROM t", ["count ( * )"]),
        (
            "WITH c AS (SELECT a, count(*) n FROM t GROUP BY a) SELECT * FROM c WHERE n > 1",
            ["count ( * )", "group by a"],
        ),
        (
            "SELECT * FROM a LEFT JOIN b ON a.k = b.k AND left(a.z, 1) = 'X' WHERE a.v > 1",
            ["left join view2 on view1 . k = view2 . k and left ( view1 . z , 1 ) = 'X'"],
        ),
        (
            "SELECT count(*) FILTER (WHERE x > 1) FROM t",
            ["count ( * ) filter ( where x > 1 )"],
        ),
        (
            "SELECT extract(hour FROM at) h, k FROM t GROUP BY ALL",
            ["group by extract ( hour from at ) , k"],
        ),
        ("SELECT 'a , b' AS x, k FROM t GROUP BY 2", ["group by k"]),
        ("SELECT upper(k) AS k FROM t GROUP BY k", ["group by k"]),
        ("SELECT 1 GROUP BY 7 /* open", ["group by 7"]),
    ],
)
def test_parts_with_state_are_found_in_sql(sql: str, parts: list[str]) -> None:
    assert stateful_parts(sql, joins_streams=True) == parts
