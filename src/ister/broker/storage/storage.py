"""One log with its state: what writes to it, reads from it, and keeps it in order.

A broker has one storage in its data folder, and may have another in an object store. Always true:
- a checkpoint is written in the background, one at a time;
- once another broker has the log, nothing is written, compacted or removed any more (LOST).
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import structlog

from ister.base import Clock
from ister.base.errors import (
    IsterError,
    ShardMovedError,
    StorageFailedError,
    StorageTakenError,
)
from ister.broker.scheduling.workers import Worker
from ister.broker.state.changes import Change, encode_changes
from ister.broker.state.state import State
from ister.broker.storage.committer import Committer, Done
from ister.broker.storage.compactor import UPLOAD_AFTER_MS, Compactor
from ister.broker.streams.recent import RecentBudget
from ister.log import Kind, Log, Place

if TYPE_CHECKING:
    from ister.broker.streams.stream import StreamTopic

# A checkpoint costs a pass over the state; what it saves is replaying a file at the next start.
CHECKPOINT_S_MIN = 2.0
# How often to look whether another broker has taken the log: one request, 86,400 in a month, which
# cost some cents. Upkeep runs each second; when it did not for this long, the process was stopped.
WATCH_OWNER_MS = 30_000
STOPPED_MS = 3_000


class Workers:
    """The threads of a storage: its own for writing, maybe shared ones for everything else."""

    __slots__ = ("compacting", "housekeeping", "reading", "reading_remote", "writing")

    def __init__(
        self,
        *,
        writing: Worker,
        reading: Worker,
        housekeeping: Worker,
        compacting: Worker | None = None,
        reading_remote: Worker | None = None,
    ) -> None:
        self.writing = writing
        self.reading = reading
        # For what lies in the remote tier, which may not answer for minutes.
        self.reading_remote = reading_remote or reading
        self.housekeeping = housekeeping
        # A rewrite takes minutes; without a thread of its own, checkpoints wait for it.
        self.compacting = compacting or housekeeping

    def close(self, timeout_s: float | None = None) -> bool:
        """End them all. Blocks until what was given to them is done; return whether it is.

        What is being written is waited for however long it takes, everything else for `timeout_s`.
        """
        self.writing.close()
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        done = True
        for worker in (
            self.reading,
            self.reading_remote,
            self.housekeeping,
            self.compacting,
        ):
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            done &= worker.close(left_s)
        return done


class Storage:
    """See the module."""

    def __init__(
        self,
        log: Log,
        state: State,
        *,
        workers: Workers,
        clock: Clock,
        budget: RecentBudget,
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
        self.budget = budget
        self.workers = workers
        self.reading = workers.reading
        self.topics: dict[int, StreamTopic] = {}
        # Those that may keep too much by now.
        self.changed: list[StreamTopic] = []
        self.committer = Committer(
            log,
            worker=workers.writing,
            clock=clock,
            call_soon=call_soon,
            shard=lambda: self.name,
        )
        self.committer.on_failure.append(self._on_failed)
        self.committer.on_lost = self._on_lost
        # Called once, when another broker has the log.
        self.on_lost: Callable[[ShardMovedError], object] = lambda _: None
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
        self._tended_ms = self._watched_ms = clock.monotonic_ms()
        self._refilling = False
        self._told_full = False
        # Set while there is something to drop that the manifest still names.
        self.trimmed = False

    # Writing

    def record(
        self, changes: Iterable[Change], done: Done, *, apply: bool = True, sync: bool = True
    ) -> None:
        """Write changes to the journal; `done` is called after the state has taken them.

        With `apply=False` the caller puts them into the state himself, when he is told. Raises
        `StorageFailedError` while nothing is taken.
        """
        self.committer.check()
        listed = list(changes)
        self.log.append(Kind.CHANGES, 0, (encode_changes(listed),), sync=sync)

        def on_done(error: IsterError | None) -> None:
            if error is None and apply:
                self.state.on_changes(listed)
            done(error)

        self.committer.add(on_done)

    def _on_failed(self) -> None:
        for topic in self.topics.values():
            topic.on_failed()

    def _on_lost(self, error: ShardMovedError) -> None:
        self.compactor.close()
        self.on_lost(error)

    # Housekeeping

    def reading_of(self, place: Place) -> Worker:
        """Return the threads that read what lies in a place."""
        return self.workers.reading_remote if place is Place.REMOTE else self.reading

    def tend(self) -> None:
        """Compact, or write a checkpoint, when there is reason to. Called about once a second."""
        if self.committer.error is not None:
            return
        self._watch_owner()
        self._refill()
        self.compactor.tend()
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
            if space.is_full and not self._told_full:
                self._told_full = True
                self._logger.error("disk_full", hint="messages are refused until space is free")
            elif self._told_full and not space.is_full:
                self._told_full = False
                self._logger.info("disk_has_room")

        self.workers.housekeeping.run(space.refill, on_done)

    def _watch_owner(self) -> None:
        """Look whether another broker has taken the log: who writes nothing would not notice.

        Right after this process was stopped, or its machine was, for longer than another broker
        waits; and every now and then.
        """
        now_ms = self.clock.monotonic_ms()
        was_stopped = now_ms - self._tended_ms > STOPPED_MS
        self._tended_ms = now_ms
        if not was_stopped and now_ms - self._watched_ms < WATCH_OWNER_MS:
            return
        self._watched_ms = now_ms

        def on_looked(error: Exception | None) -> None:
            if isinstance(error, StorageTakenError):
                self.committer.lose(error)
            elif error is not None:
                self._logger.warning("owner_not_known", journal=self.name, reason=str(error))

        self.workers.writing.run(self.log.check_owner, on_looked)

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
            # file may be told that all is well after the journal was told otherwise.
            self.record([], on_synced, apply=False)
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
            self.record([], done, apply=False)
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
