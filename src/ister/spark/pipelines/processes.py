"""Pipelines that run on this machine: one file each, for `list`, `status` and `stop`.

Always true:
- a pipeline's name has one runner at a time: it holds the lock `<name>.lock` while it lives, and
  the system frees that lock however the runner ends;
- a process is known by its id and the time of its start together. Ids are given again, so an id
  alone might be somebody else's process by now: nothing is ever sent to that;
- `<name>.json` is replaced as a whole. A reader sees the old one or the new one.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from ister.base.errors import (
    PipelineNotRunningError,
    PipelineRunningError,
    RequestTimeoutError,
)

# The system counts from a boot time in whole seconds, which may shift by one when the clock is
# set. No system gives an id to another process within two seconds.
START_TOLERANCE_MS = 2_000
POLL_S = 0.05
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running pipeline, as its process last described itself.

    `started_ms` is when its process started. `progress` has what `PipelineProgress.report` tells.
    """

    name: str
    pid: int
    started_ms: int
    file: str = ""
    master: str = ""
    checkpoint: str = ""
    metrics_port: int | None = None
    log: str = ""
    progress: Mapping[str, object] = field(default_factory=dict)


class PipelineClaim:
    """Holds the name of a pipeline while this process runs it, and writes its registry file."""

    def __init__(self, name: str, path: Path, lock: IO[bytes]) -> None:
        self.name = name
        self._path = path
        self._lock = lock

    def write(self, running: Running) -> None:
        """Replace what others see of this pipeline."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(running)), encoding="utf-8")
        fresh.replace(self._path)

    def close(self) -> None:
        """Remove the pipeline from the registry and free its name."""
        if not self._lock.closed:
            self._path.unlink(missing_ok=True)
            # The lock's file stays: who removed it would let two runners lock two files.
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def claim(name: str, folder: Path | None = None) -> PipelineClaim:
    """Take the name of a pipeline for this process, or raise `PipelineRunningError`."""
    path = _path(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_file(path.with_suffix(".lock"))
    if lock is None:
        other = find_running(name, folder)
        raise PipelineRunningError(name, other.pid if other else 0)
    return PipelineClaim(name, path, lock)


def lock_file(path: Path) -> IO[bytes] | None:
    """Lock a file for as long as it is open, or return `None` when somebody else has it."""
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def list_running(folder: Path | None = None) -> list[Running]:
    """Return the pipelines that run on this machine, by name."""
    found = [_load(path) for path in sorted((folder or home()).glob("*.json"))]
    return [one for one in found if one is not None and is_alive(one)]


def find_running(name: str, folder: Path | None = None) -> Running | None:
    """Return a pipeline, if it runs."""
    one = _load(_path(name, folder))
    return one if one is not None and is_alive(one) else None


def stop_running(name: str, timeout: float = STOP_TIMEOUT_S, folder: Path | None = None) -> Running:
    """End a pipeline after the batch it is at, and return what it was when it was asked to.

    Raises `PipelineNotRunningError` when there is none, and `RequestTimeoutError` when its process
    is still there after `timeout` seconds; it ends later then.
    """
    one = find_running(name, folder)
    if one is None:
        raise PipelineNotRunningError(name, [other.name for other in list_running(folder)])
    with suppress(ProcessLookupError):  # It has just ended by itself.
        os.kill(one.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while is_alive(one):
        if time.monotonic() >= deadline:
            raise RequestTimeoutError(f"stopping pipeline {name!r} (process {one.pid})", timeout)
        time.sleep(POLL_S)
    return one


def is_alive(one: Running) -> bool:
    """Whether the process that wrote this is still there."""
    started_ms = process_started_ms(one.pid)
    return started_ms is not None and abs(started_ms - one.started_ms) <= START_TOLERANCE_MS


def process_started_ms(pid: int) -> int | None:
    """Return when a process started, in milliseconds since 1970; `None` when it is not there."""
    if sys.platform != "linux":
        return _started_ms_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Past the command's name, which may hold anything, the state is the first field; the start is
    # the twentieth, in ticks since the boot.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    ticks = int(fields[19])
    return _boot_ms() + ticks * 1_000 // os.sysconf("SC_CLK_TCK")


def home() -> Path:
    """Return the folder of the registry: `$XDG_STATE_HOME/ister/pipelines`."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base, "ister", "pipelines")


def file_name(name: str) -> str:
    """Return the name of a pipeline as that of a file, whatever is in it."""
    return quote(name, safe="")


def _path(name: str, folder: Path | None) -> Path:
    return (folder or home()) / f"{file_name(name)}.json"


def _load(path: Path) -> Running | None:
    try:
        return Running(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        # Of another version, or of nobody: no pipeline that this one can speak about.
        return None


def _boot_ms() -> int:
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) * 1_000
    raise AssertionError("/proc/stat has no btime")


def _started_ms_by_ps(pid: int) -> int | None:
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    text = answer.stdout.strip()
    if not text:
        return None
    # Local time is what `ps` speaks.
    return int(datetime.strptime(text, "%a %b %d %H:%M:%S %Y").astimezone().timestamp()) * 1_000
