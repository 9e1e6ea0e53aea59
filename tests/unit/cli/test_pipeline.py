"""`ister pipeline` without Spark: what is checked, written and shown before anything runs."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ister.base.errors import BadRequestError, ConfigError, PipelineNotRunningError
from ister.cli.app import make_app
from ister.spark.pipelines import Running
from ister.spark.pipelines.processes import process_started_ms

GOOD = """\
name: fine
sources: {orders: /default/orders}
sinks:
  - {console: true, from: orders, mode: ${MODE:-append}}
"""
PROGRESS = {
    "sinks": [
        {
            "sink": "console-orders",
            "status": "running",
            "rows": 12_345,
            "rows_per_s": 99.6,
            "batch": 7,
            "batch_ms": 350,
            "lag": 4,
            "watermark_ms": 1_762_000_000_000,
            "state_rows": 10,
            "state_bytes": 2_048,
        },
        {"sink": "other", "status": "starting", "rows": 0, "rows_per_s": 0.0},
    ]
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder one works in, with a registry of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "good.yaml").write_text(GOOD.replace("${MODE:-append}", "append"), "utf-8")
    (tmp_path / "bad.yaml").write_text("name: bad\nsorces: {}\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Running:
    """A pipeline that this process runs, as the registry has it."""
    started_ms = process_started_ms(os.getpid())
    assert started_ms is not None
    one = Running(
        name="fine",
        pid=os.getpid(),
        started_ms=started_ms,
        file="good.yaml",
        metrics_port=9_464,
        progress=PROGRESS,
    )
    path = folder / "state" / "ister" / "pipelines" / "fine.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asdict(one)), encoding="utf-8")
    return one


def ister(*words: str) -> Result:
    return CliRunner().invoke(make_app(["pipeline"]), ["pipeline", *words])


def test_a_pipeline_without_mistakes_is_valid(folder: Path) -> None:
    result = ister("validate", "good.yaml")

    assert result.exit_code == 0
    assert result.stderr == "good.yaml: no mistakes; 1 source, 0 steps, 1 sink\n"
    assert result.stdout == ""


def test_mistakes_are_lines_with_file_and_number_and_exit_code_2(folder: Path) -> None:
    result = ister("validate", "bad.yaml")

    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert "bad.yaml:2: a pipeline has no key `sorces`, did you mean `sources`?" in lines
    assert lines[-1] == "bad.yaml: 3 mistakes"


def test_programs_get_mistakes_as_json(folder: Path) -> None:
    result = ister("validate", "bad.yaml", "--json")

    found = json.loads(result.stdout)
    assert (result.exit_code, found["valid"], found["pipeline"]) == (2, False, None)
    assert {"file", "line", "level", "text"} == set(found["remarks"][0])


def test_programs_get_a_valid_pipeline_as_json(folder: Path) -> None:
    found = json.loads(ister("validate", "good.yaml", "--json").stdout)

    assert (found["valid"], found["remarks"]) == (True, [])
    assert found["pipeline"]["sinks"][0]["kind"] == "console"


def test_variables_are_set_on_the_command_line(folder: Path) -> None:
    (folder / "good.yaml").write_text(GOOD.replace("${", '"${').replace("append}", 'append}"'))

    found = json.loads(ister("validate", "good.yaml", "--set", "MODE=update", "--json").stdout)
    assert found["pipeline"]["sinks"][0]["mode"] == "update"


def test_nothing_but_run_loads_spark(folder: Path) -> None:
    before = set(sys.modules)
    for words in (["validate", "good.yaml"], ["list"], ["status", "fine"], ["new", "fresh"]):
        ister(*words)

    assert not {name for name in set(sys.modules) - before if name.startswith("pyspark")}


def test_a_run_refuses_a_pipeline_with_mistakes_before_spark_starts(folder: Path) -> None:
    before = set(sys.modules)
    result = ister("run", "bad.yaml")

    assert isinstance(result.exception, ConfigError)
    assert len(result.exception.mistakes) == 3
    assert not {name for name in set(sys.modules) - before if name.startswith("pyspark")}


def test_a_run_from_an_offset_is_refused(folder: Path) -> None:
    result = ister("run", "good.yaml", "--from", "17")

    assert isinstance(result.exception, BadRequestError)
    assert "partitions have offsets of their own" in str(result.exception)


def test_a_new_pipeline_is_in_a_folder_of_its_name(folder: Path) -> None:
    result = ister("new", "fresh", "--template", "session")

    assert result.exit_code == 0
    written = result.stdout.splitlines()
    assert written == [
        "fresh/README.md",
        "fresh/pipeline.yaml",
        "fresh/sample.py",
        "fresh/visits.sql",
    ]
    assert all((folder / path).is_file() for path in written)
    assert ister("validate", "fresh/pipeline.yaml").exit_code == 0


def test_where_nothing_runs_the_list_is_empty(folder: Path) -> None:
    assert json.loads(ister("list", "--json").stdout) == []
    assert "no pipeline runs here" in ister("list").stderr


def test_the_list_has_the_pipelines_that_run(running: Running) -> None:
    [row] = json.loads(ister("list", "--json").stdout)
    assert (row["name"], row["pid"]) == ("fine", os.getpid())

    header, line = ister("list").stdout.splitlines()
    assert header.split() == ["NAME", "PID", "UP", "SINKS", "ROWS/S", "LAG", "MASTER", "FILE"]
    words = line.split()
    assert (words[0], words[3:]) == ("fine", ["2", "100", "4", "local[*]", "good.yaml"])


def test_the_status_has_a_row_for_each_sink(running: Running) -> None:
    result = ister("status", "fine")

    assert "metrics at http://127.0.0.1:9464/metrics" in result.stderr
    _, first, second = result.stdout.splitlines()
    assert first.split() == [
        *("console-orders", "running", "7", "12,345", "100", "4", "350ms"),
        *("2025-11-01T12:26:40+00:00", "10", "rows,", "2.0", "KiB"),
    ]
    assert second.split() == ["other", "starting", "-", "0", "0", "-", "-", "-", "-"]
    assert json.loads(ister("status", "fine", "--json").stdout)["progress"] == PROGRESS


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_pipeline_that_does_not_run_is_told_with_those_that_do(
    running: Running, command: str
) -> None:
    result = ister(command, "fin")

    assert isinstance(result.exception, PipelineNotRunningError)
    assert "fine" in str(result.exception)
