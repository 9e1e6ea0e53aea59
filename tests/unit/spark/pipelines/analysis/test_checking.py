"""The parts of a pipeline fit together; warnings are for what only Spark can be sure of."""

from pathlib import Path

import pytest
from tests.unit.spark.pipelines.files import CONSOLE, SOURCE, WATERMARK, outcome_of, said, text_of

MARKED = SOURCE + WATERMARK
PAYMENTS = SOURCE.replace("orders", "payments")
COUNTS = """\
- name: counts
  sql: SELECT region, count(*) AS n FROM orders GROUP BY region
"""
PER_MINUTE = """\
- name: counts
  sql: SELECT region, count(*) AS n FROM orders GROUP BY region, window(at, '1 minute')
"""
JOINED = """\
- name: joined
  sql: SELECT * FROM orders o JOIN payments p ON o.order_id = p.order_id
"""
TO_TOPIC = "- {topic: /default/out, from: counts}\n"


def remarks(folder: Path, **parts: str) -> list[str]:
    return said(outcome_of(folder, text_of(**parts)), folder)


def test_an_aggregation_without_watermark_cannot_be_appended(tmp_path: Path) -> None:
    [warning] = remarks(tmp_path, steps=COUNTS, sinks=TO_TOPIC)

    assert warning.startswith("pipeline.yaml:11: warning: `mode: append` gives out a group once")
    assert "or use `mode: update`" in warning


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_other_modes_take_an_aggregation_without_watermark(tmp_path: Path, mode: str) -> None:
    sinks = f"- {{topic: /default/out, from: counts, mode: {mode}}}\n"

    assert remarks(tmp_path, steps=COUNTS, sinks=sinks) == []


def test_a_watermark_is_not_enough_without_a_window(tmp_path: Path) -> None:
    [warning] = remarks(tmp_path, source=MARKED, steps=COUNTS, sinks=TO_TOPIC)

    assert "group by a window" in warning


def test_windows_of_a_column_with_watermark_can_be_appended(tmp_path: Path) -> None:
    assert remarks(tmp_path, source=MARKED, steps=PER_MINUTE, sinks=TO_TOPIC) == []


def test_an_aggregation_of_an_aggregation_by_its_window_is_no_reason_to_warn(
    tmp_path: Path,
) -> None:
    more = "- {name: more, sql: 'SELECT w, sum(n) FROM counts GROUP BY w'}\n"
    steps = f"{PER_MINUTE}{more}"

    sinks = "- {topic: /default/out, from: more}\n"
    assert remarks(tmp_path, source=MARKED, steps=steps, sinks=sinks) == []


def test_complete_mode_is_for_aggregations(tmp_path: Path) -> None:
    [warning] = remarks(tmp_path, sinks="- {console: true, from: orders, mode: complete}\n")

    assert "`mode: complete` is for aggregations, and `orders` has none" in warning


def test_a_join_of_streams_wants_watermarks_on_both_sides(tmp_path: Path) -> None:
    sinks = "- {console: true, from: joined}\n"
    [warning] = remarks(tmp_path, source=MARKED + PAYMENTS, steps=JOINED, sinks=sinks)
    assert "`payments` has no watermark" in warning

    assert remarks(tmp_path, source=MARKED + PAYMENTS + WATERMARK, steps=JOINED, sinks=sinks) == []


def test_a_join_with_a_table_wants_none(tmp_path: Path) -> None:
    (tmp_path / "payments.csv").write_text("order_id\n", encoding="utf-8")
    rest = "tables: {payments: payments.csv}\n"

    sinks = "- {console: true, from: joined}\n"
    assert remarks(tmp_path, steps=JOINED, sinks=sinks, rest=rest) == []


def test_a_python_step_may_have_done_what_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def mark(orders): ...\n", encoding="utf-8")
    steps = "- {name: marked, python: 'own:mark', inputs: [orders]}\n"
    steps += COUNTS.replace("FROM orders", "FROM marked")

    assert remarks(tmp_path, steps=steps, sinks=TO_TOPIC) == []


def test_names_of_views_differ_in_more_than_case(tmp_path: Path) -> None:
    steps = "- {name: ORDERS, sql: SELECT 1}\n"

    assert remarks(tmp_path, steps=steps) == [
        "pipeline.yaml:8: `ORDERS` is there twice, before at pipeline.yaml:3"
    ]


def test_a_view_is_found_in_any_case(tmp_path: Path) -> None:
    steps = "- {name: one, sql: SELECT * FROM Orders}\n"

    assert remarks(tmp_path, steps=steps) == []


