"""One log with its ledger: what writes to it, reads from it, and keeps it in order.

A broker has one vault in its data folder, and may have another in an object store. Always true:
- acknowledgements are in the cursors at once and in the journal with the next group, at the
  latest `LAZY_S` later; whoever asked for a confirmation waits for that;
- a checkpoint is written in the background, one at a time.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import structlog

from ister.base import Clock
from ister.base.errors import IsterError, StorageFailedError
from ister.broker.changes import Acked, Change, Failed, FailedRuns, Runs, encode_changes
from ister.broker.committer import Committer, Done
from ister.broker.compactor import UPLOAD_AFTER_MS, Compactor
from ister.broker.ledger import Ledger
from ister.broker.tail import TailBudget
from ister.broker.workers import Worker
from ister.log import Kind, Log
from ister.subscriptions import Cursor

if TYPE_CHECKING:
    from ister.broker.stream import StreamTopic
    from ister.broker.track import Track

# Acknowledgements that nobody waits for may be this late in the journal: what a crash of the
# broker makes us deliver again is what was acknowledged since.
LAZY_S = 0.1
# A checkpoint costs a pass over the ledger; what it saves is replaying a file at the next start.
CHECKPOINT_S_MIN = 2.0


class Workers:
    """The threads of a vault: writing, reading, housekeeping, compacting."""

    __slots__ = ("compacting", "housekeeping", "reading", "writing")

    def __init__(
        self,
        *,
        writing: Worker,
        reading: Worker,
        housekeeping: Worker,
        compacting: Worker | None = None,
    ) -> None:
        self.writing = writing
        self.reading = reading
        self.housekeeping = housekeeping
        # A rewrite takes minutes; without a thread of its own, checkpoints wait for it.
        self.compacting = compacting or housekeeping

    def close(self) -> None:
        """End them all. Blocks until what was given to them is done."""
        self.writing.close()
        self.reading.close()
        self.housekeeping.close()
        self.compacting.close()


class Vault:
    """See the module."""

    def __init__(
        self,
        log: Log,
        ledger: Ledger,
        *,
        workers: Workers,
        clock: Clock,
        budget: TailBudget,
        call_soon: Callable[[Callable[[], object]], object],
        upload_after_ms: int = UPLOAD_AFTER_MS,
    ) -> None:
        # What metrics call it: "local" or "object".
        self.name = "local"
        self.log = log
        self.ledger = ledger
        self.clock = clock
        # When this life of the broker began: leases are told apart by it.
        self.life = clock.now_ms()
        self.budget = budget
        self.workers = workers
        self.reading = workers.reading
        self.topics: dict[int, StreamTopic] = {}
        self.committer = Committer(
            log,
            worker=workers.writing,
            clock=clock,
            call_soon=call_soon,
            before_take=self._append_acks,
            on_failed=self._on_failed,
        )
        self.compactor = Compactor(
            log,
            ledger,
            worker=workers.compacting,
            clock=clock,
            upload_after_ms=upload_after_ms,
        )
        self.compactions = self.compactor.figures
        self._call_soon = call_soon
        self._logger: Any = structlog.get_logger("storage")
        self._dirty: dict[Track, None] = {}
        # Whether somebody waits for the acknowledgements that are not on the disk yet.
        self._confirming = False
        # Whether some are in the journal without having asked for a sync.
        self._acks_unsynced = False
        self._lazy = False
        self._checkpointing = False
        self._checkpointed_ms = -(10**9)
        self._checkpoint_timer = False
        # Set while there is something to drop that the manifest still names.
        self.trimmed = False

    # Writing

    def record(
        self, changes: Iterable[Change], done: Done, *, apply: bool = True, sync: bool = True
    ) -> None:
        """Write changes to the journal; `done` is called after the ledger has taken them.

        With `apply=False` the caller puts them into the ledger himself, when he is told. Raises
        `StorageFailedError` while nothing is taken.
        """
        self.committer.check()
        listed = list(changes)
        self.log.append(Kind.CHANGES, 0, (encode_changes(listed),), sync=sync)

        def on_done(error: IsterError | None) -> None:
            if error is None and apply:
                self.ledger.on_changes(listed)
            done(error)

        self.committer.add(on_done)

    def on_acked(self, track: "Track") -> None:
        """A cursor has moved: have that in the journal soon."""
        self._dirty[track] = None
        if not self._lazy:
            self._lazy = True
            self.clock.call_later(LAZY_S, self._on_lazy)

    def confirm(self, done: Done) -> None:
        """Have `done` called when all acknowledgements so far are on the disk."""
        self.committer.check()
        self._confirming = True
        self.committer.add(done)

    def _on_lazy(self) -> None:
        self._lazy = False
        if self._dirty:
            self.committer.kick()

    def _append_acks(self) -> None:
        """Put the acknowledgements since the last group into this one."""
        if not self._dirty and not self._confirming:
            return
        dirty, self._dirty = self._dirty, {}
        changes: list[Change] = []
        written: list[tuple[Track, Cursor, Runs, FailedRuns]] = []
        for track in dirty:
            subscription, topic = track.numbers
            runs, failed = track.take_changes()
            written.append((track, track.cursor, runs, failed))
            if runs:
                changes.append(Acked(subscription, topic, runs))
            if failed:
                changes.append(Failed(subscription, topic, failed))
        sync, self._confirming = self._confirming, False
        if not changes and not (sync and self._acks_unsynced):
            return
        self._acks_unsynced = not sync
        self.log.append(Kind.CHANGES, 0, (encode_changes(changes),), sync=sync)

        def on_done(error: IsterError | None) -> None:
            if error is not None:
                for track, cursor, runs, failed in written:
                    track.put_back(cursor, runs, failed)

        self.committer.ride(on_done)

    def _on_failed(self) -> None:
        for topic in self.topics.values():
            topic.on_failed()

    # Housekeeping

    def tend(self) -> None:
        """Compact, or write a checkpoint, when there is reason to. Called about once a second."""
        if self.committer.error is None:
            self.compactor.tend()
        if self._checkpointing or not (self.log.wants_checkpoint or self.trimmed):
            return
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._checkpointed_ms < CHECKPOINT_S_MIN * 1000 or self.committer.error:
            return
        self.checkpoint(lambda error: None)

    @property
    def checkpointing(self) -> bool:
        """Whether a checkpoint is being written: one at a time."""
        return self._checkpointing

    def checkpoint(self, done: Callable[[Exception | None], object]) -> None:
        """Write the ledger and a manifest, and drop what neither names any more.

        Raises `StorageFailedError` while nothing is taken.
        """
        self.committer.check()
        self._checkpointing = True
        self._checkpointed_ms = self.clock.monotonic_ms()

        def on_done(error: Exception | None) -> None:
            self._checkpointing = False
            if error is not None:
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
        horizon = {t.topic: t.first_offset for t in self.ledger.topics.values()}
        # Before the ledger is encoded, which takes some turns of the loop: what is newer than the
        # plan is replayed on top of it, and what is older would not be.
        plan = self.log.plan_checkpoint(b"", horizon)
        encoding = self.ledger.encoding()
        failures = self.committer.figures.failures

        def on_done(error: Exception | None) -> None:
            if error is None:
                self.log.checkpointed(plan)
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
        """Have all that is in the ledger by now in the journal, and on the disk.

        Some changes are in the ledger before they are in the journal: a cursor that is moved, a
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

    def close(self) -> None:
        """Close the log, after everything is committed. Blocks."""
        self.committer.close()
        self.compactor.close()
        self.workers.close()
        self.log.close()
