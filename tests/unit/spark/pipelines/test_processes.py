"""The registry of running pipelines: files, locks and processes of this machine."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ister.base.errors import (
    PipelineNotRunningError,
    PipelineRunningError,
    RequestTimeoutError,
)
from ister.spark.pipelines import processes


def own(name: str = "p", **parts: object) -> processes.Running:
    """Return an entry of this very process."""
    started_ms = processes.process_started_ms(os.getpid())
    assert started_ms is not None
    return replace(
        processes.Running(name=name, pid=os.getpid(), started_ms=started_ms),
        **parts,  # type: ignore[arg-type]
    )


def test_a_running_pipeline_is_found_with_what_it_wrote_last(tmp_path: Path) -> None:
    with processes.claim("p", tmp_path) as claim:
        claim.write(own(progress={"sinks": []}, metrics_port=9_464))

        assert processes.list_running(tmp_path) == [own(progress={"sinks": []}, metrics_port=9_464)]
        assert processes.find_running("p", tmp_path) is not None
        assert processes.find_running("q", tmp_path) is None

    assert processes.list_running(tmp_path) == []


def test_a_name_is_taken_by_one_runner_at_a_time(tmp_path: Path) -> None:
    with processes.claim("p", tmp_path) as claim:
        claim.write(own())
        with pytest.raises(PipelineRunningError) as caught:
            processes.claim("p", tmp_path)
        with processes.claim("q", tmp_path):
            pass

    assert caught.value.pid == os.getpid()
    processes.claim("p", tmp_path).close()


def test_a_name_may_hold_what_a_file_name_may_not(tmp_path: Path) -> None:
    with processes.claim("../a/b", tmp_path / "in") as claim:
        claim.write(own("../a/b"))

        assert [one.name for one in processes.list_running(tmp_path / "in")] == ["../a/b"]
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_process_that_has_the_id_of_an_earlier_one_is_not_it(tmp_path: Path) -> None:
    entry = own()
    with processes.claim("p", tmp_path) as claim:
        claim.write(replace(entry, started_ms=entry.started_ms - processes.START_TOLERANCE_MS))
        assert processes.find_running("p", tmp_path) is not None

        claim.write(replace(entry, started_ms=entry.started_ms - processes.START_TOLERANCE_MS - 1))
        assert processes.find_running("p", tmp_path) is None
        with pytest.raises(PipelineNotRunningError):
            processes.stop_running("p", 0.0, tmp_path)


def test_a_file_of_another_version_or_of_nobody_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"name": "to')
    (tmp_path / "new.json").write_text(json.dumps({"name": "new", "colour": "red"}))

    assert processes.list_running(tmp_path) == []


def child(program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def entry_of(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Write an entry for a process, once it has said that it is ready."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started_ms = processes.process_started_ms(process.pid)
    assert started_ms is not None
    with processes.claim("p", tmp_path) as claim:
        claim.write(processes.Running(name="p", pid=process.pid, started_ms=started_ms))
        # The claim of a runner that died is gone, its file is not.
        kept = (tmp_path / "p.json").read_text()
    (tmp_path / "p.json").write_text(kept)


def test_stop_ends_the_process_and_returns_when_it_is_gone(tmp_path: Path) -> None:
    with child("print('ready', flush=True); input()") as process:
        entry_of(process, tmp_path)

        stopped = processes.stop_running("p", 20.0, tmp_path)

        # A zombie, until its parent looks: for us it has ended.
        assert stopped.pid == process.pid
        assert process.wait() == -signal.SIGTERM
    assert processes.list_running(tmp_path) == []


def test_stop_says_when_a_process_does_not_end_in_time(tmp_path: Path) -> None:
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True); input()"
    )
    with child(program) as process:
        entry_of(process, tmp_path)

        with pytest.raises(RequestTimeoutError):
            processes.stop_running("p", 0.1, tmp_path)

        assert process.poll() is None
        process.kill()


def test_stop_names_those_that_run(tmp_path: Path) -> None:
    with processes.claim("p", tmp_path) as claim:
        claim.write(own())

        with pytest.raises(PipelineNotRunningError, match="running are p"):
            processes.stop_running("q", 1.0, tmp_path)


def test_the_registry_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")

    assert processes.home() == Path("/somewhere/ister/pipelines")