def test_a_step_reads_only_what_is_above_it(tmp_path: Path) -> None:
    steps = "- {name: one, sql: SELECT * FROM two}\n- {name: two, sql: SELECT * FROM two}\n"

    assert remarks(tmp_path, steps=steps) == [
        "pipeline.yaml:8: `two` is a step further down: move it above `one`",
        "pipeline.yaml:9: step `two` reads itself",
    ]


def test_a_sink_of_tables_only_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "regions.csv").write_text("region\n", encoding="utf-8")
    steps = "- {name: one, sql: SELECT * FROM regions}\n"
    rest = "tables: {regions: regions.csv}\n"

    [mistake] = remarks(tmp_path, steps=steps, sinks="- {console: true, from: one}\n", rest=rest)
    assert "reads tables only and no source" in mistake


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        (
            "- {topic: /default/a, from: orders}\n- {topic: /default/a, from: orders}\n",
            "both write topic `/default/a`: UNION their views in a step",
        ),
        (
            "- {table: lake, from: orders}\n- {table: ./lake, from: orders, name: b}\n",
            "both write table",
        ),
        (CONSOLE + CONSOLE, "two sinks are named `console-orders`: give one another `name`"),
        ("- {topic: /default/a, from: orders, key: regin}\n", "did you mean `region`?"),
        ("- {table: lake, from: orders, partition_by: [day]}\n", "has no column `day`"),
        ("- {topic: /default/orders, from: orders}\n", "reads what this sink writes"),
        ("- {table: lake, from: orders, mode: update}\n", "needs `keys`: with `mode: update`"),
        ("- {table: lake, from: orders, keys: region}\n", "`keys` goes with `mode: update`"),
        (
            "- {table: a, from: orders, mode: update, keys: at, partition_by: region}\n",
            "`keys` needs the column `region` of `partition_by`, too",
        ),
        ("- {table: 's3://b/lake', from: orders}\n", "a table is a folder of this machine"),
        ("- {table: lake, from: orders, options: {a: b}}\n", "a table sink has no `options`"),
        ("- {from: orders}\n", "a sink leads nowhere: give one of `topic`, `table`, `console`"),
        ("- {topic: /default/a, console: true, from: orders}\n", "has `topic` and `console`"),
        ("- {topic: /default/a, from: orders, format: avro}\n", "avro is read only"),
        ("- {console: false, from: orders}\n", "`console` is true, or the sink is left out"),
    ],
)
def test_sinks_that_cannot_be_are_told(tmp_path: Path, sinks: str, expected: str) -> None:
    [remark] = remarks(tmp_path, sinks=sinks)

    assert expected in remark


def test_one_sink_with_two_routes_out_is_none_too_many(tmp_path: Path) -> None:
    sinks = (
        "- {route: region, topic: /default/rest, from: orders}\n- {route: region, from: orders}\n"
    )

    assert remarks(tmp_path, sinks=sinks) == []


