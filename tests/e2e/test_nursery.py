"""What comes out of the nursery behaves as `python -m ister` does."""

import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tests.e2e.conftest import plain_environment
from tests.e2e.nursery import IsterProcess, can_fork, environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="nothing is forked but on Linux"),
]

WAIT_S = 30.0
ENDINGS = [
    (["--version"], 0),
    (["topics", "list", "--url", "ister://127.0.0.1:1"], 75),
    (["no"], 2),
]


def born(
    args: list[str],
    folder: Path,
    starter: type[IsterProcess] = IsterProcess,
    **variables: str,
) -> IsterProcess:
    return starter(
        args,
        env={**plain_environment(), **variables},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(("args", "code"), ENDINGS)
def test_words_and_exit_code_are_those_of_a_process_from_scratch(
    args: list[str], code: int, tmp_path: Path
) -> None:
    found = []
    # The second one cannot be forked.
    for variables in ({}, {"PYTHONNODEBUGRANGES": "1"}):
        with born(args, tmp_path, IsterProcess, **variables) as process:
            out, err = process.communicate(timeout=WAIT_S)
        found.append((process.returncode, out, err))

    assert found[0] == found[1]
    assert found[0][0] == code


class _LateStarter(IsterProcess):
    """Reads the number of its process only when that has ended: a machine may be this busy."""

    def _read_pid(self, report: socket.socket) -> int:
        ended = select.poll()
        ended.register(report, select.POLLHUP)
        ended.poll(WAIT_S * 1000)
        return super()._read_pid(report)


def test_the_exit_code_of_a_process_that_ends_before_its_starter_looks_is_its_own(
    tmp_path: Path,
) -> None:
    with born(["no"], tmp_path, _LateStarter) as process:
        process.communicate(timeout=WAIT_S)

    assert process.returncode == 2


def test_signals_environment_and_folder_reach_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ports = ["--port", "0", "--http-port", "0", "--no-grpc"]
    with born(["serve", *ports, "--ready-file", "ready"], tmp_path, ISTER_DATA="kept") as process:
        assert process.stderr is not None
        while b"broker_ready" not in (line := process.stderr.readline()):
            assert line
        assert ready.exists()
        assert process.poll() is None
        assert Path(f"/proc/{process.pid}/cwd").resolve() == tmp_path
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=WAIT_S)

    assert process.returncode == -signal.SIGKILL


def test_what_is_read_before_a_program_starts_needs_a_start_from_scratch() -> None:
    # Tests with Spark, which may have run in this process before, add to the variables.
    at_first = dict(environment())
    assert can_fork({**at_first, "ISTER_URL": "x"})
    assert not can_fork({**at_first, "LD_PRELOAD": "x"})
    assert not can_fork({**at_first, "PYTHONPATH": "x"})
