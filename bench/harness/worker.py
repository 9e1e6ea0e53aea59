"""One client process: `python -m bench.harness.worker SIDE ROLE BOARD JOB`.

The process says `ready` on stdout when it is connected, works until its role returns or SIGTERM
comes, and ends with one line of JSON figures. Every contender runs on uvloop, started here.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from bench.harness.counters import Counters
from bench.harness.job import Figures, Job


async def work(contender: str, role: str, counters: Counters, job: Job) -> Figures:
    """Run one role of one contender; SIGTERM ends it as a cancellation, so that it can tidy up."""
    run = getattr(importlib.import_module(f"bench.{contender}"), role)
    task: asyncio.Task[Figures | None] = asyncio.ensure_future(run(counters, job, say_ready))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        return await task or {}
    return {}


def say_ready() -> None:
    """Tell the referee that the measurement may start."""
    print("ready", flush=True)


def main() -> None:
    """Read the task from the command line and report its figures."""
    contender, role, counters_path, job_text = sys.argv[1:]
    counters = Counters(Path(counters_path))
    figures = uvloop.run(work(contender, role, counters, Job(**json.loads(job_text))))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
