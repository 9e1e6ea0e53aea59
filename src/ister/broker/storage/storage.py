"""One log with its state: what writes to it, reads from it, and keeps it in order.

A broker has one storage in its data folder, and may have another in an object store. Always true:
- a checkpoint is written in the background, one at a time;
- once another broker has the log, nothing is written, compacted or removed any more (LOST).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from ister.base import Clock
from ister.base.errors import (
    IsterError,
    ShardMovedError,
    StorageFailedError,
    StorageTakenError,
)
from ister.broker.scheduling import Done, Worker
from ister.broker.state import State
from ister.broker.storage.committer import Committer
from ister.broker.storage.compactor import UPLOAD_AFTER_MS, Compactor
from ister.broker.storage.threads import Workers
from ister.broker.storage.writes import Writable, Write
from ister.log import Log, Place

# A checkpoint costs a pass over the state; what it saves is replaying a file at the next start.
CHECKPOINT_S_MIN = 2.0
# How often to check whether another broker has taken the log: one request, 86,400 in a month, which
# cost some cents. Upkeep runs each second; when it did not for this long, the process was stopped.
WATCH_OWNER_MS = 30_000
STOPPED_MS = 3_000


class Storage:
    """A log, its state, the threads that write and read it, and its housekeeping."""

    def __init__(
        self,
        log: Log,
        state: State,
        *,
        workers: Workers,
        clock: Clock,
        call_soon: Callable[[Callable[[], object]], object],
        upload_after_ms: int = UPLOAD_AFTER_MS,
    ) -> None:
        # What metrics call it: "local" or "object".
        self.name = "local"
        self.log = log
        self.state = state
        self.clock = clock
        # Leases of one start are told from those of another by it. The low bits are for counting
        # how often leases became void.
        self.life = log.epoch << 32
        self.workers = workers
        self.reading = workers.reading
        # Called once, when another broker has the log.
        self.on_loss: list[Callable[[ShardMovedError], object]] = []
        self.committer = Committer(
            log,
            worker=workers.writing,
            clock=clock,
            call_soon=call_soon,
            shard=lambda: self.name,
        )
        self.committer.on_lost = self._on_lost
        self.compactor = Compactor(
            log,
            state,
            worker=workers.compacting,
            clock=clock,
            upload_after_ms=upload_after_ms,
        )
        self.compactions = self.compactor.figures
        self._call_soon = call_soon
        self._logger: Any = structlog.get_logger("storage")
        self._checkpointing = False
        self._checkpointed_ms = -(10**9)
        self._checkpoint_timer = False
        self._maintained_ms = self._watched_ms = clock.monotonic_ms()
        self._refilling = False
        self._logged_full = False
        # Set while there is something to drop that the manifest still names.
        self.trimmed = False

    # Writing

    def commit(self, write: Writable, done: Done) -> None:
        """Store a write, whole or not at all; then apply its changes and show its batches.

        `done` is called once, after this has returned: with an error, and nothing of the write is
        anywhere; or without, when it is as durable as it asks to be. By then the state has its
        changes; its batches are shown right after, so that no producer waits for its consumers.

        Never raises. Whoever has stamped batches has called `check_room` since, with no turn of
        the loop in between: the places of a write that is refused here are not taken back.
        """
        error = self.committer.error
        if error is not None:
            self._call_soon(partial(done, error))
            return
        write.append_to(self.log)
        self.committer.add(partial(self._on_written, write, done))

    def piggyback(self, write: Writable, done: Done) -> None:
        """As `commit`, called from `Committer.before_group`: into the group about to be taken."""
        write.append_to(self.log)
        self.committer.piggyback(partial(self._on_written, write, done))

    def _on_written(self, write: Writable, done: Done, error: IsterError | None) -> None:
        """End a write: the one place where what is stored becomes visible."""
        if error is not None:
            done(error)
            return
        if write.changes:
            self.state.on_changes(write.changes)
        try:
            done(None)
        finally:
            write.show()

    def _on_lost(self, error: ShardMovedError) -> None:
        self.compactor.close()
        for call in self.on_loss:
            call(error)

    # Housekeeping

    def reading_of(self, place: Place) -> Worker:
        """Return the threads that read what lies in a place."""
        return self.workers.reading_remote if place is Place.REMOTE else self.reading

    def maintain(self) -> None:
        """Compact, or write a checkpoint, when there is reason to. Called about once a second."""
        if self.committer.error is not None:
            return
        self._watch_owner()
        self._refill()
        self.compactor.maintain()
        if self.log.disk_short:
            # What retention has just dropped, too: that is what makes room.
            self.committer.after(lambda error: None if error else self._checkpoint_if_due())
        else:
            self._checkpoint_if_due()

    @property
    def wants_room(self) -> bool:
        """Whether there is little room, and a file to be dropped since the last checkpoint."""
        return self.log.disk_short and self.log.wants_checkpoint and not self._checkpointing

    def _checkpoint_if_due(self) -> None:
        if self._checkpointing or not (self.log.wants_checkpoint or self.trimmed):
            return
        passed_ms = self.clock.monotonic_ms() - self._checkpointed_ms
        if self.committer.error is None and (
            passed_ms >= CHECKPOINT_S_MIN * 1000 or self.log.disk_short
        ):
            self.checkpoint(lambda error: None)

    def _refill(self) -> None:
        """Have the reserve made again; when all of it is there, messages are taken."""
        space = self.log.space
        if space is None or space.is_whole or self._refilling:
            return
        self._refilling = True

        def on_done(error: Exception | None) -> None:
            self._refilling = False
            if error is not None:
                self._logger.warning("reserve_not_made", reason=str(error))
            if space.is_full and not self._logged_full:
                self._logged_full = True
                self._logger.error("disk_full", hint="messages are refused until space is free")
            elif self._logged_full and not space.is_full:
                self._logged_full = False
                self._logger.info("disk_has_room")

        self.workers.housekeeping.run(space.refill, on_done)

    def _watch_owner(self) -> None:
        """Check whether another broker has taken the log: without writes nothing else shows it.

        Right after this process was stopped, or its machine was, for longer than another broker
        waits; and every now and then.
        """
        now_ms = self.clock.monotonic_ms()
        was_stopped = now_ms - self._maintained_ms > STOPPED_MS
        self._maintained_ms = now_ms
        if not was_stopped and now_ms - self._watched_ms < WATCH_OWNER_MS:
            return
        self._watched_ms = now_ms

        def on_checked(error: Exception | None) -> None:
            if isinstance(error, StorageTakenError):
                self.committer.lose(error)
            elif error is not None:
                self._logger.warning("owner_not_known", journal=self.name, reason=str(error))

        self.workers.writing.run(self.log.check_owner, on_checked)

    @property
    def checkpointing(self) -> bool:
        """Whether a checkpoint is being written: one at a time."""
        return self._checkpointing

    def checkpoint(self, done: Callable[[Exception | None], object]) -> None:
        """Write the state and a manifest, and drop what neither names any more.

        Raises `StorageFailedError` while nothing is taken.
        """
        self.committer.check()
        self._checkpointing = True
        self._checkpointed_ms = self.clock.monotonic_ms()

        def on_done(error: Exception | None) -> None:
            self._checkpointing = False
            if isinstance(error, StorageTakenError):
                self.committer.lose(error)
            elif error is not None:
                # What was to be dropped still is.
                self.trimmed = True
                self._logger.error("checkpoint_failed", exc_info=error)
            done(error)

        def on_synced(error: IsterError | None) -> None:
            if error is not None:
                on_done(error)
            else:
                self._write_checkpoint(on_done)

        if self.log.unsynced:
            # A snapshot that knows more than the disk would give offsets twice after a power cut.
            # Only the journal can tell whether a sync has worked: another descriptor of the same
            # file may report that all is well after the journal was told otherwise.
            self.commit(Write(), on_synced)
        else:
            on_synced(None)

    def _write_checkpoint(self, done: Callable[[Exception | None], object]) -> None:
        self.trimmed = False
        horizon = {t.topic: t.first_offset for t in self.state.topics.values()}
        # Before the state is encoded, which takes some turns of the loop: what is newer than the
        # plan is replayed on top of it, and what is older would not be.
        plan = self.log.plan_checkpoint(b"", horizon)
        encoding = self.state.encoding()
        failures = self.committer.figures.failures

        def on_done(error: Exception | None) -> None:
            if error is None:
                self.log.checkpointed(plan)
                if not self.committer.lost:
                    self.workers.housekeeping.run(plan.sweep, self._on_swept)
            done(error)

        def on_committed(error: IsterError | None) -> None:
            if error is not None:
                done(error)
            else:
                self.workers.housekeeping.run(plan.run, on_done)

        def go_on() -> None:
            try:
                next(encoding)
            except StopIteration as end:
                plan.snapshot = end.value
                self._commit_all(failures, on_committed)
            else:
                self._call_soon(go_on)

        go_on()

    def _commit_all(self, failures: int, done: Done) -> None:
        """Have all that is in the state by now in the journal, and on the disk.

        Some changes are in the state before they are in the journal: a cursor that is moved, a
        topic that is covered. When the journal does not take them they are taken back, and a
        restart must not find them in a snapshot. So there may be no more than the `failures` of
        when that was begun.
        """
        if self.committer.error is not None or self.committer.figures.failures != failures:
            done(self.committer.error or StorageFailedError("it failed during a checkpoint"))
        elif self.log.unsynced:
            self.commit(Write(), done)
        else:
            self.committer.after(done)

    def _on_swept(self, error: Exception | None) -> None:
        if error is not None:
            self._logger.warning("sweep_failed", reason=str(error))
        self._refill()

    def close(self, timeout_s: float | None = None) -> bool:
        """Close the log, after everything is committed. Blocks.

        Reads, checkpoints and rewrites that take longer than `timeout_s` are left to themselves:
        nothing that was acknowledged depends on them. Return whether there were none.
        """
        self.committer.close()
        self.compactor.close()
        done = self.workers.close(timeout_s)
        self.log.close()
        return done