def test_dead_letters_are_not_read_back(tmp_path: Path) -> None:
    source = SOURCE.replace("topic: /default/orders", "pattern: /default/>")

    [mistake] = remarks(tmp_path, source=source, rest="dead_letters: /default/dead\n")
    assert "reads the dead letters it would write itself" in mistake


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("watermark: {column: region, delay: 1s}", "needs a timestamp; `region`"),
        ("watermark: {column: att, delay: 1s}", "has no column `att`, did you mean `at`?"),
        ("watermark: {column: at}", "a watermark needs `delay`"),
        ("watermark: at", "a watermark is a mapping of `column` and `delay`"),
        ("deduplicate: [order_id]", "needs a watermark: else every row ever seen"),
        ("start: yesterday", "`start: yesterday` is no place to start"),
        ("start: 2026-11-15T10:00:00", "has no time zone"),
        ("max_rows_per_batch: 0", "`max_rows_per_batch` is at least 1; this is 0"),
        ("max_rows_per_batch: [1]", "is a whole number, as in 100000; this is a list"),
        ("max_bytes_per_batch: 1 parsec", "is no size"),
        ("pattern: /default/*", "has `topic` and `pattern`: give one of them"),
        ("options: {failOnDataLos: true}", "did you mean `failOnDataLoss`?"),
        ("options: {failOnDataLoss: maybe}", "`failOnDataLoss` is true | false, not 'maybe'"),
        ("options: {startingOffsets: latest}", "is said with the key `start`"),
        ("options: latest", "`options` is a mapping of names to values; this is a text"),
    ],
)
def test_sources_that_cannot_be_are_told(tmp_path: Path, line: str, expected: str) -> None:
    found = remarks(tmp_path, source=f"{SOURCE}  {line}\n")

    assert expected in found[0]
    assert found[0].startswith("pipeline.yaml:7: ")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("{name: one}", "step `one` does nothing: give one of `sql`, `sql_file`, `python`"),
        ("{name: one, sql: SELECT 1, python: 'a:b', inputs: [orders]}", "has `sql` and `python`"),
        ("{sql: SELECT 1}", "a step needs `name`"),
        ("{name: 1st, sql: SELECT 1}", "`1st` cannot be a view"),
        ("{name: one, sql: DROP TABLE orders}", "is no query: it begins with SELECT or WITH"),
        ("{name: one, sql: ' -- nothing'}", "the SQL of step `one` is empty"),
        ("{name: one, sql: SELECT 1; SELECT 2}", "has 2 statements: give each its own step"),
        ("{name: one, sql: SELECT 1, inputs: [orders]}", "`inputs` goes with `python`"),
        ("{name: one, sql_file: nowhere.sql}", "`nowhere.sql` cannot be read: No such file"),
        ("{name: one, python: score, inputs: [orders]}", "write `module:function`"),
        ("{name: one, python: 'own:score'}", "step `one` needs `inputs`"),
        ("{name: one, python: 'own:scor', inputs: [orders]}", "did you mean `score`?"),
        ("{name: one, python: 'own:score', inputs: [orders, orders]}", "takes 1 DataFrames"),
        ("{name: one, python: 'nowhere_x:a', inputs: [orders]}", "put `nowhere_x.py` beside"),
        ("{name: one, sql: 'SELECT ${env:HOME}'}", "`sql` takes no secret"),
        ("{name: one, sql: 5}", "`sql` is a text; this is a number: put it in quotes"),
        ("just words", "a step is a mapping of `name`, `sql`"),
    ],
)
def test_steps_that_cannot_be_are_told(tmp_path: Path, step: str, expected: str) -> None:
    (tmp_path / "own.py").write_text("def score(orders): ...\n", encoding="utf-8")

    found = remarks(tmp_path, steps=f"- {step}\n")
    assert expected in found[0]
    assert found[0].startswith("pipeline.yaml:8: ")


def test_a_module_that_is_no_python_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("x = 1\ndef score(:\n", encoding="utf-8")

    steps = "- {name: one, python: 'own:score', inputs: [orders]}\n"
    assert remarks(tmp_path, steps=steps) == ["own.py:2: is no Python: invalid syntax"]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("nam: x", "a pipeline has no key `nam`, did you mean `name`?"),
        ("broker: localhost", "`localhost` is no broker: write ister://host:port"),
        ("trigger: 5 parsecs", "or `available_now`"),
        ("settings: {shuffle: 4}", "`shuffle` is no setting of Spark"),
        ("dead_letters: dead/x", "`dead/x` is no topic"),
        ("checkpoint: 5", "`checkpoint` is a text; this is a number: put it in quotes"),
        ("checkpoint: ${env:HOME}", "`checkpoint` takes no secret"),
        ("broker: ${env:ISTER_NOT_SET}", "refers to a secret that is not here"),
        ("checkpoint: ${NOT_SET}", "variable NOT_SET has no value"),
        ("tables: {r: nowhere.csv}", "there is no `nowhere.csv` in "),
        ("tables: [a]", "`tables` is a mapping from names; this is a list"),
        ("steps: {a: b}", "`steps` is a list, each item after a dash; this is a mapping"),
    ],
)
def test_keys_of_the_whole_that_cannot_be_are_told(
    tmp_path: Path, rest: str, expected: str
) -> None:
    [mistake] = remarks(tmp_path, rest=f"{rest}\n")

    assert expected in mistake
    assert mistake.startswith("pipeline.yaml:9: ")


def test_a_token_in_the_open_is_a_reason_to_warn(tmp_path: Path) -> None:
    rest = "settings: {spark.hadoop.fs.s3a.secret: abc}\n"

    [warning] = remarks(tmp_path, rest=rest)
    assert "warning: `spark.hadoop.fs.s3a.secret` is here for everybody" in warning


def test_sources_and_sinks_are_needed(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "name: x\nsources: {}\n")

    assert said(outcome, tmp_path) == [
        "pipeline.yaml:1: a pipeline needs `sinks`: where the result goes",
        "pipeline.yaml:1: a pipeline needs `sources`: what it reads",
    ]


def test_the_name_of_a_sink_is_not_that_of_a_dead_letter_query(tmp_path: Path) -> None:
    sinks = "- {topic: /dead_letters/orders, from: orders}\n"

    [text] = said(outcome_of(tmp_path, text_of(sinks=sinks)), tmp_path)

    assert text == (
        "pipeline.yaml:8: `dead_letters.orders` is what the dead letters of a view are called: "
        "give the sink another `name`"
    )
