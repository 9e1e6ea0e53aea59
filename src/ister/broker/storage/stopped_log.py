"""A log whose broker is stopped, with its state: for commands that change what is stored.

Always true: every change goes through the journal or through a checkpoint, as those of a broker
do. So the process may be killed at any step, and the next start finds the log as it was before
that step or after it.
"""

from collections.abc import Iterable

from ister.base.errors import BadRequestError
from ister.base.limits import Limits
from ister.broker.state import Budgets, Change, State, encode_changes
from ister.log import ChunkBackend, Entry, FileBackend, Kind, LogOptions, Place, open_log

# A state that has more than its budget forgets some. What the broker may remember is a setting of
# the broker, and nothing that a command may change.
_UNLIMITED = 2**62


def unlimited_budgets() -> Budgets:
    """Return budgets that let states keep all that they have."""
    return Budgets(
        Limits(
            message_ids_max=_UNLIMITED, producers_bytes_max=_UNLIMITED, key_offsets_max=_UNLIMITED
        )
    )


class StoppedLog:
    """A log without a broker, and its state. Blocks; for one thread."""

    def __init__(
        self,
        backend: FileBackend | ChunkBackend,
        options: LogOptions,
        *,
        budgets: Budgets | None = None,
    ) -> None:
        """Open a log; one in an object store is taken over.

        Raises what `open_log` does, and `BadRequestError` when its tier is not given.
        """
        self.backend = backend
        self.budgets = budgets or unlimited_budgets()
        self.state = State(self.budgets)
        self.log = open_log(
            backend,
            options,
            restore=lambda snapshot: self.state.restore(snapshot, now_ms=options.now_ms()),
            apply=self._apply,
            reset=self._reset,
        )
        self.state.drop_dead_cursors()
        in_tier = any(segment.place is Place.REMOTE for segment in self.log.index.segments)
        if isinstance(backend, FileBackend) and in_tier and options.remote is None:
            self.log.close()
            raise BadRequestError("some segments were moved to a store: name it by --tier")

    def _apply(self, entry: Entry) -> None:
        self.state.apply(entry)

    def _reset(self) -> None:
        self.state.close()
        self.state = State(self.budgets)

    @property
    def horizon(self) -> dict[int, int]:
        """The first live offset of each topic."""
        return {one.topic: one.first_offset for one in self.state.topics.values()}

    def record(self, changes: Iterable[Change] = ()) -> None:
        """Have changes in the journal, on the disk, and in the state.

        A journal file that was found at the start is sealed by this, also without changes.
        """
        listed = list(changes)
        self.log.append(Kind.CHANGES, 0, (encode_changes(listed),))
        self.commit()
        self.state.on_changes(listed)

    def commit(self) -> None:
        """Have everything that was appended on the disk."""
        group = self.log.take()
        if group is None:
            return
        self.log.write(group)
        self.log.sync(group)
        self.log.committed(group)

    def checkpoint(self, *, epoch_min: int = 0) -> None:
        """Make a checkpoint, and remove what it no longer names.

        The next start has an epoch above `epoch_min`.
        """
        plan = self.log.plan_checkpoint(self.state.encode(), self.horizon)
        plan.epoch = max(plan.epoch, epoch_min)
        plan.run()
        self.log.checkpointed(plan)
        plan.sweep()

    def close(self) -> None:
        """Let go of the log."""
        self.log.close()
