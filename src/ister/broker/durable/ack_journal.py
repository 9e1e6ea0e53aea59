"""Writes acknowledgements and failed deliveries of a storage's subscriptions into its journal.

Always true:
- an acknowledgement is in its cursor at once and in the journal with the next group, at the latest
  `LAZY_S` later; whoever asked for a confirmation waits for that;
- what the journal did not take is written with the next group that it takes.
"""

from ister.base.errors import IsterError
from ister.broker.durable.partition import Partition
from ister.broker.scheduling import Done
from ister.broker.state import Acked, Change, Confirmed, Failed, FailedRuns, Runs
from ister.broker.storage import Storage, Write
from ister.broker.streams import BY_ACKS
from ister.subscriptions import Cursor, LeasedRun

# Acknowledgements that nobody waits for may be this late in the journal: what a crash of the
# broker makes us deliver again is what was acknowledged since.
LAZY_S = 0.1


class AckJournal:
    """The acknowledgements of one storage that its journal does not have yet."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._dirty: dict[Partition, None] = {}
        # By subscription, what was acknowledged under which lease and is to be confirmed.
        self._leased: dict[int, list[LeasedRun]] = {}
        # Whether somebody waits for the acknowledgements that are not on the disk yet.
        self._confirming = False
        # Whether some are in the journal without having asked for a sync.
        self._unsynced = False
        self._timed = False
        storage.committer.before_group.append(self._append)

    def mark_dirty(self, partition: Partition) -> None:
        """A cursor has moved: have that in the journal soon."""
        self._dirty[partition] = None
        if partition.topic.record.settings.retention in BY_ACKS:
            partition.topic.on_changed()
        if not self._timed:
            self._timed = True
            self._storage.clock.call_later(LAZY_S, self._on_timer)

    def record_leases(self, subscription: int, runs: list[LeasedRun]) -> None:
        """Have the journal say under which leases messages were acknowledged: `confirm` follows."""
        if runs:
            self._leased.setdefault(subscription, []).extend(runs)

    def confirm(self, done: Done) -> None:
        """Have `done` called when all acknowledgements so far are on the disk.

        Raises `StorageFailedError` while nothing is taken.
        """
        self._storage.committer.check()
        self._confirming = True
        self._storage.committer.add(done)

    def clear(self) -> None:
        """Another broker has the storage: nothing is written any more."""
        self._dirty.clear()

    def _on_timer(self) -> None:
        self._timed = False
        if self._dirty:
            self._storage.committer.wake()

    def _append(self) -> None:
        """Put what has come since the last group into this one."""
        if not self._dirty and not self._confirming:
            return
        dirty, self._dirty = self._dirty, {}
        changes: list[Change] = []
        written: list[tuple[Partition, Cursor, Runs, FailedRuns]] = []
        for partition in dirty:
            cursor = partition.cursor
            runs, failed = cursor.take_changes(), cursor.take_failures()
            written.append((partition, cursor, runs, failed))
            if runs:
                changes.append(Acked(*partition.numbers, runs))
            if failed:
                changes.append(Failed(*partition.numbers, failed))
        leased, self._leased = self._leased, {}
        confirmations = [Confirmed(*item) for item in leased.items()]
        sync, self._confirming = self._confirming, False
        if not (changes or confirmations) and not (sync and self._unsynced):
            return
        self._unsynced = not sync

        def on_done(error: IsterError | None) -> None:
            if error is None:
                return
            for partition, cursor, runs, failed in written:
                cursor.put_back(runs, failed)
                self.mark_dirty(partition)
            for subscription, some in leased.items():
                self.record_leases(subscription, some)

        # What is acknowledged is in the cursors, which are the state's own.
        write = Write(journal_only=changes, changes=confirmations, sync=sync)
        self._storage.piggyback(write, on_done)
