"""What Spark reports, added up and shown."""

import io
import json
from typing import Any

from ister.spark.pipelines.runtime.metrics import METRICS, ProgressCollector
from ister.spark.pipelines.runtime.progress import (
    RATE_INTERVAL_S,
    BatchReport,
    JsonView,
    LinesView,
    Meter,
    PipelineProgress,
    lag_of,
    line,
    parse_report,
)


def offset(**topics: object) -> dict[str, object]:
    return {"v": 1, "topics": {f"/default/{name}": value for name, value in topics.items()}}


def spark_progress(**parts: Any) -> dict[str, Any]:
    """Return a report as Spark makes it."""
    return {
        "batchId": 7,
        "numInputRows": 120,
        "durationMs": {"addBatch": 60, "triggerExecution": 85},
        "eventTime": {"watermark": "2026-01-01T00:00:30.000Z"},
        "stateOperators": [
            {"numRowsTotal": 10, "memoryUsedBytes": 4_096, "numRowsDroppedByWatermark": 2},
            {"numRowsTotal": 5, "memoryUsedBytes": 1_024, "numRowsDroppedByWatermark": 0},
        ],
        "sources": [
            {
                "endOffset": offset(orders={"0": [1, 100], "1": [2, 50]}),
                "latestOffset": offset(orders={"0": [1, 130], "1": [2, 50]}),
            }
        ],
        **parts,
    }


def test_a_report_of_spark_is_read() -> None:
    assert parse_report(spark_progress()) == BatchReport(
        batch=7,
        executed=True,
        rows=120,
        batch_ms=85,
        lag=30,
        watermark_ms=1_767_225_630_000,
        state_rows=15,
        state_bytes=5_120,
        late_rows=2,
    )


def test_a_report_without_work_has_no_watermark_of_1970_and_was_not_executed() -> None:
    idle = spark_progress(
        durationMs={"latestOffset": 3, "triggerExecution": 4},
        eventTime={"watermark": "1970-01-01T00:00:00.000Z"},
        stateOperators=[],
    )

    found = parse_report(idle)

    assert not found.executed
    assert found.watermark_ms is None


def test_lag_is_summed_over_partitions_and_sources() -> None:
    one = {"endOffset": offset(a=[1, 10]), "latestOffset": offset(a=[1, 15])}
    two = {"endOffset": offset(b=[2, 0]), "latestOffset": offset(b=[2, 7])}

    assert parse_report(spark_progress(sources=[one, two])).lag == 12


def test_lag_counts_a_stream_that_is_new() -> None:
    assert lag_of({"endOffset": offset(a=[1, 3]), "latestOffset": offset(a=[1, 3], b=[9, 4])}) == 4


def test_lag_reads_offsets_that_are_text() -> None:
    source = {
        "endOffset": json.dumps(offset(a=[1, 3])),
        "latestOffset": json.dumps(offset(a=[1, 5])),
    }

    assert lag_of(source) == 2


