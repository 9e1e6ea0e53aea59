"""Spark's texts, in words for people."""

import pytest

from ister.base.errors import NotConnectedError
from ister.spark.pipelines.config.positions import FileLine
from ister.spark.pipelines.runtime.building import StepError
from ister.spark.pipelines.runtime.failures import (
    SAME_S,
    Failure,
    RecentFailures,
    explain,
    explain_text,
)
from ister.spark.pipelines.runtime.runner import BACKOFF_S_MAX, backoff_s

QUERY = """
=== Streaming Query ===
Identifier: [id = d22b3647, runId = 46cdccf7]
Current State: ACTIVE
"""
FAILED = "[STREAM_FAILED] Query [id = d22b3647, runId = 46cdccf7] terminated with exception: "


def test_an_error_in_a_users_function_is_told_with_its_line() -> None:
    text = f"""{FAILED}[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/worker.py", line 4207, in invoke_udf
    func()
  File "/pipelines/fraud.py", line 42, in score
    raise ValueError("bad value")
ValueError: bad value
 SQLSTATE: 38000 SQLSTATE: XXKST{QUERY}"""

    assert explain_text(text) == Failure(
        "/pipelines/fraud.py:42: ValueError: bad value", can_pass=False, exit_code=64
    )


def test_a_broker_that_is_away_can_pass() -> None:
    text = f"""{FAILED}[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when running it: \
Traceback (most recent call last):
  File "/lib/ister/spark/source/stream_reader.py", line 88, in latestOffset
    heads()
ister.base.errors.busy.NotConnectedError: no broker at ister://127.0.0.1:1 (refused): start one
 SQLSTATE: 38000 SQLSTATE: XXKST{QUERY}"""

    assert explain_text(text) == Failure(
        "no broker at ister://127.0.0.1:1 (refused): start one", can_pass=True, exit_code=75
    )


def test_lost_history_cannot_pass() -> None:
    text = f"{FAILED}x\nister.base.errors.missing.OffsetGoneError: offset 3 is gone{QUERY}"

    assert explain_text(text) == Failure("offset 3 is gone", can_pass=False, exit_code=66)


def test_all_mistakes_of_a_list_are_told() -> None:
    text = "y.ConfigError: configuration is not valid:\n  - one\n  - two\n SQLSTATE: 38000"

    assert explain_text(text).text == "configuration is not valid:\n  - one\n  - two"


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)",
        "Python worker failed to connect back.",
        "java.net.ConnectException: Connection refused",
    ],
)
def test_processes_that_come_back_can_pass(text: str) -> None:
    assert explain_text(FAILED + text + QUERY).can_pass


def test_a_mistake_in_sql_has_its_line_and_neither_plan_nor_state() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you "
        "mean one of the following? [`id`]. SQLSTATE: 42703; line 3 pos 7;\n'Project ['nope]\n+- R"
    )

    assert explain_text(text).text == (
        "line 3 of its SQL: A column with name `nope` cannot be resolved. Did you mean one of the "
        "following? [`id`]."
    )


def test_what_spark_refuses_comes_with_a_way_out() -> None:
    text = (
        "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append. "
        "SQLSTATE: 42KDE"
    )

    found = explain_text(text)

    assert found.text.startswith("Invalid streaming output mode: append.")
    assert "watermark" in found.text
    assert not found.can_pass


def test_a_java_exception_is_told_without_its_class() -> None:
    text = (
        "An error occurred while calling o14.start.\n: org.apache.spark.SparkException: "
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: ister. SQLSTATE: 42K02\n\tat org"
    )

    assert explain_text(text).text == (
        "Failed to find the data source: ister.\n"
        "  run `pip install 'ister[spark]'` where Spark runs"
    )


def test_a_part_of_the_pipeline_is_named() -> None:
    error = StepError(FileLine("p.yaml", 12), "step `totals`")
    error.__cause__ = NotConnectedError("ister://x", "refused")

    found = explain(error)

    assert found.text.startswith("p.yaml:12: step `totals`: no broker at ister://x")
    assert found.can_pass


def test_a_function_that_fails_while_the_pipeline_is_built_is_told_with_its_line() -> None:
    error = StepError(FileLine("p.yaml", 12), "step `scored`")
    try:
        raise KeyError("amount")
    except KeyError as cause:
        line = cause.__traceback__.tb_lineno if cause.__traceback__ else 0
        error.__cause__ = cause

    assert explain(error) == Failure(
        f"p.yaml:12: step `scored`: {__file__}:{line}: KeyError: 'amount'",
        can_pass=False,
        exit_code=64,
    )


def test_a_long_text_is_cut() -> None:
    assert len(explain_text("x" * 10_000).text) < 3_000


def test_waits_grow_up_to_a_limit() -> None:
    assert [backoff_s(count) for count in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert backoff_s(7) == BACKOFF_S_MAX
    assert backoff_s(10_000) == BACKOFF_S_MAX


def test_sinks_that_fail_together_report_it_once() -> None:
    news = RecentFailures()

    assert news.is_new("totals", "no broker", 100.0)
    assert not news.is_new("dead_letters", "no broker", 100.0 + SAME_S - 0.1)
    assert news.is_new("dead_letters", "no broker", 100.0 + SAME_S)


def test_each_attempt_of_one_sink_is_reported_and_each_reason() -> None:
    news = RecentFailures()

    assert news.is_new("totals", "no broker", 100.0)
    assert news.is_new("totals", "no broker", 101.0)
    assert news.is_new("dead_letters", "disk full", 101.0)
