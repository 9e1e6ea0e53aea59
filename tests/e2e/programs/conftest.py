"""Programs of `examples/` as processes of their own, against a broker of the test."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import plain_environment

EXAMPLES = Path(__file__).parents[3] / "examples"
WAIT_S = 50.0

StartProgram = Callable[..., subprocess.Popen[bytes]]
RunProgram = Callable[..., list[str]]


def environment(url: str, **more: str) -> dict[str, str]:
    """Return the environment of a program: its broker, and commands of this very Ister."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**plain_environment(), "ISTER_URL": url, "PATH": path, "COLUMNS": "200", **more}


@pytest.fixture
def start_program() -> Iterator[StartProgram]:
    """Start programs: `start_program(url, "saga.py", "work")`. They are killed with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(url: str, name: str, *args: str, **more: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-u", str(EXAMPLES / name), *args],
            env=environment(url, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_program(start_program: StartProgram) -> RunProgram:
    """Run a program to its end, and return the lines it printed."""

    def run(url: str, name: str, *args: str) -> list[str]:
        process = start_program(url, name, *args)
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err.decode()
        assert err == b"", err.decode()
        return out.decode().splitlines()

    return run
