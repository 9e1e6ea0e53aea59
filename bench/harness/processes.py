"""Start, watch and end the processes of a benchmark, each by its own pid.

Always true:
- every process started here is ended when its `with` block is left, however it is left;
- if this process is killed outright, the kernel ends its children (`PR_SET_PDEATHSIG`,
  Linux only).
"""

from __future__ import annotations

import ctypes
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil

from bench.harness.counters import Counters
from bench.harness.job import Figures, Job

ROOT = Path(__file__).resolve().parent.parent.parent
READY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0
ERROR_TAIL_CHARS = 2000
PR_SET_PDEATHSIG = 1


class BenchError(Exception):
    """A process of the benchmark did not do what the measurement needs."""


@contextmanager
def running(
    command: Sequence[str], *, log: Path, stdout: int = subprocess.STDOUT
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` with its output in the file `log`, and end it on the way out.

    `stdout` may be `PIPE` for a process that answers there. A broker's must not be: nobody reads
    it, and a full pipe would stop the broker.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            bufsize=0,  # `select` must see every line that `readline` has not returned yet.
            stdin=subprocess.DEVNULL,
            stdout=file if stdout == subprocess.STDOUT else stdout,
            stderr=file,
            # Unsafe only beside threads, and the referee has none.
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        end(process)


def die_with_parent() -> None:
    """Ask the kernel to end this process when the benchmark dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to finish; kill it when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Worker:
    """A client process started with `bench.harness.worker`."""

    def __init__(self, process: subprocess.Popen[bytes], *, name: str, log: Path) -> None:
        self.process = process
        self.name = name
        self.log = log

    def cpu_s(self) -> float:
        """Return the processor time used so far; raise with its last words when it has ended.

        It looks at every process of the machine, which takes some milliseconds.
        """
        self.check()
        return cpu_s(self.process.pid)

    def check(self) -> None:
        """Raise with its last words when it has ended."""
        if self.process.poll() is not None:
            raise self._failure(f"ended early with exit code {self.process.returncode}")

    def wait_ready(self) -> None:
        """Return when the worker is connected; raise with its last words when it is not."""
        if self._line() != "ready":
            raise self._failure("ended before it was ready")

    def finish(self, *, timeout_s: float = READY_TIMEOUT_S) -> Figures:
        """Wait for the worker to end by itself and return what it measured."""
        text = self._line(timeout_s)
        try:
            code = self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {END_TIMEOUT_S:.0f} s") from None
        if code != 0 or not text:
            raise self._failure(f"ended with exit code {code}")
        figures: Figures = json.loads(text)
        return figures

    def stop(self) -> Figures:
        """Ask the worker to end and return what it measured."""
        self.process.terminate()
        return self.finish()

    def _line(self, timeout_s: float = READY_TIMEOUT_S) -> str:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise self._failure(f"said nothing for {timeout_s:.0f} s")
        return self.process.stdout.readline().decode().strip()

    def _failure(self, what: str) -> BenchError:
        return BenchError(f"{self.name} {what}\n{tail(self.log)}")


@contextmanager
def worker(
    contender: str, role: str, counters: Counters, job: Job, *, folder: Path
) -> Iterator[Worker]:
    """Run one client process of `contender`; the caller waits for `wait_ready`."""
    log = folder / f"{contender}-{role}-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "bench.harness.worker", contender, role, str(counters.path)]
    command.append(json.dumps(asdict(job)))
    with running(command, log=log, stdout=subprocess.PIPE) as process:
        yield Worker(process, name=f"{contender} {role}", log=log)


def tail(path: Path) -> str:
    """Return the last words of a process."""
    return path.read_text(errors="replace")[-ERROR_TAIL_CHARS:] if path.exists() else ""


def cpu_s(pid: int) -> float:
    """Return the processor time that a process and those it has started have used so far.

    User and system together. Linux counts in ticks of 10 ms, so only differences over a second or
    more mean much.
    """
    try:
        times = [one.cpu_times() for one in family(pid)]
    except psutil.Error as error:
        raise BenchError(f"process {pid} has ended") from error
    return float(sum(one.user + one.system for one in times))


def peak_mb(pid: int) -> float:
    """Return the most resident memory the process ever had, in MB; elsewhere than Linux: has."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return resident_mb(pid)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and those it has started, in MB (1,000,000 bytes).

    What several of them share, as the code of Python, counts for each.
    """
    return float(sum(one.memory_info().rss for one in family(pid)) / 1e6)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and those it has started: a broker has one for its timelines."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]
