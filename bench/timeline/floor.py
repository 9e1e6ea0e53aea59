"""What nobody who does this in Python with SQLite can beat: the event loop's own timers, and
SQLite's own `executemany`.
"""  # noqa: D205 - one sentence

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from bench.harness.counters import Counters
from bench.harness.job import Figures, Job, Ready
from bench.timeline.ister import AHEAD_S, PER_MS, SPAN_S
from bench.timeline.samples import HEAD, Samples

# The columns of a message that a table needs at least to be one of ours.
COLUMNS = (
    "seq INTEGER PRIMARY KEY, topic INTEGER NOT NULL, id TEXT NOT NULL, due INTEGER NOT NULL,"
    " position INTEGER NOT NULL, owner TEXT NOT NULL, payload BLOB NOT NULL"
)
TABLES = (
    f"CREATE TABLE messages ({COLUMNS})",
    "CREATE UNIQUE INDEX ids ON messages (topic, id)",
    "CREATE INDEX positions ON messages (topic, position)",
)
ADD = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)"


async def call_at(counters: Counters, job: Job, ready: Ready) -> Figures:
    """Set a timer for each of `job.count` messages, `PER_MS` a millisecond, until cancelled."""
    samples = Samples(counters)
    loop = asyncio.get_running_loop()
    filler = os.urandom(job.payload_bytes - HEAD.size)

    def set_timer(payload: bytes, due_ms: int) -> None:
        loop.call_at(loop.time() + due_ms / 1000 - time.time(), on_time, payload, due_ms)

    def on_time(payload: bytes, due_ms: int) -> None:
        # A timer may fire up to a millisecond early; who must not be early sets another.
        if time.time_ns() < due_ms * 1_000_000:
            set_timer(payload, due_ms)
        else:
            samples.handed_over(payload)

    start_ms = time.time_ns() // 1_000_000 + int(job.seconds * 1000)
    for number in range(job.count):
        due_ms = start_ms + number // PER_MS
        set_timer(HEAD.pack(number, due_ms) + filler, due_ms)
    ready()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    samples.save()
    return {"ended_ns": time.time_ns()}


async def executemany(_counters: Counters, job: Job, ready: Ready) -> Figures:
    """Insert lists of `job.chunk` rows, a transaction each, for `job.seconds`.

    Rows are made while the clock stands still.
    """
    payloads, prefix = job.payloads, secrets.token_hex(8)
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(Path(job.address) / "plain.db", isolation_level=None)) as plain:
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("PRAGMA synchronous = FULL")
        for statement in TABLES:
            plain.execute(statement)
        ready()
        count, elapsed = 0, 0.0
        while elapsed < job.seconds:
            rows = []
            for number, payload in enumerate(payloads, count + 1):
                due_ms = now_ms + int((AHEAD_S + random.random() * SPAN_S) * 1000)
                rows.append((number, 1, f"{prefix}-{number:08x}", due_ms, due_ms, "", payload))
            began = time.perf_counter()
            plain.execute("BEGIN IMMEDIATE")
            plain.executemany(ADD, rows)
            plain.execute("COMMIT")
            elapsed += time.perf_counter() - began
            count += len(rows)
    return {"msg_s": count / elapsed, "put": count}
