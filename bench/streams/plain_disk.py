"""The disk itself, used by a plain loop: what nobody who makes data durable can beat.

`job.address` is a folder. Nothing here awaits: there is nobody else in the process to wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.counters import Counters
from bench.harness.disk import warm
from bench.harness.job import WARMUP_CALLS, Figures, Job, Ready, percentiles

# As large as the groups that a loaded broker commits.
CHUNK_BYTES = 1 << 20
# As much as a journal file gets when it is made.
ALLOCATED_BYTES = 128 << 20


@contextmanager
def new_file(job: Job) -> Iterator[int]:
    """Make a file in the job's folder, yield its descriptor, and remove it."""
    path = Path(job.address) / f"disk-{os.getpid()}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


async def write(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Append 1 MiB and sync it, again and again, for `job.seconds`."""
    chunk = os.urandom(CHUNK_BYTES)
    with new_file(job) as descriptor:
        ready()
        written = 0
        began = now = time.perf_counter()
        while now - began < job.seconds:
            put(descriptor, chunk, written)
            written += CHUNK_BYTES
            now = time.perf_counter()
    return {"mb_s": written / 1e6 / (now - began), "writes": written // CHUNK_BYTES}


async def write_one(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Write `job.payload_bytes` and sync them, one at a time; `allocated`: into a file with room.

    A file that grows has its new size to sync as well.
    """
    record = os.urandom(job.payload_bytes)
    with new_file(job) as descriptor:
        if job.mode == "allocated":
            os.posix_fallocate(descriptor, 0, ALLOCATED_BYTES)
        for number in range(WARMUP_CALLS):
            put(descriptor, record, number * len(record))
        position = WARMUP_CALLS * len(record)
        ready()
        clock = time.perf_counter_ns
        latencies: list[int] = []
        now = clock()
        end = now + int(job.seconds * 1e9)
        while now < end:
            put(descriptor, record, position)
            position += len(record)
            after = clock()
            latencies.append(after - now)
            now = after
    return {**percentiles(latencies), "calls": len(latencies)}


async def read(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Read every file below the job's folder from start to end."""
    ready()
    began = time.perf_counter()
    size_bytes = warm(Path(job.address))
    elapsed = time.perf_counter() - began
    return {"mb_s": size_bytes / 1e6 / elapsed, "size_mb": size_bytes / 1e6}


def put(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data` and wait until it is on the disk."""
    written = os.pwrite(descriptor, data, position)
    if written != len(data):
        raise OSError(f"{written} of {len(data)} B written")
    os.fdatasync(descriptor)
