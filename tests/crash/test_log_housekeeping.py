"""The disk fails at each step of checkpoints and rewrites, once or several times, then works again.

Afterwards the machine crashes, at once or later. All acknowledged messages are stored, every kept
manifest has its snapshot, and checkpoints continue.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
from tests.crash.conftest import WAYS
from tests.crash.machine import History, Machine, check, in_store, on_disk
from tests.crash.workload import log_options
from tests.unit.log.test_uploads import Tier

from ister.log import ChunkBackend, CompactionPolicy, FileBackend, Kind, plan_compaction
from ister.log.manifest import decode_document, decode_manifest
from ister.log.segment import number_of, snapshot_name
from ister.objects import LocalStore
from ister.testing import Crash, Fault, FaultyDisk, Keep
from ister.testing.disk import Action

POLICY = CompactionPolicy(live_share_min=0.9, density_min=0.9, small_count_min=2, chunk_count_min=3)
# Segments go to the remote tier as they are.
UPLOADS = CompactionPolicy(density_min=0.0, small_count_min=99, upload_before_ms=2**60)
ATTEMPTS_MAX = 30


@dataclass(slots=True)
class Repeated(Fault):
    """Fail an operation and similar ones, a number of times in a row."""

    times: int = 1
    _like: tuple[Action, str] | None = None

    def fits(self, action: Action, name: str, number: int) -> bool:
        like = (action, name.rpartition("/")[0])
        if self._like is None and number == self.at and action not in ("open", "read"):
            self._like = like
        return like == self._like and self.hits < self.times


@dataclass(frozen=True)
class Home:
    """Where a log is kept."""

    open_backend: Callable[[FaultyDisk], FileBackend | ChunkBackend]
    tiered: bool = False

    def open(self, disk: FaultyDisk, history: History) -> "Housekeeper":
        options = log_options()
        if self.tiered:
            options = replace(options, remote=LocalStore(Tier(disk)))
        return Housekeeper(disk, self.open_backend, options, history)

    def live(self, disk: FaultyDisk, history: History) -> "Housekeeper":
        """Use a log, mostly its rewrites and checkpoints; restart once."""
        machine = self.open_with_retries(disk, history)
        machine.work()
        machine.keep_house()
        machine.work()
        machine.keep_house({1: 3, 2: 4, 3: 0})
        machine.close()
        machine = self.open_with_retries(disk, history)
        machine.work()
        machine.keep_house({1: 5, 2: 6})
        for _ in range(4):
            machine.commit(partial(machine.publish, 1, 30))
            machine.checkpoint()
        machine.keep_house()
        return machine

    def open_with_retries(self, disk: FaultyDisk, history: History) -> "Housekeeper":
        for _ in range(ATTEMPTS_MAX):
            try:
                return self.open(disk, history)
            except OSError:
                continue
        raise AssertionError("the log does not open")

    def operations(self) -> int:
        disk = FaultyDisk()
        self.live(disk, History())
        return len(disk.operations)

    def verify(self, disk: FaultyDisk, history: History) -> None:
        """Open the log, check it, continue to use it, and check it again."""
        machine = self.open(disk, history)
        found = check(machine, history.safe)
        machine.history = History(
            history.entries[:found], found, found, dict(history.horizon), history.serial
        )
        machine.commit(partial(machine.publish, 1, 20), machine.mark)
        for _ in range(3):
            machine.keep_house()
        assert check(machine, found + 2) == found + 2
        assert check(self.open(disk.reopen("none"), machine.history), found + 2) == found + 2


class Housekeeper(Machine):
    """A machine that retries until its checkpoints and rewrites succeed."""

    def work(self) -> None:
        """Fill some files with messages of several topics."""
        for _ in range(3):
            self.commit(partial(self.publish, 1, 300), partial(self.publish, 2, 300), self.mark)
            self.commit(partial(self.publish, 3, 200, 200), partial(self.transact, 1, 2))

    def keep_house(self, horizon: dict[int, int] | None = None) -> None:
        """Rewrite segments, if that pays, and make a checkpoint."""
        self.rewrite()
        self.checkpoint(horizon)
        check_documents(self)

    def rewrite(self) -> None:
        """Rewrite segments, if that pays. A failed rewrite leaves nothing, and is retried later."""
        log = self.log
        policy = POLICY if log.options.remote is None else UPLOADS
        rewrite = plan_compaction(log, log.state(), dict(self.history.horizon), policy)
        if rewrite is None:
            return
        try:
            rewrite.run()
        except OSError:
            return
        log.rewritten(rewrite)

    def checkpoint(self, horizon: dict[int, int] | None = None) -> None:
        """Make a checkpoint, retrying until it succeeds."""
        self.history.horizon = dict(horizon or self.history.horizon)
        for _ in range(ATTEMPTS_MAX):
            if self.try_checkpoint():
                return
        raise AssertionError("the disk works again, and no checkpoint can be made")


def check_documents(machine: Machine) -> None:
    """Fail unless every manifest has its snapshot."""
    backend = machine.log.backend
    snapshots = backend.names("snapshots")
    for name in backend.names("manifests"):
        body = decode_document(Kind.MANIFEST, backend.get(name), name, None)
        number = decode_manifest(number_of(name), body, name).snapshot
        assert number < 0 or snapshot_name(number) in snapshots, f"{name} has lost its snapshot"


HOMES = {"files": Home(on_disk), "chunks": Home(in_store), "tier": Home(on_disk, tiered=True)}
FAULTS = [
    (errno.ENOSPC, 1, False),
    (errno.EIO, 5, False),
    (errno.EIO, 1, True),
    (errno.ENOSPC, 18, False),
    (errno.EIO, 5, True),
]


@pytest.fixture(params=list(HOMES.values()), ids=list(HOMES))
def home(request: pytest.FixtureRequest) -> Home:
    """A log in files, in an object store, and in files with a remote tier."""
    found = request.param
    assert isinstance(found, Home)
    return found


def test_housekeeping_creates_and_removes_every_kind_of_file(home: Home) -> None:
    disk = FaultyDisk()
    history = History()
    machine = home.live(disk, history)
    seen = {(operation.action, operation.name.split("/")[0]) for operation in disk.operations}

    assert check(machine, history.committed) == len(history.entries) > 30
    assert {("remove", "manifests"), ("remove", "snapshots"), ("put", "snapshots")} <= seen
    assert ("remove", "chunks" if home is HOMES["chunks"] else "segments") in seen
    if home.tiered:
        assert {("put", "tier"), ("remove", "tier"), ("put", "uploads")} <= seen


def test_after_failures_of_any_step_nothing_is_lost_and_checkpoints_continue(home: Home) -> None:
    for number in range(home.operations()):
        for turn in (0, 1):
            fail_and_verify(home, number, FAULTS[(number + 2 * turn) % len(FAULTS)])


def fail_and_verify(home: Home, number: int, fault: tuple[int, int, bool]) -> None:
    """Fail an operation, continue to the end, and crash there."""
    error, times, done = fault
    disk = FaultyDisk()
    planned = Repeated(error, at=number, times=times, done=done)
    disk.fail(planned)
    history = History()
    keep, seed = WAYS[number % len(WAYS)]
    try:
        machine = home.live(disk, history)
        assert planned.hits
        disk.heal()
        assert check(machine, len(history.entries)) == history.committed
        home.verify(disk.reopen(keep, seed=seed), history)
    except Exception as problem:
        what = disk.operations[number]
        problem.add_note(f"{planned} at operation {number}: {what}, found {keep!r}, seed {seed}")
        raise


def test_after_failures_of_any_step_and_a_later_crash_nothing_is_lost(home: Home) -> None:
    for number in range(home.operations()):
        error, times, done = FAULTS[number % len(FAULTS)]
        later = (1, 2, 3, 5, 8, 13, 21)[number % 7] + times
        disk = FaultyDisk()
        disk.fail(Repeated(error, at=number, times=times, done=done))
        disk.crash_at(number + later)
        history = History()
        try:
            home.live(disk, history)
        except Crash:
            pass
        ways: list[tuple[Keep, int]] = [WAYS[number % 2], WAYS[2 + number % 4]]
        for keep, seed in ways:
            try:
                home.verify(disk.reopen(keep, seed=seed), history)
            except Exception as problem:
                what = disk.operations[number]
                problem.add_note(
                    f"{error}, {times} times, done {done}, at operation {number}: {what}; stop "
                    f"{later} later, found {keep!r}, seed {seed}"
                )
                raise