def test_lag_is_unknown_where_a_source_does_not_tell() -> None:
    assert lag_of({"endOffset": offset(a=[1, 3]), "latestOffset": None}) is None
    assert lag_of({"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 9}}) is None


def report(batch: int, rows: int = 10, **parts: Any) -> BatchReport:
    return BatchReport(batch=batch, rows=rows, batch_ms=50, **parts)


def test_a_batch_is_counted_once_however_often_it_is_reported() -> None:
    meter = Meter(sink="out")

    assert len(meter.add("run", [report(0), report(1)])) == 2
    assert meter.add("run", [report(0), report(1)]) == []
    assert [one.batch for one in meter.add("run", [report(1), report(2)])] == [2]
    assert (meter.rows, meter.batches) == (30, 3)


def test_a_look_without_work_changes_the_lag_and_hides_no_batch() -> None:
    meter = Meter(sink="out")
    meter.add("run", [report(0, lag=5)])

    # The number is that of the batch to come.
    meter.add("run", [report(0, lag=5), report(1, rows=0, lag=0, executed=False)])
    assert meter.last is not None
    assert (meter.last.batch, meter.last.lag) == (0, 0)

    assert [one.rows for one in meter.add("run", [report(1, rows=7)])] == [7]


def test_a_batch_that_is_done_again_after_a_restart_counts_again() -> None:
    meter = Meter(sink="out")
    meter.add("first", [report(0), report(1)])

    assert [one.batch for one in meter.add("second", [report(1)])] == [1]


def test_the_rate_is_rows_between_two_looks() -> None:
    meter = Meter(sink="out")
    meter.look(100.0)
    meter.add("run", [report(0, rows=500)])

    meter.look(100.0 + RATE_INTERVAL_S / 2)
    assert meter.rows_per_s == 0.0
    meter.look(105.0)
    assert meter.rows_per_s == 100.0
    meter.look(110.0)
    assert meter.rows_per_s == 0.0


def filled() -> PipelineProgress:
    progress = PipelineProgress("p", ["out"])
    report = parse_report(spark_progress())
    progress.meters["out"].add("run", [report])
    return progress


def test_a_line_says_everything_that_is_known() -> None:
    meter = filled().meters["out"]
    meter.restarts = 3

    assert line(meter) == (
        "out: running, batch 7, 120 rows, 0 rows/s, lag 30, 85 ms, watermark 2026-01-01 00:00:30, "
        "state 15 rows, 5.0 KiB, 2 late, 3 restarts"
    )
    assert line(Meter(sink="other")) == "other: starting"


def test_one_row_and_one_restart_are_not_several() -> None:
    meter = Meter(sink="out")
    meter.add("run", [report(0, rows=1)])
    meter.restarts = 1

    assert ", 1 row, " in line(meter)
    assert line(meter).endswith(", 1 restart")


def test_lines_come_with_the_first_batch_at_intervals_and_at_the_end_and_never_twice() -> None:
    out = io.StringIO()
    view = LinesView(out, interval_s=1_000.0)
    progress = filled()

    view.update(progress, {"out": [report(7)]})
    view.update(progress, {"out": []})
    view.close()
    assert out.getvalue().count("\n") == 1

    progress.meters["out"].add("run", [report(8)])
    view.update(progress, {"out": [report(8)]})
    assert out.getvalue().count("\n") == 1
    view.close()
    assert out.getvalue().splitlines()[-1].startswith("out: running, batch 8, 130 rows")


def test_json_is_one_object_for_each_batch() -> None:
    out = io.StringIO()

    JsonView(out).update(PipelineProgress("p", ["out"]), {"out": [report(0), report(1, lag=3)]})

    first, second = (json.loads(text) for text in out.getvalue().splitlines())
    assert (first["pipeline"], first["sink"], first["batch"], first["rows"]) == ("p", "out", 0, 10)
    assert (second["batch"], second["lag"]) == (1, 3)


def test_every_metric_has_a_value_once_there_was_a_batch() -> None:
    found = {
        family.name: {sample.value for sample in family.samples}
        for family in ProgressCollector(filled()).collect()
    }

    assert found == {
        "ister_pipeline_up": {1.0},
        "ister_pipeline_rows": {120},
        "ister_pipeline_batches": {1},
        "ister_pipeline_late_rows": {2},
        "ister_pipeline_restarts": {0},
        "ister_pipeline_rows_per_second": {0.0},
        "ister_pipeline_batch_seconds": {0.085},
        "ister_pipeline_lag_messages": {30},
        "ister_pipeline_watermark_timestamp_seconds": {1_767_225_630.0},
        "ister_pipeline_state_rows": {15},
        "ister_pipeline_state_bytes": {5_120},
    }
    assert {name.removesuffix("_total") for name in METRICS} == set(found)


def test_metrics_of_a_sink_without_a_batch_say_only_what_is_known() -> None:
    families = list(ProgressCollector(PipelineProgress("p", ["out"])).collect())

    known = {sample.name for family in families for sample in family.samples}
    assert "ister_pipeline_up" in known
    assert "ister_pipeline_lag_messages" not in known
