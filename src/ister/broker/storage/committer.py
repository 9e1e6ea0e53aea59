"""Group commit: entries gather while the group before them is written and synced.

    RESTING --first entry--> COMMITTING --done, nothing gathered--> RESTING
    COMMITTING --error, nothing written--> FAILED --recovered--> RESTING
    COMMITTING --error--> VOIDING --recovered--> RESTING
                          VOIDING --error--> FAILED
    any --another broker has the storage--> LOST

Always true:
- one group is being written at most, and groups are written in the order of their entries;
- `done` of an entry is called once: without an error after its group is as durable as it asked
  for, or with one, and then nothing of the group is visible or acknowledged;
- with `StorageFailedError` no later start finds anything of the group: it was never written, was
  cut off, or the journal has gone on behind it. VOIDING tries that before anybody is answered. When
  it fails too the error is `StorageUncertainError`;
- in VOIDING and FAILED no entry is accepted. Callers that changed state for an entry are asked to
  undo it;
- LOST is the end: nothing is written or tried any more, and everybody gets `ShardMovedError`.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import structlog

from ister.base import Clock
from ister.base.errors import (
    DiskFullError,
    IsterError,
    ShardMovedError,
    StorageFailedError,
    StorageTakenError,
    StorageUncertainError,
)
from ister.broker.scheduling import Done, Worker, ignore
from ister.broker.storage.commit_figures import CommitFigures
from ister.log import Group, Log, is_disk_full

# While changes are taken and messages are not.
FULL = "the disk is full"
# How often a failed storage is tried again.
RETRY_S = 1.0
# A group that may be written in the event loop, and what the disk may take for it at worst: of a
# disk that syncs in 0.2 ms, hardly any takes longer.
AT_ONCE_BYTES = 4 * 1024
AT_ONCE_S = 0.002
# What may wait for the disk before producers are not read from any more: a quarter of a second
# at 250 MB/s, so that a disk with pauses is still kept busy.
COMMITTING_BYTES_MAX = 64 * 1024 * 1024


class Committer:
    """Writes what a log collects, a group at a time, and tells everybody who waits for it."""

    def __init__(
        self,
        log: Log,
        *,
        worker: Worker,
        clock: Clock,
        call_soon: Callable[[Callable[[], object]], object],
        shard: Callable[[], str] = lambda: "local",
    ) -> None:
        """`shard` is what the log is called."""
        self.log = log
        self.error: StorageFailedError | ShardMovedError | None = None
        # Called before a group is taken: who has gathered something for it appends that now.
        self.before_group: list[Callable[[], object]] = []
        # Called when a group has failed, before anybody gets its error: who has changed state for
        # an entry undoes that.
        self.on_failure: list[Callable[[], object]] = []
        # Called once, when the storage is lost and everybody who waited has an answer.
        self.on_lost: Callable[[ShardMovedError], object] = ignore
        self.figures = CommitFigures()
        self._worker = worker
        self._clock = clock
        self._call_soon = call_soon
        self._shard = shard
        self._logger: Any = structlog.get_logger("storage")
        self._waiting: list[Done] = []
        self._committing: list[Done] | None = None
        self._committing_bytes = 0
        self._scheduled = False
        # Whether somebody wanted a commit while one was under way: acknowledgements, say, which
        # are gathered only when the next group is begun.
        self._woken = False
        self._closed = False
        # Whether a small group may be written in the event loop, when the disk is quick: going to
        # a thread and back costs as much as such a disk does. Whoever has few connections to
        # serve says so.
        self.at_once: Callable[[], bool] = lambda: False
        self._commit_s = 1.0
        # Called after the callbacks of a commit: doors send what that has set off.
        self.after_commit: list[Callable[[], object]] = []
        # Whether one entry alone was committed: its answer is worth a system call of its own.
        self.lone = False
        self._relieved: list[Callable[[], object]] = []
        self._idle: list[Callable[[], object]] = []

    @property
    def full(self) -> bool:
        """Whether producers should be held up."""
        return self._committing_bytes + self.log.collecting_bytes > COMMITTING_BYTES_MAX

    @property
    def resting(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return self._committing is None and not self.log.collecting

    @property
    def lost(self) -> bool:
        """Whether another broker has the storage."""
        return isinstance(self.error, ShardMovedError)

    @property
    def trouble(self) -> str:
        """Why messages are not taken, empty when they are."""
        if self.error is not None:
            return str(self.error)
        return str(DiskFullError(FULL)) if self.log.disk_full else ""

    def check(self) -> None:
        """Raise while durable writes are not taken: `StorageFailedError`, `ShardMovedError`."""
        if self.error is not None:
            raise self.error

    def check_owned(self) -> None:
        """Raise `ShardMovedError` when another broker has the storage."""
        if isinstance(self.error, ShardMovedError):
            raise self.error

    def lose(self, taken: StorageTakenError) -> None:
        """Another broker has the storage: write nothing any more.

        A group that is being written is waited for. When it was stored, that broker has it.
        """
        if self.lost:
            return
        self._lose(taken)
        if self._committing is None:
            self._discard(Group(), self.error)

    def check_room(self) -> None:
        """Raise as `check` does, and `DiskFullError` while no messages are taken."""
        if self.error is not None:
            raise self.error
        if self.log.disk_full:
            raise DiskFullError(FULL)

    def add(self, done: Done) -> None:
        """Have `done` called when everything appended so far is as durable as it asked to be."""
        self._waiting.append(done)
        self.wake()

    def after(self, done: Done) -> None:
        """As `add`, but at once when nothing is under way, also when the storage has failed.

        For callers that find something done already: its commit may still be under way.
        """
        if self.resting:
            done(None)
        else:
            self.add(done)

    def piggyback(self, done: Done) -> None:
        """As `add`, for what need not be committed before something else is."""
        self._waiting.append(done)

    def wake(self) -> None:
        """Commit what has gathered, at the end of this turn of the loop or after this group."""
        if self._committing is not None:
            self._woken = True
        elif not self._scheduled and self.error is None:
            self._scheduled = True
            self._call_soon(self._begin)

    def on_relief(self, call: Callable[[], object]) -> None:
        """Call `call` once when producers need not be held up any more."""
        self._relieved.append(call)

    def on_idle(self, call: Callable[[], object]) -> None:
        """Call `call` once when nothing is left to commit."""
        if self.resting and not self._waiting:
            call()
        else:
            self._idle.append(call)

    def close(self) -> None:
        """Take nothing more, and try no recovery."""
        self._closed = True

    def _begin(self, *, may_block: bool = True) -> None:
        self._scheduled = False
        if self._committing is not None or self.error is not None or self._closed:
            return
        self._woken = False
        for call in self.before_group:
            call()
        group = self.log.take()
        waiting, self._waiting = self._waiting, []
        if group is None:
            self._answer_all(waiting, None)
            self._call_once(self._idle)
            return
        self._committing = waiting
        self._committing_bytes = group.size_bytes
        is_small = group.size_bytes <= AT_ONCE_BYTES and self._commit_s <= AT_ONCE_S
        if may_block and is_small and self.at_once():
            self._end(group, self._try_write(group))
        else:
            self._worker.run(lambda: self._write(group), lambda e: self._end(group, e))

    def _try_write(self, group: Group) -> Exception | None:
        try:
            self._write(group)
        except Exception as error:  # noqa: BLE001 - passed to who waits
            return error
        return None

    def _write(self, group: Group) -> None:
        """Write and sync; mostly in the worker's thread."""
        start_s = perf_counter()
        self.log.write(group)
        if group.needs_sync:
            self.log.sync(group)
        took_s = perf_counter() - start_s
        self.figures.add(took_s, group.size_bytes)
        # What to expect of the next one: as bad as the worst of late.
        self._commit_s = max(took_s, self._commit_s * 0.9)

    def _end(self, group: Group, error: Exception | None) -> None:
        if error is not None:
            self._fail(group, error)
            return
        waiting, self._committing = self._committing or [], None
        self._committing_bytes = 0
        self.log.committed(group)
        # The next group first: the disk works while we tell everybody about this one. Not in the
        # event loop: callers of the next group would be answered before those of this one.
        if self.log.collecting:
            self._begin(may_block=False)
        self.lone = len(waiting) == 1
        self._answer_all(waiting, None)
        for call in self.after_commit:
            call()
        if self.lost:
            self._discard(Group(), None)
            return
        if not self.full:
            self._call_once(self._relieved)
        if self.resting:
            if self._waiting or self._woken:
                self.wake()
            else:
                self._call_once(self._idle)

    def _fail(self, group: Group, error: Exception) -> None:
        self.figures.failures += 1
        if isinstance(error, StorageTakenError):
            if not self.lost:
                self._lose(error)
            self._discard(group, self.error)
            return
        reason = str(error) if isinstance(error, IsterError) else f"{type(error).__name__}: {error}"
        full = is_disk_full(error)
        failed = DiskFullError(reason) if full else StorageFailedError(reason)
        if not self.lost:
            self.error = failed
        self._logger.error("storage_failed", reason=reason, exc_info=error)
        self._take_back(group)
        if group.reached and not self._closed and not self.lost:
            self._worker.run(self.log.recover, lambda e: self._on_voided(failed, e))
            return
        self._answer_failed(StorageUncertainError(reason) if group.reached else failed)
        if not self.lost:
            # On a full disk there may be room for a smaller group, or a reserve for changes.
            self._retry_later(0.0 if full else RETRY_S)

    def _on_voided(self, failed: StorageFailedError, error: Exception | None) -> None:
        committing, self._committing = self._committing or [], None
        waiting, self._waiting = self._waiting, []
        was_lost = self.lost
        # First: a caller may try again as soon as it is answered.
        self._on_retried(error)
        void = error is None or self.log.voided
        outcome = failed if void else StorageUncertainError(failed.reason)
        self._answer_all([*committing, *waiting], outcome)
        self._call_once(self._relieved)
        self._call_once(self._idle)
        if was_lost:
            self._discard(Group(), self.error)

    def _lose(self, taken: StorageTakenError) -> None:
        self.error = ShardMovedError(self._shard(), taken.place)
        self._logger.error(
            "storage_lost",
            journal=self._shard(),
            place=taken.place,
            hint="another broker has taken over this storage; clients get ShardMovedError",
        )

    def _discard(self, group: Group, failed: IsterError | None) -> None:
        """Forget `group`, which has `failed`, and all that was to come after it."""
        self._take_back(group)
        self._answer_failed(failed)

    def _take_back(self, group: Group) -> None:
        """Undo the state of all entries before any caller gets its error."""
        self.log.failed(group)
        self._committing_bytes = 0
        for call in self.on_failure:
            call()

    def _answer_failed(self, failed: IsterError | None) -> None:
        committing, self._committing = self._committing or [], None
        waiting, self._waiting = self._waiting, []
        self._answer_all(committing, failed)
        # Some may wait for what somebody else has in the group that failed.
        uncertain = failed if isinstance(failed, StorageUncertainError) else None
        self._answer_all(waiting, uncertain or self.error)
        self._call_once(self._relieved)
        self._call_once(self._idle)
        if isinstance(self.error, ShardMovedError):
            self.on_lost(self.error)

    def _retry_later(self, delay_s: float = RETRY_S) -> None:
        if not self._closed:
            self._clock.call_later(delay_s, self._retry)

    def _retry(self) -> None:
        if not self._closed and not self.lost:
            self._worker.run(self.log.recover, self._on_retried)

    def _on_retried(self, error: Exception | None) -> None:
        if self.lost:
            return
        if isinstance(error, StorageTakenError):
            self.lose(error)
            return
        if error is not None:
            self._logger.warning("storage_still_failed", reason=str(error))
            self._retry_later()
            return
        self.error = None
        self._logger.info("storage_recovered")
        self.wake()

    def _answer_all(self, waiting: list[Done], error: IsterError | None) -> None:
        """Call all that wait: one that raises must not keep the answer from the others."""
        for done in waiting:
            try:
                done(error)
            except Exception:  # A bug costs one answer, not those of a group.
                self._logger.exception("internal_error")

    def _call_once(self, calls: list[Callable[[], object]]) -> None:
        due = calls[:]
        calls.clear()
        for call in due:
            call()
