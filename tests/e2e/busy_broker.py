"""A broker process whose threads are busy from the start, for longer than any test waits."""

import asyncio
import json
import os
import sys
import time

from ister.config import read_config
from ister.server import Addresses, run_broker
from ister.telemetry import configure_log

BUSY_S = 600.0


def compute() -> None:
    """Use CPU time, as a schema check does."""
    end_s = time.monotonic() + BUSY_S
    while time.monotonic() < end_s:
        sum(range(1_000))


def begin(_: Addresses) -> None:
    """Keep all threads of the event loop busy, with more calls waiting."""
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, compute)
    for _number in range(2 * (os.cpu_count() or 1) + 10):
        loop.run_in_executor(None, time.sleep, BUSY_S)


if __name__ == "__main__":
    # Settings by their path, as JSON.
    settings = read_config(flags=json.loads(sys.argv[1]), environment={})
    configure_log(level="info", format="json")
    run_broker(settings, on_ready=begin)
