"""Group commit of timelines: work gathers while the group before it is with the store.

Always true:
- two groups are with the store at most, the second when it is large, so that the store does not
  wait for us; and groups are applied in the order their work came in;
- whoever added work is told once, after it is durable, or with an error;
- a look sees all work that was added before it, and who asked for it is told after who added that;
- when the storage fails, everybody who waits is told so, also who came after that group. The next
  work is tried again.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import structlog

from ister.base import Clock
from ister.base.errors import DiskFullError, IsterError, StorageFailedError
from ister.base.limits import MIB
from ister.broker.timelines.store.workers import StoreWorker
from ister.timeline import (
    Call,
    Group,
    GroupResult,
    Outcomes,
    Put,
    Update,
    Work,
    as_ister_error,
    do_nothing,
)

# The largest group takes a store about 50 ms, and whoever has a message due waits for it.
GROUP_CHANGES_MAX = 4_000
# Of payloads: a group is copied for the store's process in one turn of the event loop.
GROUP_BYTES_MAX = 4 * MIB
# With so many changes a group is given to the store behind another one. Fewer had better gather:
# leases and ends of leases went from 18,000 a second to 25,000 when this was raised from 128.
AHEAD_CHANGES_MIN = 512
GROUPS_MAX = 2
# Changes that are told of in one turn of the event loop: two milliseconds, which everybody else
# waits for.
NOTIFIED_AT_ONCE = 128
# Payloads that wait for the store: a second of the largest messages a disk takes.
WAITING_BYTES_MAX = 64 * MIB

WITH_PAYLOADS = frozenset({Put, Update})

T = TypeVar("T")


class _Piece(NamedTuple):
    work: Work
    size_bytes: int
    done: Callable[[Outcomes], object]


def size_of(work: Work) -> int:
    """Return the bytes of payloads in some work."""
    if WITH_PAYLOADS.isdisjoint(map(type, work.changes)):
        return 0
    return sum([len(c.payload) for c in work.changes if isinstance(c, Put | Update)])


class _Query(NamedTuple):
    call: Call[Any]
    done: Callable[[Any], object]


class Committer:
    """Has changes made in groups. `after_group` is called when some or all were told of one."""

    def __init__(
        self,
        worker: StoreWorker,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], object]], object],
        after_group: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._call_soon = call_soon
        self._after_group = after_group
        self._logger: Any = structlog.get_logger("timelines")
        self._pieces: list[_Piece] = []
        self._queries: list[_Query] = []
        self._waiting_bytes = 0
        # Changes of the pieces; and groups that are with the store.
        self._changes = 0
        self._groups = 0
        self._scheduled = False
        self._closed = False
        # Whom to tell what came of how many changes, in this order.
        self._unnotified: deque[tuple[Callable[[Any], object], Any, int]] = deque()
        self._notifying = False
        # How often the storage failed, and whether it did the last time.
        self.failures = 0
        self._failing = False
        # Whether the last messages were refused because the disk is full.
        self._full = False

    @property
    def is_busy(self) -> bool:
        """Whether the store is at work."""
        return self._groups > 0

    @property
    def full(self) -> bool:
        """Whether owners should be held up."""
        return self._waiting_bytes > WAITING_BYTES_MAX

    def add(self, work: Work, done: Callable[[Outcomes], object]) -> None:
        """Have changes made; `done` is told what came of them."""
        size = size_of(work)
        self._waiting_bytes += size
        self._pieces.append(_Piece(work, size, done))
        self._changes += len(work.changes)
        self._wake()

    def query(self, call: Call[T], done: Callable[[T | IsterError], object]) -> None:
        """Make `call` behind all work so far; `done` is told what it returned."""
        self._queries.append(_Query(call, done))
        self._wake()

    def flush(self, done: Callable[[], object]) -> None:
        """Call `done` when all work so far is made, and what those who were told of it added."""
        self.query(do_nothing, lambda _: self.query(do_nothing, lambda _: done()))

    def close(self) -> None:
        """Begin nothing more. Whoever waits is not told: the broker is at its end."""
        self._closed = True

    def _wake(self) -> None:
        if self._has_turn and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._begin)

    @property
    def _has_turn(self) -> bool:
        is_ahead = self._groups < GROUPS_MAX and self._changes >= AHEAD_CHANGES_MIN
        return not self._groups or is_ahead

    def _begin(self) -> None:
        self._scheduled = False
        if not self._has_turn or self._closed or not (self._pieces or self._queries):
            return
        pieces = self._take()
        # A look may not overtake work that was added before it.
        queries: list[_Query] = []
        if not self._pieces:
            queries, self._queries = self._queries, []
        self._groups += 1
        work = [piece.work for piece in pieces]
        self._changes -= sum([len(one.changes) for one in work])
        group = Group(self._clock.now_ms(), work, [query.call for query in queries])
        self._worker.run(group, partial(self._end, pieces, queries))

    def _take(self) -> list[_Piece]:
        count = size_bytes = 0
        for slot, piece in enumerate(self._pieces):
            count += len(piece.work.changes)
            size_bytes += piece.size_bytes
            if slot and (count > GROUP_CHANGES_MAX or size_bytes > GROUP_BYTES_MAX):
                taken, self._pieces = self._pieces[:slot], self._pieces[slot:]
                return taken
        taken, self._pieces = self._pieces, []
        return taken

    def _end(
        self, pieces: list[_Piece], queries: list[_Query], told: GroupResult | Exception
    ) -> None:
        self._groups -= 1
        self._waiting_bytes -= sum(piece.size_bytes for piece in pieces)
        if isinstance(told, Exception):
            self._fail(pieces, queries, told)
        else:
            # The next group first: the disk works while we tell everybody about this one.
            self._begin()
            for piece, outcomes in zip(pieces, told.outcomes, strict=True):
                self._unnotified.append((piece.done, outcomes, len(piece.work.changes)))
                if piece.size_bytes:
                    self._record_room(outcomes)
            for query, found in zip(queries, told.found, strict=True):
                self._unnotified.append((query.done, found, 1))
            self._record_failures(
                [one for one in told.found if isinstance(one, StorageFailedError)]
            )
        if not self._notifying:
            self._notify_some()

    def _fail(self, pieces: list[_Piece], queries: list[_Query], error: Exception) -> None:
        told = self._record_error(error)
        pieces += self._pieces
        queries += self._queries
        self._waiting_bytes -= sum(piece.size_bytes for piece in self._pieces)
        self._pieces, self._queries, self._changes = [], [], 0
        self._unnotified += [(piece.done, told, 1) for piece in pieces]
        self._unnotified += [(query.done, told, 1) for query in queries]

    def _notify_some(self) -> None:
        """Tell the next ones; let others have the event loop before the rest are told."""
        count = 0
        while self._unnotified and count < NOTIFIED_AT_ONCE:
            done, told, changes = self._unnotified.popleft()
            self._notify(done, told)
            count += changes
        self._notifying = bool(self._unnotified)
        if self._notifying:
            self._call_soon(self._notify_some)
        self._after_group()

    def _record_error(self, error: Exception) -> IsterError:
        """Return what to tell of an error."""
        told = as_ister_error(error)
        if isinstance(told, StorageFailedError):
            self._record_failures([told])
        else:
            self.failures += 1
            self._logger.error("timelines_failed", reason=str(told), exc_info=error)
        return told

    def _record_failures(self, failed: list[StorageFailedError]) -> None:
        """Log when the storage begins to fail, and when it has come back."""
        self.failures += bool(failed)
        if failed and not self._failing:
            self._logger.error("timelines_failed", reason=failed[0].reason)
        elif self._failing and not failed:
            self._logger.info("timelines_recovered")
        self._failing = bool(failed)

    def _record_room(self, outcomes: Outcomes) -> None:
        """Log when messages begin to be refused on a full disk, and when they are taken again."""
        # Messages of one command are refused together.
        full = isinstance(outcomes[0] if isinstance(outcomes, list) else outcomes, DiskFullError)
        if full and not self._full:
            self._logger.error("timelines_full")
        elif self._full and not full:
            self._logger.info("timelines_have_room")
        self._full = full

    def _notify(self, done: Callable[[Any], object], told: object) -> None:
        """Tell one: who fails on it must not keep it from the others."""
        try:
            done(told)
        except Exception:  # A bug costs one answer, not those of a group.
            self._logger.exception("internal_error")
