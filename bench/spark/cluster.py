"""A Spark cluster on this machine: a master and workers, each worker held to a core of its own.

Python and the JVM of a task run side by side: without that, one executor would use both cores of
a small machine, and a second one could add nothing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.harness.job import Figures
from bench.harness.processes import (
    READY_TIMEOUT_S,
    ROOT,
    BenchError,
    die_with_parent,
    running,
    tail,
)

LOOP = """
import time
rounds, end = 0, time.perf_counter() + 2
while time.perf_counter() < end:
    rounds += 1
print(rounds / 2)
"""


@contextmanager
def start_cluster(folder: Path, workers: int) -> Iterator[str]:
    """Start a master and workers of one core; yield the address of the master."""
    import pyspark

    home = Path(pyspark.__file__).parent
    os.environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    program = str(home / "bin" / "spark-class")
    port, ui = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        log = folder / "master.log"
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)]
        command = [program, "org.apache.spark.deploy.master.Master", *options]
        stack.enter_context(running(command, log=log))
        await_line(log, "I have been elected leader")
        cores = sorted(os.sched_getaffinity(0))
        for slot in range(workers):
            log = folder / f"worker-{slot}.log"
            command = [program, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1"]
            command += ["--cores", "1", "--memory", "2g", "--webui-port", "0"]
            command += ["--work-dir", str(folder / f"work-{slot}"), master]
            pinned = ["taskset", "-c", str(cores[slot % len(cores)]), *command]
            stack.enter_context(running(pinned, log=log))
            await_line(log, "Successfully registered with master")
        yield master


def loops_per_s(count: int) -> float:
    """Return how many rounds plain loops make, each on a processor of its own.

    Processors that share a core have less than twice what one has, whatever runs on them.
    """
    cores = sorted(os.sched_getaffinity(0))[:count]
    loops = [
        subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-c", LOOP], stdout=subprocess.PIPE
        )
        for core in cores
    ]
    return sum(float(loop.communicate()[0]) for loop in loops)


class Driver:
    """A process with a session on the cluster, that scans when asked."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def answer(self) -> Figures:
        """Wait for the next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the driver ended\n{tail(self._log)}")
        found: Figures = json.loads(line)
        return found

    def scan(self) -> Figures:
        """Scan once."""
        assert self._process.stdin is not None
        self._process.stdin.write("scan\n")
        self._process.stdin.flush()
        return self.answer()


@contextmanager
def start_driver(folder: Path, args: Sequence[str]) -> Iterator[Driver]:
    """Start a driver with `args` of `bench.spark.scan`, and yield it warm."""
    log = folder / f"driver-{time.monotonic_ns()}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.spark.scan", *args],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the referee has no threads
        )
    try:
        driver = Driver(process, log)
        driver.answer()
        yield driver
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def await_line(log: Path, text: str) -> None:
    """Wait until a process has said something."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if log.exists() and text in log.read_text(errors="replace"):
            return
        time.sleep(0.1)
    raise BenchError(f"{log.name} never said {text!r}\n{tail(log)}")
