"""Rewrites segments in the background where that pays, slowly, one at a time.

    RESTING --something pays--> REWRITING --done--> WAITING --checkpoint--> RESTING

Always true: a rewrite changes nothing that anybody reads before the checkpoint that puts it into
force; when it fails, nothing of it is left.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from ister.base import Clock, Retention
from ister.base.errors import CorruptedError
from ister.base.limits import MIB
from ister.broker.scheduling import Worker
from ister.broker.state import State
from ister.broker.storage.compaction_figures import CompactionFigures
from ister.log import CompactionPolicy, KeyPolicy, Log, Rewrite, plan_compaction

# How often to check whether something pays.
CHECK_S = 5.0
# A rewrite reads and writes about so much in a second: a tenth of what a disk does, so that
# producers and consumers do not notice.
BYTES_PER_S = 64 * MIB
# For so long those who read late are told of a deleted key.
TOMBSTONES_MS = 24 * 3_600_000
# Segments whose newest message is older than this go to the remote tier, if there is one.
UPLOAD_AFTER_MS = 3_600_000
# After so many rewrites for other reasons an upload goes first, if there is one to make. After one
# that failed, so many checks pass without another: a tier that is away must not take every turn.
UPLOAD_IN_TURN = 3
# Of 0 to 19; the system gives the thread what others leave over.
NICENESS = 10


class Compactor:
    """Rewrites segments of one log, at most one at a time."""

    def __init__(
        self,
        log: Log,
        state: State,
        *,
        worker: Worker,
        clock: Clock,
        upload_after_ms: int = UPLOAD_AFTER_MS,
    ) -> None:
        self.figures = CompactionFigures()
        self._log = log
        self._state = state
        self._worker = worker
        self._clock = clock
        self._upload_after_ms = upload_after_ms
        self._logger: Any = structlog.get_logger("compactor")
        self._busy = False
        self._closed = False
        # Rewrites for other reasons since the last upload.
        self._since_upload = 0
        # Checks to come that plan no upload.
        self._checks_without_upload = 0
        self._checked_ms = clock.monotonic_ms()

    def maintain(self) -> None:
        """Check whether something pays, if it is time to. Called about once a second."""
        now_ms = self._clock.monotonic_ms()
        due = self._log.disk_full or now_ms - self._checked_ms >= CHECK_S * 1000
        if due and not self._busy and not self._closed:
            self._checked_ms = now_ms
            self.check()

    def check(self) -> None:
        """Do the rewrite that pays most, if any does."""
        self._busy = True
        log, state = self._log, self._log.state()
        topics = self._state.topics.values()
        horizon = {t.topic: t.first_offset for t in topics}
        now_ms = self._clock.now_ms()
        uploads = not self._checks_without_upload
        self._checks_without_upload = max(0, self._checks_without_upload - 1)
        policy = CompactionPolicy(
            keyed={
                # What holds the last message stays, so that whoever walks a topic finds its end.
                t.topic: KeyPolicy(
                    safe_offset=t.next_offset - 1,
                    tombstones_before_ms=now_ms - TOMBSTONES_MS,
                    before_ms=now_ms - lag_ms if lag_ms else 0,
                )
                for t in topics
                if t.settings.retention == Retention.COMPACT
                for lag_ms in (t.settings.compaction_lag_ms,)
            },
            upload_before_ms=now_ms - self._upload_after_ms if uploads else 0,
            upload_first=self._since_upload >= UPLOAD_IN_TURN,
            urgent=self._log.disk_full,
        )
        job = _Job(self._pause)
        self._worker.run(
            lambda: job.run(lambda: plan_compaction(log, state, horizon, policy)),
            lambda error: self._on_done(job, error),
        )

    def close(self) -> None:
        """Stop, also in the middle of a rewrite."""
        self._closed = True

    def _pause(self, size_bytes: int) -> None:
        """Runs in the worker's thread."""
        if self._closed:
            raise InterruptedError("the broker is closing")
        time.sleep(size_bytes / BYTES_PER_S)

    def _on_done(self, job: "_Job", error: Exception | None) -> None:
        self._busy = False
        rewrite = job.rewrite
        is_upload = rewrite is not None and rewrite.reason == "upload"
        if isinstance(error, InterruptedError) or (rewrite is None and error is None):
            return
        if error is not None or rewrite is None:
            if isinstance(error, CorruptedError) and rewrite is not None:
                # Left alone from now on: reads tell of it, and so does `ister storage check`.
                self._log.rewrite_failed(rewrite)
            if is_upload:
                self._checks_without_upload = UPLOAD_IN_TURN
            self.figures.failures += 1
            reason = rewrite.reason if rewrite is not None else "not planned"
            self._logger.error("compaction_failed", reason=reason, error=str(error))
            return
        self._log.rewritten(rewrite)
        self._since_upload = 0 if is_upload else self._since_upload + 1
        self.figures.add(rewrite.reason, rewrite.figures)
        self._logger.info("compacted", reason=rewrite.reason, **asdict(rewrite.figures))
        # There may be more of the kind: check again right after the checkpoint.
        self._checked_ms = -(10**9)


class _Job:
    """One check and what came of it."""

    def __init__(self, pause: Callable[[int], None]) -> None:
        self.rewrite: Rewrite | None = None
        self._pause = pause

    def run(self, plan: Callable[[], Rewrite | None]) -> None:
        """Plan and carry out. Runs in the worker's thread."""
        # Not of a program that runs a broker inside itself, as tests do.
        if threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        self.rewrite = plan()
        if self.rewrite is not None:
            self.rewrite.run(self._pause)
